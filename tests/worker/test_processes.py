"""Isolated bodies: in processes of their own, which can be killed, and which nothing outlives."""

import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from evenflow import Evenflow, Job, JobCancelled, State
from evenflow.worker.processes import Process, exit_error
from tests.client.serving import serving
from tests.processes import children, wait_until
from tests.scratch_directory import start_time
from tests.worker.isolated_jobs import declared

pytestmark = [pytest.mark.process, pytest.mark.either]


@pytest.fixture
def isolated(sqlite_app: Evenflow) -> Evenflow:
    """One engine is enough: how a body is isolated does not depend on it, and how its end is stored is proven elsewhere."""
    return declared(sqlite_app)


def drained(app: Evenflow, job: Job[Any], **options: Any) -> Job[Any]:
    app.run_worker(until_empty=True, services=False, **options)
    return job.refresh()


def pids_of(folder: Path, job: Job[Any]) -> list[int]:
    """The isolated process of a `hold` and the child it started, once both run."""
    path = folder / f"{job.id}.pids"
    wait_until(lambda: path.exists() and len(path.read_text().split()) == 2, "the body to begin")
    return [int(pid) for pid in path.read_text().split()]


def are_gone(*pids: int) -> bool:
    return all(start_time(pid) is None for pid in pids)


def test_bodies_run_in_another_process_which_is_used_again(isolated: Evenflow) -> None:
    tasks = isolated.tasks
    jobs = [tasks["pid"].enqueue() for _ in range(3)] + [tasks["apid"].enqueue()]
    isolated.run_worker(until_empty=True, concurrency=1, services=False)
    pids = {job.result(timeout=0) for job in jobs}
    assert len(pids) == 1
    assert os.getpid() not in pids


def test_isolated_bodies_run_at_the_same_time(isolated: Evenflow, tmp_path: Path) -> None:
    jobs = [isolated.tasks["hold"].enqueue(str(tmp_path)) for _ in range(3)]
    with serving(isolated, concurrency=3):
        assert len({pids_of(tmp_path, job)[0] for job in jobs}) == 3
        (tmp_path / "gate").touch()
        for job in jobs:
            job.result(timeout=30)


@pytest.mark.parametrize(
    ("how", "said"), [("segv", "SIGSEGV"), ("exit", "exited with code 3"), ("kill", "SIGKILL")]
)
def test_a_crash_takes_neither_the_worker_nor_its_neighbours_along_and_quarantines_at_three(
    isolated: Evenflow, how: str, said: str
) -> None:
    job = isolated.tasks["crash"].enqueue(how)
    neighbours = [isolated.tasks["pid"].enqueue() for _ in range(3)]
    drained(isolated, job)
    assert (job.state, job.crashes, job.attempt) == (State.QUARANTINED, 3, 1)
    assert [error.class_name for error in job.errors] == ["ProcessExitError"] * 3
    assert job.error is not None and said in job.error.message
    for neighbour in neighbours:
        neighbour.result(timeout=0)


def test_a_crash_is_noticed_though_a_forked_child_of_the_body_lives_on(isolated: Evenflow) -> None:
    job = drained(isolated, isolated.tasks["fork_and_crash"].enqueue())
    assert (job.state, job.crashes) == (State.FAILED, 1)
    assert job.error is not None and "exited with code 3" in job.error.message
    assert are_gone(*(int(pid) for pid in (job.progress or {})["note"].split())), "nothing outlives it"


def test_a_task_of_a_coroutines_own_that_wants_to_end_the_program_is_no_crash(isolated: Evenflow) -> None:
    job = drained(isolated, isolated.tasks["aend_program"].enqueue())
    assert (job.state, job.crashes) == (State.FAILED, 0)
    assert job.error is not None and job.error.class_name == "SystemExit"


def test_a_crash_fails_the_job_where_its_task_says_so(app: Evenflow) -> None:
    job = drained(app, declared(app).tasks["crash_fails"].enqueue("exit"))
    assert job.error is not None
    assert (job.state, job.crashes) == (State.FAILED, 1)
    assert (job.error.code, job.error.class_name) == ("WORKER_CRASHED", "ProcessExitError")


@pytest.mark.parametrize("how", ["exit", "interrupt"])
def test_a_body_that_wants_to_end_the_program_ends_only_its_job(isolated: Evenflow, how: str) -> None:
    job = drained(isolated, isolated.tasks["end_program"].enqueue(how))
    assert job.error is not None
    assert (job.state, job.crashes, job.error.code) == (State.FAILED, 0, "UNHANDLED_ERROR")


def test_errors_come_back_as_they_are(isolated: Evenflow) -> None:
    job = drained(isolated, isolated.tasks["decline"].enqueue())
    assert job.error is not None
    assert (job.error.code, job.error.message, job.error.data) == ("DECLINED", "not today", {"why": [1]})


