"""Advance: fenced ends and ordered claims, one case per sentence, on every engine."""

import json
from typing import Any

import pytest

from evenflow.job import ENDS, End, JobError
from evenflow.settings import Retention
from evenflow.store.advance import Bound, Claim, Want, start
from evenflow.store.control import pause, resume, withdraw
from evenflow.store.engine import as_json
from evenflow.store.leases import free_expired_claims
from evenflow.store.reads import await_job, rounds
from tests.store.scene import ALICE, BOB, DAY, SECOND, Scene, end_of, execute, new_job

ERROR = JobError("UNHANDLED_ERROR", "it broke", class_name="ValueError", attempt=1)


class TestTheClaim:
    def test_raises_epoch_and_attempt_and_names_its_worker(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job())
        scene.now += SECOND
        (claimed,) = scene.claim(worker=BOB)
        row = scene.live(job)
        assert (claimed.id, claimed.epoch, claimed.attempt) == (job, 1, 1)
        assert (row["state"], row["worker"], row["epoch"], row["attempt"]) == ("running", BOB, 1, 1)
        assert (row["started_at"], row["lease_until"]) == (scene.now, None)

    def test_gives_the_worker_everything_that_a_run_needs(self, scene: Scene) -> None:
        job = new_job(
            task="docs.parse", payload='["ü"]', queue="docs", group="g", priority=3, max_attempts=4, headers="{}",
            good_until=scene.now + SECOND, options='{"timeout":1}',
        )  # fmt: skip
        (number,) = scene.enqueue(job)
        (claimed,) = scene.claim(queues=["docs"])
        assert claimed.__class__(*(getattr(claimed, name) for name in claimed.__struct_fields__)) == claimed
        assert (claimed.id, claimed.task, claimed.payload, claimed.queue) == (
            number,
            job.task,
            job.payload,
            "docs",
        )
        assert (claimed.group, claimed.priority, claimed.turn, claimed.max_attempts) == ("g", 3, 1.0, 4)
        assert (claimed.created_at, claimed.run_at, claimed.started_at) == (scene.now,) * 3
        assert (claimed.good_until, claimed.headers, claimed.options) == (
            job.good_until,
            "{}",
            '{"timeout":1}',
        )
        assert (claimed.crashes, claimed.signature) == (0, None)

    def test_goes_by_priority_then_turn_then_id(self, scene: Scene) -> None:
        jobs = scene.enqueue(
            new_job(priority=1),
            new_job(priority=-1, group="b"),
            new_job(priority=-1, group="b"),
            new_job(priority=-1),
        )
        assert scene.claim_ids() == [jobs[1], jobs[3], jobs[2], jobs[0]]

    def test_takes_the_queues_in_the_order_of_their_places(self, scene: Scene) -> None:
        low, high = scene.enqueue(new_job(queue="low", priority=-100), new_job(queue="high", priority=100))
        assert scene.claim_ids(queues=["high", "low"]) == [high, low]
        (last,) = scene.enqueue(new_job(queue="low"))
        (first,) = scene.enqueue(new_job(queue="high"))
        wants = [Want("low", 2, 9), Want("high", 1, 9)]
        claimed = scene.advance(ALICE, claim=Claim(wants, 1)).claimed
        assert [job.id for job in claimed] == [first]
        assert [job.id for job in scene.advance(ALICE, claim=Claim(wants, 1)).claimed] == [last]

    def test_takes_at_most_top_in_all(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job(queue=queue) for queue in "aabb"))
        assert scene.claim_ids(3, queues=["a", "b"]) == jobs[:3]
        assert scene.claim_ids(3, queues=["a", "b"]) == jobs[3:]

    def test_takes_at_most_the_top_of_each_queue(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job(queue=queue, priority=p) for queue in "ab" for p in (1, 1, 2)))
        claim = Claim([Want("a", 0, 1), Want("b", 1, 2)], 10)
        assert [job.id for job in scene.advance(ALICE, claim=claim).claimed] == [jobs[0], jobs[3], jobs[4]]
        claim = Claim([Want("a", 0, 2), Want("b", 1, 0)], 10)
        assert [job.id for job in scene.advance(ALICE, claim=claim).claimed] == [jobs[1], jobs[2]]

    def test_of_nothing_takes_nothing(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        assert scene.advance(ALICE).claimed == []
        assert scene.advance(ALICE, claim=Claim(top=5)).claimed == []
        assert scene.claim(0) == []
        assert scene.claim(queues=["other"]) == []

    def test_takes_no_job_twice(self, scene: Scene) -> None:
        scene.enqueue(new_job(), new_job())
        assert len(scene.claim(worker=ALICE)) == 2
        assert scene.claim(worker=BOB) == []

    @pytest.mark.parametrize(
        "state", ["arriving", "scheduled", "waiting", "blocked", "overflow", "claimed", "running"]
    )
    def test_takes_only_ready_jobs(self, scene: Scene, state: str) -> None:
        (job,) = scene.enqueue(new_job())
        execute(scene.engine, f"update evenflow_job set state = '{state}' where id = {job}")
        assert scene.claim() == []
        execute(scene.engine, f"update evenflow_job set state = 'ready' where id = {job}")
        assert scene.claim_ids() == [job]

    def test_takes_nothing_from_a_paused_queue(self, scene: Scene) -> None:
        paused, other = scene.enqueue(new_job(queue="mail"), new_job(queue="docs"))
        pause(scene.engine, "mail", now=scene.now)
        assert scene.claim_ids(queues=["mail", "docs"]) == [other]
        resume(scene.engine, "mail")
        assert scene.claim_ids(queues=["mail", "docs"]) == [paused]

    def test_takes_no_job_at_or_after_the_microsecond_of_its_good_until(self, scene: Scene) -> None:
        first, second = scene.enqueue(new_job(good_until=scene.now + 1), new_job(good_until=scene.now + 2))
        scene.now += 1
        assert scene.claim_ids() == [second]
        assert scene.states()[first] == "ready"

    def test_is_not_stopped_by_expired_jobs_that_stand_first(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(good_until=scene.now) for _ in range(50)))
        (job,) = scene.enqueue(new_job())
        assert scene.claim_ids(1) == [job]

    def test_starts_at_the_bound_of_its_band_and_skips_what_lies_before(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job(group="b") for _ in range(4)), new_job(priority=1))
        bound = Bound("default", 0, turn=3.0, id=jobs[2])
        assert [job.id for job in scene.claim(bounds=[bound])] == jobs[2:]
        assert scene.claim_ids() == jobs[:2]

    def test_holds_a_bound_on_the_id_within_a_turn(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job() for _ in range(3)))
        assert [job.id for job in scene.claim(bounds=[Bound("default", 0, 1.0, jobs[1])])] == jobs[1:]

    def test_without_a_bound_finds_what_bounded_claims_have_skipped(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job() for _ in range(3)))
        assert scene.claim(bounds=[Bound("default", 0, 1.0, jobs[2] + 1)]) == []
        assert scene.claim(bounds=[Bound("other", 0, 9.0, 0), Bound("default", 5, 9.0, 0)], top=1) != []
        assert scene.claim_ids() == jobs[1:]

    def test_moves_v_to_the_greatest_turn_it_took_and_says_so(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group="b") for _ in range(5)), new_job(priority=7, group="b"))
        claim = Claim([Want("default", 0, 9)], 3)
        assert scene.advance(ALICE, claim=claim).rounds == {("default", 0): 3.0}
        assert rounds(scene.engine) == {("default", 0): 3.0}
        assert scene.advance(ALICE, claim=claim).rounds == {("default", 0): 5.0, ("default", 7): 1.0}
        assert rounds(scene.engine) == {("default", 0): 5.0, ("default", 7): 1.0}
        scene.now += 1
        assert scene.advance(ALICE, claim=claim).rounds == {}

    def test_says_what_v_is_where_somebody_else_has_moved_it(self, scene: Scene) -> None:
        scene.enqueue(new_job(), new_job())
        claim = Claim([Want("default", 0, 1)], 1)
        assert scene.advance(ALICE, claim=claim).rounds == {("default", 0): 1.0}
        scene.now += 1
        assert scene.advance(BOB, claim=claim).rounds == {("default", 0): 1.0}

    def test_leaves_v_alone_when_told_so(self, scene: Scene) -> None:
        scene.enqueue(new_job(), new_job())
        claim = Claim([Want("default", 0, 1)], 1, moves_v=False)
        answer = scene.advance(ALICE, claim=claim)
        assert (len(answer.claimed), answer.rounds) == (1, {})
        assert rounds(scene.engine) == {}

    def test_never_moves_v_back(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job(group="b") for _ in range(5)))
        scene.claim(bounds=[Bound("default", 0, 5.0, jobs[4])])
        assert rounds(scene.engine) == {("default", 0): 5.0}
        scene.now += SECOND
        answer = scene.advance(ALICE, claim=Claim([Want("default", 0, 9)], 9))
        assert ([job.id for job in answer.claimed], answer.rounds) == (jobs[:4], {("default", 0): 5.0})
        assert rounds(scene.engine) == {("default", 0): 5.0}

    def test_with_a_lease_prefetches(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job())
        (claimed,) = scene.claim(lease_us=SECOND)
        row = scene.live(job)
        assert (row["state"], row["lease_until"], row["worker"]) == ("claimed", scene.now + SECOND, ALICE)
        assert (claimed.epoch, claimed.attempt) == (1, 1)


