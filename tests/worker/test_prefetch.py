"""Soft mode: jobs claimed ahead of free slots, their leases, and every way in which they go back."""

import contextlib
import time
from collections import Counter
from typing import Any, cast

import pytest

from evenflow import Context, Evenflow, Job, JobCancelled, JobExpired, Resilience, State
from evenflow.ids import id_number, id_text
from evenflow.store import leases
from evenflow.store.advance import Claim, Want, advance
from evenflow.worker import rounds as rounds_module
from evenflow.worker.options import PumpOptions
from evenflow.worker.prefetch import Prefetched
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp
from tests.worker.test_pump import FATES, QUICK, Gate, Round, gate, rounds, trouble
from tests.worker.troubled import Trouble

__all__ = ["gate", "rounds", "trouble"]

PREFETCH = 3
WORKER = 7
# Heartbeats so rare that none falls into a test: what a claim's lease does is then the test's own doing.
STILL: dict[str, Any] = {
    "heartbeat_ms": 60_000,
    "lease_ms": 600_000,
    "prefetch_buffer": PREFETCH,
    "claim_lease_ms": 300_000,
}


@pytest.fixture
def still(make_app: MakeApp, engine_url: str) -> Evenflow:
    """An app in soft mode whose heart does not beat."""
    return make_app(engine_url, **STILL)


class Runs:
    """Which jobs ran, and how often."""

    def __init__(self, app: Evenflow) -> None:
        self.count: Counter[str] = Counter()
        self.task = app.task(name="note")(self._note)

    def _note(self, ctx: Context) -> str:
        self.count[ctx.job_id] += 1
        return ctx.job_id


def held_by_a_busy_worker(books: Books, gate: Gate, *, claimed: int) -> None:
    """Wait until the worker is full and holds so many jobs ahead."""
    wait_until(
        lambda: gate.waiting >= 1 and books.states()["claimed"] == claimed, f"{claimed} jobs to be held"
    )


def test_a_full_worker_holds_its_buffer_and_no_job_more(
    still: Evenflow, books: Books, gate: Gate, rounds: list[Round]
) -> None:
    jobs = still.task(name="ahold")(gate.ahold).enqueue_many([()] * 20)
    with serving(still, concurrency=2):
        wait_until(lambda: gate.waiting == 2, "the slots to be full")
        wait_until(
            lambda: books.states() == {"running": 2, "claimed": 3, "ready": 15}, "the buffer to be full"
        )
        gate.opened.set()
        for job in jobs:
            job.result(timeout=30)
    in_hand = 0
    for each in rounds:
        assert each.claim.top <= 5
        in_hand += sum(each.claimed.values())
        in_hand -= each.ends
        assert in_hand <= 5
    assert set(books.column("attempt")) == {1}


def test_a_held_job_starts_without_another_claim(
    still: Evenflow, books: Books, gate: Gate, rounds: list[Round]
) -> None:
    runs = Runs(still)
    blocker = still.task(name="ahold")(gate.ahold).enqueue()
    with serving(still, concurrency=1):
        wait_until(lambda: gate.waiting == 1, "the slot to be full")
        job = runs.task.enqueue()
        held_by_a_busy_worker(books, gate, claimed=1)
        # The books know of a claim before the worker has its answer.
        wait_until(lambda: sum(each.claimed.total() for each in rounds) == 2, "the answer to the claim")
        before = len([each for each in rounds if each.claimed])
        gate.opened.set()
        job.result(timeout=30)
        blocker.result(timeout=30)
        assert len([each for each in rounds if each.claimed]) == before