def test_a_body_past_its_timeout_is_killed_with_everything_it_started(
    isolated: Evenflow, tmp_path: Path
) -> None:
    job = isolated.tasks["hold_briefly"].enqueue(str(tmp_path))
    drained(isolated, job)
    assert job.error is not None
    assert (job.state, job.crashes, job.error.code) == (State.FAILED, 0, "TASK_TIMEOUT")
    pids = pids_of(tmp_path, job)
    wait_until(lambda: are_gone(*pids), "the processes to end")


def test_a_timeout_is_tried_again_as_the_policy_says(isolated: Evenflow, tmp_path: Path) -> None:
    job = drained(isolated, isolated.tasks["hold_twice"].enqueue(str(tmp_path)))
    assert (job.state, job.attempt, job.crashes) == (State.SCHEDULED, 1, 0)


def test_the_start_of_the_interpreter_is_not_charged_to_the_bodys_timeout(isolated: Evenflow) -> None:
    job = isolated.tasks["pid"].using(timeout=0.2).enqueue()
    assert drained(isolated, job).state is State.SUCCEEDED, "loading the app alone takes longer than 0.2 s"


def test_an_isolated_body_is_cancelled_by_killing_it(make_app: Any, sqlite_url: str, tmp_path: Path) -> None:
    app = declared(make_app(sqlite_url, heartbeat_ms=50, lease_ms=60_000))
    job = app.tasks["hold"].enqueue(str(tmp_path))
    with serving(app):
        pids = pids_of(tmp_path, job)
        job.cancel("enough")
        with pytest.raises(JobCancelled, match="enough"):
            job.result(timeout=30)
        wait_until(lambda: are_gone(*pids), "the processes to end")


def test_progress_comes_through_while_the_body_runs(isolated: Evenflow, tmp_path: Path) -> None:
    job = isolated.tasks["report"].enqueue(str(tmp_path))
    with serving(isolated):
        wait_until(lambda: job.refresh().progress == {"done": 3, "total": 10, "note": "page"}, "the progress")
        (tmp_path / "gate").touch()
        assert job.result(timeout=30) == job.id


def test_hooks_of_the_app_hold_in_isolated_processes_too(isolated: Evenflow) -> None:
    job = drained(isolated, isolated.tasks["hooks_seen"].enqueue())
    assert job.result(timeout=0) == (1, "hooks_seen")


def test_a_stop_leaves_no_isolated_process_behind(isolated: Evenflow, tmp_path: Path) -> None:
    job = isolated.tasks["hold"].enqueue(str(tmp_path))
    with serving(isolated, shutdown_timeout=0.1):
        pids = pids_of(tmp_path, job)
    wait_until(lambda: are_gone(*pids), "the processes to end")
    assert (job.refresh().state, job.attempt, job.crashes) == (State.READY, 0, 0)


def test_a_process_that_dies_between_two_jobs_is_nobodys_crash(isolated: Evenflow) -> None:
    with serving(isolated, concurrency=1):
        first = isolated.tasks["pid"].enqueue().result(timeout=30)
        assert first in children(os.getpid())
        os.kill(first, signal.SIGKILL)
        wait_until(lambda: start_time(first) is None, "it to die")
        second = isolated.tasks["pid"].enqueue()
        assert second.result(timeout=30) != first
        assert second.crashes == 0


@pytest.mark.parametrize(
    ("code", "text", "exit_code", "name"),
    [
        (-9, "was ended by SIGKILL", None, "SIGKILL"),
        (3, "exited with code 3", 3, None),
        (-250, "signal 250", None, "signal 250"),
    ],
)
def test_how_a_process_ended_is_said(code: int, text: str, exit_code: int | None, name: str | None) -> None:
    error = exit_error("process 5", code)
    assert str(error).endswith(text)
    assert (error.exit_code, error.signal) == (exit_code, name)


def test_a_body_whose_app_an_isolated_process_cannot_load_fails_and_says_why(
    tmp_path: Path, sqlite_url: str
) -> None:
    script = f"""
from evenflow import Evenflow
app = Evenflow({sqlite_url!r})

@app.task(name="alone", run_in="process")
def alone() -> int:
    return 1

if __name__ == "__main__":
    job = alone.enqueue()
    app.run_worker(until_empty=True, services=False)
    job.refresh()
    print(job.state, job.crashes, job.error.code, job.error.message)
"""
    (tmp_path / "script.py").write_text(script)
    command = [sys.executable, str(tmp_path / "script.py")]
    ran = subprocess.run(command, check=False, capture_output=True, text=True, timeout=60)
    assert ran.stdout.startswith("failed 0 WORKER_RESOLUTION_ERROR an isolated process cannot load the app: ")
    assert "move it into a module" in ran.stdout
    assert "Traceback" not in ran.stderr


def test_a_process_that_was_ended_is_not_signalled_again_by_its_number(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    process = Process("tests.worker.isolated_jobs")
    process.kill()
    signalled: list[int] = []
    monkeypatch.setattr(os, "killpg", lambda group, number: signalled.append(group))
    process.kill()
    assert signalled == [], "it may be the number of a stranger by now"
