"""Flights on PostgreSQL: what is in flight is found by the claims that took it, and a claim changes no index."""

import random

import pytest

from evenflow.queues import Queue
from evenflow.store import leases, reads
from evenflow.store.advance import Advanced, Claim, Flight, Want, advance
from evenflow.store.control import declare_queue
from evenflow.store.plain import advance_plainly
from evenflow.store.postgres import PostgresEngine
from tests.store.scene import ALICE, BOB, Scene, end_of, execute, new_job, rows_of

TWO = Claim((Want("default", 0, 2),), 2)
FORMS = pytest.mark.parametrize("form", [advance, advance_plainly], ids=["in full", "plainly"])


@pytest.fixture
def scene(postgres_store: PostgresEngine) -> Scene:
    return Scene(postgres_store)


def flights(scene: Scene) -> dict[tuple[int, int, str], list[int]]:
    return {
        (row["worker"], row["number"], row["queue"]): sorted(row["ids"])
        for row in rows_of(scene.engine, "flight")
    }


@FORMS
def test_a_claim_notes_what_it_took_by_queue_under_the_number_that_it_was_given(
    scene: Scene, form: object
) -> None:
    a, b, c = scene.enqueue(new_job(queue="a"), new_job(queue="b"), new_job(queue="b"))
    claim = Claim([Want("a", 0, 9), Want("b", 1, 9)], 9)
    form(scene.engine, ALICE, [], claim, flight=Flight(7), now=scene.now)  # type: ignore[operator]
    assert flights(scene) == {(ALICE, 7, "a"): [a], (ALICE, 7, "b"): [b, c]}
    assert leases.in_flight(scene.engine, ALICE) == {(a, 1), (b, 1), (c, 1)}


@FORMS
def test_a_claim_that_takes_nothing_notes_nothing(scene: Scene, form: object) -> None:
    form(scene.engine, ALICE, [], TWO, flight=Flight(7), now=scene.now)  # type: ignore[operator]
    assert flights(scene) == {}


@FORMS
def test_flights_that_have_landed_are_forgotten_and_nobody_elses(scene: Scene, form: object) -> None:
    scene.enqueue(*[new_job() for _ in range(6)])
    for worker, number in ((ALICE, 1), (ALICE, 2), (BOB, 1)):
        advance(scene.engine, worker, [], TWO, flight=Flight(number), now=scene.now)
    form(scene.engine, ALICE, [], TWO, flight=Flight(3, [1]), now=scene.now)  # type: ignore[operator]
    assert sorted(key[:2] for key in flights(scene)) == [(ALICE, 2), (BOB, 1)]


def test_claims_of_a_program_that_seeds_its_random_numbers_do_not_collide(scene: Scene) -> None:
    scene.enqueue(new_job(), new_job())
    for _ in range(2):
        random.seed(0)
        assert len(scene.claim(1)) == 1
    assert len(flights(scene)) == 2


def test_a_job_that_a_worker_takes_twice_is_in_flight_once(scene: Scene) -> None:
    first, second = scene.enqueue(new_job(), new_job())
    taken = advance(scene.engine, ALICE, [], TWO, flight=Flight(1), now=scene.now).claimed
    back = end_of(taken[0], "ready", refund=1)
    advance(scene.engine, ALICE, [back], flight=Flight(2), now=scene.now)
    advance(scene.engine, ALICE, [], TWO, flight=Flight(3), now=scene.now)
    assert leases.in_flight(scene.engine, ALICE) == {(first, 2), (second, 1)}
    assert reads.in_flight(scene.engine) == {"default": 2}


def test_a_cap_counts_what_a_flight_has_left_and_not_what_it_took(scene: Scene) -> None:
    declare_queue(scene.engine, Queue("default", max_concurrency=2))
    jobs = scene.enqueue(*[new_job() for _ in range(5)])
    claim = Claim((Want("default", 0, 9),), 9, under_caps=True)

    def claimed(number: int, *ended: Advanced) -> Advanced:
        ends = [end_of(job) for answer in ended for job in answer.claimed[:1]]
        return advance(scene.engine, ALICE, ends, claim, flight=Flight(number), now=scene.now)

    first = claimed(1)
    assert [job.id for job in first.claimed] == jobs[:2]
    assert claimed(2).claimed == []
    assert [job.id for job in claimed(3, first).claimed] == jobs[2:3]


