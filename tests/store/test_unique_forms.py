"""Unique jobs that replace, wait or outlive their end: exact in every state and under races."""

import threading
from typing import Any

import pytest

from evenflow.errors import DuplicateJob
from evenflow.job import Limit, NewJob
from evenflow.store import limits
from evenflow.store.callers import drive_together
from evenflow.store.engine import Steps, drive
from evenflow.store.enqueue import Enqueued, enqueue_steps
from evenflow.store.upkeep import forget_marks
from tests.store.scene import ALICE, SECOND, Scene, end_of, execute, new_job, rows_of, second_engine


def replacing(**fields: Any) -> NewJob:
    return new_job(**{"unique_key": "u", "replaces": True, **fields})


def lasting(keep_us: int = 10 * SECOND, **fields: Any) -> NewJob:
    return new_job(**{"unique_key": "u", "unique_for_us": keep_us, **fields})


def put(scene: Scene, *jobs: NewJob, arriving: bool = False, **options: Any) -> list[Enqueued]:
    """Enqueue in one transaction of our own, as the client does."""
    steps = lambda: enqueue_steps(jobs, scene.ids, arriving=arriving, now=scene.now, **options)  # noqa: E731
    return drive_together(scene.engine, steps)


def put_one(scene: Scene, job: NewJob, **options: Any) -> int:
    (placed,) = put(scene, job, **options)
    return placed.id


class TestReplace:
    def test_a_ready_job_becomes_what_the_new_call_says_and_keeps_its_place(self, scene: Scene) -> None:
        first = put_one(scene, replacing(payload="[1]"))
        scene.enqueue(new_job())
        before = scene.live(first)
        (again,) = put(scene, replacing(payload="[2]", max_attempts=7, good_until=scene.now + SECOND))
        assert again == Enqueued(first, is_new=False)
        after = scene.live(first)
        assert (after["payload"], after["max_attempts"], after["good_until"]) == (
            "[2]",
            7,
            scene.now + SECOND,
        )
        assert (after["turn"], after["state"], after["created_at"]) == (
            before["turn"],
            "ready",
            before["created_at"],
        )
        assert scene.claim_ids()[0] == first

    def test_a_scheduled_job_takes_the_new_time(self, scene: Scene) -> None:
        first = put_one(scene, replacing(run_at=scene.now + 100 * SECOND))
        put(scene, replacing(run_at=scene.now + 5 * SECOND))
        assert scene.live(first)["run_at"] == scene.now + 5 * SECOND
        put(scene, replacing())
        assert scene.admit() == {"default": 1}

    def test_a_ready_job_can_be_put_off(self, scene: Scene) -> None:
        first = put_one(scene, replacing())
        put(scene, replacing(run_at=scene.now + SECOND))
        assert scene.states() == {first: "scheduled"}

    def test_a_job_that_is_put_off_lets_go_of_its_key(self, scene: Scene) -> None:
        key = (Limit("k", 1, 180 * SECOND),)
        first = put_one(scene, replacing(limits=key), arriving=True)
        scene.admit()
        (other,) = put(scene, new_job(limits=key), arriving=True)
        scene.admit()
        assert scene.states() == {first: "ready", other.id: "blocked"}
        put(scene, replacing(limits=key, run_at=scene.now + SECOND), arriving=True)
        limits.sweep(scene.engine, now=scene.now)
        assert scene.states() == {first: "scheduled", other.id: "ready"}

    def test_a_job_whose_keys_change_lines_up_at_the_new_ones(self, scene: Scene) -> None:
        first = put_one(scene, replacing(limits=(Limit("k", 1, SECOND),)), arriving=True)
        scene.admit()
        put(scene, replacing(limits=(Limit("m", 1, SECOND),)), arriving=True)
        scene.admit()
        assert scene.states() == {first: "ready"}
        assert [row["limiter"] for row in rows_of(scene.engine, "hold")] == ["m"]

    def test_a_job_can_move_to_another_queue(self, scene: Scene) -> None:
        first = put_one(scene, replacing())
        put(scene, replacing(queue="mail", group="bob"))
        scene.admit()
        assert scene.claim_ids() == []
        assert scene.claim_ids(queues=["mail"]) == [first]

    def test_a_retry_in_its_back_off_starts_anew(self, scene: Scene) -> None:
        put(scene, replacing())
        (run,) = scene.claim()
        scene.finish(run, "scheduled", run_at=scene.now + 1000 * SECOND)
        put(scene, replacing(payload="[2]"))
        scene.admit()
        (again,) = scene.claim()
        assert (again.id, again.payload, again.attempt) == (run.id, "[2]", 1)

    def test_a_running_job_goes_on_and_the_new_one_waits_behind_it(self, scene: Scene) -> None:
        first = put_one(scene, replacing(payload="[1]"))
        (run,) = scene.claim()
        (second,) = put(scene, replacing(payload="[2]"))
        assert second.is_new
        assert scene.states() == {first: "running", second.id: "ready"}
        (third,) = put(scene, replacing(payload="[3]"))
        assert third == Enqueued(second.id, is_new=False)
        scene.finish(run)
        (run,) = scene.claim()
        assert (run.id, run.payload) == (second.id, "[3]")

    def test_after_the_end_a_new_job_begins(self, scene: Scene) -> None:
        first = put_one(scene, replacing())
        scene.finish(scene.claim()[0])
        (second,) = put(scene, replacing())
        assert second.is_new
        assert second.id != first

    def test_of_a_batch_with_one_key_the_last_one_counts(self, scene: Scene) -> None:
        placed = put(scene, *[replacing(payload=f"[{number}]") for number in range(4)])
        assert len({place.id for place in placed}) == 1
        assert scene.live(placed[0].id)["payload"] == "[3]"

    def test_a_job_is_signed_anew_under_its_own_id(self, scene: Scene) -> None:
        sign = lambda job, number: f"{number}:{job.payload}"  # noqa: E731
        first = put_one(scene, replacing(payload="[1]"), sign=sign)
        put(scene, replacing(payload="[2]"), sign=sign)
        assert scene.live(first)["signature"] == f"{first}:[2]"

    def test_a_job_set_aside_behind_a_gate_is_not_released_twice(self, scene: Scene) -> None:
        first = put_one(scene, replacing())
        execute(scene.engine, f"update evenflow_job set state = 'blocked', gated = 1 where id = {first}")
        put(scene, replacing(payload="[2]"))
        assert (scene.live(first)["state"], scene.live(first)["gated"]) == ("blocked", 1)
        put(scene, replacing(run_at=scene.now + SECOND))
        assert (scene.live(first)["state"], scene.live(first)["gated"]) == ("scheduled", 0)


