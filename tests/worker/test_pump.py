"""The pump: what it claims, when it looks, what it writes, and what it bears."""

import asyncio
import threading
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import msgspec
import pytest

from evenflow import Context, Evenflow, Job, JobFailed, Queue, Resilience, Retry, State
from evenflow.errors import LeaseLost
from evenflow.store.advance import Advanced, Claim
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import Waker
from evenflow.worker import rounds as rounds_module
from evenflow.worker.options import PumpOptions
from evenflow.worker.outage import WorkerGaveUp
from evenflow.worker.rounds import Rounds
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp
from tests.worker.troubled import Trouble

SELDOM = Resilience(notify_poll_interval_ms=60_000)
QUICK = Resilience(
    db_retry_initial_ms=100,
    db_retry_max_ms=500,
    notify_poll_interval_ms=1_000,
    circuit_breaker_threshold=10_000,
)


@dataclass
class Round:
    """One exchange with the store, as a test saw it."""

    claim: Claim
    ends: int
    claimed: Counter[str]


@pytest.fixture
def rounds(monkeypatch: pytest.MonkeyPatch) -> list[Round]:
    """Every exchange of every pump of this process, in their order."""
    seen: list[Round] = []

    def noting(act: Callable[..., tuple[rounds_module.Round, Advanced]]) -> Callable[..., Any]:
        def noted(*arguments: Any) -> tuple[rounds_module.Round, Advanced]:
            asked, answer = act(*arguments)
            seen.append(Round(asked.claim, len(asked.ends), Counter(job.queue for job in answer.claimed)))
            return asked, answer

        return noted

    for name in ("exchange", "hear"):
        monkeypatch.setattr(Rounds, name, noting(getattr(Rounds, name)))
    return seen


@pytest.fixture
def trouble(monkeypatch: pytest.MonkeyPatch) -> Trouble:
    return Trouble(monkeypatch)


class Gate:
    """Bodies that wait until the test lets them go, and how many do."""

    def __init__(self) -> None:
        self.opened = threading.Event()
        self._lock = threading.Lock()
        self.waiting = 0
        self.entered = 0

    def hold(self) -> None:
        with self._lock:
            self.waiting += 1
            self.entered += 1
        self.opened.wait(60)
        with self._lock:
            self.waiting -= 1

    async def ahold(self) -> None:
        with self._lock:
            self.waiting += 1
            self.entered += 1
        try:
            while not self.opened.is_set():
                await asyncio.sleep(0.005)
        finally:
            with self._lock:
                self.waiting -= 1


@pytest.fixture
def gate() -> Gate:
    return Gate()


def ended(jobs: list[Job[Any]]) -> None:
    for job in jobs:
        job.result(timeout=60)


# What is claimed


def test_a_claim_never_asks_for_more_than_there_are_free_slots(
    app: Evenflow, rounds: list[Round], gate: Gate
) -> None:
    jobs = app.task(name="hold")(gate.hold).enqueue_many([()] * 30)
    with serving(app, concurrency=4):
        wait_until(lambda: gate.waiting == 4, "four to run")
        gate.opened.set()
        ended(jobs)
    assert max(sum(each.claimed.values()) for each in rounds) <= 4
    assert all(each.claim.top <= 4 for each in rounds)


def test_a_pass_takes_at_most_the_batch_from_a_queue_and_fills_every_slot_nevertheless(
    make_app: MakeApp, engine_url: str, rounds: list[Round], gate: Gate
) -> None:
    app = make_app(engine_url, resilience=SELDOM)
    task = app.task(name="hold")(gate.hold)
    jobs = [*task.using(queue="a").enqueue_many([()] * 20), *task.using(queue="b").enqueue_many([()] * 20)]
    with serving(app, concurrency=12, max_claim_batch=2):
        wait_until(
            lambda: gate.waiting == 12, "all slots to be filled, though the next poll is a minute away", 45
        )
        gate.opened.set()
        ended(jobs)
    assert max(count for each in rounds for count in each.claimed.values()) == 2


def test_two_workers_that_claim_small_batches_both_get_some(app: Evenflow, gate: Gate) -> None:
    app.task(name="hold")(gate.hold).enqueue_many([()] * 8)
    with serving(app, concurrency=4, max_claim_batch=2), serving(app, concurrency=4, max_claim_batch=2):
        wait_until(lambda: gate.waiting == 8, "both workers to be full")
        gate.opened.set()


