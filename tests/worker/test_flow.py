"""Flow control with real worker processes on both engines, measured from ledgers that the bodies write."""

import collections
import time
from pathlib import Path

import pytest

from evenflow import Evenflow, Rate
from tests.processes import wait_until
from tests.worker import flow
from tests.worker.command import Books
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.flow_jobs import (
    BURST,
    CLUSTER_CAP,
    GROUP_CAPS,
    KEY_CAP,
    QUEUE_CAP,
    QUEUES,
    RATES,
    SLOTS,
    WEIGHTS,
    declared,
)

pytestmark = pytest.mark.process

FOUR = ("--processes", "2", "--concurrency", str(SLOTS))


@pytest.fixture
def flow_app(engine_url: str, make_app: MakeApp) -> Evenflow:
    """The app of `tests.worker.flow_jobs`, for the side of the test; once on each engine."""
    app = declared(make_app(engine_url, queues=QUEUES))
    app.prepare()
    return app


def test_no_cap_key_or_lock_is_exceeded_while_processes_are_killed_and_nothing_leaks(
    start_worker: StartWorker, flow_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    jobs = 60
    workers = [
        start_worker(engine_url, *FOUR, locator=flow.LOCATOR, EVENFLOW_CLUSTER_WIDE_CAP=CLUSTER_CAP)
        for _ in range(2)
    ]
    for worker in workers:
        worker.ready(2)
    flow.enqueue_limited(flow_app, jobs, 0.03)
    deaths = flow.kill_between(4, 2 * jobs, workers, tmp_path / "bodies", seed=11)
    flow.drained(flow_app, 80)
    most = flow.greatest_overlaps(tmp_path / "bodies", deaths)
    assert len(deaths) == 4
    assert most["worker"] <= SLOTS
    assert most["queue"] <= QUEUE_CAP
    assert most["cluster"] <= CLUSTER_CAP
    assert most["key"] <= KEY_CAP
    assert most["lock"] == 1
    of_groups = flow.greatest_overlaps_of_groups(tmp_path / "bodies", deaths)
    assert {group: of_groups[group] <= cap for group, cap in GROUP_CAPS.items()} == dict.fromkeys(
        GROUP_CAPS, True
    )
    assert flow.left_in_the_books(flow_app, engine_url) == {}


def test_no_window_of_bodies_holds_more_starts_than_its_rate(
    start_worker: StartWorker, flow_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    jobs = 500
    calls = [flow_app.tasks["rated" if n % 2 else "arated"].job(n) for n in range(jobs)]
    flow_app.enqueue_many(calls)
    for _ in range(2):
        start_worker(engine_url, *FOUR, locator=flow.LOCATOR)
    flow.drained(flow_app, 90)
    starts = [at for at, _ in flow.starts_in(tmp_path)]
    assert len(starts) == jobs
    for rate in map(Rate, RATES):
        # Each of the two tasks has a window of its own.
        by_task = collections.defaultdict(list)
        for at, number in flow.starts_in(tmp_path):
            by_task[int(number) % 2].append(at)
        assert {
            flow.most_in_a_window(of, rate.window_us * 1000) <= rate.count for of in by_task.values()
        } == {True}
    # The second one has a burst as well, which spaces its claims: so many at most in a tenth of a second.
    claims = Books(engine_url).rows("select started_at from {history} where task = 'arated'")
    claimed = [at * 1000 for (at,) in claims]
    assert len(claimed) == jobs // 2
    assert flow.most_in_a_window(claimed, Rate(RATES[0]).window_us * 1000 * BURST // 120) <= BURST


@pytest.mark.either
def test_a_single_job_starts_within_a_round_of_another_group_s_backlog(
    start_worker: StartWorker, flow_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    flow_app.tasks["equal"].enqueue_many([("bob",)] * 10_000)
    worker = start_worker(engine_url, *FOUR, locator=flow.LOCATOR)
    wait_until(lambda: len(flow.starts_in(tmp_path)) > 50, "bob's jobs to start", 60)
    flow_app.tasks["equal"].enqueue("alice")
    enqueued_at = time.time_ns() // 1000  # the clock of both databases here; she may have been seen before
    wait_until(lambda: b" alice" in (tmp_path / "starts").read_bytes(), "alice's job", 60)
    worker.stop()
    # By their claims: a process that stands still between a claim and its body says nothing about turns.
    claims = claims_of(engine_url)
    (alice,) = [at for at, group in claims if group == "alice"]
    between = sum(enqueued_at < at < alice for at, _ in claims)
    # What was claimed before she came, one round of two groups, and what V lags behind while a claim is on its way.
    assert between <= 8 * SLOTS


def claims_of(url: str) -> list[tuple[int, str]]:
    """When the jobs that have ended were claimed, in microseconds and in their order, and their groups."""
    return sorted(Books(url).rows("select started_at, group_key from {history}"))


@pytest.mark.parametrize("queue", ["equal", "weighted"])
@pytest.mark.either
def test_groups_share_a_queue_by_their_weights(
    start_worker: StartWorker, flow_app: Evenflow, engine_url: str, tmp_path: Path, queue: str
) -> None:
    weights = WEIGHTS if queue == "weighted" else {f"group-{number}": 1 for number in range(7)}
    for group in weights:
        flow_app.tasks[queue].enqueue_many([(group,)] * 300)
    looked_at = 420  # while every group has a backlog
    worker = start_worker(engine_url, *FOUR, locator=flow.LOCATOR)
    wait_until(lambda: len(flow.starts_in(tmp_path)) >= looked_at, "enough jobs to start", 60)
    worker.stop()
    counts = collections.Counter(group for _, group in claims_of(engine_url)[:looked_at])
    fair = {group: looked_at * weight / sum(weights.values()) for group, weight in weights.items()}
    assert {
        group: abs(counts[group] - share) / share <= 0.05 for group, share in fair.items()
    } == dict.fromkeys(weights, True)
    assert flow.jain([round(counts[group] / weights[group]) for group in weights]) >= 0.99