def test_rescue_finds_the_jobs_of_the_dead_by_their_flights_and_clears_them_away(scene: Scene) -> None:
    scene.register(ALICE, BOB)
    jobs = scene.enqueue(*[new_job() for _ in range(4)])
    mine = scene.claim(2, worker=ALICE)
    scene.claim(2, worker=BOB)
    scene.finish(mine[0])
    scene.bury(ALICE)
    assert [job.id for job in scene.rescue()] == [jobs[1]]
    assert scene.rescue() == []
    assert {worker for worker, _, _ in flights(scene)} == {BOB}


def test_flights_of_the_dead_stay_until_the_last_job_is_rescued(scene: Scene) -> None:
    scene.enqueue(*[new_job() for _ in range(3)])
    scene.claim(3)
    assert len(scene.rescue(top=2)) == 2
    assert len(flights(scene)) == 1
    assert len(scene.rescue(top=2)) == 1
    scene.rescue()
    assert flights(scene) == {}


@pytest.mark.parametrize("length", [2, 50, 100, 400, 1240])
def test_a_claim_enters_its_rows_into_no_index(scene: Scene, length: int) -> None:
    """Whatever their size: a page has room for a second version of each, though that is larger."""
    scene.enqueue(*[new_job(payload="x" * length) for _ in range(200)])
    before = updates(scene)
    scene.claim(200)
    after = updates(scene)
    assert [now - then for now, then in zip(after, before, strict=True)] == [200, 200]


def updates(scene: Scene) -> tuple[int, int]:
    """How many versions of rows of jobs were written, and how many of these into no index."""
    assert isinstance(scene.engine, PostgresEngine)
    with scene.engine.session() as session:
        session.execute("select pg_stat_force_next_flush()")
        row = session.execute(
            "select n_tup_upd, n_tup_hot_upd from pg_stat_user_tables where schemaname = 'evenflow' and relname = 'job'"
        ).fetchone()
    assert row is not None
    return row[0], row[1]


def test_what_was_in_flight_before_flights_is_found(scene: Scene) -> None:
    scene.register(BOB)
    (job,) = scene.enqueue(new_job())
    scene.claim(1)
    # As the migration leaves what runs while it is applied.
    execute(scene.engine, "update evenflow_job set flight = 0")
    execute(scene.engine, "update evenflow_flight set number = 0")
    assert [found.id for found in scene.rescue()] == [job]


class TestStrays:
    def stray(self, scene: Scene, number: object) -> int:
        """A job in flight of which no flight knows."""
        job = scene.running().id
        execute(scene.engine, f"update evenflow_job set flight = {number} where id = {job}")
        return job

    @pytest.mark.parametrize("flight", ["null", "99"])
    def test_get_a_flight_and_are_rescued_like_others(self, scene: Scene, flight: str) -> None:
        job = self.stray(scene, flight)
        other = self.stray(scene, flight)
        assert scene.rescue() == []
        assert leases.note_strays(scene.engine, 0) == (0, 2)
        assert leases.note_strays(scene.engine, 0) == (0, 0)
        assert {found.id for found in scene.rescue()} == {job, other}

    def test_join_those_that_were_found_before(self, scene: Scene) -> None:
        for _ in range(2):
            job = scene.running().id
            execute(scene.engine, f"update evenflow_job set flight = null, queue = 'a' where id = {job}")
            assert leases.note_strays(scene.engine, 0) == (0, 1)
        assert len(leases.in_flight(scene.engine, ALICE)) == 2

    def test_are_also_what_a_flight_of_their_number_does_not_name(self, scene: Scene) -> None:
        job, other = scene.running().id, scene.running().id
        execute(scene.engine, f"update evenflow_flight set number = 0 where {job} = any (ids)")
        execute(scene.engine, f"delete from evenflow_flight where {other} = any (ids)")
        execute(scene.engine, "update evenflow_job set flight = 0")
        assert leases.note_strays(scene.engine, 0) == (0, 1)
        assert {found.id for found in scene.rescue()} == {job, other}

    def test_are_looked_for_piece_by_piece(self, scene: Scene) -> None:
        first, second = self.stray(scene, 5), self.stray(scene, 6)
        scene.enqueue(new_job())
        assert leases.note_strays(scene.engine, 0, top=1) == (first, 1)
        assert leases.note_strays(scene.engine, first, top=1) == (second, 1)
        assert leases.note_strays(scene.engine, second, top=2) == (0, 0)

    def test_are_not_what_has_its_flight_or_waits(self, scene: Scene) -> None:
        scene.running()
        scene.enqueue(new_job())
        assert leases.note_strays(scene.engine, 0) == (0, 0)
