"""Caps over several worker commands with several processes each, measured from the ledger that the bodies write."""

import signal
from pathlib import Path

import pytest

from evenflow import Evenflow, Queue
from tests.ledger import intervals, most_at_once
from tests.processes import wait_until
from tests.worker.command import Books, seldom
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.jobs import declared, open_gate

pytestmark = pytest.mark.process

JOBS = 40


def enqueue(app: Evenflow) -> None:
    app.tasks["work"].enqueue_many([(f"job-{number}", 0.05) for number in range(JOBS)])


def all_succeed(books: Books, jobs: int) -> None:
    wait_until(seldom(lambda: books.states()["succeeded"] == jobs), "all jobs to succeed", 90)


def fill(app: Evenflow, folder: Path, cap: int) -> None:
    """Take all places with jobs that stay, though there are more of them than places; then let everything flow."""
    app.tasks["hold"].enqueue_many([(f"long-{number}",) for number in range(2 * cap)])
    enqueue(app)
    wait_until(lambda: len(intervals(folder / "bodies")) >= cap, f"{cap} jobs at once", 90)
    open_gate(folder)


def test_a_queue_cap_holds_over_two_commands_and_is_reached(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, books: Books, tmp_path: Path
) -> None:
    jobs_app.set_limit("default", max_concurrency=3)
    for _ in range(2):
        start_worker(engine_url, "--processes", "2", "--concurrency", "4").ready(2)
    fill(jobs_app, tmp_path, 3)
    all_succeed(books, 6 + JOBS)
    runs = intervals(tmp_path / "bodies")
    assert len(runs) == 6 + JOBS
    assert most_at_once(runs) == 3


@pytest.mark.either
def test_the_cluster_s_cap_holds_over_two_commands_and_is_reached(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, books: Books, tmp_path: Path
) -> None:
    for _ in range(2):
        start_worker(engine_url, "--processes", "2", "--concurrency", "4", EVENFLOW_CLUSTER_WIDE_CAP=5).ready(
            2
        )
    jobs_app.prepare()  # a client that knows of no cap does not lift it
    fill(jobs_app, tmp_path, 5)
    all_succeed(books, 10 + JOBS)
    assert most_at_once(intervals(tmp_path / "bodies")) == 5


def test_a_queue_cap_holds_while_worker_processes_are_killed(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, books: Books, tmp_path: Path
) -> None:
    jobs_app.set_limit("default", max_concurrency=2)
    enqueue(jobs_app)
    worker = start_worker(engine_url, "--processes", "2", "--concurrency", "3").ready(2)
    for begun in (3, 10):
        wait_until(lambda least=begun: len(intervals(tmp_path / "bodies")) >= least, "jobs to run", 60)  # type: ignore[misc]
        worker.send(signal.SIGKILL, worker.children()[0])
    all_succeed(books, JOBS)
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
    all_succeed(books, 3 * each)

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
