"""Control: what operators and the dispatcher do, one case per sentence, on every engine."""

import json
from typing import Any

import pytest

from evenflow.job import JobError
from evenflow.queues import Queue
from evenflow.rules.fair import COST_MEMORY
from evenflow.settings import Retention
from evenflow.store.control import (
    admit,
    ahead,
    declare_queue,
    discard,
    expire,
    learn_costs,
    pause,
    resume,
    retry,
    set_weights,
    withdraw,
)
from evenflow.store.reads import await_job, find, queues
from tests.store.scene import ALICE, DAY, SECOND, Scene, execute, new_job, rows_of

KEEP = Retention()
CANCEL = JobError("TASK_CANCELLED", "by hand")


def ended(scene: Scene, state: str, **fields: Any) -> int:
    """A job in history."""
    job = scene.running(**fields)
    scene.finish(job, state, error='{"code":"X","message":"x"}')
    return job.id


class TestAdmission:
    def test_counts_what_became_ready_by_queue(self, scene: Scene) -> None:
        scene.enqueue(new_job(queue="a", group="g"), new_job(queue="a"), new_job(queue="b"), arriving=True)
        assert admit(scene.engine, now=scene.now) == {"a": 2, "b": 1}
        assert admit(scene.engine, now=scene.now) == {}

    def test_takes_at_most_top_of_each_kind(self, scene: Scene) -> None:
        scene.enqueue(*(new_job() for _ in range(5)), arriving=True)
        assert admit(scene.engine, top=3, now=scene.now) == {"default": 3}
        assert admit(scene.engine, top=3, now=scene.now) == {"default": 2}

    def test_leaves_attempts_epoch_and_times_alone(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "scheduled", run_at=scene.now + 5)
        before = scene.live(job.id)
        scene.now += 10
        scene.admit()
        assert scene.live(job.id) == before | {"state": "ready", "turn": 2.0}

    def test_ends_where_jobs_are_expired_already(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(run_at=scene.now, good_until=scene.now))
        scene.admit()
        assert scene.claim() == []
        assert expire(scene.engine, KEEP, now=scene.now) == [job]


