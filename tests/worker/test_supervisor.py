"""The supervisor with real processes: it starts them, replaces them, and takes the jobs of the dead at once."""

import contextlib
import fcntl
import itertools
import os
import re
import signal
import time
from collections import Counter
from pathlib import Path

import psycopg
import pytest

from evenflow import Evenflow, Job, State
from evenflow.database_url import parse_url
from tests.ledger import Interval, intervals, most_at_once, now_ns
from tests.processes import wait_until
from tests.scratch_directory import start_time
from tests.worker.command import SHORT_LEASE, SHORT_LEASE_S, Books
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.jobs import declared, open_gate

pytestmark = pytest.mark.process


def runs_of(folder: Path) -> list[Interval]:
    """The runs that the bodies have noted, in their order."""
    return sorted(intervals(folder / "bodies"), key=lambda run: run.began)


def begun(folder: Path, count: int) -> list[Interval]:
    """Wait until so many runs have begun."""
    wait_until(lambda: len(runs_of(folder)) >= count, f"{count} runs to begin", 60)
    return runs_of(folder)


def seconds_since(moment_ns: int) -> float:
    return (now_ns() - moment_ns) / 1e9


# Start


@pytest.mark.either
def test_the_wanted_number_of_processes_is_started_and_registered(
    start_worker: StartWorker, engine_url: str, books: Books
) -> None:
    worker = start_worker(engine_url, "--processes", "3").ready(3)
    rows = books.rows("select kind, pid, parent is null from {worker}")
    kinds = Counter(kind for kind, _, _ in rows)
    assert kinds == {"supervisor": 1, "worker": 3}
    pids = {pid for kind, pid, _ in rows if kind == "worker"}
    assert pids == set(worker.children())
    assert [pid for kind, pid, _ in rows if kind == "supervisor"] == [worker.pid]


def test_without_a_number_there_is_a_process_per_cpu(start_worker: StartWorker, sqlite_url: str) -> None:
    start_worker(sqlite_url).said(f"processes={os.cpu_count()},")


@pytest.mark.parametrize(
    ("options", "line"),
    [
        (
            [],
            "processes=2, concurrency=10, cluster_wide_cap=None, max_claim_per_worker=20, max_claim_batch=20",
        ),
        (
            ["--concurrency", "1", "--max-claim-per-worker", "5", "--max-claim-batch", "3"],
            "processes=2, concurrency=1, cluster_wide_cap=None, max_claim_per_worker=5, max_claim_batch=3",
        ),
    ],
)
def test_the_start_up_log_says_the_effective_limits(
    start_worker: StartWorker, sqlite_url: str, options: list[str], line: str
) -> None:
    worker = start_worker(sqlite_url, "--processes", "2", *options)
    worker.said(re.escape(f"Concurrency config: {line}\n"))


@pytest.mark.either
def test_with_one_slot_per_process_jobs_never_overlap_in_a_process(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "3", "--concurrency", "1").ready(3)
    jobs = jobs_app.tasks["hold"].enqueue_many([(f"job{number}",) for number in range(6)])
    runs = begun(tmp_path, 3)
    assert {run.pid for run in runs} == set(worker.children())
    open_gate(tmp_path)
    for job in jobs:
        job.result(timeout=30)
    assert most_at_once(runs_of(tmp_path)) == 3
    for pid in worker.children():
        own = [run for run in runs_of(tmp_path) if run.pid == pid]
        assert all(
            earlier.ended is not None and earlier.ended <= later.began
            for earlier, later in itertools.pairwise(own)
        )


# Death of children


