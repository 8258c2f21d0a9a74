"""Locks that are taken at the start of a run: one owner, fenced by (job, epoch, worker), let go in every end."""

import threading
from typing import Any

import pytest

from evenflow.job import Claimed, Limit, NewJob
from evenflow.settings import Retention
from evenflow.store import control, limits
from evenflow.store.callers import drive_together
from evenflow.store.enqueue import enqueue_steps
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, new_job, rows_of, second_engine

KEPT = 120 * SECOND


def locked(name: str = "lock:a", *others: Limit, **fields: Any) -> NewJob:
    return new_job(limits=(*others, Limit(name, 1, KEPT, at_start=True)), **fields)


def waiting(name: str = "lock:a") -> NewJob:
    return new_job(limits=(Limit(name, 1, KEPT),))


def enqueue(scene: Scene, *jobs: NewJob) -> list[int]:
    steps = lambda: enqueue_steps(jobs, scene.ids, arriving=True, now=scene.now)  # noqa: E731
    ids = [job.id for job in drive_together(scene.engine, steps)]
    scene.admit()
    return ids


def take(scene: Scene, *runs: Claimed, worker: int = ALICE) -> set[int]:
    return limits.take_locks(scene.engine, worker, runs, now=scene.now)


def test_such_jobs_do_not_wait_in_line_and_the_first_to_start_has_the_lock(scene: Scene) -> None:
    ids = enqueue(scene, locked(), locked(), locked())
    assert {scene.states()[job] for job in ids} == {"ready"}
    runs = scene.claim()
    assert take(scene, *runs) == {ids[0]}
    assert limits.locks(scene.engine, ids) == dict.fromkeys(ids, ("lock:a", ids[0]))


def test_locks_with_different_names_are_apart(scene: Scene) -> None:
    ids = enqueue(scene, locked("lock:a"), locked("lock:b"))
    assert take(scene, *scene.claim()) == set(ids)


def test_taking_a_lock_again_succeeds(scene: Scene) -> None:
    enqueue(scene, locked())
    (run,) = scene.claim()
    assert take(scene, run) == take(scene, run) == {run.id}


@pytest.mark.parametrize("state", ["succeeded", "failed", "cancelled", "expired", "quarantined", "scheduled"])
def test_every_kind_of_end_lets_the_lock_go(scene: Scene, state: str) -> None:
    enqueue(scene, locked(), locked())
    first, second = scene.claim()
    take(scene, first)
    scene.finish(first, state, run_at=scene.now + SECOND if state == "scheduled" else None)
    assert take(scene, second) == {second.id}


def test_a_former_owner_lets_go_of_nothing(scene: Scene) -> None:
    scene.register(ALICE, BOB)
    enqueue(scene, locked(), locked())
    (first,) = scene.claim(1, worker=ALICE)
    take(scene, first)
    scene.bury(ALICE)
    scene.rescue()
    again, other = sorted(scene.claim(worker=BOB), key=lambda run: run.id)
    assert (again.id, again.epoch) == (first.id, first.epoch + 1)
    assert take(scene, again, worker=BOB) == {first.id}
    assert scene.finish(first, worker=ALICE).lost == [(first.id, first.epoch)]
    assert take(scene, other, worker=BOB) == set()


def test_a_run_that_is_no_longer_ours_gets_no_lock(scene: Scene) -> None:
    scene.register(ALICE, BOB)
    enqueue(scene, locked())
    (run,) = scene.claim(worker=ALICE)
    assert take(scene, run, worker=BOB) == set()
    scene.bury(ALICE)
    scene.rescue()
    assert take(scene, run, worker=ALICE) == set()


def test_a_lock_is_held_against_those_who_wait_for_it_and_passed_on_to_them(scene: Scene) -> None:
    (first,) = enqueue(scene, locked())
    (run,) = scene.claim()
    take(scene, run)
    (second,) = enqueue(scene, waiting())
    assert scene.states() == {first: "running", second: "blocked"}
    freed = scene.finish(run).freed
    assert freed == {"lock:a"}
    limits.promote(scene.engine, freed, now=scene.now)
    assert scene.states()[second] == "ready"