class TestTheNextDue:
    def test_is_unknown_where_nothing_is_planned(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        assert ahead(scene.engine).due is None

    def test_is_the_earliest_run_at(self, scene: Scene) -> None:
        scene.enqueue(
            new_job(run_at=scene.now + 9), new_job(run_at=scene.now + 5), new_job(run_at=scene.now + 7)
        )
        assert ahead(scene.engine).due == scene.now + 5

    def test_is_zero_once_something_has_arrived(self, scene: Scene) -> None:
        scene.enqueue(new_job(run_at=scene.now + 5))
        scene.enqueue(new_job(), arriving=True)
        assert ahead(scene.engine).due == 0


class TestExpiry:
    def test_comes_at_the_very_microsecond_of_good_until(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(good_until=scene.now + 5))
        assert expire(scene.engine, KEEP, now=scene.now + 4) == []
        scene.now += 5
        assert expire(scene.engine, KEEP, now=scene.now) == [job]
        kept = scene.kept(job)
        assert (kept["state"], kept["finished_at"]) == ("expired", scene.now)
        assert (kept["expires_at"], kept["attempt"], kept["payload"]) == (scene.now + 7 * DAY, 0, "[1]")
        assert [error["code"] for error in json.loads(kept["errors"])] == ["TASK_EXPIRED"]

    def test_stands_after_the_errors_of_earlier_attempts(self, scene: Scene) -> None:
        scene.enqueue(new_job(max_attempts=2, good_until=scene.now + 5))
        (job,) = scene.claim()
        scene.finish(job, "scheduled", run_at=scene.now + 9, error='{"code":"FIRST","message":"x"}')
        scene.now += 5
        assert expire(scene.engine, KEEP, now=scene.now) == [job.id]
        assert [error["code"] for error in json.loads(scene.kept(job.id)["errors"])] == [
            "FIRST",
            "TASK_EXPIRED",
        ]

    @pytest.mark.parametrize("state", ["arriving", "scheduled", "waiting", "blocked", "overflow", "ready"])
    def test_ends_a_job_that_has_not_started(self, scene: Scene, state: str) -> None:
        (job,) = scene.enqueue(new_job(good_until=scene.now))
        execute(scene.engine, f"update evenflow_job set state = '{state}' where id = {job}")
        assert expire(scene.engine, KEEP, now=scene.now) == [job]

    @pytest.mark.parametrize("lease_us", [None, SECOND])
    def test_leaves_a_job_in_flight_to_its_worker(self, scene: Scene, lease_us: int | None) -> None:
        scene.enqueue(new_job(good_until=scene.now + 1))
        (job,) = scene.claim(lease_us=lease_us)
        assert expire(scene.engine, KEEP, now=scene.now + DAY) == []
        assert scene.live(job.id)["worker"] == ALICE

    def test_leaves_jobs_without_an_end_alone(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        assert expire(scene.engine, KEEP, now=scene.now + DAY) == []

    def test_goes_in_batches_of_the_longest_expired(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job(good_until=scene.now - number) for number in range(5)))
        found = [sorted(expire(scene.engine, KEEP, top=2, now=scene.now)) for _ in range(4)]
        assert found == [jobs[3:], jobs[1:3], jobs[:1], []]

    def test_keeps_no_row_where_retention_says_so(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(good_until=scene.now))
        assert expire(scene.engine, Retention(expired=0), now=scene.now) == [job]
        assert scene.states() == {}


class TestWithdrawal:
    @pytest.mark.parametrize("state", ["arriving", "scheduled", "waiting", "blocked", "overflow", "ready"])
    @pytest.mark.parametrize("end", ["cancelled", "discarded", "skipped"])
    def test_ends_an_open_job(self, scene: Scene, state: str, end: str) -> None:
        (job,) = scene.enqueue(new_job(unique_key="k"))
        execute(scene.engine, f"update evenflow_job set state = '{state}' where id = {job}")
        assert withdraw(scene.engine, [job], end, KEEP, now=scene.now) == {job: "ended"}
        kept = scene.kept(job)
        assert (kept["state"], kept["finished_at"], kept["errors"]) == (end, scene.now, None)
        assert (kept["expires_at"], kept["unique_key"]) == (scene.now + 7 * DAY, "k")

    @pytest.mark.parametrize("lease_us", [None, SECOND])
    def test_flags_a_job_in_flight_and_leaves_it_to_its_worker(
        self, scene: Scene, lease_us: int | None
    ) -> None:
        scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=lease_us)
        before = scene.live(job.id)
        assert withdraw(scene.engine, [job.id], "cancelled", KEEP, why="no use", now=scene.now) == {
            job.id: "flagged"
        }
        assert scene.live(job.id) == before | {"cancel_at": scene.now, "cancel_why": "no use"}
        assert scene.finish(job, "cancelled").lost == []

    def test_without_flags_leaves_a_job_in_flight_alone(self, scene: Scene) -> None:
        job = scene.running()
        before = scene.live(job.id)
        assert withdraw(scene.engine, [job.id], "cancelled", KEEP, flags=False, now=scene.now) == {}
        assert scene.live(job.id) == before

    def test_leaves_out_what_has_ended_or_never_was(self, scene: Scene) -> None:
        done = ended(scene, "succeeded")
        (job,) = scene.enqueue(new_job())
        before = scene.kept(done)
        assert withdraw(scene.engine, [done, job, 7], "cancelled", KEEP, now=scene.now) == {job: "ended"}
        assert scene.kept(done) == before

    def test_adds_its_error_behind_the_earlier_ones(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "scheduled", run_at=scene.now, error='{"code":"A","message":"a"}')
        (other,) = scene.enqueue(new_job())
        withdraw(scene.engine, [job.id, other], "cancelled", KEEP, error=CANCEL, now=scene.now)
        assert [error["code"] for error in json.loads(scene.kept(job.id)["errors"])] == [
            "A",
            "TASK_CANCELLED",
        ]
        assert [error["code"] for error in json.loads(scene.kept(other)["errors"])] == ["TASK_CANCELLED"]

    def test_keeps_no_row_where_retention_says_so(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job())
        assert withdraw(scene.engine, [job], "cancelled", Retention(cancelled=0), now=scene.now) == {
            job: "ended"
        }
        assert scene.states() == {}

    def test_of_nothing_does_nothing(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        before = scene.contents()
        assert withdraw(scene.engine, [], "cancelled", KEEP, now=scene.now) == {}
        assert scene.contents() == before


class TestARetryByHand:
    @pytest.mark.parametrize("state", ["failed", "quarantined", "cancelled", "expired", "discarded"])
    def test_brings_a_job_back_under_its_id_with_all_attempts_anew(self, scene: Scene, state: str) -> None:
        job = ended(scene, state, group="g", priority=3, unique_key="k", headers="{}", options="{}", run_id=5)
        before = scene.kept(job)
        execute(scene.engine, "update evenflow_history set crashes = 2")
        scene.now += SECOND
        assert retry(scene.engine, [job], now=scene.now) == [job]
        row = scene.live(job)
        assert (row["state"], row["attempt"], row["crashes"], row["run_at"]) == ("arriving", 0, 0, scene.now)
        assert (row["worker"], row["started_at"], row["good_until"], row["cancel_at"]) == (None,) * 4
        assert (row["awaited"], row["progress"], row["lease_until"]) == (False, None, None)
        same = (
            "created_at", "run_id", "epoch", "max_attempts", "priority", "fails_on_crash", "queue", "task", "group_key",
            "unique_key", "signature", "headers", "options", "errors", "payload",
        )  # fmt: skip
        assert {name: row[name] for name in same} == {name: before[name] for name in same}
        assert scene.states() == {job: "arriving"}
        scene.admit()
        (again,) = scene.claim(queues=[str(before["queue"])])
        assert (again.attempt, again.epoch) == (1, before["epoch"] + 1)

    @pytest.mark.parametrize("state", ["succeeded", "skipped"])
    def test_leaves_what_need_not_run_again(self, scene: Scene, state: str) -> None:
        job = ended(scene, state)
        assert retry(scene.engine, [job], now=scene.now) == []
        assert scene.states() == {job: state}

    def test_makes_a_scheduled_job_due_at_once(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(run_at=scene.now + DAY))
        assert retry(scene.engine, [job], now=scene.now) == [job]
        assert scene.admit() == {"default": 1}

    def test_leaves_a_job_whose_unique_key_is_taken_where_it_is(self, scene: Scene) -> None:
        job = ended(scene, "failed", unique_key="k")
        (holder,) = scene.enqueue(new_job(unique_key="k"))
        assert retry(scene.engine, [job], now=scene.now) == []
        assert scene.states() == {job: "failed", holder: "ready"}

    def test_of_two_jobs_with_one_unique_key_brings_back_the_first(self, scene: Scene) -> None:
        first, second = ended(scene, "failed", unique_key="k"), ended(scene, "failed", unique_key="k")
        assert retry(scene.engine, [second, first], now=scene.now) == [first]
        assert scene.states() == {first: "arriving", second: "failed"}

    def test_of_many_answers_with_those_that_go_back_to_work(self, scene: Scene) -> None:
        failed, done = ended(scene, "failed"), ended(scene, "succeeded")
        ready, later = scene.enqueue(new_job(), new_job(run_at=scene.now + DAY))
        assert sorted(retry(scene.engine, [failed, done, ready, later, 7], now=scene.now)) == [failed, later]

    def test_lets_an_end_of_the_earlier_run_be_lost(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "failed")
        retry(scene.engine, [job.id], now=scene.now)
        scene.admit()
        scene.claim(queues=[job.queue])
        assert scene.finish(job).lost == [(job.id, job.epoch)]

    def test_can_be_awaited_anew(self, scene: Scene) -> None:
        job = ended(scene, "failed")
        retry(scene.engine, [job], now=scene.now)
        assert await_job(scene.engine, job)


class TestADiscard:
    def test_ends_open_jobs_and_marks_failed_ones_and_leaves_running_ones(self, scene: Scene) -> None:
        (ready,) = scene.enqueue(new_job())
        failed, done, running = ended(scene, "failed"), ended(scene, "succeeded"), scene.running()
        assert sorted(discard(scene.engine, [ready, failed, done, running.id, 7], KEEP, now=scene.now)) == [
            ready,
            failed,
        ]
        assert scene.states() == {
            ready: "discarded", failed: "discarded", done: "succeeded", running.id: "running",
        }  # fmt: skip
        assert scene.live(running.id)["cancel_at"] is None

    @pytest.mark.parametrize("state", ["failed", "quarantined", "cancelled", "expired"])
    def test_keeps_the_rest_of_a_history_row(self, scene: Scene, state: str) -> None:
        job = ended(scene, state)
        before = scene.kept(job)
        assert discard(scene.engine, [job], KEEP, now=scene.now) == [job]
        assert scene.kept(job) == before | {"state": "discarded"}
        assert discard(scene.engine, [job], KEEP, now=scene.now) == []


class TestAQueue:
    def test_is_stored_as_declared(self, scene: Scene) -> None:
        declare_queue(
            scene.engine, Queue("mail", priority=3, fair="time", max_concurrency=7, weights={"gold": 2.5})
        )
        (row,) = queues(scene.engine)
        assert (row.name, row.priority, row.fair, row.max_concurrency) == ("mail", 3, "time", 7)
        assert rows_of(scene.engine, "group_weight") == [
            {"queue": "mail", "group_key": "gold", "weight": 2.5}
        ]

    def test_declared_again_takes_the_new_words(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", max_concurrency=7, weights={"gold": 2, "iron": 1}))
        declare_queue(scene.engine, Queue("mail", priority=9, fair="fifo"))
        (row,) = queues(scene.engine)
        assert (row.priority, row.fair, row.max_concurrency) == (9, "fifo", None)
        assert rows_of(scene.engine, "group_weight") == []

    def test_declared_again_keeps_an_operator_s_pause(self, scene: Scene) -> None:
        pause(scene.engine, "mail", who="eve", why="outage", now=scene.now)
        declare_queue(scene.engine, Queue("mail", priority=9))
        (row,) = queues(scene.engine)
        assert (row.priority, row.paused_at, row.paused_by, row.paused_why) == (9, scene.now, "eve", "outage")

    def test_may_be_paused_before_anybody_has_used_it(self, scene: Scene) -> None:
        pause(scene.engine, "mail", now=scene.now)
        (row,) = queues(scene.engine)
        assert (row.name, row.priority, row.fair, row.paused_at) == ("mail", 50, "round-robin", scene.now)
        (job,) = scene.enqueue(new_job(queue="mail"))
        assert scene.claim(queues=["mail"]) == []
        assert scene.states() == {job: "ready"}

    def test_paused_lets_running_jobs_end(self, scene: Scene) -> None:
        job = scene.running()
        pause(scene.engine, job.queue, now=scene.now)
        assert scene.finish(job).lost == []

    def test_resumed_is_served_again(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job(queue="mail"))
        pause(scene.engine, "mail", who="eve", why="x", now=scene.now)
        assert resume(scene.engine, "mail")
        (row,) = queues(scene.engine)
        assert (row.paused_at, row.paused_by, row.paused_why) == (None, None, None)
        assert scene.claim_ids(queues=["mail"]) == [job]

    def test_that_was_not_paused_cannot_be_resumed(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail"))
        assert not resume(scene.engine, "mail")
        assert not resume(scene.engine, "unknown")

    def test_paused_twice_has_the_later_words(self, scene: Scene) -> None:
        pause(scene.engine, "mail", who="eve", why="x", now=scene.now)
        pause(scene.engine, "mail", who="adam", now=scene.now + 1)
        (row,) = queues(scene.engine)
        assert (row.paused_at, row.paused_by, row.paused_why) == (scene.now + 1, "adam", None)


class TestWeights:
    def test_replace_those_of_their_queue_alone(self, scene: Scene) -> None:
        set_weights(scene.engine, "mail", {"a": 1, "b": 2})
        set_weights(scene.engine, "docs", {"a": 3})
        set_weights(scene.engine, "mail", {"b": 4.5, "c": 0.5})
        found = {
            (row["queue"], row["group_key"]): row["weight"] for row in rows_of(scene.engine, "group_weight")
        }
        assert found == {("mail", "b"): 4.5, ("mail", "c"): 0.5, ("docs", "a"): 3.0}


class TestCosts:
    def costs(self, scene: Scene) -> dict[tuple[str, str], float]:
        return {
            (row["queue"], row["group_key"]): row["cost_us"] for row in rows_of(scene.engine, "group_cost")
        }

    def mean(self, scene: Scene, queue: str) -> float | None:
        means: dict[str, float | None] = {
            row["name"]: row["mean_cost_us"] for row in rows_of(scene.engine, "queue")
        }
        return means[queue]

    def test_start_at_the_mean_of_the_first_report(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        learn_costs(
            scene.engine,
            {("mail", "a"): (2, 100), ("mail", "b"): (1, 500), ("docs", "a"): (4, 4)},
            now=scene.now,
        )
        assert self.costs(scene) == {("mail", "a"): 50.0, ("mail", "b"): 500.0, ("docs", "a"): 1.0}
        assert self.mean(scene, "mail") == 200.0
        assert {row["updated_at"] for row in rows_of(scene.engine, "group_cost")} == {scene.now}

    def test_are_the_mean_of_the_first_runs_however_they_were_reported(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        learn_costs(scene.engine, {("mail", "a"): (1, 100)}, now=scene.now)
        learn_costs(scene.engine, {("mail", "a"): (3, 900)}, now=scene.now + 1)
        assert self.costs(scene) == {("mail", "a"): pytest.approx(250.0)}

    def test_follow_the_last_runs_when_there_were_many(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        learn_costs(scene.engine, {("mail", "a"): (10 * COST_MEMORY, 1000 * COST_MEMORY)}, now=scene.now)
        learn_costs(scene.engine, {("mail", "a"): (1, 100 + COST_MEMORY)}, now=scene.now + 1)
        assert self.costs(scene) == {("mail", "a"): pytest.approx(101.0)}
        learn_costs(scene.engine, {("mail", "a"): (COST_MEMORY, 700 * COST_MEMORY)}, now=scene.now + 2)
        assert self.costs(scene) == {("mail", "a"): pytest.approx(700.0)}

    def test_of_a_queue_move_a_fifth_of_the_way_with_each_report(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        learn_costs(scene.engine, {("mail", "a"): (1, 100)}, now=scene.now)
        learn_costs(scene.engine, {("mail", "a"): (1, 200)}, now=scene.now + 1)
        assert self.mean(scene, "mail") == pytest.approx(120.0)

    def test_have_a_unit_that_stays_until_the_mean_is_far_from_it(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        units = []
        for spent in (100, 1000, 5000):
            learn_costs(scene.engine, {("mail", "a"): (1, spent)}, now=scene.now)
            units += [row["unit_us"] for row in rows_of(scene.engine, "queue")]
        assert units == [100.0, 100.0, pytest.approx(self.mean(scene, "mail"))]

    def test_of_no_runs_teach_nothing(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        learn_costs(scene.engine, {("mail", "a"): (0, 100)}, now=scene.now)
        learn_costs(scene.engine, {}, now=scene.now)
        assert self.costs(scene) == {}
        assert self.mean(scene, "mail") is None

    def test_are_never_zero(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("mail", fair="time"))
        learn_costs(scene.engine, {("mail", "a"): (5, 0)}, now=scene.now)
        assert self.costs(scene) == {("mail", "a"): 1.0}
        assert self.mean(scene, "mail") == 1.0


def test_a_withdrawn_job_is_found_as_it_ended(scene: Scene) -> None:
    (job,) = scene.enqueue(new_job())
    withdraw(scene.engine, [job], "cancelled", KEEP, error=CANCEL, now=scene.now)
    record = find(scene.engine, [job])[job]
    assert (record.state, record.finished_at, record.attempt) == ("cancelled", scene.now, 0)