def test_a_claim_whose_lease_ran_out_runs_elsewhere_and_its_holder_cannot_start_it(
    make_app: MakeApp, engine_url: str, books: Books, gate: Gate
) -> None:
    first, second = (make_app(engine_url, **STILL) for _ in range(2))
    runs, others = Runs(first), Runs(second)
    first.task(name="ahold")(gate.ahold).enqueue()
    second.task(name="ahold")(gate.ahold)
    with serving(first, concurrency=1, services=False):
        wait_until(lambda: gate.waiting == 1, "the slot to be full")
        job, *more = runs.task.enqueue_many([()] * PREFETCH)
        held_by_a_busy_worker(
            books, gate, claimed=PREFETCH
        )  # a full buffer: it cannot take the job a second time
        books.rows(f"update {{job}} set lease_until = 1 where id = {id_number(job.id)}")
        with serving(second, concurrency=1):
            assert job.result(timeout=30) == job.id
        gate.opened.set()
        for other in more:
            assert other.result(timeout=30) == other.id
    assert (runs.count[job.id], others.count[job.id]) == (0, 1)
    assert books.rows("select max(epoch) from {history} where task = 'note'")[0][0] == 2


def test_a_job_that_was_taken_away_and_claimed_again_starts_once(still: Evenflow) -> None:
    job = still.task(name="note")(lambda: None).enqueue()
    with contextlib.closing(still._own_engine(1)) as engine:
        leases.register(engine, WORKER, kind="worker", host="here", pid=1, lease_us=60_000_000)
        held = Prefetched(engine, WORKER, slots=cast("Any", None))
        for lease_us in (1, 60_000_000):
            wait_until(
                lambda: not leases.in_flight(engine, WORKER) or bool(leases.free_expired_claims(engine)),
                "the claim to end",
            )
            claim = Claim((Want("default", 0, 1),), 1, lease_us=lease_us)
            held.hold(advance(engine, WORKER, claim=claim).claimed)
        started = held.startable(5, under_caps=False)
    assert [(id_text(each.id), each.epoch) for each in started] == [(job.id, 2)]


def test_heartbeats_renew_the_claims_of_held_jobs(
    make_app: MakeApp, engine_url: str, books: Books, gate: Gate
) -> None:
    # A claim that outlasts any moment in which this process stands still.
    app = make_app(engine_url, heartbeat_ms=100, lease_ms=30_000, prefetch_buffer=1, claim_lease_ms=4_000)
    app.task(name="ahold")(gate.ahold).enqueue_many([()] * 2)
    with serving(app, concurrency=1):
        held_by_a_busy_worker(books, gate, claimed=1)
        until = books.rows("select lease_until from {job} where state = 'claimed'")[0][0]
        wait_until(
            lambda: time.time_ns() // 1000 > until + 500_000, "the claim to be over, were it not renewed"
        )
        assert books.rows("select epoch from {job} where state = 'claimed'") == [(1,)]
        assert books.rows("select lease_until from {job} where state = 'claimed'")[0][0] > until + 500_000
        gate.opened.set()


def test_held_jobs_of_a_paused_queue_go_back(still: Evenflow, books: Books, gate: Gate) -> None:
    runs = Runs(still)
    still.task(name="ahold", queue="other")(gate.ahold).enqueue()
    with serving(still, concurrency=1):
        wait_until(lambda: gate.waiting == 1, "the slot to be full")
        jobs = runs.task.using(queue="mail").enqueue_many([()] * 2)
        held_by_a_busy_worker(books, gate, claimed=2)
        still.pause("mail")
        gate.opened.set()
        wait_until(lambda: {job.refresh().state for job in jobs} == {State.READY}, "the jobs to go back")
        assert {job.attempt for job in jobs} == {0}
        assert runs.count.total() == 0
        still.resume("mail")
        for job in jobs:
            job.result(timeout=30)
    assert set(runs.count.values()) == {1}


def test_a_held_job_that_is_cancelled_never_starts(still: Evenflow, books: Books, gate: Gate) -> None:
    runs = Runs(still)
    still.task(name="ahold")(gate.ahold).enqueue()
    with serving(still, concurrency=1):
        wait_until(lambda: gate.waiting == 1, "the slot to be full")
        job = runs.task.enqueue()
        held_by_a_busy_worker(books, gate, claimed=1)
        assert job.cancel("not wanted")
        gate.opened.set()
        with pytest.raises(JobCancelled, match="not wanted"):
            job.result(timeout=30)
    assert runs.count.total() == 0


