"""Many who claim from one backlog: nobody's share falls because of the others, and nothing is claimed twice."""

import threading
import time

import pytest

from evenflow.job import End
from evenflow.store.advance import Claim, Want, advance
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import counts
from evenflow.store.sqlite import SqliteEngine
from tests.store.crowd import in_forks
from tests.store.scene import Scene, end_of, new_job, second_engine

BATCH = 20
ROUNDS = 4


def address(engine: AnyEngine) -> tuple[str, str]:
    """Where another process finds the store."""
    if isinstance(engine, SqliteEngine):
        assert engine.path is not None
        return "sqlite", engine.path
    return "postgres", engine._conninfo


def claim_a_hundred(number: int, kind: str, place: str) -> list[int]:
    """One worker's claim, in a process of its own."""
    engine: AnyEngine = SqliteEngine(place) if kind == "sqlite" else PostgresEngine(place)
    try:
        claim = Claim([Want("default", 0, 100)], 100)
        return [job.id for job in advance(engine, number + 1, (), claim).claimed]
    finally:
        engine.close()


@pytest.mark.process
def test_ten_processes_that_claim_a_hundred_each_get_ten_full_batches_without_overlap(scene: Scene) -> None:
    """S4-36"""
    jobs = scene.enqueue(*(new_job(group=f"g{number % 20}") for number in range(1_000)))
    batches = in_forks(10, claim_a_hundred, *address(scene.engine))
    assert [len(batch) for batch in batches] == [100] * 10
    assert sorted(job for batch in batches for job in batch) == jobs


@pytest.mark.parametrize("claimers", [1, 2, 4])
def test_what_each_claimer_gets_done_in_a_round_does_not_fall_when_there_are_more(
    scene: Scene, claimers: int
) -> None:
    """S4-17, S4-21: in as many rounds, so many times more are done. A round is one exchange of everybody at once."""
    jobs = scene.enqueue(*(new_job(group=f"g{number % 7}") for number in range(claimers * BATCH * ROUNDS)))
    together = threading.Barrier(claimers)
    full: dict[int, list[int]] = {}
    done: list[int] = []

    def work(worker: int) -> None:
        engine = second_engine(scene.engine)
        try:
            ends: list[End] = []
            for _ in range(ROUNDS):
                together.wait(60)
                answer = advance(engine, worker, ends, Claim([Want("default", 0, BATCH)], BATCH))
                assert answer.lost == []
                full.setdefault(worker, []).append(len(answer.claimed))
                done.extend(job.id for job in answer.claimed)
                ends = [end_of(job) for job in answer.claimed]
            advance(engine, worker, ends)
        finally:
            engine.close()

    threads = [threading.Thread(target=work, args=(number + 1,)) for number in range(claimers)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert full == {worker + 1: [BATCH] * ROUNDS for worker in range(claimers)}
    assert sorted(done) == jobs
    assert set(scene.states().values()) == {"succeeded"}


def test_enqueues_in_many_groups_are_well_above_a_thousand_a_second(scene: Scene) -> None:
    """S4-37: some 30 times as fast on a small machine, so this one may be slow, or busy with other things."""
    taken = []
    for number in range(3):
        jobs = [new_job(group=f"g{number}-{place % 500}") for place in range(2_000)]
        began = time.monotonic()
        scene.enqueue(*jobs)
        taken.append(time.monotonic() - began)
    assert sum(sum(states.values()) for states in counts(scene.engine).values()) == 6_000
    assert 2_000 / min(taken) > 1_000, taken