def test_queues_are_served_in_the_order_of_their_priority(make_app: MakeApp, engine_url: str) -> None:
    queues = [Queue("low", priority=90), Queue("urgent", priority=1), Queue("usual")]
    app = make_app(engine_url, queues=queues)
    order: list[str] = []

    def note(ctx: Context) -> None:
        order.append(ctx.queue)

    task = app.task(name="note", queue="usual")(note)
    for name in ("low", "usual", "urgent"):
        task.using(queue=name).enqueue_many([()] * 5)
    app.run_worker(until_empty=True, concurrency=1)
    assert order == ["urgent"] * 5 + ["usual"] * 5 + ["low"] * 5


def test_queues_of_equal_priority_share_the_worker(app: Evenflow) -> None:
    order: list[str] = []

    def note(ctx: Context) -> None:
        order.append(ctx.queue)

    task = app.task(name="note")(note)
    for name in ("a", "b", "c"):
        task.using(queue=name).enqueue_many([()] * 20)
    app.run_worker(until_empty=True, concurrency=1)
    for start in range(0, 60, 15):
        shares = Counter(order[start : start + 15])
        assert shares == {"a": 5, "b": 5, "c": 5}


@pytest.mark.parametrize(
    ("served", "found"),
    [
        (["mail"], {"mail"}),
        (["mail*"], {"mail", "mail-eu"}),
        (["*"], {"mail", "mail-eu", "docs"}),
        (["docs", "mail-*"], {"docs", "mail-eu"}),
    ],
)
def test_only_the_listed_queues_are_served(app: Evenflow, served: list[str], found: set[str]) -> None:
    ran: set[str] = set()

    def note(ctx: Context) -> None:
        ran.add(ctx.queue)

    for name in ("mail", "mail-eu", "docs"):
        app.task(name="note")(note).using(queue=name).enqueue()
    app.run_worker(until_empty=True, queues=served)
    assert ran == found


def test_a_paused_queue_gets_no_claims_until_it_is_resumed(app: Evenflow) -> None:
    job = app.task(name="note", queue="mail")(lambda: 1).enqueue()
    app.pause("mail")
    with serving(app):
        assert app.task(name="other")(lambda: 2).enqueue().result(timeout=30) == 2
        assert job.refresh().state is State.READY
        app.resume("mail")
        assert job.result(timeout=30) == 1