class TestDebounce:
    def test_each_call_starts_the_delay_anew_until_the_longest_wait(self, scene: Scene) -> None:
        begin = scene.now
        first = put_one(scene, replacing(run_at=begin + 5 * SECOND, max_wait_us=12 * SECOND))
        for second in (4, 8, 9, 10):
            scene.now = begin + second * SECOND
            assert scene.admit() == {}
            put(
                scene,
                replacing(payload=f"[{second}]", run_at=scene.now + 5 * SECOND, max_wait_us=12 * SECOND),
            )
        assert scene.live(first)["run_at"] == begin + 12 * SECOND
        scene.now = begin + 12 * SECOND
        scene.admit()
        (run,) = scene.claim()
        assert (run.id, run.payload) == (first, "[10]")

    def test_a_ready_job_is_put_off_once_more_but_not_beyond_the_longest_wait(self, scene: Scene) -> None:
        begin = scene.now
        first = put_one(scene, replacing(run_at=begin + 5 * SECOND, max_wait_us=8 * SECOND))
        scene.now += 5 * SECOND
        scene.admit()
        put(scene, replacing(run_at=scene.now + 5 * SECOND, max_wait_us=8 * SECOND))
        assert (scene.live(first)["state"], scene.live(first)["run_at"]) == ("scheduled", begin + 8 * SECOND)
        scene.now += 10 * SECOND
        scene.admit()
        put(scene, replacing(payload="[9]", run_at=scene.now + 5 * SECOND, max_wait_us=8 * SECOND))
        assert (scene.live(first)["state"], scene.live(first)["payload"]) == ("ready", "[9]")


