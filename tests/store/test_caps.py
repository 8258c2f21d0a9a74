"""Caps in the store: what is in flight never exceeds them, and what ends makes room in the same transaction."""

import threading
from collections import Counter

import pytest

from evenflow.errors import StoreRefused
from evenflow.job import Claimed
from evenflow.queues import Queue
from evenflow.store import control
from evenflow.store.advance import Claim, Want, advance, start
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, new_job, second_engine
from tests.store.test_plans import Recorder


def capped(scene: Scene, cap: int | None, jobs: int = 10, queue: str = "default") -> list[int]:
    control.declare_queue(scene.engine, Queue(queue, max_concurrency=cap))
    return scene.enqueue(*[new_job(queue=queue) for _ in range(jobs)])


def claim(
    scene: Scene,
    top: int = 100,
    *,
    worker: int = ALICE,
    queues: tuple[str, ...] = ("default",),
    lease_us: int | None = None,
) -> list[Claimed]:
    wants = [Want(queue, place, top) for place, queue in enumerate(queues)]
    return scene.advance(worker, claim=Claim(wants, top, lease_us=lease_us, under_caps=True)).claimed


def test_a_claim_takes_what_the_cap_leaves_room_for(scene: Scene) -> None:
    ids = capped(scene, 3)
    assert [job.id for job in claim(scene, 2)] == ids[:2]
    assert [job.id for job in claim(scene, worker=BOB)] == ids[2:3]
    assert claim(scene) == []


def test_a_claim_that_took_no_lock_gets_nothing_of_a_capped_queue(scene: Scene) -> None:
    capped(scene, 3)
    assert scene.claim() == []


def test_an_uncapped_queue_is_served_beside_a_full_one(scene: Scene) -> None:
    capped(scene, 1)
    (free,) = scene.enqueue(new_job(queue="free"))
    claim(scene)
    assert [job.id for job in claim(scene, queues=("default", "free"))] == [free]


def test_an_end_makes_room_in_its_own_transaction(scene: Scene) -> None:
    ids = capped(scene, 1)
    (job,) = claim(scene)
    wants = [Want("default", 0, 10)]
    answer = scene.advance(ALICE, end_of(job), claim=Claim(wants, 10, under_caps=True))
    assert [each.id for each in answer.claimed] == ids[1:2]


def test_a_job_that_goes_back_makes_room_too(scene: Scene) -> None:
    capped(scene, 1)
    (job,) = claim(scene)
    wants = [Want("default", 0, 10)]
    answer = scene.advance(ALICE, end_of(job, "ready", refund=1), claim=Claim(wants, 10, under_caps=True))
    assert len(answer.claimed) == 1


def test_a_lost_end_makes_no_room(scene: Scene) -> None:
    capped(scene, 1)
    (job,) = claim(scene)
    wants = [Want("default", 0, 10)]
    answer = scene.advance(BOB, end_of(job), claim=Claim(wants, 10, under_caps=True))
    assert answer.lost and not answer.claimed


def test_a_cap_of_zero_holds_the_queue(scene: Scene) -> None:
    capped(scene, 0)
    assert claim(scene) == []


def test_the_cluster_s_cap_counts_all_queues(scene: Scene) -> None:
    control.declare_cluster(scene.engine, 3)
    scene.enqueue(*[new_job(queue=queue) for queue in ("a", "b") for _ in range(4)])
    assert len(claim(scene, queues=("a", "b"))) == 3
    assert claim(scene, worker=BOB, queues=("b",)) == []
    assert scene.claim(queues=["a"]) == []


def test_the_tightest_of_slots_queue_and_cluster_wins(scene: Scene) -> None:
    capped(scene, 4)
    control.declare_cluster(scene.engine, 6)
    assert len(claim(scene, 2)) == 2
    assert len(claim(scene)) == 2
    scene.enqueue(*[new_job(queue="other") for _ in range(9)])
    assert len(claim(scene, queues=("default", "other"))) == 2


