"""Rates in the store: in no window of its length do more than the limit start, and places come back by time alone."""

from typing import Any

from evenflow.job import End, Limit, NewJob
from evenflow.settings import Retention
from evenflow.store import control, limits
from evenflow.store.advance import recharge
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, new_job
from tests.store.test_limits import KEPT, enqueue, pass_on


def rated(name: str = "r", *, most: int = 2, window_us: int = SECOND, **fields: Any) -> NewJob:
    return new_job(limits=(Limit(name, most, KEPT, window_us),), **fields)


def free(scene: Scene) -> set[str]:
    return limits.free_spent(scene.engine, now=scene.now)


def usage(scene: Scene, name: str = "r") -> tuple[int, int, int]:
    (row,) = limits.limiters(scene.engine, prefix=name, now=scene.now)
    return row.held, row.spent, row.waiting


def test_no_more_than_the_limit_is_ready_at_once(scene: Scene) -> None:
    enqueue(scene, *[rated() for _ in range(5)])
    assert len(scene.claim()) == 2
    assert usage(scene) == (0, 2, 3)


def test_the_end_of_a_job_makes_no_room_but_the_end_of_its_window_does(scene: Scene) -> None:
    enqueue(scene, *[rated() for _ in range(3)])
    jobs = scene.claim()
    for job in jobs:
        pass_on(scene, scene.finish(job).freed)
    pass_on(scene, {"r"})  # as a sweep would
    assert scene.claim() == []
    scene.now += SECOND - 1
    assert free(scene) == set()
    assert scene.claim() == []
    scene.now += 1
    assert free(scene) == {"default"}
    assert len(scene.claim()) == 1


def test_a_place_counts_from_the_start_and_not_from_the_promotion(scene: Scene) -> None:
    enqueue(scene, *[rated() for _ in range(4)])
    scene.now += 10 * SECOND  # the ready ones were not started for long
    free(scene)
    assert len(scene.claim()) == 2
    free(scene)
    assert scene.claim() == []


def test_a_job_that_is_given_back_is_charged_again_when_it_starts_again(scene: Scene) -> None:
    (first,) = enqueue(scene, rated(most=1))
    (job,) = scene.claim()
    scene.finish(job, "ready", refund=1)
    scene.admit()
    assert scene.states()[first] == "blocked"
    scene.now += SECOND
    free(scene)
    assert scene.claim_ids() == [first]


def test_a_rescued_job_is_charged_again(scene: Scene) -> None:
    scene.register(ALICE)
    (first,) = enqueue(scene, rated(most=1))
    scene.claim(worker=ALICE)
    scene.bury(ALICE)
    scene.rescue()
    scene.admit()
    assert scene.states()[first] == "blocked"


def test_several_windows_hold_together(scene: Scene) -> None:
    both = (Limit("a", 2, KEPT, SECOND), Limit("b", 3, KEPT, 10 * SECOND))
    enqueue(scene, *[new_job(limits=both) for _ in range(6)])
    assert len(scene.claim()) == 2
    scene.now += SECOND
    free(scene)
    assert len(scene.claim()) == 1
    scene.now += SECOND
    free(scene)
    assert scene.claim() == []
    scene.now += 8 * SECOND
    free(scene)
    assert len(scene.claim()) == 2


def test_a_closed_rate_does_not_hold_back_others(scene: Scene) -> None:
    enqueue(scene, *[rated("one", most=1) for _ in range(5)])
    (other,) = enqueue(scene, rated("two", most=1))
    assert other in scene.claim_ids()


def test_the_store_tells_when_the_next_waiting_job_can_go(scene: Scene) -> None:
    assert limits.next_free(scene.engine) is None
    enqueue(scene, *[rated(most=1) for _ in range(2)])
    scene.claim()
    assert limits.next_free(scene.engine) == scene.now + SECOND


def test_a_reset_makes_room_at_once(scene: Scene) -> None:
    enqueue(scene, *[rated(most=1) for _ in range(2)])
    scene.claim()
    assert limits.reset_rate(scene.engine, "r", now=scene.now) == {"default"}
    assert len(scene.claim()) == 1


