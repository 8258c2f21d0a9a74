"""Bounded queues in the store: never more ready than the bound, let in in the order of the claim, nobody left outside."""

import threading
import time
from typing import Any

import pytest

from evenflow.errors import QueueFull
from evenflow.job import Limit, NewJob
from evenflow.settings import Queue, Retention
from evenflow.store import bounds, control, limits
from evenflow.store.advance import Claim, Want, advance
from evenflow.store.callers import drive_together
from evenflow.store.engine import drive
from evenflow.store.enqueue import enqueue_steps
from evenflow.store.leases import free_expired_claims
from tests.store.legs import on_both_engines
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, new_job, second_engine

QUEUE = "narrow"


def bounded(scene: Scene, max_ready: int, **rules: Any) -> None:
    control.declare_queue(scene.engine, Queue(QUEUE, max_ready=max_ready, **rules))


def put(scene: Scene, *jobs: NewJob, arriving: bool = False) -> list[int]:
    """Enqueue as the client does, knowing of the bound."""
    steps = lambda: enqueue_steps(jobs, scene.ids, arriving=arriving, bounded={QUEUE}, now=scene.now)  # noqa: E731
    return [job.id for job in drive_together(scene.engine, steps)]


def narrow(**fields: Any) -> NewJob:
    return new_job(queue=QUEUE, **fields)


def counts(scene: Scene) -> tuple[int, int]:
    """Ready, and waiting outside."""
    states = list(scene.states().values())
    return states.count("ready"), states.count("overflow")


def test_jobs_up_to_the_bound_are_ready_and_those_beyond_it_wait(scene: Scene) -> None:
    bounded(scene, 3)
    ids = put(scene, *[narrow() for _ in range(8)])
    assert [scene.states()[job] for job in ids] == ["ready"] * 3 + ["overflow"] * 5
    assert scene.claim_ids(queues=[QUEUE]) == ids[:3]


def test_a_claim_makes_room_that_the_next_ones_take(scene: Scene) -> None:
    bounded(scene, 3)
    ids = put(scene, *[narrow() for _ in range(8)])
    assert scene.claim_ids(2, queues=[QUEUE]) == ids[:2]
    assert bounds.fill(scene.engine, [QUEUE]) == {QUEUE}
    assert counts(scene) == (3, 3)
    assert bounds.fill(scene.engine, [QUEUE]) == set()


def test_other_queues_do_not_notice(scene: Scene) -> None:
    bounded(scene, 1)
    put(scene, *[narrow() for _ in range(3)])
    others = scene.enqueue(*[new_job() for _ in range(5)])
    assert {scene.states()[job] for job in others} == {"ready"}
    assert bounds.fill(scene.engine, ["default"]) == set()


def test_an_enqueuer_that_knows_no_bound_puts_its_jobs_outside(scene: Scene) -> None:
    bounded(scene, 2)
    scene.enqueue(*[narrow() for _ in range(4)])
    assert counts(scene) == (0, 4)
    assert bounds.fill_all(scene.engine) == {QUEUE}
    assert counts(scene) == (2, 2)


def test_jobs_are_let_in_by_priority_then_turn(scene: Scene) -> None:
    bounded(scene, 1)
    (first,) = put(scene, narrow())
    late, bob, bob_again, ann = put(
        scene, narrow(priority=5), narrow(group="bob"), narrow(group="bob"), narrow(group="ann")
    )
    order = []
    for _ in range(5):
        (job,) = scene.claim(queues=[QUEUE])
        order.append(job.id)
        bounds.fill(scene.engine, [QUEUE])
    assert order == [first, bob, ann, bob_again, late]


def test_a_group_that_comes_later_is_let_in_before_the_backlog_of_another(scene: Scene) -> None:
    bounded(scene, 2)
    put(scene, *[narrow(group="bob") for _ in range(50)])
    for _ in range(10):
        scene.claim(1, queues=[QUEUE])
        bounds.fill(scene.engine, [QUEUE])
    (ann,) = put(scene, narrow(group="ann"))
    taken: list[int] = []
    while ann not in taken:
        taken += scene.claim_ids(1, queues=[QUEUE])
        bounds.fill(scene.engine, [QUEUE])
    # Those that were ready before it came, and the one that had its turn at the same round.
    assert len(taken) <= 4


