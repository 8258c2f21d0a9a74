"""Single-instance jobs over several worker processes that are killed: never two at once, and all of them run."""

from pathlib import Path
from typing import Any

import pytest

from evenflow import Evenflow
from tests.ledger import intervals
from tests.processes import wait_until
from tests.worker.conftest import StartWorker
from tests.worker.jobs import open_gate
from tests.worker.locks import Crowd, enqueue, run_and_kill

pytestmark = pytest.mark.process

CROWD = Crowd(runs=1_000, locks=8, kills=4, within_s=100)


def test_runs_of_one_lock_never_overlap_while_processes_are_killed(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path
) -> None:
    enqueue(jobs_app, CROWD)
    workers = [start_worker(engine_url, "--processes", "2", "--concurrency", "4") for _ in range(2)]
    most = run_and_kill(jobs_app, workers, tmp_path / "bodies", CROWD)
    assert most == {f"lock-{number}": 1 for number in range(CROWD.locks)}


@pytest.mark.parametrize("on_conflict", ["skip", "fail"])
def test_a_second_one_in_another_process_does_not_start(
    start_worker: StartWorker, jobs_app: Evenflow, engine_url: str, tmp_path: Path, on_conflict: Any
) -> None:
    held = jobs_app.tasks["hold"].using(single_instance="one", on_conflict=on_conflict)
    first = held.enqueue("first")
    start_worker(engine_url, "--processes", "2", "--concurrency", "1").ready(2)
    wait_until(lambda: bool(intervals(tmp_path / "bodies")), "the first one to run", 60)
    second = held.enqueue("second")
    state = "skipped" if on_conflict == "skip" else "failed"
    wait_until(lambda: jobs_app.job(second.id).state == state, f"the second one to end {state}")
    error = jobs_app.job(second.id).error
    assert error is not None
    assert error.code == "LOCK_CONTENDED"
    assert f"already running: lock:one is held by job {first.id}" in error.message
    open_gate(tmp_path)
    first.result(timeout=30)
    assert [run.job for run in intervals(tmp_path / "bodies")] == ["first"]
