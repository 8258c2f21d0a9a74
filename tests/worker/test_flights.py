"""Flights: which claims of a worker have jobs in flight, as far as the worker can tell."""

from hypothesis import given
from hypothesis import strategies as st

from evenflow.worker.flights import Flights


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