@on_both_engines
@pytest.mark.parametrize("fair", ["fifo", "round-robin", "time"])
@pytest.mark.parametrize("max_ready", [1, 3, 40])
def test_a_bound_goes_with_every_strategy(scene: Scene, fair: Any, max_ready: int) -> None:
    """Served one by one, a bounded queue gives the order that an unbounded one of the same kind gives."""
    bounded(scene, max_ready, fair=fair, weights=None if fair == "fifo" else {"g1": 2.0})
    control.declare_queue(
        scene.engine, Queue("wide", fair=fair, weights=None if fair == "fifo" else {"g1": 2.0})
    )
    groups = [f"g{number % 3}" if number % 4 else "g0" for number in range(30)]
    put(scene, *[narrow(group=group, payload=f"[{number}]") for number, group in enumerate(groups)])
    scene.enqueue(*[new_job(queue="wide", group=group, payload=f"[{n}]") for n, group in enumerate(groups)])
    orders: dict[str, list[str]] = {QUEUE: [], "wide": []}
    for queue, order in orders.items():
        while jobs := scene.claim(1, queues=[queue]):
            order += [job.payload for job in jobs]
            bounds.fill(scene.engine, [QUEUE])
    assert orders[QUEUE] == orders["wide"]
    assert len(orders[QUEUE]) == 30


def test_a_fifo_queue_lets_in_first_those_that_came_first(scene: Scene) -> None:
    bounded(scene, 2, fair="fifo")
    ids = []
    for group in ("bob", "bob", "bob", "ann", "bob", "ann"):
        ids += put(scene, narrow(group=group))
        scene.now += SECOND
    order = []
    while jobs := scene.claim_ids(1, queues=[QUEUE]):
        order += jobs
        bounds.fill(scene.engine, [QUEUE])
    assert order == ids


def test_a_job_let_in_late_is_not_before_where_claims_begin_to_look(scene: Scene) -> None:
    bounded(scene, 2)
    put(scene, *[narrow(group="bob") for _ in range(2)])
    (ann,) = put(scene, narrow(group="ann"))  # at round 1, but outside
    assert scene.live(ann)["turn"] == 1
    assert [job.turn for job in scene.claim(queues=[QUEUE])] == [1, 2]
    bounds.fill(scene.engine, [QUEUE])
    assert 2 < scene.live(ann)["turn"] < 3


def test_scheduled_jobs_that_come_due_line_up_outside(scene: Scene) -> None:
    bounded(scene, 1)
    put(scene, *[narrow(run_at=scene.now + SECOND) for _ in range(3)])
    assert counts(scene) == (0, 0)
    scene.now += SECOND
    assert scene.admit() == {QUEUE: 1}
    assert counts(scene) == (1, 2)


def test_jobs_of_a_caller_s_transaction_are_let_in_after_its_commit(scene: Scene) -> None:
    bounded(scene, 2)
    drive(scene.engine, enqueue_steps([narrow() for _ in range(5)], scene.ids, arriving=True, now=scene.now))
    assert counts(scene) == (0, 0)
    scene.admit()
    assert counts(scene) == (2, 3)


def test_a_job_given_back_waits_for_room_like_the_others(scene: Scene) -> None:
    bounded(scene, 2)
    put(scene, *[narrow() for _ in range(4)])
    jobs = scene.claim(2, queues=[QUEUE])
    bounds.fill(scene.engine, [QUEUE])
    scene.advance(ALICE, *[end_of(job, "ready", refund=1) for job in jobs])
    bounds.fill(scene.engine, [QUEUE])
    assert counts(scene) == (2, 2)


