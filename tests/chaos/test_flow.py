"""Flow control in numbers: caps under minutes of kill -9, and ten thousand starts under two rates.

`EVENFLOW_FLOW_SECONDS` says for how long processes are killed (60), `EVENFLOW_FLOW_STARTS` how many start (10,000).
"""

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenflow import Evenflow, Rate
from tests.worker import flow
from tests.worker.command import WorkerCommand
from tests.worker.flow_jobs import CLUSTER_CAP, GROUP_CAPS, KEY_CAP, QUEUE_CAP, QUEUES, RATES, SLOTS, declared

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

SECONDS = float(os.environ.get("EVENFLOW_FLOW_SECONDS", "60"))
STARTS = int(os.environ.get("EVENFLOW_FLOW_STARTS", "10000"))


@pytest.fixture
def flow_app(chaos_url: str) -> Iterator[Evenflow]:
    with Evenflow(chaos_url, queues=QUEUES) as app:
        app.prepare()
        yield declared(app)


@contextlib.contextmanager
def two_commands(url: str, folder: Path, **settings: object) -> Iterator[list[WorkerCommand]]:
    options = ("--processes", "2", "--concurrency", str(SLOTS))
    with contextlib.ExitStack() as stack:
        yield [
            stack.enter_context(WorkerCommand(url, folder, *options, locator=flow.LOCATOR, **settings)).ready(
                2
            )
            for _ in range(2)
        ]


def test_no_cap_is_exceeded_and_nothing_leaks(flow_app: Evenflow, chaos_url: str, tmp_path: Path) -> None:
    flow.enqueue_limited(flow_app, int(SECONDS * 20), 0.03)
    with two_commands(chaos_url, tmp_path, EVENFLOW_CLUSTER_WIDE_CAP=CLUSTER_CAP) as workers:
        deaths = flow.kill_for(SECONDS, workers, seed=7)
        flow.drained(flow_app, 900)
    most = flow.greatest_overlaps(tmp_path / "bodies", deaths)
    print(f"\n{len(deaths)} kills: at once at most {most}")
    caps = {"worker": SLOTS, "queue": QUEUE_CAP, "cluster": CLUSTER_CAP, "key": KEY_CAP, "lock": 1}
    assert {name: most[name] <= cap for name, cap in caps.items()} == dict.fromkeys(caps, True)
    of_groups = flow.greatest_overlaps_of_groups(tmp_path / "bodies", deaths)
    assert {name: of_groups[name] <= cap for name, cap in GROUP_CAPS.items()} == dict.fromkeys(
        GROUP_CAPS, True
    )
    assert flow.left_in_the_books(flow_app, chaos_url) == {}


def test_no_window_holds_more_starts_than_its_rate(
    flow_app: Evenflow, chaos_url: str, tmp_path: Path
) -> None:
    flow_app.tasks["rated"].enqueue_many([(number,) for number in range(STARTS)])
    with two_commands(chaos_url, tmp_path):
        flow.drained(flow_app, 1500)
    starts = [at for at, _ in flow.starts_in(tmp_path)]
    most = {rate.limit: flow.most_in_a_window(starts, rate.window_us * 1000) for rate in map(Rate, RATES)}
    print(f"\n{len(starts)} starts: in one window at most {most}")
    assert len(starts) == STARTS
    assert all(most[rate.limit] <= rate.count for rate in map(Rate, RATES))