class TestAnEnd:
    @pytest.mark.parametrize("state", sorted(ENDS))
    def test_moves_the_job_to_history_with_all_that_it_had(self, scene: Scene, state: str) -> None:
        job = scene.running(
            group="g",
            priority=4,
            good_until=scene.now + DAY,
            run_id=9,
            unique_key="k",
            headers="{}",
            options="{}",
        )
        before = scene.live(job.id)
        scene.now += SECOND
        answer = scene.finish(job, state, result='{"a":"ü"}', keep_us=DAY)
        assert (answer.lost, answer.awaited, answer.claimed) == ([], [], [])
        kept = scene.kept(job.id)
        assert job.id not in [row["id"] for row in scene.contents()["job"]]
        # It is a step of a run: its result is kept with the step, and once.
        assert (kept["state"], kept["result"], kept["finished_at"]) == (state, None, scene.now)
        assert kept["expires_at"] == scene.now + DAY
        same = set(kept) & set(before) - {"state"}
        assert {name: kept[name] for name in same} == {name: before[name] for name in same}
        assert {
            "payload",
            "worker",
            "epoch",
            "attempt",
            "started_at",
            "unique_key",
            "run_id",
            "group_key",
        } <= same

    def test_that_is_kept_for_no_time_leaves_no_row(self, scene: Scene) -> None:
        job = scene.running()
        assert scene.finish(job, keep_us=0).lost == []
        assert scene.states() == {}

    def test_may_be_kept_for_ever(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, keep_us=2**60)
        assert scene.kept(job.id)["expires_at"] == scene.now + 2**60

    @pytest.mark.parametrize(
        "stranger",
        [
            pytest.param({"epoch": 2}, id="a later epoch"),
            pytest.param({"epoch": 0}, id="an earlier epoch"),
            pytest.param({"id": 5}, id="an unknown job"),
            pytest.param({"worker": BOB}, id="another worker"),
        ],
    )
    @pytest.mark.parametrize("state", ["succeeded", "failed", "ready", "scheduled"])
    def test_of_somebody_else_s_run_is_lost_and_changes_nothing(
        self, scene: Scene, stranger: dict[str, int], state: str
    ) -> None:
        job = scene.running()
        await_job(scene.engine, job.id)
        before = scene.contents()
        end = End(
            stranger.get("id", job.id),
            stranger.get("epoch", job.epoch),
            state,
            keep_us=DAY,
            error='{"code":"X"}',
        )
        answer = scene.advance(stranger.get("worker", ALICE), end)
        assert answer.lost == [(end.id, end.epoch)]
        assert answer.awaited == []
        assert scene.contents() == before

    def test_counts_once(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "succeeded", result="1")
        before = scene.contents()
        assert scene.finish(job, "failed", result="2").lost == [(job.id, job.epoch)]
        assert scene.contents() == before

    def test_after_a_release_is_lost(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "ready", refund=1)
        assert scene.finish(job).lost == [(job.id, 1)]
        assert scene.states() == {job.id: "ready"}

    def test_after_a_rescue_is_lost(self, scene: Scene) -> None:
        job = scene.running()
        scene.rescue()
        assert scene.finish(job).lost == [(job.id, 1)]
        assert scene.states() == {job.id: "ready"}

    def test_of_an_earlier_run_is_lost_beside_the_end_of_the_present_one(self, scene: Scene) -> None:
        # A worker that lost a job and claimed it again may report both runs in one batch.
        first = scene.running()
        scene.rescue()
        (second,) = scene.claim(queues=[first.queue])
        answer = scene.advance(ALICE, end_of(first, "failed"), end_of(second, "succeeded"))
        assert answer.lost == [(first.id, first.epoch)]
        assert scene.states() == {first.id: "succeeded"}

    def test_of_a_prefetched_job_counts_too(self, scene: Scene) -> None:
        (job,) = scene.enqueue(new_job())
        (claimed,) = scene.claim(lease_us=SECOND)
        assert scene.finish(claimed, "ready", refund=1).lost == []
        row = scene.live(job)
        assert (row["state"], row["attempt"], row["epoch"], row["lease_until"]) == ("ready", 0, 1, None)

    def test_is_written_beside_others_and_a_claim_in_one_go(self, scene: Scene) -> None:
        done, broken, lost = (scene.running() for _ in range(3))
        waiting = scene.enqueue(new_job(), new_job())
        claim = Claim([Want("default", 0, 2)], 2)
        answer = scene.advance(
            ALICE,
            end_of(done),
            end_of(broken, "failed"),
            End(lost.id, 9, "succeeded", keep_us=1),
            claim=claim,
        )
        assert [job.id for job in answer.claimed] == waiting
        assert answer.lost == [(lost.id, 9)]
        assert scene.states() == {
            done.id: "succeeded",
            broken.id: "failed",
            lost.id: "running",
        } | dict.fromkeys(waiting, "running")

    def test_that_returns_a_job_does_not_claim_it_again_in_the_same_go(self, scene: Scene) -> None:
        (first,) = scene.enqueue(new_job())
        (job,) = scene.claim()
        claim = Claim([Want("default", 0, 5)], 5)
        assert scene.advance(ALICE, end_of(job, "ready", refund=1), claim=claim).claimed == []
        assert [found.epoch for found in scene.claim()] == [2]
        assert scene.states() == {first: "running"}

    def test_of_an_awaited_job_is_announced_exactly_once(self, scene: Scene) -> None:
        job, quiet = scene.running(), scene.running()
        assert await_job(scene.engine, job.id)
        assert scene.finish(job, "scheduled", run_at=scene.now).awaited == []
        scene.admit()
        (again,) = scene.claim(queues=[job.queue])
        answer = scene.advance(ALICE, end_of(again, keep_us=0), end_of(quiet))
        assert answer.awaited == [job.id]
        repeated = scene.advance(ALICE, end_of(again, keep_us=0))
        assert (repeated.awaited, repeated.lost) == ([], [(job.id, 2)])

    def test_of_a_job_that_ended_already_cannot_be_awaited(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job)
        assert not await_job(scene.engine, job.id)
        assert not await_job(scene.engine, 7)