def test_a_process_is_done_after_its_number_of_jobs_and_takes_no_more(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PumpOptions(concurrency=10, max_jobs=7, is_supervised=True)
    monkeypatch.setattr(app, "_pump_options", lambda *_: options)
    app.task(name="note")(lambda: 1).enqueue_many([()] * 20)
    app.run_worker()
    states = Counter(job.state for job in app.jobs())
    assert states == {State.SUCCEEDED: 7, State.READY: 13}


# When it looks


def test_jobs_that_were_ready_before_the_start_need_no_wake_up(make_app: MakeApp, engine_url: str) -> None:
    app = make_app(engine_url, resilience=SELDOM)
    job = app.task(name="note")(lambda: 5).enqueue()
    with serving(app):
        assert job.result(timeout=20) == 5


def test_a_wildcard_notices_a_new_queue_at_once(make_app: MakeApp, engine_url: str) -> None:
    app = make_app(engine_url, resilience=SELDOM)
    task = app.task(name="note")(lambda: 5)
    with serving(app):
        task.enqueue().result(timeout=20)
        started = time.monotonic()
        task.using(queue="brand-new").enqueue().result(timeout=20)
        assert time.monotonic() - started < 15.0


def test_the_end_of_a_lone_job_is_written_at_once(make_app: MakeApp, engine_url: str) -> None:
    app = make_app(engine_url, resilience=SELDOM)
    waits: list[float] = []
    ends: list[float] = []
    task = app.task(name="note")(lambda: ends.append(time.monotonic()))
    with serving(app):
        for _ in range(10):
            task.enqueue().result(timeout=20)
            waits.append(time.monotonic() - ends[-1])
    assert sorted(waits)[5] < 1.0


def test_many_ends_share_a_transaction(app: Evenflow, rounds: list[Round]) -> None:
    app.task(name="note")(lambda: None).enqueue_many([()] * 1000)
    app.run_worker(until_empty=True, concurrency=100)
    assert sum(each.ends for each in rounds) == 1000
    assert len([each for each in rounds if each.ends]) < 250


def test_work_is_found_by_polling_where_wake_ups_are_lost(
    make_app: MakeApp, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(postgres_url, resilience=Resilience(notify_poll_interval_ms=1_000))
    task = app.task(name="note")(lambda: 5)
    with serving(app, services=False):
        task.enqueue().result(timeout=20)
        monkeypatch.setattr(Waker, "_notify", lambda *_: None)
        started = time.monotonic()
        task.enqueue().result(timeout=20)
        assert time.monotonic() - started < 15.0


def idle_spell(trouble: Trouble) -> tuple[float, float]:
    """Calls of the store a second, and the part of a core that this process used."""
    calls, computed, started = trouble.calls.total(), time.process_time(), time.monotonic()
    wait_until(lambda: time.monotonic() - started > 2.0, "two seconds of idleness")
    lasted = time.monotonic() - started
    return (trouble.calls.total() - calls) / lasted, (time.process_time() - computed) / lasted


@pytest.mark.slow
def test_an_idle_worker_hardly_speaks_and_hardly_computes(
    make_app: MakeApp, engine_url: str, trouble: Trouble, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(engine_url)
    with serving(app, services=False):
        wait_until(lambda: trouble.calls["beat"] >= 2, "the worker to come to rest")
        spells: list[tuple[float, float]] = []

        def is_quiet() -> bool:
            """In the quietest of some spells, the test's own looks included: other load is not counted."""
            spells.append(idle_spell(trouble))
            return (
                min(spoken for spoken, _ in spells) <= 2.0 and min(computed for _, computed in spells) < 0.06
            )

        wait_until(is_quiet, "a spell in which it hardly speaks and hardly computes")


@pytest.mark.slow
def test_a_worker_that_is_full_for_longer_than_its_poll_interval_does_not_spin(
    make_app: MakeApp, engine_url: str, trouble: Trouble, gate: Gate
) -> None:
    app = make_app(engine_url, resilience=QUICK)
    job = app.task(name="ahold")(gate.ahold).enqueue()
    with serving(app, services=False, concurrency=1):
        wait_until(lambda: gate.waiting == 1, "the slot to be taken")
        calls, started = trouble.calls.total(), time.monotonic()
        wait_until(lambda: time.monotonic() - started > 2.5, "more than two polls")
        assert (trouble.calls.total() - calls) / (time.monotonic() - started) < 6, "calls a second"
        gate.opened.set()
        job.result(timeout=20)


def test_a_worker_that_knows_no_queue_yet_does_not_spin(
    make_app: MakeApp, engine_url: str, trouble: Trouble
) -> None:
    app = make_app(engine_url)
    task = app.task(name="note")(lambda: 5)
    with serving(app, services=False):
        wait_until(lambda: trouble.calls["beat"] >= 1, "the worker to start")
        before, started = time.process_time(), time.monotonic()
        wait_until(lambda: time.monotonic() - started > 1.0, "a second")
        assert time.process_time() - before < 0.5
        assert task.enqueue().result(timeout=20) == 5


def test_workers_do_not_poll_in_step(make_app: MakeApp, sqlite_url: str) -> None:
    app = make_app(sqlite_url)
    app.prepare()
    with app._local_worker(app._served(["a"]), PumpOptions(), services=False) as worker:
        intervals = set()
        for _ in range(20):
            worker.pump._claims.postpone(0.0)
            intervals.add(round(worker.pump._claims.poll_at, 3))
        worker.pump.stop()
        worker.run()
    assert len(intervals) > 5
    assert min(intervals) >= 4.5
    assert max(intervals) <= 5.5


# What it bears

FATES = ["lost", "answer lost"]


@pytest.mark.parametrize("fate", FATES)
@pytest.mark.parametrize(
    "unit", ["advance", "claim", "beat", "list_queues", "ahead", "any_open", "save_progress"]
)
def test_a_call_that_fails_once_costs_no_job(
    make_app: MakeApp, engine_url: str, books: Books, trouble: Trouble, unit: str, fate: Any
) -> None:
    app = make_app(engine_url, resilience=QUICK, heartbeat_ms=100, lease_ms=10_000)
    runs: Counter[str] = Counter()

    def note(ctx: Context) -> None:
        ctx.progress(1)
        runs[ctx.job_id] += 1

    app.task(name="note")(note).enqueue_many([()] * 50)
    has_come = trouble.once(unit, fate, after=1 if unit == "advance" else 0)
    app.run_worker(until_empty=True, concurrency=5)
    assert has_come.is_set()
    assert books.states() == {"succeeded": 50}
    assert set(books.column("attempt")) == {1}
    assert set(books.column("crashes")) == {0}
    assert set(runs.values()) == {1}, "a claim whose answer was lost is run once, when it comes again"


@pytest.mark.parametrize("fate", FATES)
def test_a_round_with_steps_that_fails_once_costs_no_step(
    make_app: MakeApp, engine_url: str, books: Books, trouble: Trouble, fate: Any
) -> None:
    app = make_app(engine_url, resilience=QUICK, heartbeat_ms=100, lease_ms=10_000)
    runs: Counter[int] = Counter()

    @app.task(name="note")
    def note(number: int) -> None:
        runs[number] += 1

    made = app.workflow("report")
    first = made.step(note, 0, name="first")
    middle = [made.step(note, number, after=[first], name=f"m{number}") for number in range(1, 9)]
    made.step(note, 9, after=middle, name="last")
    run = made.start()
    has_come = trouble.once("advance", fate, after=1)
    app.run_worker(until_empty=True, concurrency=5)
    assert has_come.is_set()
    assert run.refresh().state == "succeeded"
    assert books.states() == {"succeeded": 10}
    assert runs == dict.fromkeys(range(10), 1)


@pytest.mark.parametrize("fate", FATES)
def test_many_calls_that_fail_cost_no_job(
    make_app: MakeApp, engine_url: str, books: Books, trouble: Trouble, fate: Any
) -> None:
    app = make_app(engine_url, resilience=QUICK, heartbeat_ms=200, lease_ms=20_000)
    runs: Counter[str] = Counter()

    def count(ctx: Context) -> None:
        runs[ctx.job_id] += 1

    app.task(name="count", retry=Retry(max_attempts=3))(count).enqueue_many([()] * 200)
    number = iter(range(10**9))
    trouble.fate = lambda name: fate if name in ("advance", "claim") and next(number) % 3 == 1 else "pass"
    app.run_worker(until_empty=True, concurrency=20)
    assert books.states() == {"succeeded": 200}
    assert set(books.column("attempt")) == {1}
    assert set(runs.values()) == {1}


def test_a_result_that_could_not_be_written_at_once_is_not_lost_and_not_run_again(
    make_app: MakeApp, engine_url: str, trouble: Trouble
) -> None:
    app = make_app(engine_url, resilience=QUICK)
    runs: list[int] = []

    def note() -> int:
        runs.append(1)
        trouble.fate = lambda name: "lost"
        return 5

    job = app.task(name="note")(note).enqueue()
    with serving(app, services=False):
        wait_until(lambda: bool(runs) and trouble.calls["beat"] >= 4, "some tries")
        trouble.fate = lambda name: "pass"
        assert job.result(timeout=20) == 5
    assert runs == [1]


def test_jobs_are_given_up_when_their_lease_runs_out_while_the_database_is_away(
    make_app: MakeApp, engine_url: str, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(engine_url, resilience=QUICK, heartbeat_ms=100, lease_ms=1_000)
    ends: list[str] = []

    async def work(ctx: Context) -> int:
        if ctx.fence == 1:
            trouble.fate = lambda name: "lost"
            try:
                await asyncio.Event().wait()
            finally:
                ends.append("cancelled")
                trouble.fate = lambda name: "pass"
        return ctx.attempt

    job = app.task(name="work")(work).enqueue()
    with serving(app, services=False):
        assert job.result(timeout=30) == 1, "the attempt that was given up does not count"
    assert ends == ["cancelled"]
    assert "the lease ran out while the database was away: 1 running jobs are given up" in caplog.text


def test_a_worker_that_was_declared_dead_stops_and_its_results_are_dropped(
    make_app: MakeApp, engine_url: str, books: Books
) -> None:
    app = make_app(engine_url, heartbeat_ms=100, lease_ms=60_000)
    cancelled: list[bool] = []

    async def work() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append(True)
            raise

    job = app.task(name="work")(work).enqueue()
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(app.run_worker, services=False)
        wait_until(lambda: job.refresh().state is State.RUNNING, "the job to run")
        books.rows("delete from {worker}")
        with pytest.raises(LeaseLost, match="declared this worker dead"):
            running.result(45)
    assert cancelled == [True]
    assert job.refresh().state is State.RUNNING, "it is for a rescuer to take, not for the dead to give"


def test_a_late_result_of_a_lost_lease_changes_nothing(
    make_app: MakeApp, engine_url: str, books: Books
) -> None:
    app = make_app(engine_url, heartbeat_ms=60_000, lease_ms=120_000)
    taken = threading.Event()

    def work() -> int:
        books.rows("update {job} set epoch = epoch + 1, worker = worker + 1")
        taken.set()
        return 5

    job = app.task(name="work")(work).enqueue()
    with serving(app, services=False):
        assert taken.wait(20)
        app.task(name="other")(lambda: 1).enqueue().result(timeout=20)
        assert job.refresh().state is State.RUNNING


def test_patience_ends_with_an_error_where_it_has_an_end(
    make_app: MakeApp, engine_url: str, trouble: Trouble
) -> None:
    impatient = Resilience(db_retry_initial_ms=100, db_retry_max_ms=500, db_retry_max_attempts=3)
    app = make_app(engine_url, resilience=impatient)
    app.prepare()
    trouble.fate = lambda name: "lost"
    with pytest.raises(WorkerGaveUp, match="3 times in a row"):
        app.run_worker(services=False)


def test_the_circuit_opens_after_failures_in_a_row_and_one_probe_closes_it(
    make_app: MakeApp, engine_url: str, books: Books, trouble: Trouble, caplog: pytest.LogCaptureFixture
) -> None:
    resilience = Resilience(
        db_retry_initial_ms=100,
        db_retry_max_ms=500,
        circuit_breaker_threshold=3,
        circuit_breaker_cooldown_s=1,
    )
    app = make_app(engine_url, resilience=resilience, heartbeat_ms=100, lease_ms=30_000)
    task = app.task(name="note")(lambda: 5)

    def said() -> dict[str, Any]:
        about: dict[str, Any] = msgspec.json.decode(books.column("about", "worker")[0])
        return about

    with serving(app, services=False):
        task.enqueue().result(timeout=20)
        wait_until(lambda: said().get("circuit") == "closed", "a heartbeat that tells of the circuit")
        tries: list[float] = []
        trouble.fate = lambda name: tries.append(time.monotonic()) or "lost"  # type: ignore[func-returns-value]
        wait_until(lambda: "circuit-open" in caplog.text, "the circuit to open")
        wait_until(lambda: len(tries) > 3, "the probe")
        assert tries[3] - tries[2] > 0.9, "nothing touches the database during the cooldown"
        trouble.fate = lambda name: "pass"
        assert task.enqueue().result(timeout=20) == 5
        wait_until(lambda: "last_opening" in said(), "the opening to be told")
        wait_until(lambda: said()["circuit"] == "closed", "a heartbeat after the probe, which was one itself")
        assert said()["last_opening"]["failures"] >= 3
    assert "circuit-closed" in caplog.text


def test_failing_tasks_never_open_the_circuit(
    make_app: MakeApp, engine_url: str, caplog: pytest.LogCaptureFixture
) -> None:
    app = make_app(engine_url, resilience=Resilience(circuit_breaker_threshold=1))

    def explode() -> None:
        raise ValueError("no")

    app.task(name="explode")(explode).enqueue_many([()] * 50)
    app.run_worker(until_empty=True)
    assert "circuit" not in caplog.text


def test_running_jobs_keep_their_lease_through_a_short_outage(
    make_app: MakeApp, engine_url: str, trouble: Trouble, gate: Gate
) -> None:
    slow = Resilience(db_retry_initial_ms=60_000, db_retry_max_ms=300_000)
    app = make_app(engine_url, resilience=slow, heartbeat_ms=200, lease_ms=60_000)
    job = app.task(name="ahold")(gate.ahold).enqueue()
    with serving(app, services=False):
        wait_until(lambda: gate.waiting == 1, "the job to run")
        trouble.once("beat", "lost")
        beats = trouble.calls["beat"]
        wait_until(
            lambda: trouble.calls["beat"] >= beats + 3,
            "heartbeats, long before the back-off would be over",
            20,
        )
        gate.opened.set()
        job.result(timeout=20)
    assert gate.entered == 1


@pytest.mark.parametrize("has_result", [False, True])
def test_a_worker_in_which_nothing_runs_tries_again_within_its_lease(
    make_app: MakeApp, sqlite_url: str, trouble: Trouble, has_result: bool
) -> None:
    # With an unwritten result not even an open circuit keeps it away: taken for dead, its job would run again.
    threshold = 1 if has_result else 10_000
    slow = Resilience(
        db_retry_initial_ms=60_000, db_retry_max_ms=300_000, circuit_breaker_threshold=threshold
    )
    app = make_app(sqlite_url, resilience=slow, heartbeat_ms=200, lease_ms=1_000)
    runs: list[int] = []

    def note() -> int:
        runs.append(1)
        if has_result:
            trouble.fate = lambda name: "lost"
        return 5

    task = app.task(name="note")(note)
    with serving(app, services=False):
        wait_until(lambda: trouble.calls["beat"] >= 1, "the first heartbeat")
        if has_result:
            job = task.enqueue()
            wait_until(lambda: bool(runs), "the result")
        else:
            trouble.fate = lambda name: "lost"
        beats = trouble.calls["beat"]
        wait_until(lambda: trouble.calls["beat"] >= beats + 3, "tries, long before the back-off is over", 20)
        trouble.fate = lambda name: "pass"
        if not has_result:
            job = task.enqueue()
        assert job.result(timeout=20) == 5
    assert runs == [1]


def test_a_timeout_is_kept_while_the_database_is_away(
    make_app: MakeApp, sqlite_url: str, trouble: Trouble
) -> None:
    app = make_app(sqlite_url, resilience=QUICK, heartbeat_ms=200, lease_ms=60_000)
    told = threading.Event()

    def work(ctx: Context) -> None:
        trouble.fate = lambda name: "lost"
        wait_until(lambda: ctx.cancelled, "the timeout to be told", 20)
        told.set()

    job = app.task(name="work", timeout=0.3)(work).enqueue()
    with serving(app, services=False):
        assert told.wait(30), "the body heard of it before the database was back"
        trouble.fate = lambda name: "pass"
        with pytest.raises(JobFailed, match=r"longer than 0\.3 s"):
            job.result(timeout=20)


def test_a_timeout_is_kept_while_one_round_follows_another(make_app: MakeApp, sqlite_url: str) -> None:
    books = Books(sqlite_url)
    app = make_app(sqlite_url, resilience=SELDOM)
    let_go = threading.Event()
    others = app.task(name="other")(lambda: None)
    others.enqueue_many([()] * 500)
    late = app.task(name="late", timeout=0.2)(lambda: let_go.wait(60) and None).enqueue()
    others.enqueue_many([()] * 3_000)
    with serving(app, services=False, concurrency=50, max_claim_batch=1):
        with pytest.raises(JobFailed, match=r"longer than 0\.2 s"):
            late.result(timeout=60)
        let_go.set()
    others_left = app.stats().get("default", {}).get("ready", 0)
    ((ended_at,),) = books.rows("select finished_at from {history} where task = 'late'")
    ((last_claim,),) = books.rows("select max(started_at) from {history} where task = 'other'")
    assert others_left or last_claim > ended_at, "the queue was not empty yet, so it never rested"


def test_a_report_that_could_not_be_stored_is_stored_later(
    make_app: MakeApp, sqlite_url: str, trouble: Trouble
) -> None:
    app = make_app(sqlite_url, resilience=QUICK)
    has_come = trouble.once("save_progress", "lost")

    def report(ctx: Context) -> None:
        ctx.progress(3, 10)
        wait_until(lambda: app.job(ctx.job_id).progress is not None, "the report")

    job = app.task(name="report")(report).enqueue()
    app.run_worker(until_empty=True)
    assert has_come.is_set()
    assert job.refresh().state is State.SUCCEEDED, job.error
    assert job.progress == {"done": 3, "total": 10, "note": None}


# How it stops


def test_a_graceful_stop_lets_running_jobs_end(app: Evenflow, gate: Gate) -> None:
    jobs = app.task(name="ahold")(gate.ahold).enqueue_many([()] * 3)
    left = app.task(name="left")(lambda: 1)
    with serving(app, concurrency=3):
        wait_until(lambda: gate.waiting == 3, "the jobs to run")
        threading.Timer(0.2, gate.opened.set).start()
    assert {job.refresh().state for job in jobs} == {State.SUCCEEDED}
    assert left.enqueue().refresh().state is State.READY


def test_a_body_that_goes_on_talking_does_not_keep_a_stop_waiting(app: Evenflow, gate: Gate) -> None:
    def talk(ctx: Context) -> None:
        gate.waiting += 1
        while not gate.opened.is_set():
            ctx.log.info("still here")

    job = app.task(name="talk")(talk).enqueue()
    with serving(app, shutdown_timeout=0.1):
        wait_until(lambda: gate.waiting == 1, "the job to run")
    assert (job.refresh().state, job.attempt) == (State.READY, 0)
    gate.opened.set()


def test_jobs_that_do_not_end_in_time_go_back_without_losing_an_attempt(app: Evenflow, gate: Gate) -> None:
    jobs = [
        *app.task(name="ahold")(gate.ahold).enqueue_many([()] * 3),
        app.task(name="hold")(gate.hold).enqueue(),
    ]
    with serving(app, shutdown_timeout=0.1):
        wait_until(lambda: gate.waiting == 4, "the jobs to run")
    assert {(job.refresh().state, job.attempt, job.crashes) for job in jobs} == {(State.READY, 0, 0)}
    gate.opened.set()


def test_a_stop_while_the_database_is_away_ends_when_its_time_is_over(
    make_app: MakeApp, engine_url: str, trouble: Trouble, gate: Gate
) -> None:
    app = make_app(engine_url, resilience=QUICK)
    app.task(name="ahold")(gate.ahold).enqueue()

    def stop_without_database() -> None:
        with serving(app, shutdown_timeout=1.0, services=False):
            wait_until(lambda: gate.waiting == 1, "the job to run")
            trouble.fate = lambda name: "lost"
            trouble.calls.clear()

    with pytest.raises(WorkerGaveUp, match="stayed away during the stop"):
        stop_without_database()
    assert trouble.calls.total() < 40, "it tries, it does not hammer"


def test_a_worker_leaves_no_thread_and_no_row_behind(app: Evenflow, books: Books) -> None:
    app.task(name="note")(lambda: 1).enqueue_many([()] * 10)
    app.run_worker(until_empty=True)
    before = threading.active_count()
    for _ in range(3):
        app.task(name="more")(_one).enqueue_many([()] * 10)
        app.run_worker(until_empty=True)
    wait_until(lambda: threading.active_count() <= before, "the threads to end")
    assert books.column("id", "worker") == []


def _one() -> int:
    return 1


def test_a_pump_uses_one_connection_for_its_work_and_one_to_listen(
    make_app: MakeApp, postgres_url: str, gate: Gate
) -> None:
    app = make_app(postgres_url)
    app.task(name="ahold")(gate.ahold).enqueue_many([()] * 50)
    app.prepare()
    producer = app._producer.engine
    assert isinstance(producer, PostgresEngine)
    count = "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'evenflow'"
    with producer.session() as session:
        before = session.execute(count).fetchone()
        with serving(app, services=False, concurrency=50):
            wait_until(lambda: gate.waiting == 50, "fifty jobs to run")
            during = session.execute(count).fetchone()
            gate.opened.set()
    assert before is not None and during is not None
    assert during[0] - before[0] <= 2


@pytest.mark.parametrize("fate", FATES)
def test_a_hasty_stop_survives_one_call_that_fails(
    make_app: MakeApp, engine_url: str, trouble: Trouble, gate: Gate, fate: Any
) -> None:
    app = make_app(engine_url, resilience=QUICK)
    job = app.task(name="ahold")(gate.ahold).enqueue()
    with serving(app, shutdown_timeout=0.0, services=False):
        wait_until(lambda: gate.waiting == 1, "the job to run")
        has_come = trouble.once("advance", fate)
    assert has_come.is_set()
    assert (job.refresh().state, job.attempt, job.crashes) == (State.READY, 0, 0)
