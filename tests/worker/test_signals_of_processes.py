"""How a worker stops: what each signal does, what becomes of running jobs, and that nothing is left behind."""

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from evenflow import Evenflow, State
from tests.ledger import now_ns
from tests.processes import children, wait_until
from tests.scratch_directory import start_time
from tests.worker.command import ROOT, Books, seldom
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.jobs import declared, open_gate
from tests.worker.test_supervisor import begun, runs_of

pytestmark = [pytest.mark.process, pytest.mark.either]

both_kinds = pytest.mark.parametrize("task", ["hold", "ahold"])
BEATS = "select id, beat from {worker} where kind = 'worker'"


def all_have_beaten(books: Books) -> None:
    """Wait until the pumps of all processes have gone through a round that began after this call, or are gone."""
    before: dict[int, int] = dict(books.rows(BEATS))
    assert before

    def are_later() -> bool:
        beats: dict[int, int] = dict(books.rows(BEATS))
        # The first new beat may belong to a round that had begun before.
        return all(beats[worker] >= before[worker] + 2 for worker in beats)

    wait_until(seldom(are_later), "two heartbeats of each")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_graceful_stop_claims_nothing_more_and_lets_running_jobs_end(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path, number: signal.Signals
) -> None:
    worker = start_worker(engine_url, "--processes", "2", "--concurrency", "4").ready(2)
    running = jobs_app.tasks["hold"].enqueue_many([(f"running{each}",) for each in range(4)])
    begun(tmp_path, 4)
    worker.send(number)
    worker.said("stopping when running jobs have ended.*\n(.*\n)*.*stopping when.*\n(.*\n)*.*stopping when")
    all_have_beaten(Books(engine_url))  # a claim that was under way when the signal came is over
    late = jobs_app.tasks["note"].enqueue_many([(f"late{each}",) for each in range(20)])
    open_gate(tmp_path)
    assert worker.ended() == 0
    assert {job.refresh().state for job in running} == {State.SUCCEEDED}
    assert {(job.refresh().state, job.attempt) for job in late} == {(State.READY, 0)}
    assert worker.left_behind() == []
    assert Books(engine_url).rows("select count(*) from {worker}") == [(0,)]


def test_claiming_ends_at_once_under_load(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "1", "--concurrency", "4").ready()
    jobs_app.tasks["work"].enqueue_many(
        [(f"job{each}", 0.05) for each in range(3000)]
    )  # enough for half a minute
    begun(tmp_path, 20)
    stopped = now_ns()
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0
    last = (max(run.began for run in runs_of(tmp_path)) - stopped) / 1e9
    print(f"the last start came {last:.3f} s after the signal")
    # Who is not told goes on until QUIT, half a minute later. `make chaos` holds the fifth of a second that is promised.
    assert last < 10.0
    states = Books(engine_url).states()
    assert set(states) == {"succeeded", "ready"}
    assert states.total() == 3000
    assert set(Books(engine_url).column("attempt", "job")) == {0}
    assert all(run.has_returned for run in runs_of(tmp_path))


@both_kinds
def test_jobs_that_do_not_end_in_time_go_back_without_losing_an_attempt(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path, task: str
) -> None:
    worker = start_worker(engine_url, "--processes", "1", "--shutdown-timeout", "0.5").ready()
    jobs = jobs_app.tasks[task].enqueue_many([(f"job{each}",) for each in range(3)])
    begun(tmp_path, 3)
    started = time.monotonic()
    assert worker.stop() == 0
    assert 0.4 < time.monotonic() - started < 20.0, "half a minute is what they get where nothing is said"
    assert {(job.refresh().state, job.attempt, job.crashes) for job in jobs} == {(State.READY, 0, 0)}
    assert worker.left_behind() == []


def test_a_second_term_hurries(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "1", "--shutdown-timeout", "600").ready()
    job = jobs_app.tasks["hold"].enqueue("job")
    begun(tmp_path, 1)
    worker.send(signal.SIGTERM)
    worker.said("stopping when running jobs have ended")
    worker.send(signal.SIGTERM)
    assert worker.ended() == 0, "ten minutes is what it would get without the second one"
    worker.said("SIGTERM: stopping at once")
    assert (job.refresh().state, job.attempt, job.crashes) == (State.READY, 0, 0)