class TestAReturn:
    def test_retries_later_and_uses_up_the_attempt(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "scheduled", run_at=scene.now + SECOND, error=as_json(ERROR))
        row = scene.live(job.id)
        assert (row["state"], row["run_at"], row["attempt"]) == ("scheduled", scene.now + SECOND, 1)
        assert (row["worker"], row["lease_until"]) == (None, None)
        scene.now += SECOND
        scene.admit()
        (again,) = scene.claim(queues=[job.queue])
        assert (again.attempt, again.epoch) == (2, 2)

    def test_snoozes_without_using_the_attempt(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "scheduled", run_at=scene.now + SECOND, refund=1)
        row = scene.live(job.id)
        assert (row["state"], row["attempt"], row["epoch"], row["errors"]) == ("scheduled", 0, 1, None)

    def test_releases_at_once_without_using_the_attempt(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "ready", refund=1)
        row = scene.live(job.id)
        assert (row["state"], row["attempt"], row["run_at"], row["worker"]) == ("ready", 0, job.run_at, None)
        assert scene.claim(queues=[job.queue], worker=BOB)[0].epoch == 2

    def test_keeps_the_errors_of_all_attempts_in_their_order(self, scene: Scene) -> None:
        job = scene.running()
        for attempt in (1, 2):
            error = JobError("UNHANDLED_ERROR", f'try "{attempt}", ]', attempt=attempt)
            scene.finish(job, "scheduled", run_at=scene.now, error=as_json(error))
            scene.admit()
            (job,) = scene.claim(queues=[job.queue])
        scene.finish(job, "failed", error=as_json(JobError("TASK_TIMEOUT", "last", attempt=3)))
        errors: list[dict[str, Any]] = json.loads(scene.kept(job.id)["errors"])
        assert [(error["attempt"], error["message"]) for error in errors] == [
            (1, 'try "1", ]'), (2, 'try "2", ]'), (3, "last"),
        ]  # fmt: skip

    def test_starts_the_list_of_errors_anew_before_it_grows_without_end(self, scene: Scene) -> None:
        job = scene.running()
        for text in ("x" * 70_000, "last"):
            scene.finish(job, "scheduled", run_at=scene.now, error=as_json(JobError("X", text)))
            scene.admit()
            (job,) = scene.claim(queues=[job.queue])
        assert [error["message"] for error in json.loads(scene.live(job.id)["errors"])] == ["last"]

    def test_counts_the_crash_of_an_isolated_body(self, scene: Scene) -> None:
        back, over = scene.running(), scene.running()
        scene.finish(back, "scheduled", run_at=scene.now, crashed=1)
        scene.finish(over, "quarantined", crashed=1)
        assert (scene.live(back.id)["crashes"], scene.kept(over.id)["crashes"]) == (1, 1)

    def test_keeps_its_progress_and_the_time_of_its_first_enqueue(self, scene: Scene) -> None:
        job = scene.running()
        scene.now += SECOND
        scene.finish(job, "ready", refund=1)
        assert scene.live(job.id)["created_at"] == job.created_at


