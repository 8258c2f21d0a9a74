"""Caps over several worker commands with several processes each, measured from the ledger that the bodies write."""

import signal
from pathlib import Path

import pytest

from evenflow import Evenflow, Queue
from tests.ledger import intervals, most_at_once
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.jobs import declared

pytestmark = pytest.mark.process

JOBS = 40


def enqueue(app: Evenflow, lasting_s: float = 0.05) -> None:
    app.tasks["work"].enqueue_many([(f"job-{number}", lasting_s) for number in range(JOBS)])


def all_done(app: Evenflow) -> bool:
    return sum(1 for _ in app.jobs(state="succeeded")) == JOBS


def test_a_queue_cap_holds_over_two_commands_and_is_reached(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    jobs_app.set_limit("default", max_concurrency=3)
    enqueue(jobs_app, lasting_s=0.2)
    for _ in range(2):
        start_worker(engine_url, "--processes", "2", "--concurrency", "4")
    wait_until(lambda: all_done(jobs_app), "all jobs to succeed", 90)
    runs = intervals(tmp_path / "bodies")
    assert len(runs) == JOBS
    assert most_at_once(runs) == 3


@pytest.mark.either
def test_the_cluster_s_cap_holds_over_two_commands_and_is_reached(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    enqueue(jobs_app, lasting_s=0.3)  # long enough for all places to be taken at once, also on a busy machine
    for _ in range(2):
        start_worker(engine_url, "--processes", "2", "--concurrency", "4", EVENFLOW_CLUSTER_WIDE_CAP=5)
    wait_until(lambda: all_done(jobs_app), "all jobs to succeed", 90)
    assert most_at_once(intervals(tmp_path / "bodies")) == 5


def test_a_queue_cap_holds_while_worker_processes_are_killed(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    jobs_app.set_limit("default", max_concurrency=2)
    enqueue(jobs_app)
    worker = start_worker(engine_url, "--processes", "2", "--concurrency", "3").ready(2)
    for begun in (3, 10):
        wait_until(lambda least=begun: len(intervals(tmp_path / "bodies")) >= least, "jobs to run", 60)  # type: ignore[misc]
        worker.send(signal.SIGKILL, worker.children()[0])
    wait_until(lambda: all_done(jobs_app), "all jobs to succeed", 90)
    ended = [run for run in intervals(tmp_path / "bodies") if run.ended is not None]
    assert len({run.job for run in ended}) == JOBS
    assert most_at_once(ended) <= 2


@pytest.mark.either
def test_caps_of_three_queues_and_of_the_cluster_hold_together_and_the_first_queue_is_served_first(
    start_worker: StartWorker, make_app: MakeApp, engine_url: str, books: Books, tmp_path: Path
) -> None:
    """S0-60, S2-26"""
    priorities, each = {"first": 1, "second": 50, "third": 100}, 12
    queues = [Queue(name, priority=number, max_concurrency=2) for name, number in priorities.items()]
    app = declared(make_app(engine_url, queues=queues))
    work = app.tasks["work"]
    # The last queue's jobs are the oldest: only its priority puts it last.
    for name in reversed(priorities):
        work.using(queue=name).enqueue_many([(f"{name}-{number}", 0.02) for number in range(each)])
    for _ in range(2):
        start_worker(engine_url, "--processes", "1", "--concurrency", "4", EVENFLOW_CLUSTER_WIDE_CAP=3)
    wait_until(lambda: books.states()["succeeded"] == 3 * each, "all jobs to succeed", 90)

    runs = intervals(tmp_path / "bodies")
    assert most_at_once(runs) == 3
    for name in priorities:
        assert most_at_once(run for run in runs if run.queue == name) <= 2
    starts: dict[str, list[int]] = {name: [] for name in priorities}
    for name, started_at in books.rows("select queue, started_at from {history} order by started_at"):
        starts[name].append(started_at)
    # Of three places the first queue may have two: so the first pass gives it two, and the second one.
    first_pass = min(map(min, starts.values()))
    assert [starts[name].count(first_pass) for name in priorities] == [2, 1, 0]
    # The two before it could always fill the places, until one of them had nothing left to start.
    assert min(starts["third"]) >= min(max(starts["first"]), max(starts["second"]))
