"""Rounds ahead of their answers: when a pump asks ahead, that it claims no more than its slots, and what failures cost."""

import random
import threading
from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import psycopg
import pytest

from evenflow import Breaker, Concurrency, Evenflow, Resilience, State
from evenflow.errors import StoreUnavailable
from evenflow.ids import id_number
from evenflow.job import End
from evenflow.store.advance import Claim
from evenflow.store.engine import Parameters, Row
from evenflow.store.pipeline import Pipeline
from evenflow.worker.rounds import AHEAD, LEAST_ENDS, Rounds
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp

SLOTS = 200
JOBS = 3_000
QUICK = Resilience(
    db_retry_initial_ms=100,
    db_retry_max_ms=500,
    notify_poll_interval_ms=1_000,
    circuit_breaker_threshold=10_000,
)
WAITING = "select from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"
PULSES = (
    "select pid from pg_stat_activity where application_name = 'evenflow' and datname = current_database()"
)


class Ledger:
    """What bodies have run, written by themselves."""

    def __init__(self) -> None:
        self.runs: Counter[int] = Counter()
        self._lock = threading.Lock()

    def note(self, number: int) -> int:
        with self._lock:
            self.runs[number] += 1
        return number


@pytest.fixture
def ledger() -> Ledger:
    return Ledger()


@pytest.fixture
def busy_app(make_app: MakeApp, postgres_url: str, ledger: Ledger) -> Evenflow:
    """An app with a backlog of small jobs."""
    app = make_app(postgres_url, resilience=QUICK)
    app.task(name="note")(ledger.note).enqueue_many([(number,) for number in range(JOBS)])
    return app


@pytest.fixture
def depths(monkeypatch: pytest.MonkeyPatch) -> Counter[int]:
    """How many rounds were under way after each one that was sent ahead."""
    seen: Counter[int] = Counter()
    ask_ahead = Rounds.ask_ahead

    def noted(rounds: Rounds, ends: Sequence[End], claim: Claim) -> bool:
        is_sent = ask_ahead(rounds, ends, claim)
        seen[len(rounds)] += is_sent
        return is_sent

    monkeypatch.setattr(Rounds, "ask_ahead", noted)
    return seen


@pytest.fixture
def always_ahead(monkeypatch: pytest.MonkeyPatch) -> None:
    """However little there is to say: how many bodies end in one moment is nothing to rely on."""
    monkeypatch.setattr("evenflow.worker.rounds.LEAST_ENDS", 1)


def wait_for_lock(url: str) -> None:
    """Until a round waits for a job that the test has locked."""
    with psycopg.connect(url, autocommit=True) as session:
        wait_until(
            lambda: session.execute(WAITING).fetchone() is not None, "a round that waits for a locked job"
        )


def assert_each_ran_once(ledger: Ledger, url: str) -> None:
    assert ledger.runs == Counter(range(JOBS))
    assert Books(url).states() == {"succeeded": JOBS}


def test_a_busy_pump_asks_ahead(
    busy_app: Evenflow, postgres_url: str, ledger: Ledger, depths: Counter[int]
) -> None:
    busy_app.run_worker(until_empty=True, concurrency=SLOTS)
    assert +depths and max(depths) <= AHEAD
    assert_each_ran_once(ledger, postgres_url)