def test_tokens_by_hand_share_the_window(scene: Scene) -> None:
    def take() -> tuple[bool, int | None]:
        return limits.take_token(scene.engine, "api", 2, SECOND, now=scene.now)

    assert take() == (True, scene.now + SECOND)
    assert take() == (True, scene.now + SECOND)
    assert take() == (False, scene.now + SECOND)
    scene.now += SECOND
    assert take() == (True, scene.now + SECOND)


def test_cancelling_a_waiting_job_uses_nothing_up(scene: Scene) -> None:
    _, second = enqueue(scene, rated(most=1), rated(most=1))
    control.withdraw(scene.engine, [second], "cancelled", Retention(), now=scene.now)
    assert usage(scene) == (1, 0, 0)


def test_no_sliding_window_holds_more_starts_than_the_limit(scene: Scene) -> None:
    enqueue(scene, *[rated(most=3, window_us=SECOND) for _ in range(40)])
    starts: list[int] = []
    for step in range(400):
        scene.now += 37_000 + 11_000 * (step % 5)
        free(scene)
        starts += [scene.now] * len(scene.claim(1 + step % 4))
    assert len(starts) == 40
    assert all(sum(start <= other < start + SECOND for other in starts) <= 3 for start in starts)


def test_what_is_given_back_unstarted_has_its_place_and_its_start_back(scene: Scene) -> None:
    first, second = enqueue(scene, rated(most=1), rated(most=1))
    (job,) = scene.claim()
    assert usage(scene) == (0, 1, 1)
    scene.now += SECOND // 2
    assert scene.finish(job, "ready", refund=1, unstarted=1).freed == set()
    assert scene.states() == {first: "ready", second: "blocked"}
    assert usage(scene) == (1, 0, 1)
    (again,) = scene.claim()
    assert (again.id, again.attempt) == (first, 1)
    scene.now += SECOND - 1
    assert free(scene) == set()
    scene.now += 1
    assert free(scene) == {"default"}
    assert scene.claim_ids() == [second]


def test_only_the_starts_of_those_that_did_not_start_are_given_back(scene: Scene) -> None:
    enqueue(scene, *[rated(most=3) for _ in range(4)])
    one, two, three = scene.claim()
    scene.advance(ALICE, *[end_of(job, "ready", refund=1, unstarted=1) for job in (one, three)])
    assert usage(scene) == (2, 1, 1)
    scene.finish(two)
    assert usage(scene) == (2, 1, 1)


def test_whoever_gives_back_a_start_whose_window_has_passed_lines_up_anew(scene: Scene) -> None:
    first, second = enqueue(scene, rated(most=1), rated(most=1))
    (job,) = scene.claim()
    scene.now += SECOND
    free(scene)
    assert scene.states()[second] == "ready"
    scene.finish(job, "ready", refund=1, unstarted=1)
    scene.admit()
    assert scene.states() == {first: "blocked", second: "ready"}
    assert usage(scene) == (1, 0, 1)


def test_a_start_is_given_back_only_by_the_run_that_holds_the_lease(scene: Scene) -> None:
    enqueue(scene, rated(most=1))
    (job,) = scene.claim()
    scene.finish(job, "ready", worker=BOB, refund=1, unstarted=1)
    scene.advance(ALICE, End(job.id, job.epoch + 1, "ready", refund=1, unstarted=1))
    assert usage(scene) == (0, 1, 0)


def test_a_prefetched_job_is_charged_for_its_start_and_not_for_its_claim(scene: Scene) -> None:
    enqueue(scene, *[rated(most=1) for _ in range(2)])
    (job,) = scene.claim(1, lease_us=10 * SECOND)
    scene.now += SECOND - 1
    assert recharge(scene.engine, ALICE, [job], now=scene.now) == {job.id}
    scene.now += SECOND - 1
    assert free(scene) == set()
    assert usage(scene) == (0, 1, 1)
    scene.now += 1
    assert free(scene) == {"default"}
    assert recharge(scene.engine, ALICE, [job], now=scene.now) == set()


def test_a_job_of_another_worker_cannot_be_charged_anew(scene: Scene) -> None:
    enqueue(scene, rated(most=1))
    (job,) = scene.claim(1, lease_us=10 * SECOND)
    assert recharge(scene.engine, BOB, [job], now=scene.now) == set()
