"""Flights: which claims of a worker have jobs in flight, as far as the worker can tell."""

import threading
from collections.abc import Sequence

import psycopg
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow import Context, Resilience
from evenflow.ids import id_number
from evenflow.job import Claimed
from evenflow.worker.flights import Flights
from evenflow.worker.slots import Slots
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.conftest import MakeApp

SELDOM = Resilience(notify_poll_interval_ms=60_000)
SOON = Resilience(notify_poll_interval_ms=1_000)


def test_a_flight_lands_when_its_last_job_is_forgotten() -> None:
    flights = Flights()
    number = flights.next()
    flights.note(number, [1, 2])
    flights.forget([1])
    assert flights.take_landed() == []
    flights.forget([2])
    assert flights.take_landed() == [number]
    assert flights.take_landed() == []


def test_numbers_are_never_used_twice() -> None:
    flights = Flights()
    assert [flights.next() for _ in range(3)] == [1, 2, 3]


def test_a_claim_that_took_nothing_is_no_flight() -> None:
    flights = Flights()
    flights.note(flights.next(), [])
    flights.forget([5])
    assert flights.take_landed() == []


def test_a_job_that_comes_back_leaves_its_former_flight() -> None:
    flights = Flights()
    first, second = flights.next(), flights.next()
    flights.note(first, [1])
    flights.note(second, [1])
    assert flights.take_landed() == [first]
    flights.forget([1])
    assert flights.take_landed() == [second]


def test_what_was_taken_from_us_without_our_knowing_lands_when_it_is_not_kept() -> None:
    flights = Flights()
    number = flights.next()
    flights.note(number, [1, 2])
    flights.keep({1})
    assert flights.take_landed() == []
    flights.keep(set())
    assert flights.take_landed() == [number]


def test_what_could_not_be_told_is_told_again() -> None:
    flights = Flights()
    number = flights.next()
    flights.note(number, [1])
    flights.forget([1])
    flights.give_back(flights.take_landed())
    assert flights.take_landed() == [number]


@given(st.lists(st.lists(st.integers(1, 8), unique=True), max_size=12), st.randoms(use_true_random=False))
def test_a_flight_has_landed_exactly_if_none_of_its_jobs_is_left(
    claims: list[list[int]], chance: object
) -> None:
    flights, of, noted, landed = Flights(), dict[int, int](), set[int](), set[int]()
    for jobs in claims:
        number = flights.next()
        flights.note(number, jobs)
        of |= dict.fromkeys(jobs, number)
        noted |= {number} if jobs else set()
        gone = chance.sample(sorted(of), chance.randint(0, len(of)))  # type: ignore[attr-defined]
        flights.forget(gone)
        for job in gone:
            del of[job]
        landed |= set(flights.take_landed())
        assert landed == noted - set(of.values())


def flights_of(url: str) -> int:
    with psycopg.connect(url) as session:
        row = session.execute("select count(*) from evenflow.flight").fetchone()
    assert row is not None
    return int(row[0])


def test_a_worker_that_has_done_its_work_has_no_flight_left(make_app: MakeApp, postgres_url: str) -> None:
    """Whichever way its jobs have ended: by rounds, or in the transactions of their bodies; and it found some on the way."""
    app = make_app(postgres_url, resilience=SOON, heartbeat_ms=500, lease_ms=5_000)

    @app.task
    def quick(number: int) -> int:
        return number

    @app.task
    def with_effects(number: int, ctx: Context) -> int:
        with ctx.transaction() as connection:
            connection.execute("select 1")
        return number

    jobs = [
        *quick.enqueue_many([(n,) for n in range(300)]),
        *with_effects.enqueue_many([(n,) for n in range(20)]),
    ]
    with serving(app, services=False, concurrency=50):
        assert [job.result(timeout=60) for job in jobs] == [*range(300), *range(20)]
        wait_until(lambda: flights_of(postgres_url) == 0, "the last flight to be forgotten", 30)


def test_a_flight_whose_job_ends_before_all_of_its_claim_have_started_is_forgotten(
    make_app: MakeApp, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before locks are taken all that has ended is written: also a run that began with the same claim. Here no heartbeat
    looks at what is known."""
    app = make_app(postgres_url, resilience=SELDOM, heartbeat_ms=60_000, lease_ms=300_000)
    quick = app.task(name="quick")(lambda: None)
    locked = app.task(name="locked", single_instance="one", on_conflict="skip")(lambda: None)
    genuine = Slots.genuine

    def after_an_end(slots: Slots, jobs: Sequence[Claimed]) -> list[Claimed]:
        wait_until(lambda: bool(slots.ended), "the other job of the claim to end")
        return genuine(slots, jobs)

    monkeypatch.setattr(Slots, "genuine", after_an_end)
    first, second = app.enqueue_many([quick.job(), locked.job()])
    with serving(app, services=False):
        second.result(timeout=60)
        for _ in range(2):  # what has landed is told by the rounds that follow
            quick.enqueue().result(timeout=60)
        left = {job for (ids,) in Books(postgres_url).rows("select ids from {flight}") for job in ids}
        assert not left & {id_number(first.id), id_number(second.id)}


def test_a_job_that_runs_keeps_its_flight_while_others_of_its_claim_end(
    make_app: MakeApp, postgres_url: str
) -> None:
    app, opened = make_app(postgres_url, resilience=SOON, heartbeat_ms=500, lease_ms=5_000), threading.Event()
    hold = app.task(name="hold")(lambda is_held: opened.wait(60) if is_held else None)
    jobs = hold.enqueue_many([(True,), *[(False,)] * 9])
    with serving(app, services=False, concurrency=10):
        for job in jobs[1:]:
            job.result(timeout=30)
        hold.enqueue_many([(False,)] * 20)[-1].result(timeout=30)
        assert flights_of(postgres_url) >= 1
        with psycopg.connect(postgres_url) as session:
            assert session.execute("select id from evenflow.in_flight").fetchall() == [
                (id_number(jobs[0].id),)
            ]
        opened.set()
        wait_until(lambda: flights_of(postgres_url) == 0, "its flight to be forgotten", 30)