class TestStart:
    def test_turns_a_claimed_job_into_a_running_one(self, scene: Scene) -> None:
        (number,) = scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=SECOND)
        scene.now += 10
        assert start(scene.engine, ALICE, [job], now=scene.now) == {number}
        row = scene.live(number)
        assert (row["state"], row["lease_until"], row["started_at"]) == ("running", None, scene.now)
        assert (row["epoch"], row["attempt"]) == (1, 1)

    def test_starts_nothing_twice(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=SECOND)
        assert start(scene.engine, ALICE, [job], now=scene.now) == {job.id}
        assert start(scene.engine, ALICE, [job], now=scene.now) == set()

    @pytest.mark.parametrize(
        "why",
        ["another worker", "another epoch", "lease ended", "cancelled", "expired", "paused", "freed", "gone"],
    )
    def test_refuses_what_must_not_run(self, scene: Scene, why: str) -> None:
        scene.enqueue(new_job(good_until=scene.now + 5 if why == "expired" else None))
        scene.enqueue(new_job(queue="other"))
        job, other = scene.claim(lease_us=10, queues=["default", "other"])
        worker = BOB if why == "another worker" else ALICE
        match why:
            case "another epoch":
                job = type(job)(job.id, 2, *(getattr(job, name) for name in job.__struct_fields__[2:]))
            case "lease ended":
                scene.now += 10
            case "cancelled":
                withdraw(scene.engine, [job.id], "cancelled", Retention(), now=scene.now)
            case "expired":
                scene.now += 5
            case "paused":
                pause(scene.engine, "default", now=scene.now)
            case "freed":
                free_expired_claims(scene.engine, now=scene.now + 10)
            case "gone":
                scene.finish(job, "failed")
        before = scene.contents()
        assert start(scene.engine, worker, [job], now=scene.now) == set()
        assert scene.contents() == before
        if why in ("another epoch", "cancelled", "paused", "expired", "gone"):
            assert start(scene.engine, ALICE, [job, other], now=scene.now) == {other.id}

    def test_holds_a_lease_until_the_microsecond_before_its_end(self, scene: Scene) -> None:
        scene.enqueue(new_job(), new_job())
        first, second = scene.claim(lease_us=10)
        scene.now += 9
        assert start(scene.engine, ALICE, [first], now=scene.now) == {first.id}
        scene.now += 1
        assert start(scene.engine, ALICE, [second], now=scene.now) == set()