@pytest.mark.either
def test_a_held_job_that_expires_never_starts(still: Evenflow, books: Books, gate: Gate) -> None:
    runs = Runs(still)
    still.task(name="ahold")(gate.ahold).enqueue()
    with serving(still, concurrency=1):
        wait_until(lambda: gate.waiting == 1, "the slot to be full")
        job = runs.task.using(good_until=3600).enqueue()
        held_by_a_busy_worker(books, gate, claimed=1)
        books.rows("update {job} set good_until = 1 where state = 'claimed'")
        gate.opened.set()
        with pytest.raises(JobExpired):
            job.result(timeout=30)
    assert runs.count.total() == 0


def test_a_stop_returns_what_is_held_without_using_an_attempt(
    still: Evenflow, books: Books, gate: Gate
) -> None:
    jobs: list[Job[Any]] = still.task(name="ahold")(gate.ahold).enqueue_many([()] * 6)
    with serving(still, concurrency=2, shutdown_timeout=0.2):
        held_by_a_busy_worker(books, gate, claimed=3)
    assert {(job.refresh().state, job.attempt, job.crashes) for job in jobs} == {(State.READY, 0, 0)}


@pytest.mark.parametrize(("max_claim", "claimed"), [(1, 1), (2, 2), (50, 3)])
def test_the_ceiling_bounds_what_is_held(
    still: Evenflow, books: Books, gate: Gate, monkeypatch: pytest.MonkeyPatch, max_claim: int, claimed: int
) -> None:
    options = PumpOptions(concurrency=2, prefetch=PREFETCH, max_claim=max_claim)
    monkeypatch.setattr(still, "_pump_options", lambda *_: options)
    most = 0

    def watched(*arguments: Any, **options: Any) -> Any:
        nonlocal most
        answer = advance(*arguments, **options)
        most = max(most, books.states()["claimed"])
        return answer

    monkeypatch.setattr(rounds_module, "advance", watched)
    jobs = still.task(name="ahold")(gate.ahold).enqueue_many([()] * 20)
    with serving(still):
        wait_until(
            lambda: gate.waiting == 2 and books.states()["claimed"] == claimed, "the ceiling to be reached"
        )
        gate.opened.set()
        for job in jobs:
            job.result(timeout=30)
    assert most <= max(max_claim, 1)


def test_a_worker_at_its_ceiling_does_not_spin(
    still: Evenflow, books: Books, gate: Gate, monkeypatch: pytest.MonkeyPatch
) -> None:
    options = PumpOptions(concurrency=2, prefetch=PREFETCH, max_claim=1)
    monkeypatch.setattr(still, "_pump_options", lambda *_: options)
    jobs = still.task(name="ahold")(gate.ahold).enqueue_many([()] * 9)
    with serving(still, services=False):
        wait_until(lambda: gate.waiting == 2 and books.states()["claimed"] == 1, "the ceiling to be reached")
        computed, started = time.process_time(), time.monotonic()
        wait_until(lambda: time.monotonic() - started > 1.0, "a second")
        assert time.process_time() - computed < 0.5
        gate.opened.set()
        for job in jobs:
            job.result(timeout=30)


@pytest.mark.parametrize("fate", FATES)
def test_a_start_that_fails_costs_no_job(
    make_app: MakeApp, engine_url: str, books: Books, trouble: Trouble, fate: Any
) -> None:
    app = make_app(
        engine_url,
        resilience=QUICK,
        heartbeat_ms=200,
        lease_ms=20_000,
        prefetch_buffer=5,
        claim_lease_ms=10_000,
    )
    runs = Runs(app)
    runs.task.enqueue_many([()] * 40)
    has_come = trouble.once("start_claimed", fate, after=1)
    app.run_worker(until_empty=True, concurrency=2)
    assert has_come.is_set()
    assert books.states() == {"succeeded": 40}
    assert set(books.column("attempt")) == {1}
    assert set(runs.count.values()) == {1}


def test_the_buffer_needs_no_faster_poll(make_app: MakeApp, engine_url: str, books: Books) -> None:
    app = make_app(engine_url, resilience=Resilience(notify_poll_interval_ms=60_000), **STILL)
    runs = Runs(app)
    jobs = runs.task.enqueue_many([()] * 100)
    with serving(app, concurrency=2):
        for job in jobs:
            job.result(timeout=30)
    assert set(runs.count.values()) == {1}
