"""Recurring tasks under real supervisors: found, fired once by whoever comes first, run by their workers."""

import json
from collections import Counter
from pathlib import Path

import pytest

from tests.cli.running import evenflow
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import StartWorker

pytestmark = [pytest.mark.process, pytest.mark.either]

LOCATOR = "tests.worker.recurring_jobs:app"
# The database comes first among the arguments of a test: it goes last, when nobody writes to it any more.


def ticks(folder: Path) -> list[str]:
    """The jobs whose bodies have run, as they noted themselves."""
    path = folder / "ticks"
    return path.read_text().split() if path.exists() else []


@pytest.mark.either
def test_several_supervisors_run_one_job_for_each_slot(
    engine_url: str, start_worker: StartWorker, books: Books, tmp_path: Path
) -> None:
    options = ("--processes", "1", "--concurrency", "2")
    workers = [start_worker(engine_url, *options, locator=LOCATOR).ready() for _ in range(3)]
    workers[0].said("with 1 task and 1 schedule")
    wait_until(lambda: len(ticks(tmp_path)) >= 4, "four ticks", 60)
    for worker in workers:
        assert worker.stop() == 0
    fires = books.rows("select slot, job_id from {fire} where outcome = 'enqueued' order by slot")
    slots = [slot for slot, _ in fires]
    assert len(slots) >= 4
    assert slots == list(range(slots[0], slots[-1] + 1, 1_000_000))
    ran = Counter(ticks(tmp_path))
    assert max(ran.values()) == 1
    states = books.states()
    assert states["succeeded"] == len(ran)
    assert sum(states.values()) == len(slots)


def test_the_services_of_a_supervisor_are_visible_as_alive(
    sqlite_url: str, start_worker: StartWorker
) -> None:
    start_worker(sqlite_url, "--processes", "1", locator=LOCATOR).ready().said("schedules declared: tick")
    found = json.loads(evenflow("workers", "--url", sqlite_url, "--json").stdout)["workers"]
    (supervisor,) = [row for row in found if row["kind"] == "supervisor"]
    assert (supervisor["alive"], supervisor["services"]) == (
        True, ["dispatcher", "scheduler", "rescuer", "pruner", "spacer"],
    )  # fmt: skip
    assert "dispatcher, scheduler, rescuer, pruner, spacer" in evenflow("workers", "--url", sqlite_url).stdout
    schedules = json.loads(evenflow("schedules", "--url", sqlite_url, "--json").stdout)
    assert [row["state"] for row in schedules["schedules"]] == ["active"]
    assert len(schedules["schedulers"]) == 1


def test_without_services_nothing_fires_here(sqlite_url: str, start_worker: StartWorker) -> None:
    start_worker(sqlite_url, "--processes", "1", "--no-services", locator=LOCATOR).ready()
    books = Books(sqlite_url)
    assert books.rows("select * from {scheduler}") == []
    ((about,),) = books.rows("select about from {worker} where kind = 'supervisor'")
    assert json.loads(about)["services"] == []