@pytest.mark.parametrize(
    ("budget", "batch", "taken"),
    [
        (
            9,
            4,
            {"capped": 3, "free": 4, "last": 2},
        ),  # the cap, the batch, and what they have left of the budget
        (9, 2, {"capped": 2, "free": 2, "last": 2}),  # the batch, whether a queue has a cap or not
        (5, 9, {"capped": 3, "free": 2}),
        (2, 9, {"capped": 2}),
        (30, 9, {"capped": 3, "free": 9, "last": 9}),
    ],
)
def test_a_claim_takes_the_least_of_budget_cap_and_batch_and_each_queue_leaves_the_rest_to_the_next(
    scene: Scene, budget: int, batch: int, taken: dict[str, int]
) -> None:
    """S0-55"""
    capped(scene, 3, queue="capped")
    scene.enqueue(*[new_job(queue=queue) for queue in ("free", "last") for _ in range(10)])
    wants = [Want(queue, place, batch) for place, queue in enumerate(("capped", "free", "last"))]
    answer = scene.advance(ALICE, claim=Claim(wants, budget, under_caps=True))
    assert Counter(job.queue for job in answer.claimed) == taken


def test_without_caps_a_claim_is_one_statement_that_takes_no_lock() -> None:
    """S0-52, S0-56"""
    note = Recorder()
    advance(note, ALICE, (), Claim([Want("default", 0, 10)], 10))
    assert [name for name, _ in note.calls] == ["claim"]
    advance(note, ALICE, (), Claim([Want("default", 0, 10)], 10, under_caps=True))
    assert [name for name, _ in note.calls] == ["claim", "lock_caps", "claim"]


def test_a_cap_is_changed_at_run_time_and_survives_the_code_s_own_word(scene: Scene) -> None:
    capped(scene, 1)
    control.set_cap(scene.engine, "default", 3)
    control.declare_queue(scene.engine, Queue("default", max_concurrency=1))
    assert len(claim(scene)) == 3
    control.set_cap(scene.engine, "default", 5, is_set=False)
    control.declare_queue(scene.engine, Queue("default", max_concurrency=4))
    assert len(claim(scene)) == 1


def test_a_cap_below_what_runs_ends_nothing_and_starts_nothing(scene: Scene) -> None:
    capped(scene, 5)
    assert len(claim(scene)) == 5
    control.set_cap(scene.engine, "default", 2)
    assert claim(scene) == []


def test_a_negative_cap_is_refused(scene: Scene) -> None:
    with pytest.raises(StoreRefused):
        control.set_cap(scene.engine, "default", -1)


def test_a_prefetching_claim_counts_only_what_runs(scene: Scene) -> None:
    capped(scene, 3)
    claim(scene, 2)
    assert len(claim(scene, 1, lease_us=SECOND)) == 1
    assert len(claim(scene, 1, lease_us=SECOND)) == 1


def test_a_claim_that_starts_at_once_counts_what_others_have_prefetched(scene: Scene) -> None:
    """S0-21"""
    capped(scene, 3)
    prefetched = claim(scene, 2, worker=BOB, lease_us=SECOND)
    assert {scene.states()[job.id] for job in prefetched} == {"claimed"}
    assert len(claim(scene)) == 1


def test_prefetched_jobs_start_only_as_far_as_the_cap_has_room(scene: Scene) -> None:
    capped(scene, 2)
    first = claim(scene, 2, lease_us=SECOND)
    second = claim(scene, 2, worker=BOB, lease_us=SECOND)
    assert len(start(scene.engine, ALICE, first[:1], under_caps=True, now=scene.now)) == 1
    assert len(start(scene.engine, BOB, second, under_caps=True, now=scene.now)) == 1
    assert start(scene.engine, ALICE, first[1:], under_caps=True, now=scene.now) == set()


def test_prefetched_jobs_of_a_capped_queue_do_not_start_without_the_lock(scene: Scene) -> None:
    capped(scene, 2)
    jobs = claim(scene, 2, lease_us=SECOND)
    assert start(scene.engine, ALICE, jobs, now=scene.now) == set()


def test_many_claims_at_the_same_instant_never_exceed_a_cap(scene: Scene) -> None:
    capped(scene, 7, jobs=200)
    control.declare_cluster(scene.engine, 9)
    barrier = threading.Barrier(5)
    claimed: list[int] = []

    def take(worker: int) -> None:
        engine = second_engine(scene.engine)
        try:
            barrier.wait()
            for _ in range(10):
                ask = Claim([Want("default", 0, 3)], 3, under_caps=True)
                claimed.extend(job.id for job in advance(engine, worker, (), ask, now=scene.now).claimed)
        finally:
            engine.close()

    threads = [threading.Thread(target=take, args=(worker,)) for worker in range(1, 6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(claimed) == len(set(claimed)) == 7