class TestForAWhile:
    def test_the_key_stays_taken_after_the_end(self, scene: Scene) -> None:
        first = put_one(scene, lasting(), arriving=True)
        scene.admit()
        scene.finish(scene.claim()[0])
        scene.now += 10 * SECOND - 1
        (again,) = put(scene, lasting(), arriving=True)
        assert again == Enqueued(first, is_new=False)
        assert scene.states() == {first: "succeeded"}
        scene.now += 1
        (second,) = put(scene, lasting(), arriving=True)
        assert second.is_new

    def test_an_open_job_keeps_its_key_beyond_the_time(self, scene: Scene) -> None:
        first = put_one(scene, lasting(SECOND), arriving=True)
        scene.now += 100 * SECOND
        assert put(scene, lasting(SECOND), arriving=True) == [Enqueued(first, is_new=False)]

    def test_a_call_that_comes_too_early_is_an_error_where_that_was_asked_for(self, scene: Scene) -> None:
        put(scene, lasting(), arriving=True)
        scene.admit()
        scene.finish(scene.claim()[0])
        other = new_job(unique_key="other", limits=(Limit("k", 1, SECOND),))
        with pytest.raises(DuplicateJob, match="is open, or was enqueued within its ttl"):
            put(scene, other, lasting(), arriving=True, must_be_new=[1])
        assert len(scene.states()) == 1
        assert rows_of(scene.engine, "hold") == []

    def test_nothing_is_left_of_a_job_that_came_too_early(self, scene: Scene) -> None:
        put(scene, lasting(limits=(Limit("k", 1, SECOND),)), arriving=True)
        scene.admit()
        scene.finish(scene.claim()[0])
        put(scene, lasting(limits=(Limit("k", 1, SECOND),)), arriving=True)
        assert rows_of(scene.engine, "job") == rows_of(scene.engine, "hold") == []

    def test_inside_a_caller_s_transaction_it_holds_as_well(self, scene: Scene) -> None:
        def steps() -> Steps[list[Enqueued]]:
            return enqueue_steps([lasting()], scene.ids, arriving=True, now=scene.now)

        (first,) = drive(scene.engine, steps())
        scene.admit()
        scene.finish(scene.claim()[0])
        assert drive(scene.engine, steps()) == [Enqueued(first.id, is_new=False)]

    def test_keys_whose_time_is_over_are_forgotten(self, scene: Scene) -> None:
        put(scene, lasting(), lasting(20 * SECOND, unique_key="v"), arriving=True)
        scene.now += 10 * SECOND
        assert forget_marks(scene.engine, now=scene.now) == 1
        assert [row["unique_key"] for row in rows_of(scene.engine, "unique_mark")] == ["v"]


@pytest.mark.parametrize("kind", ["existing", "replace", "lasting"])
def test_of_many_who_enqueue_one_key_at_the_same_instant_one_makes_the_job(scene: Scene, kind: str) -> None:
    engines = [second_engine(scene.engine) for _ in range(8)]
    start = threading.Barrier(8)
    placed: list[Enqueued] = []

    def produce(place: int) -> None:
        job = {
            "existing": new_job(unique_key="u"),
            "replace": replacing(payload=f"[{place}]"),
            "lasting": lasting(3600 * SECOND),
        }[kind]
        start.wait()
        for _ in range(5):
            steps = lambda: enqueue_steps([job], scene.ids, arriving=kind == "lasting")  # noqa: E731
            placed.extend(drive_together(engines[place], steps))

    threads = [threading.Thread(target=produce, args=(place,)) for place in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close()
    assert len(placed) == 40
    assert len({place.id for place in placed}) == 1
    assert sum(place.is_new for place in placed) == 1
    assert len(rows_of(scene.engine, "job")) == 1


def test_replacing_while_workers_claim_loses_no_last_word(scene: Scene) -> None:
    """Whatever was enqueued last is what runs last."""
    other = second_engine(scene.engine)
    ran: list[str] = []
    is_over = threading.Event()

    def consume() -> None:
        while not is_over.is_set() or any(row["state"] == "ready" for row in rows_of(other, "job")):
            mate = Scene(other)
            mate.now = scene.now
            for run in mate.claim():
                ran.append(run.payload)
                mate.advance(ALICE, end_of(run))

    worker = threading.Thread(target=consume)
    worker.start()
    for number in range(150):
        put(scene, replacing(payload=f"[{number}]"))
    is_over.set()
    worker.join()
    other.close()
    assert ran[-1] == "[149]"
    assert ran == sorted(ran, key=lambda text: int(text.strip("[]")))
    assert rows_of(scene.engine, "job") == []


def test_a_key_freed_by_hand_is_free(scene: Scene) -> None:
    put(scene, replacing())
    execute(scene.engine, "delete from evenflow_job")
    assert put(scene, replacing())[0].is_new