def test_rescued_jobs_do_not_break_the_bound(scene: Scene) -> None:
    scene.register(ALICE, BOB)
    bounded(scene, 2)
    ids = put(scene, *[narrow() for _ in range(4)])
    scene.claim(2, worker=ALICE, queues=[QUEUE])
    bounds.fill(scene.engine, [QUEUE])
    scene.bury(ALICE)
    scene.rescue()
    assert counts(scene) == (2, 2)
    done: list[int] = []
    while jobs := scene.claim(worker=BOB, queues=[QUEUE]):
        done += [job.id for job in jobs]
        scene.advance(BOB, *map(end_of, jobs))
        bounds.fill(scene.engine, [QUEUE])
    assert sorted(done) == ids


def test_prefetched_jobs_whose_claim_ran_out_do_not_break_the_bound(scene: Scene) -> None:
    bounded(scene, 1)
    put(scene, *[narrow() for _ in range(3)])
    scene.claim(1, queues=[QUEUE], lease_us=SECOND)
    bounds.fill(scene.engine, [QUEUE])
    scene.now += SECOND
    free_expired_claims(scene.engine, now=scene.now)
    assert counts(scene) == (1, 2)


def test_jobs_with_keys_pass_both_gates(scene: Scene) -> None:
    bounded(scene, 2)
    keyed = [narrow(limits=(Limit("k", 3, 180 * SECOND),)) for _ in range(6)]
    put(scene, *keyed, arriving=True)
    scene.admit()
    assert counts(scene) == (2, 1)
    assert list(scene.states().values()).count("blocked") == 3
    done = 0
    while jobs := scene.claim(queues=[QUEUE]):
        done += len(jobs)
        limits.promote(scene.engine, scene.advance(ALICE, *map(end_of, jobs)).freed, now=scene.now)
        bounds.fill(scene.engine, [QUEUE])
        assert counts(scene)[0] <= 2
    assert done == 6


def test_a_job_that_waits_outside_does_not_keep_its_key_for_ever(scene: Scene) -> None:
    bounded(scene, 1)
    put(scene, narrow())
    key = (Limit("k", 1, 180 * SECOND),)
    put(scene, narrow(limits=key), arriving=True)
    scene.admit()
    (other,) = drive_together(
        scene.engine, lambda: enqueue_steps([new_job(limits=key)], scene.ids, arriving=True, now=scene.now)
    )
    scene.admit()
    assert scene.states()[other.id] == "blocked"
    scene.now += 180 * SECOND
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states()[other.id] == "ready"


def test_cancelling_ready_jobs_lets_others_in(scene: Scene) -> None:
    bounded(scene, 2)
    ids = put(scene, *[narrow() for _ in range(4)])
    control.withdraw(scene.engine, ids[:1], "cancelled", Retention(), now=scene.now)
    assert [scene.states()[job] for job in ids] == ["cancelled", "ready", "ready", "overflow"]


def test_a_job_that_waits_outside_can_be_cancelled_and_expires(scene: Scene) -> None:
    bounded(scene, 1)
    _, second, third = put(scene, narrow(), narrow(), narrow(good_until=scene.now + SECOND))
    control.withdraw(scene.engine, [second], "cancelled", Retention(), now=scene.now)
    scene.now += SECOND
    assert control.expire(scene.engine, Retention(), now=scene.now) == [third]


def test_a_bound_raised_at_run_time_lets_more_in(scene: Scene) -> None:
    bounded(scene, 1)
    put(scene, *[narrow() for _ in range(6)])
    assert control.set_bound(scene.engine, QUEUE, 4) == {QUEUE}
    assert counts(scene) == (4, 2)


def test_a_bound_lowered_at_run_time_lets_nobody_in_until_there_is_room(scene: Scene) -> None:
    bounded(scene, 4)
    put(scene, *[narrow() for _ in range(6)])
    control.set_bound(scene.engine, QUEUE, 2)
    assert counts(scene) == (4, 2)
    scene.claim(2, queues=[QUEUE])
    assert bounds.fill(scene.engine, [QUEUE]) == set()
    scene.claim(1, queues=[QUEUE])
    assert bounds.fill(scene.engine, [QUEUE]) == {QUEUE}
    assert counts(scene) == (2, 1)


@on_both_engines
def test_a_bound_that_is_lifted_lets_everybody_in(scene: Scene) -> None:
    bounded(scene, 1)
    put(scene, *[narrow() for _ in range(2500)])
    control.set_bound(scene.engine, QUEUE, None)
    assert counts(scene) == (2500, 0)


