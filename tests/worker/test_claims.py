"""How a pump comes to its jobs: what starts first, which statements it sends, when it looks, and what wakes it."""

import contextlib
import math
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from types import SimpleNamespace
from typing import Any

import msgspec
import psycopg
import pytest

from evenflow import Concurrency, Evenflow, Queue, Resilience
from evenflow.errors import ConfigError
from evenflow.job import Claimed, End
from evenflow.store.advance import NOTHING, Advanced, Claim, Reached, Want
from evenflow.store.engine import Row
from evenflow.store.signals import Interrupt, watch_signals
from evenflow.worker import claims as claims_module
from evenflow.worker import local as local_module
from evenflow.worker import pump as pump_module
from evenflow.worker import rounds as rounds_module
from evenflow.worker import serving as serving_module
from evenflow.worker.claims import V_EVERY_S, Claims
from evenflow.worker.options import PumpOptions
from evenflow.worker.patience import Impatient
from evenflow.worker.serving import BOUND_AGE_S, QueueList, Serving
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp
from tests.worker.test_outcome import job
from tests.worker.test_pump import SELDOM, Gate, Round, gate, rounds, trouble
from tests.worker.troubled import Trouble

__all__ = ["gate", "rounds", "trouble"]


class Tally:
    """Bodies that only count."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.done = 0

    def note(self) -> None:
        with self._lock:
            self.done += 1


@pytest.fixture
def tally() -> Tally:
    return Tally()


# What is claimed


def test_what_is_told_while_a_claim_is_under_way_outlives_its_answer() -> None:
    claims = Claims(Serving(QueueList.parse(["*"])), poll_every_s=5.0, batch=0, lease_us=None)
    claim, nothing = Claim((Want("default", 0, 1),), 1), Advanced([], [], [], {}, set())
    asked_at = time.monotonic()
    claims.hear_of_work()
    claims.note(claim, nothing, asked_at, time.monotonic())
    assert claims.is_hungry, "the claim may have been carried out before"
    claims.note(claim, nothing, time.monotonic(), time.monotonic())
    assert not claims.is_hungry


class TestAClaimWithBounds:
    """May miss a straggler. One without follows soon where somebody had told of work, and only there."""

    POLL_S = 1000.0

    @pytest.fixture
    def claims(self, monkeypatch: pytest.MonkeyPatch) -> Claims:
        """After a claim without bounds that took a second; the next such one is due in 50."""
        self.now = 5000.0
        for module in (claims_module, serving_module):
            monkeypatch.setattr(module, "time", SimpleNamespace(monotonic=lambda: self.now))
        claims = Claims(
            Serving(QueueList.parse(["default"])), poll_every_s=self.POLL_S, batch=0, lease_us=None
        )
        first = claims.compose(10, self.now)
        assert first.bounds == []
        self.now += 1.0
        found = Advanced([job(queue="default", turn=1.0)], [], [], {("default", 0): 1.0}, set())
        claims.note(first, found, self.now - 1.0, self.now)
        self.now += BOUND_AGE_S
        return claims

    def is_followed(self, claims: Claims, claim: Claim) -> bool:
        """Whether a claim is due within the minute after this one, which has brought nothing."""
        claims.note(claim, Advanced([], [], [], {}, set()), self.now, self.now)
        assert not claims.is_hungry
        return claims.poll_at < self.now + 60

    def test_that_only_goes_along_with_ends_is_followed_by_none(self, claims: Claims) -> None:
        claims.is_hungry = False
        claim = claims.compose(10, self.now)
        assert claim.bounds
        assert not self.is_followed(claims, claim)

    def test_that_looks_for_what_we_were_told_of_is_followed_by_one(self, claims: Claims) -> None:
        claims.hear_of_work()
        looks = claims.compose(10, self.now)
        assert looks.bounds
        self.now += 0.001
        claims.is_hungry = False
        goes_along = claims.compose(10, self.now)
        assert self.is_followed(claims, looks), "also where another claim was sent meanwhile"
        assert self.is_followed(claims, goes_along)

    def test_is_made_up_for_by_one_without(self, claims: Claims) -> None:
        claims.hear_of_work()
        looks = claims.compose(10, self.now)
        self.now += 0.001
        assert self.is_followed(claims, looks)
        self.now = claims.poll_at
        sweep = claims.compose(10, self.now)
        assert sweep.bounds == []
        assert not self.is_followed(claims, sweep)


class TestVThatAnIdleWorkerLeaves:
    """Whoever comes next enters behind V: left for good, it would let them in front of all that wait."""

    @pytest.fixture
    def claims(self) -> Claims:
        """Of an idle worker that has just claimed a job at turn 3, alone, and left V where it was."""
        claims = a_deferring()
        claim = claims.compose(10, 1000.0, is_alone=True)
        assert not claim.moves_v
        self.note(claims, claim, 1000.0, claimed=[job(turn=turn) for turn in (1.0, 3.0)])
        return claims

    def note(
        self,
        claims: Claims,
        claim: Claim,
        now: float,
        *,
        claimed: Sequence[Claimed] = (),
        v: float | None = None,
    ) -> None:
        rounds = {} if v is None else {("default", 0): v}
        claims.note(claim, Advanced(list(claimed), [], [], rounds, set()), time.monotonic(), now)

    def test_is_moved_by_the_round_that_writes_an_end(self, claims: Claims) -> None:
        claim = claims.compose(10, 1000.01)
        assert (claim.moves_v, claim.reached) == (True, [Reached("default", 0, 3.0)])
        self.note(claims, claim, 1000.01, v=3.0)
        assert claims.v_due_at == math.inf
        assert claims.compose(10, 1001.0).reached == []

    def test_is_due_a_moment_later_and_nothing_else_is(self, claims: Claims) -> None:
        """No place may be free then; and a claim would find nothing."""
        assert claims.v_due_at == 1000.0 + V_EVERY_S
        assert not claims.is_hungry and claims.poll_at > 1001.0
        poll_at, claim = claims.poll_at, claims.catch_up()
        assert (claim.wants, claim.top, claim.moves_v) == ((), 0, True)
        assert claim.reached == [Reached("default", 0, 3.0)]
        self.note(claims, claim, claims.v_due_at, v=3.0)
        assert claims.v_due_at == math.inf
        assert (claims.is_hungry, claims.poll_at) == (False, poll_at)

    def test_that_somebody_holds_is_tried_again_a_moment_later(self, claims: Claims) -> None:
        now = claims.v_due_at
        self.note(claims, claims.catch_up(), now)
        assert claims.v_due_at == now + V_EVERY_S
        assert claims.catch_up().reached == [Reached("default", 0, 3.0)]

    def test_is_not_put_off_by_claims_that_do_not_move_it(self, claims: Claims) -> None:
        due_at = claims.v_due_at
        still = msgspec.structs.replace(claims.compose(10, 1000.01), moves_v=False)
        self.note(claims, still, 1000.01, claimed=[job(turn=5.0)])
        assert claims.v_due_at == due_at
        assert claims.catch_up().reached == [Reached("default", 0, 5.0)]

    def test_may_be_further_than_that_by_others(self, claims: Claims) -> None:
        self.note(claims, claims.catch_up(), claims.v_due_at, v=8.0)
        assert claims.v_due_at == math.inf

    def test_is_not_left_by_a_second_claim(self, claims: Claims) -> None:
        assert claims.compose(10, 1000.01, is_alone=True).moves_v

    def test_is_not_left_where_caps_are_counted(self) -> None:
        """Such a claim is no plain round, and only those say what was reached."""
        serving = Serving(QueueList.parse(["default"]))
        serving.capped = {"default"}
        claims = Claims(serving, poll_every_s=1000.0, batch=0, lease_us=None, defers_v=True)
        assert claims.compose(10, 1000.0, is_alone=True).moves_v

    def test_has_no_part_in_claims_of_workers_that_do_not_leave_it(self) -> None:
        claims = Claims(Serving(QueueList.parse(["default"])), poll_every_s=1000.0, batch=0, lease_us=None)
        claim = claims.compose(10, 1000.0, is_alone=True)
        assert (claim.moves_v, claims.v_due_at) == (True, math.inf)


def a_deferring() -> Claims:
    serving = Serving(QueueList.parse(["default"]))
    return Claims(serving, poll_every_s=1000.0, batch=0, lease_us=None, defers_v=True)


@pytest.mark.parametrize("around", ["nothing", "a cap", "a cap of the cluster", "a gate", "no free place"])
def test_v_is_moved_once_while_a_lone_job_runs_and_the_worker_is_at_rest_then(
    make_app: MakeApp, postgres_url: str, rounds: list[Round], trouble: Trouble, gate: Gate, around: str
) -> None:
    """Whatever kind of round its claims are. Nothing ends, so no other round goes out."""
    app = make_app(
        postgres_url, resilience=SELDOM, heartbeat_ms=300, lease_ms=30_000,
        cluster_wide_cap=9 if around == "a cap of the cluster" else None,
        queues=[Queue("a", max_concurrency=9 if around == "a cap" else None)],
    )  # fmt: skip
    hold = app.task(name="hold", queue="a")(gate.hold)
    app.prepare()
    books = Books(postgres_url)
    if around == "a gate":
        books.rows("insert into {gate} (kind, name, cause, shut_at) values ('task', 'other', 'pause', 1)")
    slots = 2 if around == "no free place" else 8
    with serving(app, queues=["a"], services=False, concurrency=slots):
        wait_until(lambda: trouble.calls["beat"] >= 2, "the worker to be idle")
        before = len(rounds)
        app.enqueue_many([hold.using(group="first").job() for _ in range(2)])
        wait_until(lambda: gate.waiting == 2, "its claim")
        wait_until(lambda: books.rows("select v from {round}") == [(2.0,)], "V to be moved", 5)
        beats = trouble.calls["beat"]
        wait_until(lambda: trouble.calls["beat"] >= beats + 3, "the worker to have rested")
        # By a gate the first claim learns that it has to be made in full; and one looks for stragglers.
        assert len(rounds) - before <= 4
        hold.using(group="newcomer").enqueue()
        assert max(books.column("turn", "job")) == 3.0, "behind what the first group has had"
        gate.opened.set()


def test_no_slot_stays_idle_while_long_and_short_jobs_are_mixed(
    make_app: MakeApp, engine_url: str, rounds: list[Round], gate: Gate, tally: Tally
) -> None:
    """S0-27: every exchange asks for the slots that were free after the one before, and gets jobs for all of them."""
    slots, shorts, longs = 4, 300, 3
    app = make_app(engine_url, resilience=SELDOM, lease_ms=300_000)
    long, short = app.task(name="long")(gate.hold), app.task(name="short")(tally.note)
    mixed = [long.job() if number % 101 == 50 else short.job() for number in range(shorts + longs)]
    app.enqueue_many(mixed)
    with serving(app, concurrency=slots, services=False):
        wait_until(lambda: tally.done == shorts, "all short jobs, past the long ones", 60)
        assert gate.waiting == longs
        gate.opened.set()
    ready, in_flight = shorts + longs, 0
    for each in rounds:
        taken = sum(each.claimed.values())
        if ready:
            # What ends in this very exchange may leave its slot a moment later.
            assert each.claim.top >= slots - in_flight, "a slot was not asked for"
            assert taken == min(each.claim.top, ready), "a slot stayed empty though a job was ready"
        ready, in_flight = ready - taken, in_flight + taken - each.ends
    assert ready == in_flight == 0


@pytest.mark.parametrize("prefetch", [{}, {"prefetch_buffer": 8, "claim_lease_ms": 60_000}])
@pytest.mark.parametrize("cap", [None, 9])
def test_a_pass_takes_at_most_the_batch_from_a_queue_in_every_mode(
    make_app: MakeApp, engine_url: str, rounds: list[Round], prefetch: dict[str, int], cap: int | None
) -> None:
    """S0-36: in custom mode with and without caps, and where jobs are claimed ahead."""
    app = make_app(engine_url, queues=[Queue("a", max_concurrency=cap), Queue("b")], **prefetch)
    task = app.task(name="note", queue="a")(lambda: None)
    app.enqueue_many([task.using(queue=queue).job() for queue in ("a", "b") for _ in range(20)])
    app.run_worker(until_empty=True, concurrency=6, max_claim_batch=2)
    assert sum(sum(each.claimed.values()) for each in rounds) == 40
    assert max(count for each in rounds for count in each.claimed.values()) == 2


def test_claims_ask_for_the_locks_of_caps_only_where_there_are_caps(
    make_app: MakeApp, engine_url: str, rounds: list[Round]
) -> None:
    """S0-56"""
    for cap in (None, 3):
        rounds.clear()
        app = make_app(engine_url, queues=[Queue("a", max_concurrency=cap)])
        app.task(name="note", queue="a")(lambda: None).enqueue_many([()] * 5)
        app.run_worker(until_empty=True)
        asking = [each.claim for each in rounds if each.claim.wants]
        assert {claim.under_caps for claim in asking} == {cap is not None}


# By which statements


@pytest.mark.parametrize("served", [["a"], ["a", "b"], ["*"], ["a", "b*"]])
def test_every_list_of_queues_is_claimed_from_by_one_statement(
    make_app: MakeApp, engine_url: str, trouble: Trouble, tally: Tally, served: list[str]
) -> None:
    """S1-23, S1-26: an exact name, several, a wildcard or all, and with a paused queue among them."""
    app = make_app(engine_url)
    note = app.task(name="note")(tally.note)
    app.enqueue_many([note.using(queue=queue).job() for queue in ("a", "b", "b-held") for _ in range(10)])
    app.pause("b-held")
    with serving(app, queues=served, services=False, concurrency=2):
        wait_until(lambda: tally.done >= (10 if served == ["a"] else 20), "what may run")
    assert tally.done == (10 if served == ["a"] else 20)
    assert {name for name in trouble.calls if "advance" in name or "claim" in name} == {"advance", "claim"}


def test_a_busy_worker_comes_back_to_plain_rounds_after_a_job_with_a_key(
    make_app: MakeApp, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rounds_module, "RICH_S", 0.02)
    were_plain: list[bool] = []
    composed = rounds_module.Rounds._composed

    def noted(self: rounds_module.Rounds, ends: Sequence[End], claim: Claim) -> rounds_module.Round:
        asked = composed(self, ends, claim)
        were_plain.append(asked.is_plain)
        return asked

    monkeypatch.setattr(rounds_module.Rounds, "_composed", noted)
    app = make_app(engine_url)
    keyed = app.task(name="keyed", concurrency=Concurrency(to=1, key="key"))(lambda key: None)
    keyed.enqueue("a")
    app.task(name="note")(lambda: None).enqueue_many([()] * 1500)
    app.run_worker(until_empty=True, concurrency=5)
    assert not all(were_plain)
    assert all(were_plain[-10:])


def test_the_names_behind_a_wildcard_are_not_asked_for_with_every_claim(
    make_app: MakeApp, engine_url: str, trouble: Trouble, tally: Tally
) -> None:
    """S1-28: they are asked for apart from the claims, and a paused queue costs no query at all."""
    app = make_app(engine_url, resilience=SELDOM)
    note = app.task(name="note")(tally.note)
    app.enqueue_many([note.using(queue=queue).job() for queue in ("a", "b") for _ in range(60)])
    app.pause("b")
    with serving(app, queues=["*"], services=False, concurrency=1):
        wait_until(lambda: tally.done == 60, "the jobs of the queue that is not paused", 60)
    assert trouble.calls["advance"] >= 60
    assert trouble.calls["list_queues"] < trouble.calls["advance"] / 4


def test_a_pause_counts_from_the_next_claim_on_though_no_name_was_asked_for(
    make_app: MakeApp, engine_url: str, rounds: list[Round], tally: Tally, books: Books,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    """S1-24: the one statement leaves paused queues out by itself."""
    app = make_app(engine_url, resilience=SELDOM)
    note = app.task(name="note")(tally.note)
    with serving(app, queues=["a", "b"], services=False):
        app.enqueue_many([note.using(queue=queue).job() for queue in ("a", "b")])
        wait_until(lambda: tally.done == 2, "both queues to be served")
        app.pause("b")
        # From here on the worker learns nothing new about its queues.
        monkeypatch.setattr(pump_module.Pump, "_learn_names", lambda pump, now: None)
        before = len(rounds)
        app.enqueue_many([note.using(queue=queue).job() for queue in ("b", "a")])
        wait_until(lambda: tally.done == 3, "the other queue to be served")
        asked = {want.queue for each in list(rounds)[before:] for want in each.claim.wants}
        assert asked == {"a", "b"}, "it still asks for both"
    assert books.rows("select queue, state from {job}") == [("b", "ready")]


def test_an_idle_worker_claims_upon_a_hint_before_anything_else_that_is_due(
    make_app: MakeApp, engine_url: str, monkeypatch: pytest.MonkeyPatch, gate: Gate
) -> None:
    """A lone job waits for all that comes before its claim."""
    monkeypatch.setattr(pump_module, "NAMES_EVERY_S", 0.0)  # each round begins by asking for them
    asked: list[str] = []
    run = Impatient.run

    def noted(store: Impatient, name: str, *given: Any, **options: Any) -> list[Row]:
        asked.append(name)
        return run(store, name, *given, **options)

    monkeypatch.setattr(Impatient, "run", noted)
    app = make_app(engine_url, resilience=SELDOM, heartbeat_ms=60_000, lease_ms=300_000)
    hold = app.task(name="hold")(gate.hold)
    hold.enqueue()
    with serving(app, queues=["default"], services=False):
        wait_until(lambda: gate.waiting == 1, "the worker to be up")
        wait_until(lambda: is_at_rest(asked), "it to be idle")
        before = len(asked)
        hold.enqueue()
        wait_until(lambda: gate.waiting == 2, "the job of the hint")
        gate.opened.set()
    followed = [
        name for name in asked[before:] if "claim" in name or "advance" in name or name == "list_queues"
    ]
    assert followed[0] != "list_queues"


def is_at_rest(asked: list[str]) -> bool:
    """Whether nothing more was asked for a while: what is due 50 ms after a claim, and a look for stragglers, too."""
    before = len(asked)
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: len(asked) > before, "another call", 0.5)
    return len(asked) == before


# In which order it starts


@pytest.fixture
def starting(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """What a worker does for the first time, in its order."""
    seen: list[str] = []

    def note(owner: Any, name: str, what: str) -> None:
        before = getattr(owner, name)

        def noted(*args: Any, **options: Any) -> Any:
            if what not in seen:
                seen.append(what)
            return before(*args, **options)

        monkeypatch.setattr(owner, name, noted)

    note(Evenflow, "_pump_options", "validate")
    note(sqlite3, "connect", "connect")
    note(psycopg, "connect", "connect")
    note(local_module, "Slots", "slots")
    note(pump_module, "watch_signals", "subscribe")
    note(rounds_module.Rounds, "exchange", "claim")
    return seen


def test_a_worker_validates_connects_makes_its_slots_and_subscribes_before_it_claims(
    make_app: MakeApp, engine_url: str, starting: list[str]
) -> None:
    """S2-12"""
    make_app(engine_url).run_worker(until_empty=True, queues=["a"], services=False)
    assert starting == ["validate", "connect", "slots", "subscribe", "claim"]


@pytest.mark.parametrize(
    "wrong",
    [{"concurrency": 0}, {"max_claim_batch": -1}, {"shutdown_timeout": -1.0}, {"queues": ["no good"]}],
)
def test_with_an_invalid_configuration_no_connection_is_opened(
    make_app: MakeApp, engine_url: str, starting: list[str], wrong: dict[str, Any]
) -> None:
    """S2-12"""
    app = make_app(engine_url)
    with pytest.raises(ConfigError):
        app.run_worker(until_empty=True, **wrong)
    with pytest.raises(ConfigError):
        make_app(engine_url, prefetch_buffer=1)
    assert starting == ["validate"]


# When it looks


class DeafSignals:
    """Hears nothing, whatever comes."""

    def __init__(self) -> None:
        self._interrupt = Interrupt()

    def wait(self, timeout_s: float) -> set[str]:
        self._interrupt.wait(timeout_s)
        return set()

    def interrupt(self) -> None:
        self._interrupt.set()

    def close(self) -> None:
        self._interrupt.close()


@pytest.fixture
def deaf(monkeypatch: pytest.MonkeyPatch) -> None:
    """Pumps to which no wake-up comes."""

    @contextlib.contextmanager
    def watch(*_: Any, **__: Any) -> Iterator[DeafSignals]:
        with contextlib.closing(DeafSignals()) as signals:
            yield signals

    monkeypatch.setattr(pump_module, "watch_signals", watch)


@pytest.mark.usefixtures("deaf")
def test_a_worker_that_hears_nothing_finds_work_by_polling(
    make_app: MakeApp, engine_url: str, rounds: list[Round], tally: Tally
) -> None:
    """S2-14, S4-5"""
    app = make_app(engine_url, resilience=Resilience(notify_poll_interval_ms=1_000))
    note = app.task(name="note")(tally.note)
    with serving(app, queues=["default"], services=False):
        wait_until(lambda: len(rounds) >= 1, "the first look")
        note.enqueue()
        wait_until(lambda: tally.done == 1, "a poll that finds the job")


@pytest.mark.parametrize("poll_ms", [1_000, 5_000, 300_000])
def test_the_poll_interval_is_the_one_that_was_set(make_app: MakeApp, engine_url: str, poll_ms: int) -> None:
    """S4-5"""
    app = make_app(engine_url, resilience=Resilience(notify_poll_interval_ms=poll_ms))
    app.prepare()
    with app._local_worker(app._served(["a"]), PumpOptions(), services=False) as worker:
        pump = worker.pump
        for _ in range(20):
            pump._claims.postpone(1_000.0)
            assert 0.9 * poll_ms <= (pump._claims.poll_at - 1_000.0) * 1000 <= 1.1 * poll_ms
        pump._claims.is_hungry = False
        assert pump._claim(pump._claims.poll_at - 0.001) is NOTHING
        assert pump._claim(pump._claims.poll_at + 0.001).wants
        pump.stop()
        worker.run()


# What wakes it


def test_the_pump_takes_as_many_wake_ups_at_once_as_it_was_told(
    make_app: MakeApp, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """S2-27"""
    given: list[int] = []
    watch = watch_signals

    def noted(engine: Any, *kinds: str, most: int) -> Any:
        given.append(most)
        return watch(engine, *kinds, most=most)

    monkeypatch.setattr(pump_module, "watch_signals", noted)
    app = make_app(engine_url)
    app.prepare()
    options = PumpOptions(coalesce_notifies=7, until_empty=True)
    with app._local_worker(app._served(["a"]), options, services=False) as worker:
        worker.run()
    assert given == [7]