def test_one_who_holds_it_by_waiting_keeps_those_who_do_not_wait_out(scene: Scene) -> None:
    enqueue(scene, waiting(), locked())
    runs = {run.id: run for run in scene.claim()}
    held, refused = sorted(runs)
    assert take(scene, runs[refused]) == set()
    limits.promote(scene.engine, scene.finish(runs[held]).freed, now=scene.now)
    assert take(scene, runs[refused]) == {refused}


def test_a_lock_beside_keys_is_taken_after_them(scene: Scene) -> None:
    key = Limit("k", 1, KEPT)
    first, second = enqueue(scene, locked("lock:a", key), locked("lock:b", key))
    assert scene.states() == {first: "ready", second: "blocked"}
    (run,) = scene.claim()
    assert take(scene, run) == {first}
    limits.promote(scene.engine, scene.finish(run).freed, now=scene.now)
    (run,) = scene.claim()
    assert take(scene, run) == {second}


def test_the_lock_of_a_running_job_outlives_its_time(scene: Scene) -> None:
    enqueue(scene, locked(), locked())
    first, second = scene.claim()
    take(scene, first)
    scene.now += 10 * KEPT
    limits.sweep(scene.engine, now=scene.now)
    assert take(scene, second) == set()


def test_the_lock_of_a_job_that_does_not_come_back_is_free_after_its_time(scene: Scene) -> None:
    enqueue(scene, locked(queue="slow"))
    (run,) = scene.claim(queues=["slow"])
    take(scene, run)
    scene.finish(run, "ready", refund=1)
    (other,) = enqueue(scene, locked())
    (second,) = scene.claim()
    scene.now += KEPT - 1
    limits.sweep(scene.engine, now=scene.now)
    assert take(scene, second) == set()
    scene.now += 1
    limits.sweep(scene.engine, now=scene.now)
    assert take(scene, second) == {other}
    assert scene.states()[run.id] == "ready"


def test_a_quarantined_owner_lets_its_lock_go(scene: Scene) -> None:
    enqueue(scene, locked())
    for _ in range(3):
        scene.register(ALICE)
        take(scene, *scene.claim(1, worker=ALICE), worker=ALICE)
        scene.bury(ALICE)
        scene.rescue()
    enqueue(scene, locked())
    (second,) = scene.claim(worker=BOB)
    assert take(scene, second, worker=BOB) == {second.id}


def test_a_job_tried_again_by_hand_has_its_lock_again(scene: Scene) -> None:
    (job,) = enqueue(scene, locked())
    (run,) = scene.claim()
    take(scene, run)
    scene.finish(run, "failed")
    control.retry(scene.engine, [job], now=scene.now)
    scene.admit()
    (again,) = scene.claim()
    assert take(scene, again) == {job}


def test_nothing_is_left_of_a_cancelled_job(scene: Scene) -> None:
    (job,) = enqueue(scene, locked())
    control.withdraw(scene.engine, [job], "cancelled", Retention(), now=scene.now)
    assert rows_of(scene.engine, "hold") == []


def test_of_many_who_take_a_free_lock_at_the_same_instant_one_gets_it(scene: Scene) -> None:
    enqueue(scene, *[locked() for _ in range(8)])
    runs = scene.claim()
    engines = [second_engine(scene.engine) for _ in runs]
    start = threading.Barrier(len(runs))
    granted: list[int] = []

    def grab(place: int) -> None:
        start.wait()
        granted.extend(limits.take_locks(engines[place], ALICE, [runs[place]], now=scene.now))

    threads = [threading.Thread(target=grab, args=(place,)) for place in range(len(runs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close()
    assert len(granted) == 1


def test_a_lock_is_freed_with_the_end_that_frees_the_job(scene: Scene) -> None:
    enqueue(scene, locked())
    (run,) = scene.claim()
    take(scene, run)
    scene.advance(ALICE, end_of(run))
    assert rows_of(scene.engine, "hold") == []
