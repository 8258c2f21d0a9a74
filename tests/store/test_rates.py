"""Rates in the store: in no window of its length do more than the limit start, and places come back by time alone."""

from typing import Any

from evenflow.job import End, Limit, NewJob
from evenflow.settings import Retention
from evenflow.store import control, leases, limits
from evenflow.store.advance import recharge, start
from evenflow.store.engine import as_json
from tests.store.legs import on_both_engines
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, execute, new_job, rows_of
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


def test_what_is_over_the_limit_is_blocked_and_claims_use_no_attempt_of_it(scene: Scene) -> None:
    """S3-41"""
    ids = enqueue(scene, *[rated() for _ in range(3)])
    scene.claim()
    assert scene.claim() == scene.claim() == []
    waiting = scene.live(ids[2])
    assert (waiting["state"], waiting["attempt"], waiting["epoch"]) == ("blocked", 0, 0)


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
    assert control.ahead(scene.engine).free is None
    enqueue(scene, *[rated(most=1) for _ in range(2)])
    scene.claim()
    assert control.ahead(scene.engine).free == scene.now + SECOND


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


def test_the_sweep_promotes_what_a_lost_end_left_blocked_although_others_have_started(scene: Scene) -> None:
    _, ready, waiting = enqueue(scene, *[rated(window_us=86_400 * SECOND) for _ in range(3)])
    scene.claim(1)
    assert scene.states()[ready] == "ready"
    scene.engine.run("release_holds", {"ids": as_json([ready])})  # and whoever did it dies
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states()[waiting] == "ready"
    (other,) = enqueue(scene, rated(window_us=86_400 * SECOND))
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states()[other] == "blocked"


@on_both_engines
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


def test_a_job_under_a_key_and_a_rate_lines_up_anew_at_both_after_a_failed_attempt(scene: Scene) -> None:
    limit_pair = (Limit("a-key", 1, KEPT), Limit("r", 2, KEPT, SECOND))
    (job_id,) = enqueue(scene, new_job(limits=limit_pair))
    (job,) = scene.claim()
    answer = scene.finish(job, "scheduled", run_at=scene.now + SECOND)
    assert answer.freed == {"a-key"}
    assert [(hold.limiter, hold.phase) for hold in limits.holds(scene.engine, job_id)] == [
        ("a-key", 0),
        ("r", 0),
    ]
    scene.now += SECOND
    scene.admit()
    (again,) = scene.claim()
    assert (again.id, usage(scene)[1]) == (job_id, 1)
    assert scene.finish(again).freed == {"a-key"}
    assert limits.holds(scene.engine, job_id) == []


def test_a_prefetched_job_that_is_given_back_after_its_charge_was_moved_has_its_place_back(
    scene: Scene,
) -> None:
    enqueue(scene, rated(most=1))
    (job,) = scene.claim(lease_us=60 * SECOND)
    scene.now += SECOND // 2
    assert recharge(scene.engine, ALICE, [job], now=scene.now) == {job.id}
    assert start(scene.engine, ALICE, [job], now=scene.now + 10) == {job.id}
    scene.now += SECOND // 4
    scene.finish(job, "ready", refund=1, unstarted=1)
    assert (usage(scene), scene.states()[job.id]) == ((1, 0, 0), "ready")


def test_a_prefetched_job_whose_lease_ran_out_lines_up_anew_at_its_rate(scene: Scene) -> None:
    enqueue(scene, rated(most=1))
    (job,) = scene.claim(lease_us=SECOND // 2)
    scene.now += SECOND
    leases.free_expired_claims(scene.engine, now=scene.now)
    scene.admit()
    free(scene)
    (again,) = scene.claim()
    assert (again.id, usage(scene)) == (job.id, (0, 1, 0))


@on_both_engines
class TestManyStarts:
    """Starts of a long window become fewer rows, so that they can be counted: no place comes back early, none is lost."""

    WINDOW = 1_000_000 * SECOND
    STARTS = 1_050

    def rows(self, scene: Scene) -> list[tuple[int, int]]:
        return sorted((row["free_at"], row["starts"]) for row in rows_of(scene.engine, "spent"))

    def spread(self, scene: Scene, together: int) -> None:
        """Let those that started together have started one by one, a second apart: each has a row of its own then."""
        numbers = f"(with recursive s (n) as (select 0 union all select n + 1 from s where n < {together - 1}) select n from s) t"
        execute(
            scene.engine,
            "insert into evenflow_spent (limiter, free_at, starts)"
            f" select limiter, free_at - n * {SECOND}, 1 from evenflow_spent, {numbers} where starts = {together}",
        )
        execute(scene.engine, f"delete from evenflow_spent where starts = {together}")

    def test_by_hand_are_kept_in_fewer_rows_that_free_no_place_early_and_none_much_late(
        self, scene: Scene
    ) -> None:
        began_at = scene.now
        for _ in range(self.STARTS):
            assert limits.take_token(scene.engine, "r", 2_000, self.WINDOW, now=scene.now)[0]
            scene.now += SECOND
        rows = self.rows(scene)
        assert 200 <= len(rows) < 1_000
        assert sum(starts for _, starts in rows) == usage(scene)[1] == self.STARTS
        assert all(starts == 1 for _, starts in rows[-200:]), "what may be refunded stays as it is"
        for before in range(0, self.STARTS, 50):
            exact = began_at + before * SECOND + self.WINDOW
            freed = sum(starts for free_at, starts in rows if free_at <= exact)
            freed_late = sum(starts for free_at, starts in rows if free_at <= exact + self.WINDOW // 400)
            assert freed <= before + 1 <= freed_late

    def test_of_jobs_are_noticed_by_whoever_promotes(self, scene: Scene) -> None:
        for _ in range(3):
            enqueue(scene, *[rated(most=5_000, window_us=self.WINDOW) for _ in range(self.STARTS // 3)])
        for _ in range(self.STARTS // 50):
            scene.now += 50 * SECOND
            assert len(scene.claim(50)) == 50
        self.spread(scene, 50)
        assert len(self.rows(scene)) == self.STARTS
        enqueue(scene, rated(most=5_000, window_us=self.WINDOW))
        assert len(self.rows(scene)) < 1_000
        assert usage(scene) == (1, self.STARTS, 0)