def test_a_bound_set_at_run_time_outlasts_the_declaration_until_it_is_given_back(scene: Scene) -> None:
    bounded(scene, 5)
    control.set_bound(scene.engine, QUEUE, 2)
    bounded(scene, 5)
    put(scene, *[narrow() for _ in range(4)])
    assert counts(scene) == (2, 2)
    control.set_bound(scene.engine, QUEUE, 5, is_set=False)
    bounded(scene, 3)
    assert [use.max_ready for use in bounds.uses(scene.engine)] == [3]


def test_a_full_queue_rejects_with_its_numbers_and_writes_nothing(scene: Scene) -> None:
    bounded(scene, 3, on_full="reject")
    put(scene, narrow(), narrow())
    before = scene.contents()
    with pytest.raises(
        QueueFull, match="queue 'narrow' is full: 2 of 3 ready, and 2 more do not fit"
    ) as full:
        put(scene, narrow(group="bob"), narrow())
    assert (full.value.queue, full.value.limit, full.value.count) == (QUEUE, 3, 2)
    assert scene.contents() == before
    put(scene, narrow())
    assert counts(scene) == (3, 0)


def test_a_rejecting_queue_takes_jobs_again_when_there_is_room(scene: Scene) -> None:
    bounded(scene, 1, on_full="reject")
    put(scene, narrow())
    with pytest.raises(QueueFull):
        put(scene, narrow())
    scene.claim(queues=[QUEUE])
    put(scene, narrow())


def test_a_batch_with_keys_is_rejected_as_a_whole(scene: Scene) -> None:
    bounded(scene, 2, on_full="reject")
    keyed = narrow(limits=(Limit("k", 9, SECOND),))
    with pytest.raises(QueueFull):
        put(scene, keyed, keyed, keyed, arriving=True)
    assert scene.states() == {}
    put(scene, keyed, keyed, arriving=True)


def test_a_call_whose_job_is_there_already_is_not_rejected(scene: Scene) -> None:
    bounded(scene, 1, on_full="reject")
    first = put(scene, narrow(unique_key="u"))
    assert put(scene, narrow(unique_key="u")) == first


def test_what_was_accepted_comes_back_even_to_a_full_queue(scene: Scene) -> None:
    bounded(scene, 1, on_full="reject")
    put(scene, narrow())
    (job,) = scene.claim(queues=[QUEUE])
    put(scene, narrow())
    scene.advance(ALICE, end_of(job, "ready", refund=1))
    assert counts(scene) == (1, 1)


def test_jobs_for_later_are_not_rejected(scene: Scene) -> None:
    bounded(scene, 1, on_full="reject")
    put(scene, narrow())
    put(scene, narrow(run_at=scene.now + SECOND))


def test_many_who_enqueue_and_claim_at_the_same_instant_never_break_the_bound(scene: Scene) -> None:
    bounded(scene, 5)
    engines = [second_engine(scene.engine) for _ in range(4)]
    start = threading.Barrier(4)
    most: list[int] = []
    done: list[int] = []

    def produce(place: int) -> None:
        start.wait()
        jobs = [narrow(group=f"g{place}") for _ in range(4)]
        for _ in range(15):
            drive_together(engines[place], lambda: enqueue_steps(jobs, scene.ids, bounded={QUEUE}))

    def consume() -> None:
        start.wait()
        ends_at = time.monotonic() + 90
        while len(done) < 180 and time.monotonic() < ends_at:
            most.append(bounds.uses(engines[3])[0].ready)
            claimed = advance(engines[3], ALICE, (), Claim([Want(QUEUE, 0, 3)], 3)).claimed
            advance(engines[3], ALICE, map(end_of, claimed))
            done.extend(job.id for job in claimed)
            bounds.fill(engines[3], [QUEUE])

    threads = [threading.Thread(target=produce, args=(place,)) for place in range(3)]
    threads += [threading.Thread(target=consume)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close()
    assert len(done) == len(set(done)) == 180
    assert max(most) <= 5