def test_the_jobs_of_a_killed_process_run_again_long_before_its_lease_ends(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "2", EVENFLOW_LEASE_MS=60_000).ready(2)
    jobs = jobs_app.tasks["hold"].enqueue_many([(f"job{number}",) for number in range(4)])
    victim = begun(tmp_path, 4)[0].pid
    lost = [run.job for run in runs_of(tmp_path) if run.pid == victim]
    worker.send(signal.SIGKILL, victim)
    killed = now_ns()
    again = begun(tmp_path, 4 + len(lost))[4:]
    delays = [(run.began - killed) / 1e9 for run in again]
    print(f"rerun after kill -9: {[f'{delay:.2f} s' for delay in delays]}")
    assert max(delays) < 45.0, "the lease is a minute"
    assert sorted(run.job for run in again) == sorted(lost)
    assert {run.epoch for run in again} == {2}
    worker.ready(2)
    open_gate(tmp_path)
    for job in jobs:
        job.result(timeout=30)
        assert job.attempt == 1
        assert job.crashes == (1 if job.args[0] in lost else 0)
    worker.said("was ended by SIGKILL; a new one starts")


@pytest.mark.either
def test_a_job_that_fails_on_a_crash_says_how_its_process_died(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "1").ready()
    job = jobs_app.tasks["hold_or_fail"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    worker.send(signal.SIGKILL, run.pid)
    wait_until(lambda: job.refresh().state.is_end, "the job to end")
    assert job.error is not None
    assert (job.state, job.error.code, job.error.class_name) == (
        State.FAILED,
        "WORKER_CRASHED",
        "ProcessExitError",
    )
    assert job.error.message == f"worker process {run.pid} was ended by SIGKILL"


@pytest.mark.either
@pytest.mark.parametrize("how", ["segv", "exit"])
def test_a_poison_job_is_quarantined_after_three_processes_and_the_others_go_on(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path, how: str
) -> None:
    worker = start_worker(engine_url, "--processes", "2").ready(2)
    poison = jobs_app.tasks["poison"].enqueue("poison", how)
    jobs = jobs_app.tasks["work"].enqueue_many([(f"job{number}", 0.02) for number in range(60)])
    wait_until(lambda: poison.refresh().state.is_end, "the poison to end", 60)
    for job in jobs:
        job.result(timeout=60)
        assert job.crashes < 3
        assert job.attempt == 1, "a neighbour's crash is no attempt of one's own"
    assert (poison.state, poison.crashes) == (State.QUARANTINED, 3)
    assert [run.epoch for run in runs_of(tmp_path) if run.job == "poison"] == [1, 2, 3]
    assert poison.error is not None and ("SIGSEGV" if how == "segv" else "code 3") in poison.error.message
    expected = {job.args[0]: ["succeeded"] for job in jobs} | {"poison": ["quarantined"]}
    assert Books(engine_url).entries() == expected
    worker.ready(2)
    assert worker.stop() == 0


# Death of the supervisor


@pytest.mark.either
def test_the_children_of_a_killed_supervisor_leave_and_their_jobs_run_again_after_a_restart(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    first = start_worker(engine_url, "--processes", "2").ready(2)
    jobs = jobs_app.tasks["ahold"].enqueue_many([(f"job{number}",) for number in range(4)])
    begun(tmp_path, 4)
    orphans = first.children()
    first.send(signal.SIGKILL)
    killed = time.monotonic()
    wait_until(lambda: all(start_time(pid) is None for pid in orphans), "the children to leave", 60)
    print(f"children gone after {time.monotonic() - killed:.2f} s")
    start_worker(engine_url, "--processes", "2").ready(2)
    begun(tmp_path, 8)
    open_gate(tmp_path)
    for job in jobs:
        job.result(timeout=30)
        assert (job.attempt, job.crashes) == (1, 0), "they were given back, so nothing is counted"


@pytest.mark.either
def test_the_jobs_of_a_whole_host_that_is_gone_run_elsewhere_within_the_lease_and_a_sweep(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    first = start_worker(engine_url, "--processes", "1", **SHORT_LEASE).ready()
    job = jobs_app.tasks["hold"].enqueue("job")
    begun(tmp_path, 1)
    children = first.children()
    for pid in (first.pid, *children):
        first.send(signal.SIGSTOP, pid)  # so that none of them can return the job
    for pid in (first.pid, *children):
        first.send(signal.SIGKILL, pid)
    gone = now_ns()
    # The lease that runs out is the one the lost host was given; nobody who is there can lose a lease this short.
    second = start_worker(engine_url, "--processes", "1").ready()
    run = begun(tmp_path, 2)[1]
    delay = (run.began - gone) / 1e9
    print(f"rerun after the loss of a host: {delay:.2f} s, its lease was {SHORT_LEASE_S:g} s")
    assert run.pid in second.children()
    open_gate(tmp_path)
    job.result(timeout=30)
    assert (job.attempt, job.crashes) == (1, 1)
    assert job.errors[0].class_name == "ProcessPrunedError"


# Frozen children


@pytest.mark.either
def test_a_child_frozen_beyond_its_lease_is_replaced_and_can_write_nothing(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    worker = start_worker(engine_url, "--processes", "1", **SHORT_LEASE).ready()
    job = jobs_app.tasks["hold"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    freeze(run.pid, engine_url)
    again = begun(tmp_path, 2)[1]
    assert again.pid != run.pid
    assert again.epoch == run.epoch + 1
    wait_until(lambda: start_time(run.pid) is None, "the frozen process to be ended")
    worker.said(f"worker process {run.pid} shows no life: it is ended and replaced")
    open_gate(tmp_path)
    assert job.result(timeout=30) == again.pid


@pytest.mark.either
def test_a_process_that_thaws_after_its_lease_writes_no_second_result_and_leaves(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    first = start_worker(engine_url, "--processes", "1", **SHORT_LEASE).ready()
    job = jobs_app.tasks["hold"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    freeze(first.pid, engine_url)  # nobody is there to end the frozen one
    freeze(run.pid, engine_url)
    start_worker(engine_url, "--processes", "1").ready()
    again = begun(tmp_path, 2)[1]
    open_gate(tmp_path)
    assert job.result(timeout=30) == again.pid
    first.send(signal.SIGCONT, run.pid)
    wait_until(lambda: start_time(run.pid) is None, "the thawed process to leave")
    first.send(signal.SIGCONT)
    assert first.ended() != 0, "a supervisor that was declared dead says so"
    assert job.refresh().result(timeout=0) == again.pid
    assert Books(engine_url).entries() == {"job": ["succeeded"]}
    assert [each.epoch for each in runs_of(tmp_path)] == [1, 2]


def freeze(pid: int, url: str) -> None:
    """Stop a process, but not with SQLite's write lock in its hands: then everybody would wait for it."""
    lock = Path(f"{parse_url(url).path}.lock")
    while True:
        os.kill(pid, signal.SIGSTOP)
        wait_until(lambda: _state(pid) == "T", "the process to stand still")
        if not lock.exists() or _is_free(lock):
            return
        os.kill(pid, signal.SIGCONT)


def _state(pid: int) -> str:
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _is_free(lock: Path) -> bool:
    with lock.open() as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return int(lock.read_text()) not in _stopped()
        return True


def _stopped() -> set[int]:
    """Processes that stand still now."""
    found = set()
    for entry in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if _state(int(entry.name)) == "T":
                found.add(int(entry.name))
    return found


# Timeouts that cannot be enforced from within


@pytest.mark.either
@pytest.mark.parametrize("task", ["stubborn", "block"])
def test_a_body_that_cannot_be_stopped_costs_its_process_but_not_its_neighbours_attempts(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path, task: str
) -> None:
    worker = start_worker(engine_url, "--processes", "1").ready()
    (before,) = worker.children()
    neighbours = jobs_app.tasks["hold"].enqueue_many([(f"neighbour{each}",) for each in range(3)])
    begun(tmp_path, 3)
    stuck = jobs_app.tasks[task].enqueue("stuck")
    wait_until(lambda: stuck.refresh().state.is_end, "the timeout", 60)
    assert stuck.error is not None and stuck.error.code == "TASK_TIMEOUT"
    wait_until(lambda: worker.children() not in ([], [before]), "the process to be replaced", 60)
    again = begun(tmp_path, 7)
    for neighbour in neighbours:
        assert [run.epoch for run in again if run.job == neighbour.args[0]] == [1, 2]
    open_gate(tmp_path)
    for neighbour in neighbours:
        assert neighbour.result(timeout=30) != before
        assert (neighbour.attempt, neighbour.crashes, neighbour.errors) == (1, 0, [])
    assert len([run for run in runs_of(tmp_path) if run.job == "stuck"]) == 1


# Hopeless starts


def failing_app(folder: Path, text: str) -> dict[str, str]:
    (folder / "broken.py").write_text(
        f"import os, sys\nfrom evenflow import Evenflow\napp = Evenflow()\n{text}\n"
    )
    return {"PYTHONPATH": str(folder)}


IN_CHILD = "if 'evenflow.worker.child' in ' '.join(sys.orig_argv):"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (f"{IN_CHILD} raise ValueError('no key')", "worker processes cannot start: see the error above"),
        (f"{IN_CHILD} os._exit(9)", "worker processes died 5 times in a row before they could serve"),
        (
            f"{IN_CHILD} os.kill(os.getpid(), 11)",
            "worker processes died 5 times in a row before they could serve",
        ),
        (
            f"@app.hooks.on_worker_start\ndef start():\n    {IN_CHILD} raise RuntimeError('no model')",
            "worker processes died 5 times in a row before they could serve",
        ),
    ],
)
def test_processes_that_cannot_start_end_the_command_loudly(
    start_worker: StartWorker, sqlite_url: str, tmp_path: Path, text: str, said: str
) -> None:
    worker = start_worker(sqlite_url, "--processes", "1", locator="broken:app", **failing_app(tmp_path, text))
    assert worker.ended() == 1
    worker.said(said)
    assert worker.left_behind() == []


@pytest.mark.parametrize(
    ("locator", "options", "said"),
    [
        ("nowhere:app", [], "there is no module 'nowhere'"),
        ("tests.worker.jobs:nobody", [], "has no 'nobody'; it has tests.worker.jobs:app"),
        ("tests.worker.jobs:app", ["--queues", "9lives"], "--queues '9lives'"),
        ("tests.worker.jobs:app", ["--processes", "0"], "0 is not in the range"),
        ("tests.worker.jobs:app", ["--concurrency", str(10**20)], "is not in the range"),
        ("tests.worker.jobs:app", ["--shutdown-timeout", "nan"], "a number of seconds, 0 or more, got nan"),
        ("tests.worker.jobs:app", ["--max-age", "inf"], "a number of seconds, 0 or more, got inf"),
        (
            "tests.worker.jobs:app",
            ["--pidfile", "/nowhere/at/all.pid"],
            "name a file in a folder that exists",
        ),
    ],
)
def test_a_wrong_command_line_is_told_in_one_line_and_exits_non_zero(
    start_worker: StartWorker, sqlite_url: str, locator: str, options: list[str], said: str
) -> None:
    worker = start_worker(sqlite_url, *options, locator=locator)
    assert worker.ended() in (1, 2)
    assert said in worker.log
    assert "Traceback" not in worker.log


def test_a_database_in_memory_cannot_be_shared_by_processes(start_worker: StartWorker) -> None:
    worker = start_worker("sqlite:///:memory:")
    assert worker.ended() == 1
    assert "a database in memory belongs to one process" in worker.log


@pytest.mark.either
def test_a_service_that_dies_ends_the_command_with_a_code(
    start_worker: StartWorker, engine_url: str, books: Books
) -> None:
    worker = start_worker(engine_url, "--processes", "1").ready()
    books.rows("delete from {worker} where kind = 'supervisor'")
    assert worker.ended() == 1
    worker.said("this supervisor was declared dead by another one")
    assert worker.left_behind() == []


# Recycling


def test_a_process_is_replaced_after_its_number_of_jobs(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(sqlite_url))
    start_worker(sqlite_url, "--processes", "1", "--max-jobs-per-process", "5").ready()
    jobs = app.tasks["note"].enqueue_many([(f"job{number}",) for number in range(12)])
    for job in jobs:
        job.result(timeout=60)
    assert sorted(Counter(run.pid for run in runs_of(tmp_path)).values()) == [2, 5, 5]


def test_a_process_is_replaced_when_it_has_grown_too_large(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(sqlite_url))
    worker = start_worker(sqlite_url, "--processes", "1", "--max-memory-mb", "200").ready()
    fat = app.tasks["eat"].enqueue("fat", 200).result(timeout=60)
    worker.said("this process is replaced for its memory")
    wait_until(lambda: worker.children() not in ([], [fat]), "a new process")
    assert app.tasks["hold"].enqueue("lean", "bodies").result(timeout=30) != fat


def test_a_process_is_replaced_when_it_is_too_old_but_its_jobs_may_end(
    start_worker: StartWorker, sqlite_url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(sqlite_url))
    worker = start_worker(
        sqlite_url, "--processes", "1", "--max-age", "1", "--shutdown-timeout", "0.1"
    ).ready()
    job: Job[int] = app.tasks["hold"].enqueue("job")
    (run,) = begun(tmp_path, 1)
    worker.said("this process is replaced for its age")
    assert job.refresh().state is State.RUNNING
    open_gate(tmp_path)
    assert job.result(timeout=30) == run.pid
    wait_until(lambda: worker.children() not in ([], [run.pid]), "a new process")
    assert job.attempt == 1


# Rest


USUAL = {
    "EVENFLOW_HEARTBEAT_MS": 2000,
    "EVENFLOW_LEASE_MS": 10_000,
    "EVENFLOW_NOTIFY_POLL_INTERVAL_MS": 5000,
}


@pytest.mark.either
def test_an_idle_command_hardly_computes(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow
) -> None:
    jobs_app.prepare()
    worker = start_worker(engine_url, "--processes", "1", **USUAL).ready()
    pids = [worker.pid, *worker.children()]
    shares: list[float] = []

    def is_quiet() -> bool:
        """In one spell of several: the start takes its time, and what others do on this machine is not counted."""
        before, started = {pid: cpu_s(pid) for pid in pids}, time.monotonic()
        wait_until(lambda: time.monotonic() > started + 3.0, "a spell of idleness")
        lasted = time.monotonic() - started
        shares.append(max((cpu_s(pid) - before[pid]) / lasted for pid in pids))
        return shares[-1] <= 0.01

    wait_until(is_quiet, "a spell in which the processes hardly compute", 45)
    print(f"idle: {min(shares):.2%} of a CPU per process, of {[f'{share:.2%}' for share in shares]}")


def test_an_idle_process_hardly_speaks(
    start_worker: StartWorker, postgres_url: str, make_app: MakeApp
) -> None:
    make_app(postgres_url).prepare()
    start_worker(postgres_url, "--processes", "2", **USUAL).ready(2)
    with psycopg.connect(postgres_url, autocommit=True) as session:
        rates: list[float] = []

        def is_quiet() -> bool:
            """In a spell after the first ones: the server counts what its backends tell it, up to seconds later. What may be
            said is a beat and a look at the queues every other second of each process, and the services."""
            spoken, started = commits(session), time.monotonic()
            wait_until(lambda: time.monotonic() > started + 3.0, "a spell of idleness")
            rates.append((commits(session) - spoken) / (time.monotonic() - started))
            return len(rates) > 1 and rates[-1] <= 2 * 1.5 + 6

        wait_until(is_quiet, "a spell in which little is said", 45)
    print(f"idle: {min(rates):.1f} transactions a second of a supervisor and two processes, of {rates}")


def cpu_s(*pids: int) -> float:
    """What processes have computed so far."""
    ticks = 0
    for pid in pids:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
        ticks += int(fields[11]) + int(fields[12])
    return ticks / os.sysconf("SC_CLK_TCK")


def commits(session: psycopg.Connection[tuple[int]]) -> int:
    """Transactions in this database so far, but for those of the question itself."""
    session.execute("select pg_stat_clear_snapshot()")
    row = session.execute(
        "select xact_commit from pg_stat_database where datname = current_database()"
    ).fetchone()
    assert row is not None
    return row[0]


@pytest.mark.either
def test_the_health_of_a_worker_process_is_its_heartbeat(
    start_worker: StartWorker, engine_url: str, books: Books
) -> None:
    start_worker(engine_url, "--processes", "1").ready()
    first = books.rows("select beat from {worker} where kind = 'worker'")
    wait_until(lambda: books.rows("select beat from {worker} where kind = 'worker'") > first, "a heartbeat")
