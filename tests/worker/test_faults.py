"""Faults under load with real processes on both engines: what was accepted ends exactly once, as the ledgers count it.

Nothing is lost, nothing is doubled, nothing is left behind; and each fault is over within its time.
"""

import signal
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from evenflow import Evenflow
from evenflow.cli.seed import declare_seed
from tests.chaos import faults
from tests.chaos.load import Load
from tests.ledger import Report, intervals, most_at_once
from tests.processes import wait_until
from tests.scratch_directory import start_time
from tests.worker.command import Books, WorkerCommand, seldom
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.jobs import open_gate
from tests.worker.test_supervisor import begun, runs_of

pytestmark = pytest.mark.process

LONG_S = 2.0
STOPS = {
    "TERM": [signal.SIGTERM],
    "INT": [signal.SIGINT],
    "QUIT": [signal.SIGQUIT],
    "TERM twice": [signal.SIGTERM, signal.SIGTERM],
}


@pytest.fixture
def load(engine_url: str, make_app: MakeApp, tmp_path: Path) -> Iterator[Load]:
    """Jobs of a twentieth of a second, so that every process is in the midst of some whenever it is killed."""
    app = make_app(engine_url)
    app.prepare()
    made = Load(app, tmp_path, arguments=(0.05,))
    yield made
    made.stop()


def counted(load: Load, url: str, *, count: int) -> Report:
    """Everything has ended, and the ledgers agree with the books."""
    books = Books(url)
    load.drained(books)
    report = load.report(books, faults=count)
    print(report)
    assert report.violations == []
    assert report.jobs >= 20
    return report


def watched(load: Load, worker: WorkerCommand) -> list[int]:
    pids = worker.children()
    load.deaths.watch(worker.pid, *pids)
    return pids


def busy(load: Load, worker: WorkerCommand) -> int:
    """A process with bodies in it that do not end before it can be killed."""
    pids = watched(load, worker)
    found: list[int] = []
    more_at = 0.0

    def is_busy() -> bool:
        nonlocal more_at
        if time.monotonic() >= more_at:  # those before have ended while this process stood still
            load.enqueue(8, (LONG_S,))
            more_at = time.monotonic() + 2 * LONG_S
        runs = intervals(load.folder / "bodies")
        found[:] = [run.pid for run in runs if run.pid in pids and not run.has_returned]
        return len(found) >= 3

    wait_until(seldom(is_busy), "processes at work", 60)
    return max(found, key=found.count)


# Death


def test_what_a_killed_process_ran_runs_again_by_its_proven_death_not_by_the_lease(
    start_worker: StartWorker, engine_url: str, load: Load
) -> None:
    options = ("--processes", "2", "--concurrency", "4")
    worker = start_worker(engine_url, *options, EVENFLOW_LEASE_MS=60_000).ready(2)
    load.start()
    for _ in range(3):
        load.flows(10)
        worker.ready(2)
        worker.send(signal.SIGKILL, busy(load, worker))
    load.flows(10)
    report = counted(load, engine_url, count=3)
    assert report.recoveries_s
    assert max(report.recoveries_s) < 45.0, "the lease is a minute"
    assert worker.stop() == 0
    assert worker.left_behind() == []


@pytest.mark.either
def test_a_killed_supervisor_takes_its_processes_along_and_its_jobs_run_after_a_restart(
    start_worker: StartWorker, engine_url: str, load: Load
) -> None:
    first = start_worker(engine_url, "--processes", "2", "--concurrency", "4").ready(2)
    load.start()
    load.flows(10)
    orphans = watched(load, first)
    first.send(signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: all(start_time(pid) is None for pid in orphans), "the children to leave", 60)
    print(f"the children were gone {time.monotonic() - killed:.2f} s after their supervisor")
    second = start_worker(engine_url, "--processes", "1").ready()
    report = counted(load, engine_url, count=1)
    assert max(report.recoveries_s, default=0.0) < 60.0, "a lease, and the start of another command"
    assert second.stop() == 0


# Stops


@pytest.mark.either
@pytest.mark.parametrize(
    "stop", [pytest.param(stop, marks=[pytest.mark.large] if stop == "INT" else []) for stop in STOPS]
)  # INT is heard as TERM is
def test_a_stop_under_load_returns_what_it_does_not_finish(
    start_worker: StartWorker, engine_url: str, load: Load, stop: str
) -> None:
    patience = "600" if len(STOPS[stop]) > 1 else "0.5"
    options = ("--processes", "2", "--concurrency", "4", "--shutdown-timeout", patience)
    worker = start_worker(engine_url, *options).ready(2)
    load.start()
    load.app.tasks["hold"].enqueue_many([("long0",), ("long1",)])  # these do not end by themselves
    wait_until(
        lambda: sum("long" in run.job for run in runs_of(load.folder)) == 2, "the long ones to run", 60
    )
    load.flows(10)
    for number in STOPS[stop]:
        worker.send(number)
        worker.said("SIG.*: stopping")
    assert worker.ended() == 0
    assert worker.left_behind() == []
    load.stop()
    books = Books(engine_url)
    assert set(books.states()) <= {"succeeded", "ready"}
    assert books.states()["ready"] >= 2
    assert books.rows("select count(*) from {job} where attempt <> 0 or crashes <> 0") == [(0,)]
    assert books.rows("select count(*) from {worker}") == [(0,)]
    open_gate(load.folder)
    start_worker(engine_url, "--processes", "1").ready()
    load.drained(books)
    report = load.report(books, faults=1)
    unmeant = {"long0: nobody meant to enqueue it", "long1: nobody meant to enqueue it"}
    assert set(report.violations) <= unmeant
    assert set(books.column("attempt")) == {1}
    assert books.entries()["long0"] == books.entries()["long1"] == ["succeeded"]


