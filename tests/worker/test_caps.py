"""Caps over several worker commands with several processes each, measured from the ledger that the bodies write."""

import signal
from pathlib import Path

import pytest

from evenflow import Evenflow
from tests.ledger import intervals, most_at_once
from tests.processes import wait_until
from tests.worker.conftest import StartWorker

pytestmark = pytest.mark.process

JOBS = 40


def enqueue(app: Evenflow) -> None:
    app.tasks["work"].enqueue_many([(f"job-{number}", 0.05) for number in range(JOBS)])


def all_done(app: Evenflow) -> bool:
    return sum(1 for _ in app.jobs(state="succeeded")) == JOBS


def test_a_queue_cap_holds_over_two_commands_and_is_reached(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    jobs_app.set_limit("default", max_concurrency=3)
    enqueue(jobs_app)
    for _ in range(2):
        start_worker(engine_url, "--processes", "2", "--concurrency", "4")
    wait_until(lambda: all_done(jobs_app), "all jobs to succeed", 90)
    runs = intervals(tmp_path / "bodies")
    assert len(runs) == JOBS
    assert most_at_once(runs) == 3


def test_the_cluster_s_cap_holds_over_two_commands_and_is_reached(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    enqueue(jobs_app)
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