@both_kinds
def test_quit_returns_everything_at_once(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path, task: str
) -> None:
    worker = start_worker(engine_url, "--processes", "2", "--shutdown-timeout", "600").ready(2)
    jobs = jobs_app.tasks[task].enqueue_many([(f"job{each}",) for each in range(4)])
    begun(tmp_path, 4)
    started = time.monotonic()
    assert worker.stop(signal.SIGQUIT) == 0
    print(f"gone {time.monotonic() - started:.2f} s after QUIT")
    assert {(job.refresh().state, job.attempt, job.crashes) for job in jobs} == {(State.READY, 0, 0)}
    assert worker.left_behind() == []


@pytest.mark.parametrize("locator", ["tests.worker.jobs:app", "tests.worker.drowsy_services:app"])
def test_a_child_that_does_not_obey_is_killed_and_its_job_returned_all_the_same(
    start_worker: StartWorker, postgres_url: str, make_app: MakeApp, tmp_path: Path, locator: str
) -> None:
    app = declared(make_app(postgres_url))
    worker = start_worker(
        postgres_url, "--processes", "1", "--shutdown-timeout", "0.1", locator=locator
    ).ready()
    job = app.tasks["hold"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    worker.send(signal.SIGSTOP, run.pid)
    assert worker.stop(signal.SIGQUIT) == 0
    assert worker.left_behind() == []
    assert (job.refresh().state, job.crashes) == (State.READY, 1)


def test_children_that_do_not_end_in_time_get_quit_and_a_blocked_loop_costs_nobody_a_crash(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "1", "--shutdown-timeout", "0.2").ready()
    neighbour = jobs_app.tasks["hold"].enqueue("neighbour")
    begun(tmp_path, 1)
    blocker = jobs_app.tasks["block_for_ever"].enqueue("blocker")
    begun(tmp_path, 2)
    assert worker.stop() == 0
    worker.said(r"have not ended after \d+ s: they get QUIT")
    for job in (neighbour, blocker):
        assert (job.refresh().state, job.attempt, job.crashes) == (State.READY, 0, 0)
    assert worker.left_behind() == []


def test_a_stop_ends_the_isolated_processes_as_well(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(sqlite_url))
    worker = start_worker(sqlite_url, "--processes", "1", "--shutdown-timeout", "0.1").ready()
    job = app.tasks["isolated"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    assert worker.stop() == 0
    wait_until(lambda: start_time(run.pid) is None, "the isolated process to end")
    assert (job.refresh().state, job.attempt, job.crashes) == (State.READY, 0, 0)


def test_the_isolated_processes_of_a_killed_worker_do_not_outlive_it(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(sqlite_url))
    worker = start_worker(sqlite_url, "--processes", "1").ready()
    job = app.tasks["isolated"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    (child,) = worker.children()
    assert run.pid in children(child)
    worker.send(signal.SIGKILL, child)
    wait_until(lambda: start_time(run.pid) is None, "the isolated process to end")
    begun(tmp_path, 2)
    open_gate(tmp_path)
    assert job.result(timeout=30) != run.pid


def test_a_signal_while_the_processes_start_stops_them(start_worker: StartWorker, sqlite_url: str) -> None:
    worker = start_worker(sqlite_url, "--processes", "2")
    wait_until(lambda: len(worker.children()) == 2, "the processes to be started", 60)
    assert worker.stop() == 0
    assert worker.left_behind() == []


def test_term_to_a_child_alone_replaces_it(start_worker: StartWorker, sqlite_url: str) -> None:
    worker = start_worker(sqlite_url, "--processes", "1").ready()
    (before,) = worker.children()
    worker.send(signal.SIGTERM, before)
    wait_until(lambda: worker.children() not in ([], [before]), "a new process")
    worker.ready()
    assert worker.stop() == 0


def test_no_zombie_is_left_while_the_worker_runs(start_worker: StartWorker, sqlite_url: str) -> None:
    worker = start_worker(sqlite_url, "--processes", "2").ready(2)
    for victim in worker.children():
        worker.send(signal.SIGKILL, victim)
        wait_until(lambda victim=victim: victim not in children(worker.pid), "it to be reaped")  # type: ignore[misc]
    worker.ready(2)
    assert worker.stop() == 0


# Pid files


def test_the_pid_is_written_and_taken_away(
    start_worker: StartWorker, sqlite_url: str, tmp_path: Path
) -> None:
    path = tmp_path / "worker.pid"
    worker = start_worker(sqlite_url, "--processes", "1", "--pidfile", str(path)).ready()
    assert path.read_text() == f"{worker.pid}\n"
    second = start_worker(sqlite_url, "--processes", "1", "--pidfile", str(path))
    assert second.ended() == 1
    assert f"process {worker.pid} is alive" in second.log
    assert worker.stop() == 0
    assert not path.exists()


@pytest.mark.parametrize("text", ["999999999\n", "garbage", "", "-5"])
def test_a_stale_pid_file_is_no_hindrance(
    start_worker: StartWorker, sqlite_url: str, tmp_path: Path, text: str
) -> None:
    path = tmp_path / "worker.pid"
    path.write_text(text)
    worker = start_worker(sqlite_url, "--processes", "1", "--pidfile", str(path))
    wait_until(lambda: path.exists() and path.read_text() == f"{worker.pid}\n", "the pid to be written", 60)
    assert worker.stop() == 0


# Process 1


def can_be_process_1() -> bool:
    command = ["unshare", "--pid", "--fork", "--mount-proc", "true"]
    return (
        shutil.which("unshare") is not None
        and subprocess.run(command, check=False, capture_output=True).returncode == 0
    )


@pytest.mark.skipif(not can_be_process_1(), reason="needs the right to make a pid namespace")
def test_as_process_1_it_obeys_signals_and_reaps_orphans(
    sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(sqlite_url))
    app.prepare()
    command = [
        "unshare",
        "--pid",
        "--fork",
        "--mount-proc",
        "--kill-child",
        sys.executable,
        "-m",
        "evenflow",
        "worker",
    ]
    environment = os.environ | {"EVENFLOW_URL": sqlite_url, "LEDGER_FOLDER": str(tmp_path)}
    log = (tmp_path / "log").open("wb")
    options = ["tests.worker.jobs:app", "--processes", "1"]
    with subprocess.Popen(
        [*command, *options], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    ) as outer:
        try:
            wait_until(lambda: bool(children(outer.pid)), "process 1", 60)
            (first,) = children(outer.pid)
            job = app.tasks["orphan"].enqueue("job")
            job.result(timeout=60)
            wait_until(lambda: len(children(first)) == 1, "the orphan, adopted by process 1, to be reaped")
            os.kill(first, signal.SIGTERM)
            assert outer.wait(60) == 0
        finally:
            with contextlib.suppress(ProcessLookupError):
                outer.kill()
    log.close()
    assert "SIGTERM: stopping when running jobs have ended" in (tmp_path / "log").read_text()


# In a script

SCRIPT = """
import sys
from evenflow import Evenflow
app = Evenflow(sys.argv[1])

@app.task(name="hello")
def hello() -> str:
    return "hello"

@app.hooks.on_worker_stop
def stop() -> None:
    print("stopped", flush=True)

hello.enqueue().id
app.run_worker(concurrency=2)
print("after", flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_worker_started_from_a_script_stops_on_ctrl_c_without_code_of_the_users(
    engine_url: str, make_app: MakeApp, tmp_path: Path, number: signal.Signals
) -> None:
    app = make_app(engine_url)
    app.prepare()
    path = tmp_path / "script.py"
    path.write_text(SCRIPT)
    command = [sys.executable, str(path), engine_url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        wait_until(seldom(lambda: Books(engine_url).states() == {"succeeded": 1}), "the job to run", 60)
        process.send_signal(number)
        said, errors = process.communicate(timeout=60)
        assert process.returncode == 0
    assert said == "stopped\nafter\n"
    assert "Traceback" not in errors
    assert Books(engine_url).rows("select count(*) from {worker}") == [(0,)]


def test_a_worker_in_a_thread_leaves_the_signals_of_its_program_alone(sqlite_app: Evenflow) -> None:
    before = [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)]
    sqlite_app.task(name="one")(lambda: 1).enqueue()
    thread = threading.Thread(target=lambda: sqlite_app.run_worker(until_empty=True))
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    sqlite_app.task(name="two")(lambda: 2).enqueue()
    sqlite_app.run_worker(until_empty=True)
    assert [signal.getsignal(number) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGQUIT)] == before