@pytest.mark.usefixtures("always_ahead")
def test_a_round_that_the_server_does_not_answer_keeps_the_next_one_from_nothing(
    make_app: MakeApp, postgres_url: str, depths: Counter[int]
) -> None:
    """Also the heart goes on beating: it has a connection of its own."""
    app = make_app(postgres_url, lease_ms=60_000)  # a round is given up after half of it
    gates = [threading.Event(), threading.Event()]
    half = SLOTS // 2
    jobs = app.task(name="hold")(lambda number: gates[number].wait(30)).enqueue_many(
        [(number // half,) for number in range(SLOTS)]
    )
    with serving(app, concurrency=SLOTS), psycopg.connect(postgres_url) as session:
        wait_until(lambda: Books(postgres_url).states()["running"] == SLOTS, "all to run")
        with session.transaction():
            session.execute("select from evenflow.job where id = %s for update", (id_number(jobs[0].id),))
            gates[0].set()
            wait_for_lock(postgres_url)
            beat = Books(postgres_url).rows("select beat from {worker} where kind <> 'supervisor'")
            gates[1].set()
            wait_until(lambda: depths[2] > 0, "another one behind it")
            wait_until(
                lambda: (
                    Books(postgres_url).rows("select beat from {worker} where kind <> 'supervisor'") != beat
                ),
                "a heartbeat",
            )
        for job in jobs:
            assert job.result(timeout=30)


def test_jobs_that_were_asked_for_have_their_slots(
    busy_app: Evenflow,
    postgres_url: str,
    ledger: Ledger,
    depths: Counter[int],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """In the books, at any moment: no more in flight than there are slots, whatever is under way."""
    most = 0
    hear = Rounds.hear

    def watched(rounds: Rounds) -> Any:
        nonlocal most
        most = max(most, Books(postgres_url).states()["running"])
        return hear(rounds)

    monkeypatch.setattr(Rounds, "hear", watched)
    busy_app.run_worker(until_empty=True, concurrency=SLOTS)
    assert +depths
    assert SLOTS // 4 < most <= SLOTS
    assert_each_ran_once(ledger, postgres_url)


@pytest.mark.parametrize(
    "options", [{"breaker": Breaker()}, {"concurrency": Concurrency(to=SLOTS)}], ids=["breaker", "key"]
)
def test_what_bodies_say_to_limits_is_heard_with_their_ends(
    make_app: MakeApp, postgres_url: str, ledger: Ledger, options: dict[str, Any]
) -> None:
    app = make_app(postgres_url)
    app.task(name="note", **options)(ledger.note).enqueue_many([(number,) for number in range(JOBS)])
    app.run_worker(until_empty=True, concurrency=SLOTS)
    assert_each_ran_once(ledger, postgres_url)
    assert Books(postgres_url).rows("select count(*) from {hold}") == [(0,)]


def test_a_pump_with_little_to_say_asks_and_waits(
    make_app: MakeApp, postgres_url: str, ledger: Ledger, depths: Counter[int]
) -> None:
    app = make_app(postgres_url)
    app.task(name="note")(ledger.note).enqueue_many([(number,) for number in range(200)])
    app.run_worker(until_empty=True, concurrency=LEAST_ENDS - 1)
    assert not +depths
    assert ledger.runs == Counter(range(200))


def test_a_stop_leaves_nothing_under_way(
    busy_app: Evenflow, postgres_url: str, ledger: Ledger, depths: Counter[int]
) -> None:
    with serving(busy_app, concurrency=SLOTS):
        wait_until(lambda: sum(depths.values()) >= 2, "rounds to be asked ahead")
    states = Books(postgres_url).states()
    assert states["running"] == 0
    assert states["succeeded"] == len(ledger.runs) and set(ledger.runs.values()) == {1}
    assert sum(states.values()) == JOBS


@pytest.mark.usefixtures("always_ahead")
def test_a_pump_that_waits_for_an_answer_hears_of_arrivals(
    make_app: MakeApp, postgres_url: str, ledger: Ledger
) -> None:
    """What a caller's transaction has enqueued is admitted by whoever hears of it; here nobody else is there to do it."""
    app = make_app(postgres_url, lease_ms=60_000)
    opened = threading.Event()
    jobs = app.task(name="hold")(lambda: opened.wait(30)).enqueue_many([()] * SLOTS)
    note: Any = app.task(name="note")(ledger.note)
    with (
        serving(app, concurrency=SLOTS, services=False),
        psycopg.connect(postgres_url) as session,
        psycopg.connect(postgres_url) as caller,
    ):
        wait_until(lambda: Books(postgres_url).states()["running"] == SLOTS, "all to run")
        with session.transaction():
            session.execute("select from evenflow.job where id = %s for update", (id_number(jobs[0].id),))
            opened.set()
            wait_for_lock(postgres_url)
            job = note.enqueue(7, connection=caller)
            caller.commit()
            wait_until(lambda: job.refresh().state is State.READY, "it to be admitted")
        assert job.result(timeout=30) == 7


@pytest.mark.parametrize("fate", ["not sent", "answer lost"])
def test_rounds_that_fail_are_written_again_and_no_body_runs_twice(
    busy_app: Evenflow, postgres_url: str, ledger: Ledger, monkeypatch: pytest.MonkeyPatch, fate: str
) -> None:
    """What a lost round has claimed was never started, so it goes back; what it should have written is written again."""
    chance, faults = random.Random(5), 0
    ask, answer = Pipeline.ask, Pipeline.answer

    def fails() -> bool:
        nonlocal faults
        is_due = faults < 2 and chance.random() < 0.5
        faults += is_due
        return is_due

    def ask_or_fail(pipeline: Pipeline, name: str, parameters: Parameters, *, deadline_s: float) -> None:
        if fate == "not sent" and fails():
            raise StoreUnavailable("trouble: it was not sent")
        ask(pipeline, name, parameters, deadline_s=deadline_s)

    def answer_or_fail(pipeline: Pipeline, *, deadline_s: float) -> list[Row]:
        rows = answer(pipeline, deadline_s=deadline_s)
        if fate == "answer lost" and fails():
            raise StoreUnavailable("trouble: the answer was lost")
        return rows

    monkeypatch.setattr(Pipeline, "ask", ask_or_fail)
    monkeypatch.setattr(Pipeline, "answer", answer_or_fail)
    busy_app.run_worker(until_empty=True, concurrency=SLOTS)
    assert faults
    assert_each_ran_once(ledger, postgres_url)
    assert set(Books(postgres_url).column("attempt")) == {1}, "what went back unstarted has used no attempt"


def test_sessions_that_are_ended_at_random_cost_no_job(
    busy_app: Evenflow, postgres_url: str, ledger: Ledger, depths: Counter[int]
) -> None:
    chance, faults = random.Random(3), 0
    has_begun, ended = threading.Event(), threading.Event()

    def storm() -> None:
        nonlocal faults
        with psycopg.connect(postgres_url, autocommit=True, application_name="storm") as session:
            has_begun.set()
            while faults < 30 and not ended.wait(0.03):
                for (pid,) in session.execute(PULSES).fetchall():
                    if chance.random() < 0.2:
                        verb = chance.choice(["pg_terminate_backend", "pg_cancel_backend"])
                        session.execute(f"select {verb}(%s)".encode(), (pid,))
                        faults += 1

    with _beside(storm):
        assert has_begun.wait(30)
        busy_app.run_worker(until_empty=True, concurrency=SLOTS)
        ended.set()
    assert faults and +depths
    assert_each_ran_once(ledger, postgres_url)


class _beside:
    """Something on a thread of its own while a block lasts."""

    def __init__(self, act: Callable[[], None]) -> None:
        self._thread = threading.Thread(target=act)

    def __enter__(self) -> None:
        self._thread.start()

    def __exit__(self, *_: object) -> None:
        self._thread.join(30)
