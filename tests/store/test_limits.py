"""Concurrency keys in the store: who holds, who waits, who is next, and that no place is ever lost or doubled."""

import threading
from typing import Any

import msgspec
import pytest

from evenflow.job import End, Limit, NewJob
from evenflow.settings import Retention
from evenflow.store import control, limits
from evenflow.store.advance import Advanced, Claim, Want, advance
from evenflow.store.callers import drive_together
from evenflow.store.enqueue import enqueue_steps
from tests.store.legs import on_both_engines
from tests.store.scene import ALICE, BOB, SECOND, Scene, end_of, execute, new_job, rows_of

KEPT = 180 * SECOND


def keyed(*names: str, most: int = 1, **fields: Any) -> NewJob:
    return new_job(limits=tuple(Limit(name, most, KEPT) for name in names), **fields)


def enqueue(scene: Scene, *jobs: NewJob) -> list[int]:
    """Enqueue jobs with keys as the client does: they arrive, with their keys, and are admitted at once."""
    steps = lambda: enqueue_steps(jobs, scene.ids, arriving=True, now=scene.now)  # noqa: E731
    ids = [job.id for job in drive_together(scene.engine, steps)]
    scene.admit()
    return ids


def used(scene: Scene) -> dict[str, tuple[int, int]]:
    return {limiter.name: (limiter.held, limiter.waiting) for limiter in limits.limiters(scene.engine)}


def pass_on(scene: Scene, freed: set[str]) -> set[str]:
    return limits.promote(scene.engine, freed, now=scene.now)


def test_jobs_below_the_limit_are_ready_and_those_beyond_it_are_blocked(scene: Scene) -> None:
    ids = enqueue(scene, *[keyed("k", most=2) for _ in range(5)])
    states = scene.states()
    assert [states[job] for job in ids] == ["ready", "ready", "blocked", "blocked", "blocked"]
    assert used(scene) == {"k": (2, 3)}
    assert scene.claim_ids() == ids[:2]


