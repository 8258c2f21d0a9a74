"""Rounds ahead of their answers: when a pump asks ahead, that it claims no more than its slots, and what failures cost."""

import contextlib
import random
import threading
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any, cast

import psycopg
import pytest

from evenflow import Breaker, Concurrency, Evenflow, Resilience, State
from evenflow.errors import StoreUnavailable
from evenflow.ids import id_number
from evenflow.job import End
from evenflow.store import leases
from evenflow.store.advance import NOTHING, Claim, Flight, Want
from evenflow.store.engine import Parameters, Row
from evenflow.store.pipeline import Pipeline
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import readable
from evenflow.worker.patience import Impatient
from evenflow.worker.rounds import AHEAD, LEAST_ENDS, Round, Rounds
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp

SLOTS = 200
WORKER = 7
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


def test_the_next_round_goes_out_before_an_answer_is_heard(
    make_app: MakeApp, postgres_url: str, depths: Counter[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The server has nothing to do while an answer is read and its jobs start. As long as it has, more ends are waited for."""
    monkeypatch.setattr(
        "evenflow.worker.pump.LINGER_S", 30.0
    )  # all of the first part, half of the slots, end in one round
    heard: list[Counter[int]] = []
    hear = Rounds.hear

    def watched(rounds: Rounds) -> Any:
        heard.append(depths.copy())
        return hear(rounds)

    monkeypatch.setattr(Rounds, "hear", watched)
    app = make_app(postgres_url, lease_ms=60_000, heartbeat_ms=30_000)
    parts = [SLOTS // 2, LEAST_ENDS + 8]
    parts.append(SLOTS - sum(parts))
    gates = [threading.Event() for _ in parts]
    begun, ended = threading.Semaphore(0), threading.Semaphore(0)

    def hold(part: int) -> None:
        begun.release()
        gates[part].wait(30)
        ended.release()

    jobs = app.task(name="hold")(hold).enqueue_many(
        [(part,) for part, size in enumerate(parts) for _ in range(size)]
    )
    first = [id_number(job.id) for job in jobs[: parts[0]]]
    with serving(app, concurrency=SLOTS), psycopg.connect(postgres_url) as session:
        for _ in jobs:  # all of them: then the pump waits for ends and nothing else
            assert begun.acquire(timeout=30)
        with session.transaction():
            session.execute("select from evenflow.job where id = any (%s) for update", (first,))
            gates[0].set()
            wait_for_lock(postgres_url)
            gates[1].set()
            for _ in range(parts[0] + parts[1]):
                assert ended.acquire(timeout=30)
            time.sleep(0.2)
            assert depths == Counter({1: 1}), "there are too few ends for another round while more may come"
        wait_until(lambda: Books(postgres_url).states()["succeeded"] == sum(parts[:2]), "both to be written")
        assert heard[0] == Counter({1: 1, 2: 1}), "the second round was sent first"
        gates[2].set()
        for job in jobs:
            job.result(timeout=30)


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


class Trouble:
    """Rounds that are not sent, or whose answers are lost: two of them, chosen by chance."""

    def __init__(self, fate: str) -> None:
        self._fate = fate
        self._chance = random.Random(5)
        self._ask, self._answer = Pipeline.ask, Pipeline.answer
        self.faults = 0

    def ask(self, pipeline: Pipeline, units: Sequence[tuple[str, Parameters]], *, deadline_s: float) -> None:
        if self._fate == "not sent" and self._fails():
            raise StoreUnavailable("trouble: it was not sent")
        self._ask(pipeline, units, deadline_s=deadline_s)

    def answer(self, pipeline: Pipeline, *, deadline_s: float) -> list[list[Row]]:
        rows = self._answer(pipeline, deadline_s=deadline_s)
        if self._fate == "answer lost" and self._fails():
            raise StoreUnavailable("trouble: the answer was lost")
        return rows

    def _fails(self) -> bool:
        is_due = self.faults < 2 and self._chance.random() < 0.5
        self.faults += is_due
        return is_due


@pytest.fixture(params=["not sent", "answer lost"])
def trouble(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Trouble:
    found = Trouble(request.param)
    monkeypatch.setattr(Pipeline, "ask", lambda *given, **named: found.ask(*given, **named))
    monkeypatch.setattr(Pipeline, "answer", lambda *given, **named: found.answer(*given, **named))
    return found


def test_rounds_that_fail_are_written_again_and_no_body_runs_twice(
    busy_app: Evenflow, postgres_url: str, ledger: Ledger, trouble: Trouble
) -> None:
    """What a lost round has claimed was never started, so it goes back; what it should have written is written again."""
    busy_app.run_worker(until_empty=True, concurrency=SLOTS)
    assert trouble.faults
    assert_each_ran_once(ledger, postgres_url)
    assert set(Books(postgres_url).column("attempt")) == {1}, "what went back unstarted has used no attempt"


def test_sessions_that_are_ended_at_random_cost_no_job(
    busy_app: Evenflow, postgres_url: str, ledger: Ledger, depths: Counter[int]
) -> None:
    with Storm(postgres_url) as storm:
        busy_app.run_worker(until_empty=True, concurrency=SLOTS)
    assert storm.faults and +depths
    assert_each_ran_once(ledger, postgres_url)


def test_behind_a_round_that_went_ahead_goes_a_claim_with_few_ends_and_a_small_one_is_not_worth_while(
    make_app: MakeApp, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(postgres_url)
    app.task(name="note")(lambda: None).enqueue_many([()] * (4 * LEAST_ENDS))
    claim = Claim((Want("default", 0, LEAST_ENDS),), LEAST_ENDS)
    with contextlib.closing(cast("PostgresEngine", app._own_engine(1))) as engine:
        leases.register(engine, WORKER, kind="worker", host="here", pid=1, lease_us=60_000_000)
        rounds = Rounds(Impatient(engine, app.settings), WORKER, app.settings.retention, Pipeline(engine))
        monkeypatch.setattr("evenflow.worker.rounds.BUSY_S", 60.0)
        assert not rounds.ask_ahead([], claim) and not rounds.is_small(1, LEAST_ENDS + 1)
        jobs = rounds.exchange([], claim, None)[1].claimed
        assert rounds.ask_ahead([End(job.id, job.epoch, "succeeded", is_plain=True) for job in jobs], claim)
        assert not rounds.is_small(1, LEAST_ENDS + 1), "one is under way"
        assert len(rounds.hear()[1].claimed) == LEAST_ENDS
        assert rounds.is_small(1, LEAST_ENDS + 1) and not rounds.is_small(LEAST_ENDS, LEAST_ENDS + 1)
        assert rounds.ask_ahead([], claim)
        assert len(rounds.hear()[1].claimed) == LEAST_ENDS
        assert not rounds.ask_ahead([], Claim((Want("default", 0, 1),), 1)), "it brings too little"
        rounds.close()


def test_how_many_ends_make_a_round_is_decided_by_what_the_server_has_to_do(
    make_app: MakeApp, postgres_url: str
) -> None:
    app = make_app(postgres_url)
    app.task(name="note")(lambda: None).enqueue_many([()] * LEAST_ENDS)
    claim = Claim((Want("default", 0, LEAST_ENDS),), LEAST_ENDS)
    with (
        contextlib.closing(cast("PostgresEngine", app._own_engine(1))) as engine,
        psycopg.connect(postgres_url) as session,
    ):
        leases.register(engine, WORKER, kind="worker", host="here", pid=1, lease_us=60_000_000)
        rounds = Rounds(Impatient(engine, app.settings), WORKER, app.settings.retention, Pipeline(engine))
        assert rounds.enough(SLOTS) == SLOTS // 2, "it has nothing to do: the others end while it is at these"
        assert rounds.enough(2) == LEAST_ENDS
        rounds.has_company = True
        assert rounds.enough(SLOTS) == SLOTS, "others keep it busy"
        rounds.has_company = False
        jobs = rounds.exchange([], claim, None)[1].claimed
        with session.transaction():
            session.execute("select from evenflow.job where id = %s for update", (jobs[0].id,))
            assert rounds.ask_ahead(
                [End(job.id, job.epoch, "succeeded", is_plain=True) for job in jobs], NOTHING
            )
            wait_for_lock(postgres_url)
            assert rounds.enough(SLOTS) == SLOTS * 3 // 4, "it is at one"
        wait_until(lambda: bool(readable([rounds.descriptor], 1.0)), "the answer")
        rounds.note_readable()
        assert rounds.enough(SLOTS) == LEAST_ENDS, "it waits for us"
        rounds.close()


def test_an_end_that_is_refused_lands_no_flight(make_app: MakeApp, postgres_url: str) -> None:
    """The job may be in flight here by a later claim than the one that has ended."""
    app = make_app(postgres_url)
    app.task(name="note")(lambda: None).enqueue_many([(), ()])
    with contextlib.closing(app._own_engine(1)) as engine:
        leases.register(engine, WORKER, kind="worker", host="here", pid=1, lease_us=60_000_000)
        rounds = Rounds(Impatient(engine, app.settings), WORKER, app.settings.retention, None)
        claim = Claim((Want("default", 0, 1),), 1)
        (job,) = rounds.exchange([], claim, None)[1].claimed
        former = End(job.id, job.epoch - 1, "succeeded", is_plain=True)
        assert rounds.exchange([former], NOTHING, None)[1].lost == [(former.id, former.epoch)]
        (other,) = rounds.exchange([], claim, None)[1].claimed
        assert set(leases.in_flight(engine, WORKER)) == {(job.id, job.epoch), (other.id, other.epoch)}


class TestStepsOfWorkflows:
    """Rounds that end them go ahead too, whatever waits for the steps."""

    RUNS = 200
    SHAPE = (
        ("a",),
        ("b", "a"),
        ("c", "b"),
        ("d", "c"),
        ("e", "c"),
        ("f", "c"),
        ("g", "d", "e", "f"),
        ("h", "g"),
    )

    @pytest.fixture
    def flow_app(self, make_app: MakeApp, postgres_url: str, ledger: Ledger) -> Evenflow:
        """An app with runs that have chains and joins."""
        app = make_app(postgres_url, resilience=QUICK)
        note: Any = app.task(name="note")(ledger.note)
        for number in range(self.RUNS):
            made = app.workflow("shape")
            for place, (name, *above) in enumerate(self.SHAPE):
                made.step(note, number * len(self.SHAPE) + place, name=name, after=above)
            made.start()
        return app

    def assert_each_ran_once(self, ledger: Ledger, url: str) -> None:
        assert ledger.runs == Counter(range(self.RUNS * len(self.SHAPE)))
        books = Books(url)
        assert books.states() == {"succeeded": self.RUNS * len(self.SHAPE)}
        assert books.rows("select state, count(*) from {run} group by state") == [("succeeded", self.RUNS)]
        assert books.rows("select state, count(*) from {step} group by state") == [
            ("succeeded", self.RUNS * len(self.SHAPE))
        ]
        assert books.rows("select * from {step_end}") == []

    def test_go_ahead(
        self, flow_app: Evenflow, postgres_url: str, ledger: Ledger, depths: Counter[int]
    ) -> None:
        flow_app.run_worker(until_empty=True, concurrency=SLOTS)
        assert +depths and max(depths) <= AHEAD
        self.assert_each_ran_once(ledger, postgres_url)

    def test_that_are_not_sent_or_not_answered_are_written_once(
        self, flow_app: Evenflow, postgres_url: str, ledger: Ledger, trouble: Trouble
    ) -> None:
        flow_app.run_worker(until_empty=True, concurrency=SLOTS)
        assert trouble.faults
        self.assert_each_ran_once(ledger, postgres_url)

    def test_are_neither_lost_nor_run_again_when_sessions_are_ended_at_random(
        self, flow_app: Evenflow, postgres_url: str, ledger: Ledger, depths: Counter[int]
    ) -> None:
        with Storm(postgres_url) as storm:
            flow_app.run_worker(until_empty=True, concurrency=SLOTS)
        assert storm.faults and +depths
        self.assert_each_ran_once(ledger, postgres_url)

    @pytest.mark.usefixtures("always_ahead")
    @pytest.mark.parametrize("act", ["pause", "cancel"])
    def test_that_end_in_a_run_which_is_stopped_meanwhile_let_nothing_more_run(
        self, make_app: MakeApp, postgres_url: str, ledger: Ledger, depths: Counter[int], act: str
    ) -> None:
        app = make_app(postgres_url)
        opened = threading.Event()
        hold: Any = app.task(name="hold")(lambda: opened.wait(30))
        note: Any = app.task(name="note")(ledger.note)
        made = app.workflow("stopped")
        first = made.step(hold)
        second = made.step(note, 1, after=[first])
        made.step(note, 2, after=[first, second])
        run = made.start()
        with serving(app, concurrency=SLOTS):
            wait_until(lambda: Books(postgres_url).states()["running"] == 1, "the first to run")
            getattr(run, act)("enough")
            opened.set()
            wait_until(lambda: Books(postgres_url).states()["succeeded"] == 1, "it to end")
            if act == "pause":
                assert not ledger.runs
                run.resume()
                wait_until(lambda: run.refresh().state == "succeeded", "the rest to run")
        assert +depths
        assert ledger.runs == (Counter([1, 2]) if act == "pause" else Counter())
        assert run.refresh().state == ("succeeded" if act == "pause" else "cancelled")


class Storm:
    """Sessions are ended at random while a block lasts."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._has_begun, self._is_over = threading.Event(), threading.Event()
        self._thread = threading.Thread(target=self._blow)
        self.faults = 0

    def __enter__(self) -> "Storm":
        self._thread.start()
        assert self._has_begun.wait(30)
        return self

    def __exit__(self, *_: object) -> None:
        self._is_over.set()
        self._thread.join(30)

    def _blow(self) -> None:
        chance = random.Random(3)
        with psycopg.connect(self._url, autocommit=True, application_name="storm") as session:
            self._has_begun.set()
            while self.faults < 30 and not self._is_over.wait(0.03):
                for (pid,) in session.execute(PULSES).fetchall():
                    if chance.random() < 0.2:
                        verb = chance.choice(["pg_terminate_backend", "pg_cancel_backend"])
                        session.execute(f"select {verb}(%s)".encode(), (pid,))
                        self.faults += 1


def test_jobs_may_go_back_by_a_round_with_steps_though_the_rest_of_it_is_plain() -> None:
    # The end of a step whose run was paused is such a one: it waits.
    end = End(1, 1, "waiting", refund=1, run_id=7)
    assert Round([end], NOTHING, 0.0, True, Flight(1), steps=[end]).may_return
    assert Round([], NOTHING, 0.0, False, Flight(1)).may_return
    assert not Round([], NOTHING, 0.0, True, Flight(1)).may_return