# A full disk


def test_a_full_disk_is_borne_and_nothing_needs_a_hand_when_there_is_room_again(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = make_app(sqlite_url)
    app.prepare()
    load = Load(app, tmp_path, arguments=(0.05,))
    quick = {"EVENFLOW_DB_RETRY_INITIAL_MS": 100, "EVENFLOW_DB_RETRY_MAX_MS": 500}
    worker = start_worker(sqlite_url, "--processes", "2", "--concurrency", "4", **quick).ready(2)
    load.start()
    load.flows(10)
    pids = worker.children()
    faults.fill_the_disk(worker, most_bytes=256 * 1024)
    worker.said(
        "the database is unavailable .SQLite: disk I/O error|the database is unavailable .SQLite: .*full"
    )
    faults.clear_the_disk(worker)
    load.flows(10)
    counted(load, sqlite_url, count=1)
    assert worker.children() == pids, "no process was lost over it"
    assert Books(sqlite_url).rows("pragma integrity_check") == [("ok",)]
    assert worker.stop() == 0


# Prefetching


@pytest.mark.either
def test_what_a_lost_worker_held_ahead_is_taken_by_another_when_the_claims_run_out(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    soft = {
        "EVENFLOW_PREFETCH_BUFFER": 3,
        "EVENFLOW_CLAIM_LEASE_MS": 6000,  # a holder that stands still for a moment must not lose them
        "EVENFLOW_LEASE_MS": 60_000,  # so that it cannot be the worker's own lease that frees them
    }
    first = start_worker(engine_url, "--processes", "1", "--concurrency", "1", **soft).ready()
    jobs_app.tasks["hold"].enqueue("blocker")
    begun(tmp_path, 1)
    held = jobs_app.tasks["note"].enqueue_many([(f"held{each}",) for each in range(3)])
    books = Books(engine_url)
    wait_until(seldom(lambda: books.states()["claimed"] == 3), "the jobs to be held", 60)
    second = start_worker(engine_url, "--processes", "1", **soft).ready()
    (until,) = books.rows("select min(lease_until) from {job} where state = 'claimed'")[0]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in (first.pid, *first.children()):
            first.send(number, pid)
    for job in held:
        assert job.result(timeout=60) == job.args[0]
        assert (job.attempt, job.crashes) == (1, 0), "nobody had begun them"
    runs = [run for run in runs_of(tmp_path) if run.job.startswith("held")]
    assert len(runs) == 3
    assert {run.epoch for run in runs} == {2}
    assert {run.pid for run in runs} <= set(second.children())
    begun_at = books.rows("select min(started_at) from {history} where task = 'note'")[0][0]
    assert begun_at >= until, "not before the claims had run out"


# Many at once


@pytest.mark.either
def test_five_thousand_coroutines_sleep_in_one_process_and_its_heart_beats_on(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    options = ("--processes", "1", "--concurrency", "5000")
    worker = start_worker(engine_url, *options, EVENFLOW_LEASE_MS=30_000).ready()
    jobs_app.tasks["asleep_together"].enqueue_many([(f"job{number}",) for number in range(5000)])
    books = Books(engine_url)
    beats: list[tuple[float, int]] = []

    def beaten() -> int:
        ((beat,),) = books.rows("select beat from {worker} where kind = 'worker'")
        if not beats or beats[-1][1] != beat:
            beats.append((time.monotonic(), beat))
        return beats[-1][1]

    def all_sleep() -> bool:
        beaten()
        return (tmp_path / "bodies").exists() and (tmp_path / "bodies").read_bytes().count(b"\n") >= 5000

    def all_have_ended() -> bool:
        beaten()
        return books.rows("select count(*) from {job}") == [(0,)]

    wait_until(seldom(all_sleep), "all to sleep", 60)
    first = beaten()
    wait_until(seldom(lambda: beaten() >= first + 3), "the heart to beat beside them", 30)
    open_gate(tmp_path)
    wait_until(seldom(all_have_ended), "all to end", 60)
    runs = runs_of(tmp_path)
    gaps = [later[0] - earlier[0] for earlier, later in zip(beats, beats[1:], strict=False)]
    print(f"{most_at_once(runs)} at once; between heartbeats at most {max(gaps):.2f} s")
    assert most_at_once(runs) == 5000
    assert len({run.pid for run in runs}) == 1
    assert len(runs) == 5000, "each ran once"
    assert max(gaps) < 15.0, "half a lease; a heartbeat is due every half second"
    assert books.states() == {"succeeded": 5000}
    assert "lease" not in worker.log
    assert worker.stop() == 0


# Outages that leave a backlog


def test_restarted_workers_drain_the_backlog_of_an_outage_without_help(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, books: Books
) -> None:
    """S4-20: that a claim costs the same with a larger backlog is proved by its plan."""
    first = start_worker(engine_url, "--processes", "1").ready()
    processes = [first.pid, *first.children()]
    for pid in processes:
        first.send(signal.SIGKILL, pid)
    first.ended()
    jobs_app.enqueue_many([declare_seed(jobs_app).job(0.0)] * 1_000)
    assert books.states() == {"ready": 1_000}
    start_worker(engine_url, "--processes", "2")
    wait_until(seldom(lambda: books.states() == {"succeeded": 1_000}), "the backlog to be drained", 90)