def test_an_end_frees_the_key_for_the_next_job(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    (job,) = scene.claim()
    answer = scene.finish(job)
    assert answer.freed == {"k"}
    assert pass_on(scene, answer.freed) == {"default"}
    assert scene.states() == {first: "succeeded", second: "ready"}


def test_keys_that_are_passed_on_with_a_claim_give_it_their_next_jobs(scene: Scene) -> None:
    first, second, third = enqueue(scene, *[keyed("k") for _ in range(3)])
    (job,) = scene.claim()
    freed = scene.finish(job).freed
    claim = Claim([Want("default", 0, 5)], 5)
    answer = advance(scene.engine, ALICE, claim=claim, keys=sorted(freed), now=scene.now)
    assert answer.promoted == limits.Promoted(queues={"default"})
    assert [claimed.id for claimed in answer.claimed] == [second]
    assert scene.states() == {first: "succeeded", second: "running", third: "blocked"}


def test_a_round_of_a_file_passes_on_what_its_ends_let_go_of_before_it_claims(sqlite_scene: Scene) -> None:
    first, second, third = enqueue(sqlite_scene, *[keyed("k") for _ in range(3)])
    (job,) = sqlite_scene.claim()
    answer = in_one_round(sqlite_scene, end_of(job))
    assert [claimed.id for claimed in answer.claimed] == [second]
    assert (answer.promoted, answer.freed) == (limits.Promoted(queues={"default"}), set())
    assert sqlite_scene.states() == {first: "succeeded", second: "running", third: "blocked"}
    assert used(sqlite_scene) == {"k": (1, 1)}


def test_a_round_of_a_file_passes_on_by_priority_and_no_further_than_the_limit(sqlite_scene: Scene) -> None:
    running = enqueue(sqlite_scene, *[keyed("k", most=2) for _ in range(2)])
    low, high = enqueue(sqlite_scene, keyed("k", most=2, priority=9), keyed("k", most=2, priority=1))
    one, _ = sqlite_scene.claim()
    answer = in_one_round(sqlite_scene, end_of(one))
    assert [claimed.id for claimed in answer.claimed] == [high]
    states = sqlite_scene.states()
    assert [states[job] for job in (*running, low, high)] == ["succeeded", "running", "blocked", "running"]


def test_an_end_that_is_lost_or_goes_back_passes_nothing_on(sqlite_scene: Scene) -> None:
    first, second = enqueue(sqlite_scene, keyed("k"), keyed("k"))
    (job,) = sqlite_scene.claim()
    late = msgspec.structs.replace(end_of(job), epoch=job.epoch + 1)
    for worker, end in ((BOB, end_of(job)), (ALICE, late), (ALICE, end_of(job, "ready"))):
        answer = advance(sqlite_scene.engine, worker, [end], keys=[], now=sqlite_scene.now)
        assert (answer.promoted, answer.freed) == (None, set())
        assert sqlite_scene.states()[second] == "blocked"
    assert sqlite_scene.claim_ids() == [first]


def test_keys_beyond_a_batch_are_told_and_not_forgotten(
    sqlite_scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.store.advance.BATCH", 2)
    enqueue(sqlite_scene, *[keyed(name) for name in "abc" * 2])
    answer = in_one_round(sqlite_scene, *[end_of(job) for job in sqlite_scene.claim()])
    assert (len(answer.claimed), answer.freed) == (2, {"c"})
    assert used(sqlite_scene) == {"a": (1, 0), "b": (1, 0), "c": (0, 1)}


def in_one_round(scene: Scene, *ends: End) -> Advanced:
    """As a worker at a file does it: ends, the keys that they let go of, and a claim."""
    return advance(scene.engine, ALICE, ends, Claim([Want("default", 0, 5)], 5), keys=[], now=scene.now)


def test_keys_without_their_row_and_keys_that_follow_are_left_to_the_follow_up(scene: Scene) -> None:
    one, two = enqueue(scene, keyed("a", "b"), keyed("a", "b"))
    (job,) = scene.claim()
    freed = scene.finish(job).freed
    execute(scene.engine, "delete from evenflow_limiter", "delete from evenflow.limiter")
    answer = advance(scene.engine, ALICE, keys=sorted(freed), now=scene.now)
    assert answer.promoted == limits.Promoted(missing={"a"})
    assert limits.follow_up(scene.engine, answer.promoted, now=scene.now) == {"default"}
    assert scene.states() == {one: "succeeded", two: "ready"}
    assert used(scene) == {"a": (1, 0), "b": (1, 0)}


def test_every_kind_of_end_frees_the_key(scene: Scene) -> None:
    for state in ("succeeded", "failed", "cancelled", "expired", "quarantined"):
        enqueue(scene, keyed("k"), keyed("k"))
        (job,) = scene.claim()
        pass_on(scene, scene.finish(job, state).freed)
        (successor,) = scene.claim()
        pass_on(scene, scene.finish(successor).freed)
        assert used(scene) == {"k": (0, 0)}


def test_a_second_end_of_the_same_run_adds_no_room(scene: Scene) -> None:
    enqueue(scene, *[keyed("k") for _ in range(3)])
    (job,) = scene.claim()
    pass_on(scene, scene.finish(job).freed)
    again = scene.finish(job)
    assert again.lost == [(job.id, job.epoch)]
    assert again.freed == set()
    pass_on(scene, {"k"})
    assert used(scene) == {"k": (1, 1)}


def test_the_blocked_job_with_the_lowest_number_of_priority_is_next(scene: Scene) -> None:
    enqueue(scene, keyed("k"))
    late, early = enqueue(scene, keyed("k", priority=5), keyed("k", priority=-5))
    (job,) = scene.claim()
    pass_on(scene, scene.finish(job).freed)
    assert scene.states()[early] == "ready"
    assert scene.states()[late] == "blocked"


def test_keys_do_not_stand_in_each_other_s_way(scene: Scene) -> None:
    ids = enqueue(scene, *[keyed("full") for _ in range(20)], keyed("other"))
    assert scene.claim_ids() == [ids[0], ids[-1]]


def test_a_job_with_several_keys_is_ready_when_it_holds_them_all(scene: Scene) -> None:
    holder, both = enqueue(scene, keyed("b"), keyed("a", "b"))
    assert scene.states()[both] == "blocked"
    assert [(hold.limiter, hold.phase) for hold in limits.holds(scene.engine, both)] == [("a", 2), ("b", 1)]
    (job,) = scene.claim()
    assert job.id == holder
    pass_on(scene, scene.finish(job).freed)
    assert scene.states()[both] == "ready"


def test_a_retry_lets_go_of_its_key_and_lines_up_again_when_it_is_due(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    (job,) = scene.claim()
    pass_on(scene, scene.finish(job, "scheduled", run_at=scene.now + SECOND).freed)
    assert scene.states() == {first: "scheduled", second: "ready"}
    scene.now += SECOND
    scene.admit()
    assert scene.states() == {first: "blocked", second: "ready"}
    (job,) = scene.claim()
    pass_on(scene, scene.finish(job).freed)
    assert scene.states()[first] == "ready"


def test_a_job_that_is_given_back_keeps_its_place(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    (job,) = scene.claim()
    scene.finish(job, "ready", refund=1)
    assert scene.states() == {first: "ready", second: "blocked"}
    assert used(scene) == {"k": (1, 1)}


def test_a_job_that_arrives_in_a_caller_s_transaction_touches_no_key_before_it_is_admitted(
    scene: Scene,
) -> None:
    steps = lambda: enqueue_steps([keyed("k")], scene.ids, arriving=True, now=scene.now)  # noqa: E731
    (job,) = drive_together(scene.engine, steps)
    assert used(scene) == {}
    scene.admit()
    assert scene.states() == {job.id: "ready"}


def test_the_key_of_a_dead_worker_s_job_passes_with_the_job(scene: Scene) -> None:
    scene.register(ALICE, BOB)
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    scene.claim(worker=ALICE)
    scene.bury(ALICE)
    scene.rescue()
    assert scene.states() == {first: "ready", second: "blocked"}
    assert [job.id for job in scene.claim(worker=BOB)] == [first]


def test_a_quarantined_job_frees_its_key_at_once(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    for _ in range(3):
        scene.register(ALICE)
        scene.claim(1, worker=ALICE)
        scene.bury(ALICE)
        scene.rescue()
    assert scene.states() == {first: "quarantined", second: "ready"}


def test_cancelling_the_holder_frees_its_key(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    control.withdraw(scene.engine, [first], "cancelled", Retention(), now=scene.now)
    assert scene.states() == {first: "cancelled", second: "ready"}


def test_an_expired_holder_frees_its_key(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k", good_until=scene.now + SECOND), keyed("k"))
    scene.now += SECOND
    control.expire(scene.engine, Retention(), now=scene.now)
    assert scene.states() == {first: "expired", second: "ready"}


def test_a_revived_job_waits_for_its_keys_again(scene: Scene) -> None:
    (first,) = enqueue(scene, keyed("k"))
    (job,) = scene.claim()
    pass_on(scene, scene.finish(job, "failed").freed)
    (second,) = enqueue(scene, keyed("k"))
    control.retry(scene.engine, [first], now=scene.now)
    scene.admit()
    assert scene.states() == {first: "blocked", second: "ready"}


def test_the_sweep_promotes_what_a_lost_finish_left_blocked(scene: Scene) -> None:
    _, second = enqueue(scene, keyed("k"), keyed("k"))
    (job,) = scene.claim()
    scene.finish(job)  # and nobody passes the key on
    assert scene.states()[second] == "blocked"
    assert limits.sweep(scene.engine, now=scene.now)[0] == {"default"}
    assert scene.states()[second] == "ready"


def test_the_sweep_fills_all_the_room_of_a_key_in_one_pass(scene: Scene) -> None:
    ids = enqueue(scene, *[keyed("k", most=3) for _ in range(6)])
    for job in scene.claim():
        scene.finish(job)
    limits.sweep(scene.engine, now=scene.now)
    assert [scene.states()[job] for job in ids[3:]] == ["ready", "ready", "ready"]


def test_a_place_that_is_not_used_for_its_duration_goes_to_the_next(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k", queue="paused"), keyed("k"))
    control.pause(scene.engine, "paused")
    scene.now += KEPT - 1
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states() == {first: "ready", second: "blocked"}
    scene.now += 1
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states() == {first: "blocked", second: "ready"}


def test_a_place_that_is_kept_while_waiting_for_another_goes_to_who_does_not_need_that(scene: Scene) -> None:
    (running,) = enqueue(scene, keyed("k2"))
    scene.claim()
    both, alone = enqueue(scene, keyed("k1", "k2"), keyed("k1"))
    assert used(scene) == {"k1": (1, 1), "k2": (1, 1)}
    scene.now += KEPT - 1
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states() == {running: "running", both: "blocked", alone: "blocked"}
    scene.now += 1
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states() == {running: "running", both: "blocked", alone: "ready"}
    assert used(scene) == {"k1": (1, 1), "k2": (1, 0)}


def test_a_place_is_kept_while_all_who_want_it_wait_for_the_same(scene: Scene) -> None:
    enqueue(scene, keyed("k2"))
    (job,) = scene.claim()
    first, second = enqueue(scene, keyed("k1", "k2"), keyed("k1", "k2"))
    scene.now += 10 * KEPT
    limits.sweep(scene.engine, now=scene.now)
    pass_on(scene, scene.advance(ALICE, end_of(job)).freed)
    assert [scene.states()[each] for each in (first, second)] == ["ready", "blocked"]


def test_a_running_job_keeps_its_place_beyond_the_duration(scene: Scene) -> None:
    _, second = enqueue(scene, keyed("k"), keyed("k"))
    scene.claim()
    scene.now += 10 * KEPT
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states()[second] == "blocked"


def test_idle_keys_leave_no_row(scene: Scene) -> None:
    enqueue(scene, keyed("k"))
    (job,) = scene.claim()
    assert limits.forget_idle(scene.engine) == 0
    scene.finish(job)
    assert limits.forget_idle(scene.engine) == 1
    assert used(scene) == {}


def test_the_limit_follows_what_the_next_job_was_enqueued_with(scene: Scene) -> None:
    enqueue(scene, keyed("k"))
    enqueue(scene, keyed("k", most=3), keyed("k", most=3))
    assert used(scene) == {"k": (3, 0)}


def test_the_holders_of_a_key_can_be_named(scene: Scene) -> None:
    first, _ = enqueue(scene, keyed("k"), keyed("k"))
    assert limits.holders(scene.engine, ["k", "unheld"]) == {"k": [first]}


def test_promotions_at_the_same_instant_never_exceed_the_limit(scene: Scene) -> None:
    enqueue(scene, *[keyed("k", most=4) for _ in range(60)])
    start = threading.Barrier(6)

    def promote() -> None:
        start.wait()
        for _ in range(20):
            limits.promote(scene.engine, ["k"], now=scene.now)

    threads = [threading.Thread(target=promote) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert used(scene) == {"k": (4, 56)}


def test_all_jobs_of_a_key_run_in_the_end_and_nothing_is_left(scene: Scene) -> None:
    ids = enqueue(scene, *[keyed(f"k{number % 3}", most=2) for number in range(30)])
    done: list[int] = []
    while jobs := scene.claim():
        assert len(jobs) <= 6
        done += [job.id for job in jobs]
        answer = scene.advance(ALICE, *[end_of(job) for job in jobs])
        pass_on(scene, answer.freed)
    assert sorted(done) == ids
    assert set(used(scene).values()) == {(0, 0)}


def remove_behind(scene: Scene, *jobs: int) -> None:
    """As a crash between the end of a job and the release of its keys leaves it."""
    listed = ", ".join(map(str, jobs))
    execute(scene.engine, f"delete from evenflow_job where id in ({listed})")


def test_the_sweep_frees_what_a_job_that_is_gone_held(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    remove_behind(scene, first)
    limits.sweep(scene.engine, now=scene.now)
    assert scene.states() == {second: "ready"}
    assert [row["job_id"] for row in rows_of(scene.engine, "hold")] == [second]


def test_the_sweep_removes_the_place_in_line_of_a_job_that_is_gone(scene: Scene) -> None:
    first, second = enqueue(scene, keyed("k"), keyed("k"))
    remove_behind(scene, second)
    limits.sweep(scene.engine, now=scene.now)
    assert [row["job_id"] for row in rows_of(scene.engine, "hold")] == [first]


@on_both_engines
def test_small_sweeps_one_after_the_other_see_everything(scene: Scene) -> None:
    holders = enqueue(scene, *[keyed(f"k{number}") for number in range(20)])
    successors = enqueue(scene, *[keyed(f"k{number}") for number in range(20)])
    for job in scene.claim(10):
        scene.finish(job)  # and nobody passes the keys on
    remove_behind(scene, *holders[10:])
    cursor = limits.START
    seen = []
    for _ in range(40):
        _, cursor = limits.sweep(scene.engine, cursor, top=3, now=scene.now)
        seen.append(cursor)
    assert {scene.states()[job] for job in successors} == {"ready"}
    assert seen[0] != limits.START


def test_a_sweep_begins_anew_when_it_has_seen_all(scene: Scene) -> None:
    enqueue(scene, *[keyed("k") for _ in range(5)])
    assert limits.sweep(scene.engine, top=100, now=scene.now) == (set(), limits.START)


@on_both_engines
def test_one_promotion_gives_all_free_places_however_many_wait(scene: Scene) -> None:
    count = 2 * limits.BATCH + 1
    enqueue(scene, *[keyed("k", most=count) for _ in range(count)])
    while set(scene.states().values()) & {"arriving"}:
        scene.admit()
    assert used(scene) == {"k": (count, 0)}


def test_a_promotion_makes_no_row_for_a_key_that_nobody_waits_for(scene: Scene) -> None:
    pass_on(scene, {"nobody"})
    assert rows_of(scene.engine, "limiter") == []


def test_the_limit_that_counts_is_that_of_the_next_job_in_line(scene: Scene) -> None:
    enqueue(scene, keyed("k", most=1), keyed("k", most=3), keyed("k", most=3), keyed("k", most=3))
    assert used(scene) == {"k": (3, 1)}
    enqueue(scene, keyed("k", most=1, priority=-1))
    (first, *_) = scene.claim()
    pass_on(scene, scene.finish(first).freed)
    assert used(scene) == {"k": (2, 2)}


def impatient(name: str = "k", **fields: Any) -> NewJob:
    return new_job(limits=(Limit(name, 1, KEPT, discards=True),), **fields)


def test_jobs_that_must_not_wait_are_discarded_by_whoever_admits_them(scene: Scene) -> None:
    first, second = scene.enqueue(impatient(), impatient(), arriving=True)  # as in a caller's transaction
    assert set(scene.states().values()) == {"arriving"}
    scene.admit()
    assert scene.states() == {first: "ready", second: "discarded"}
    assert used(scene) == {"k": (1, 0)}


def test_a_scheduled_job_that_must_not_wait_is_discarded_when_it_is_due_and_its_key_is_full(
    scene: Scene,
) -> None:
    (later,) = enqueue(scene, impatient(run_at=scene.now + SECOND))
    (first,) = enqueue(scene, impatient())
    assert scene.states() == {later: "scheduled", first: "ready"}
    scene.now += SECOND
    scene.admit()
    assert scene.states() == {later: "discarded", first: "ready"}


def test_a_retry_that_finds_its_key_full_waits_although_it_would_have_been_discarded_at_first(
    scene: Scene,
) -> None:
    (first,) = enqueue(scene, impatient())
    (job,) = scene.claim()
    pass_on(scene, scene.finish(job, "scheduled", run_at=scene.now + SECOND).freed)
    (second,) = enqueue(scene, impatient())
    scene.now += SECOND
    scene.admit()
    assert scene.states() == {first: "blocked", second: "ready"}
