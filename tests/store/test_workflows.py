"""Runs in the store, on every engine: what starts, what waits, what is told, and what becomes of a run."""

import contextlib
import random
import threading
from collections.abc import Iterable, Iterator
from typing import Any, cast

import msgspec
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from evenflow.clock import from_us
from evenflow.errors import DuplicateJob, EnqueueError
from evenflow.job import ASKS_NOTHING, NEVER_US, Claimed, Limit, State
from evenflow.rules.workflow import Join, Node, resolved, run_end
from evenflow.settings import Retention
from evenflow.store import control, runs, workflows
from evenflow.store.advance import Claim, Want, advance
from evenflow.store.callers import drive_on, drive_together
from evenflow.store.engine import Steps
from evenflow.store.limits import limiters
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.runs import StepRow
from evenflow.store.workflows import NewRun, NewStep, Policy, Settled
from tests.store.crowd import in_threads
from tests.store.scene import ALICE, BOB, DAY, SECOND, Scene, end_of, execute, new_job, rows_of, second_engine
from tests.thorough import examples

RETENTION = Retention()
REFERRING = {"payload": '[[{"$evenflow":"output","v":"a"}],{}]'}


def step(name: str, *parents: int, **fields: Any) -> NewStep:
    """A step with a job; `job` are fields of the job."""
    job = new_job(**{"task": name, **fields.pop("job", {})})
    return NewStep(name, job, parents=parents, **fields)


class Flow:
    """A scene with runs in it."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        self.engine = scene.engine

    def start(self, *steps: NewStep, **fields: Any) -> int:
        run, _ = self.started(*steps, **fields)
        return run

    def started(self, *steps: NewStep, **fields: Any) -> tuple[int, bool]:
        new = NewRun(fields.pop("name", "report"), steps, **fields)
        found = drive_together(
            self.engine, lambda: workflows.start_steps(new, self.scene.ids, now=self.scene.now)
        )
        self.scene.admit()
        return found

    def claim(self) -> dict[str, Claimed]:
        """Everything that can run, by the task, which is the step's name."""
        return {job.task: job for job in self.scene.claim()}

    def finish(self, *jobs: Claimed, state: str = "succeeded", **fields: Any) -> Settled:
        """End jobs and tell their children."""
        answer = self.scene.advance(ALICE, *(end_of(job, state, **fields) for job in jobs))
        settled = answer.settled if answer.settled is not None else Settled()
        if answer.runs:
            later = self.settle(*answer.runs)
            settled = Settled(
                *(
                    mine | other if isinstance(mine, set) else mine + other
                    for mine, other in zip(
                        msgspec.structs.astuple(settled), msgspec.structs.astuple(later), strict=True
                    )
                )
            )
        self.scene.admit()
        return settled

    def settle(self, *runs: int) -> Settled:
        return workflows.settle(self.engine, runs, RETENTION, now=self.scene.now)

    def retry(self, run: int) -> list[int] | None:
        """The steps that are open again."""
        settled = runs.retry(self.engine, run, RETENTION, now=self.scene.now)
        return None if settled is None else settled.reopened

    def steps(self, run: int) -> dict[str, StepRow]:
        return {row.name: row for row in runs.steps_of(self.engine, run)}

    def states(self, run: int) -> dict[str, str]:
        return {name: row.state for name, row in self.steps(run).items()}

    def state(self, run: int) -> str:
        row = runs.find(self.engine, run)
        assert row is not None
        return row.state


@pytest.fixture
def flow(scene: Scene) -> Flow:
    return Flow(scene)


class TestAStart:
    def test_lets_the_first_steps_run_and_the_others_wait(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0), step("c", 0, 1))
        assert flow.states(run) == {"a": "ready", "b": "waiting", "c": "waiting"}
        assert flow.state(run) == "running"
        assert flow.claim().keys() == {"a"}

    def test_with_a_key_gives_the_run_that_is_there_and_adds_nothing(self, flow: Flow) -> None:
        run, is_new = flow.started(step("a"), key="monday")
        before = flow.scene.contents()
        assert flow.started(step("a"), key="monday") == (run, False)
        assert is_new
        assert flow.scene.contents() == before
        assert runs.find_by_key(flow.engine, "monday") == run

    def test_with_the_key_of_another_workflow_s_run_is_refused(self, flow: Flow) -> None:
        flow.start(step("a"), key="monday")
        with pytest.raises(EnqueueError, match="belongs to a run of workflow 'report'"):
            flow.start(step("a"), key="monday", name="other")

    def test_whose_step_meets_a_taken_unique_key_leaves_nothing(self, flow: Flow) -> None:
        flow.scene.enqueue(new_job(unique_key="k"))
        before = flow.scene.contents()
        with pytest.raises(DuplicateJob):
            flow.start(step("a"), step("b", 0, job={"unique_key": "k"}), key="monday")
        assert flow.scene.contents() == before
        assert runs.find_by_key(flow.engine, "monday") is None

    def test_by_many_at_once_with_one_key_makes_one_run(self, flow: Flow) -> None:
        engines = [second_engine(flow.engine) for _ in range(4)]
        sources = [msgspec.structs.replace(NewRun("report", [step("a")]), key="monday") for _ in engines]

        def start(number: int) -> int:
            # ids far apart: the counted ids of a scene are one process's
            ids = type(flow.scene.ids)()
            ids._next = 10_000 * (number + 1)
            return drive_together(engines[number], lambda: workflows.start_steps(sources[number], ids))[0]

        assert len(set(in_threads(4, start))) == 1
        for engine in engines:
            engine.close()


class TestTelling:
    def test_releases_a_child_when_its_last_parent_has_ended(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c", 0, 1))
        jobs = flow.claim()
        assert flow.finish(jobs["a"]).released == []
        assert flow.states(run)["c"] == "waiting"
        flow.finish(jobs["b"])
        assert flow.claim().keys() == {"c"}

    def test_a_failure_skips_what_waits_for_it_in_cascade_and_fails_the_run(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0), step("c", 1))
        settled = flow.finish(flow.claim()["a"], state="failed")
        assert len(settled.skipped) == 2
        assert flow.states(run) == {"a": "failed", "b": "skipped", "c": "skipped"}
        assert flow.state(run) == "failed"
        errors = flow.scene.kept(flow.steps(run)["c"].id)["errors"]
        assert "WORKFLOW_DEPENDENCY_FAILED" in errors
        assert "b ended skipped" in errors

    def test_a_step_that_allows_failures_runs_and_the_run_still_fails(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0, allow_failed=True))
        flow.finish(flow.claim()["a"], state="failed")
        flow.finish(flow.claim()["b"])
        assert flow.states(run) == {"a": "failed", "b": "succeeded"}
        assert flow.state(run) == "failed"

    def test_a_join_of_some_goes_on_with_enough_and_the_run_waits_for_the_rest(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c"), step("d", 0, 1, 2, needs=2))
        jobs = flow.claim()
        flow.finish(jobs["a"], state="failed")
        flow.finish(jobs["b"])
        assert flow.states(run)["d"] == "waiting"
        flow.finish(jobs["c"])
        flow.finish(flow.claim()["d"])
        assert flow.state(run) == "failed"  # with a

    def test_a_run_goes_on_while_a_parent_runs_that_its_last_step_did_not_need(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c", 0, 1, needs=1))
        jobs = flow.claim()
        flow.finish(jobs["a"])
        flow.finish(flow.claim()["c"])
        assert flow.state(run) == "running"
        flow.finish(jobs["b"])
        assert flow.state(run) == "succeeded"

    def test_parallel_last_parents_release_the_child_once(self, flow: Flow) -> None:
        flow.start(step("a"), step("b"), step("c"), step("d"), step("z", 0, 1, 2, 3))
        jobs = list(flow.claim().values())
        engines = [second_engine(flow.engine) for _ in range(4)]

        def finish(number: int) -> Settled:
            answer = advance(engines[number], ALICE, [end_of(jobs[number])])
            assert answer.settled is not None
            later = workflows.settle(engines[number], answer.runs, RETENTION)
            return later if later.released else answer.settled

        found = in_threads(4, finish)
        assert [len(settled.released) for settled in sorted(found, key=lambda each: len(each.released))] == [
            0,
            0,
            0,
            1,
        ]
        for engine in engines:
            engine.close()

    def test_that_was_lost_with_its_worker_is_found_and_done_by_anybody(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0), on_error="pause")
        assert flow.scene.finish(flow.claim()["a"]).runs == {run}
        assert flow.states(run)["b"] == "waiting"
        assert runs.unsettled(flow.engine) == [run]
        flow.settle(*runs.unsettled(flow.engine))
        assert runs.unsettled(flow.engine) == []
        assert flow.states(run)["b"] == "ready"

    def test_comes_before_the_claim_of_the_round_that_writes_the_end(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0), step("c", 0), step("d", 1, 2))
        wants = Claim([Want("default", 0, 10)], 10)
        answer = flow.scene.advance(ALICE, end_of(flow.claim()["a"]), claim=wants)
        assert {job.task for job in answer.claimed} == {"b", "c"}
        answer = flow.scene.advance(ALICE, *map(end_of, answer.claimed), claim=wants)
        assert [job.task for job in answer.claimed] == ["d"]
        answer = flow.scene.advance(ALICE, end_of(answer.claimed[0]))
        assert answer.settled is not None
        assert answer.settled.ended == [run]
        assert flow.state(run) == "succeeded"
        assert rows_of(flow.engine, "step_end") == []

    def test_goes_with_a_claim_under_caps(self, flow: Flow) -> None:
        flow.start(step("a"), step("b", 0))
        first = flow.claim()["a"]
        control.set_cap(flow.engine, "default", 1)
        capped = Claim([Want("default", 0, 10)], 10, under_caps=True)
        answer = flow.scene.advance(ALICE, end_of(first), claim=capped)
        assert [job.task for job in answer.claimed] == ["b"]

    def test_of_an_end_that_is_lost_does_not_happen(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        job = flow.claim()["a"]
        answer = flow.scene.advance(BOB, end_of(job))
        assert answer.lost == [(job.id, job.epoch)]
        stale = msgspec.structs.replace(job, epoch=job.epoch - 1)
        assert flow.scene.advance(ALICE, end_of(stale)).lost == [(job.id, job.epoch - 1)]
        assert flow.states(run) == {"a": "running", "b": "waiting"}
        assert rows_of(flow.engine, "step_end") == []

    def test_does_not_wait_for_whoever_holds_the_run(self, flow: Flow) -> None:
        if not isinstance(flow.engine, PostgresEngine):
            pytest.skip("on SQLite whoever writes holds everything")
        run = flow.start(step("a"), step("b"), step("c", 0, 1), step("d", 0))
        jobs = flow.claim()
        with held_by_another(flow.engine, run):
            answer = flow.scene.advance(ALICE, end_of(jobs["a"]), end_of(jobs["b"]))
        assert answer.runs == {run}
        assert flow.states(run) == {"a": "succeeded", "b": "succeeded", "c": "waiting", "d": "ready"}
        assert runs.unsettled(flow.engine) == [run]
        assert flow.settle(*answer.runs).released == [flow.steps(run)["c"].id]
        assert flow.states(run)["c"] == "ready"

    def test_may_be_repeated(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        flow.finish(flow.claim()["a"])
        before = flow.scene.contents()
        assert flow.settle(run) == Settled()
        assert flow.scene.contents() == before

    @pytest.mark.parametrize("how", ["expired", "cancelled", "discarded", "quarantined"])
    def test_hears_of_every_end_outside_of_a_worker(self, flow: Flow, how: str) -> None:
        fields = {"good_until": flow.scene.now + SECOND} if how == "expired" else {}
        run = flow.start(step("a", job=fields), step("b", 0))
        job = flow.steps(run)["a"].id
        if how == "expired":
            flow.scene.now += 2 * SECOND
            control.expire(flow.engine, RETENTION, now=flow.scene.now)
        elif how == "quarantined":
            flow.scene.register(BOB)
            flow.scene.claim(worker=BOB)
            execute(flow.engine, f"update evenflow_job set crashes = 2 where id = {job}")
            flow.scene.bury(BOB)
            flow.scene.rescue()
        else:
            control.withdraw(flow.engine, [job], how, RETENTION, now=flow.scene.now)
        flow.settle(*runs.unsettled(flow.engine))
        assert flow.states(run) == {"a": how, "b": "skipped"}
        assert flow.state(run) == "failed"

    def test_a_lost_end_changes_no_step(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        job = flow.claim()["a"]
        answer = flow.scene.advance(BOB, end_of(job, result="1"))
        assert answer.lost == [(job.id, job.epoch)]
        assert answer.runs == set()
        assert flow.states(run)["a"] == "running"

    def test_waits_for_the_delay_of_a_step_from_its_release(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0, delay_us=10 * SECOND))
        flow.scene.now += 100 * SECOND
        flow.finish(flow.claim()["a"])
        assert flow.states(run)["b"] == "scheduled"
        assert flow.scene.live(flow.steps(run)["b"].id)["run_at"] == flow.scene.now + 10 * SECOND

    def test_a_released_step_takes_its_keys_like_any_job(self, flow: Flow) -> None:
        limits = {"limits": (Limit("one", 1, SECOND),)}
        flow.start(step("a"), step("b", 0, job=limits), step("c", 0, job=limits))
        flow.finish(flow.claim()["a"])
        assert len(flow.claim()) == 1
        assert [(row.held, row.waiting) for row in limiters(flow.engine)] == [(1, 1)]


class TestResults:
    def test_are_stored_once_and_read_by_those_who_start(self, flow: Flow) -> None:
        flow.start(step("a"), step("b", 0), step("c", 0))
        job = flow.claim()["a"]
        flow.finish(job, result='"much"')
        assert flow.scene.kept(job.id)["result"] is None
        found = runs.inputs(flow.engine, [each.id for each in flow.claim().values()])
        assert {each.step for each in found.values()} == {"b", "c"}
        assert all(
            [(parent.name, parent.result) for parent in each.parents] == [("a", '"much"')]
            for each in found.values()
        )

    def test_are_asked_for_by_steps_that_refer_to_them_or_have_conditions(self, flow: Flow) -> None:
        flow.start(
            step("plain", job={"options": '{"keep_us":5}'}), step("refers", job=REFERRING),
            step("runs", run_when="big"), step("skips", skip_when="big"),
        )  # fmt: skip
        asking = {name for name, job in flow.claim().items() if ASKS_NOTHING not in (job.options or "")}
        assert asking == {"refers", "runs", "skips"}

    def test_outlive_the_history_of_their_job(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        flow.finish(flow.claim()["a"], result="1", keep_us=0)
        assert runs.results(flow.engine, run) == {"a": "1"}

    def test_of_a_container_are_made_of_its_members(self, flow: Flow) -> None:
        outputs = Policy(outputs=[("x", "s/x"), ("y", "s/y")])
        run = flow.start(
            NewStep("s", None, "sub", policy=outputs),
            step("s/x", container=0),
            step("s/y", container=0),
            step("after", 0),
        )
        jobs = flow.claim()
        flow.finish(jobs["s/x"], result="1")
        flow.finish(jobs["s/y"], result="2")
        assert flow.states(run)["s"] == "succeeded"
        (inputs,) = runs.inputs(flow.engine, [flow.claim()["after"].id]).values()
        assert inputs.parents[0].result == '{"x":1,"y":2}'

    def test_are_forgotten_with_their_run(self, flow: Flow) -> None:
        run = flow.start(*(step(f"s{number}") for number in range(5)))
        flow.finish(*flow.claim().values(), result="1")
        assert runs.prune(flow.engine, now=flow.scene.now) == 0
        flow.scene.now += 2 * DAY
        while runs.prune(flow.engine, top=2, now=flow.scene.now):
            pass
        assert runs.find(flow.engine, run) is None
        assert rows_of(flow.engine, "step") == rows_of(flow.engine, "edge") == []

    def test_of_an_open_run_are_kept_however_old(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        flow.finish(flow.claim()["a"], result="1")
        flow.scene.now += 1000 * DAY
        assert runs.prune(flow.engine, now=flow.scene.now) == 0
        assert runs.results(flow.engine, run) == {"a": "1"}


class TestAPause:
    def test_takes_what_does_not_run_out_of_the_queue_and_a_resume_puts_it_back(self, flow: Flow) -> None:
        limited = {"limits": (Limit("one", 1, SECOND),)}
        run = flow.start(step("a"), step("b", job=limited), step("c", job=limited), step("d", 0))
        job = flow.scene.claim(1)[0]
        assert runs.pause(flow.engine, run)
        assert not runs.pause(flow.engine, run)
        assert sorted(flow.states(run).values()) == ["running", "waiting", "waiting", "waiting"]
        assert flow.claim() == {}
        assert all(row.held == 0 for row in limiters(flow.engine))
        flow.finish(job)
        assert flow.states(run)["d"] == "waiting"
        assert runs.resume(flow.engine, run, RETENTION, now=flow.scene.now) is not None
        flow.scene.admit()
        assert flow.claim()

    def test_takes_prefetched_steps_from_their_worker(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        (held,) = flow.scene.claim(lease_us=SECOND)
        runs.pause(flow.engine, run)
        assert flow.states(run) == {"a": "waiting"}
        assert flow.scene.finish(held).lost == [(held.id, held.epoch)]
        runs.resume(flow.engine, run, RETENTION, now=flow.scene.now)
        flow.scene.admit()
        assert flow.claim()["a"].attempt == 1

    def test_for_an_error_holds_what_comes_after_until_somebody_decides(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c", 0), on_error="pause")
        jobs = flow.claim()
        settled = flow.finish(jobs["a"], state="failed")
        assert settled.paused == [run]
        row = runs.find(flow.engine, run)
        assert row is not None
        assert row.paused_why == "step 'a' ended failed"
        flow.finish(jobs["b"])
        assert flow.states(run) == {"a": "failed", "b": "succeeded", "c": "waiting"}
        runs.resume(flow.engine, run, RETENTION, now=flow.scene.now)
        assert flow.states(run)["c"] == "skipped"
        assert flow.state(run) == "failed"

    def test_for_an_error_can_be_answered_with_a_retry(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("c", 0), on_error="pause")
        flow.finish(flow.claim()["a"], state="failed")
        assert flow.retry(run) == [flow.steps(run)["a"].id]
        flow.scene.admit()
        flow.finish(flow.claim()["a"])
        flow.finish(flow.claim()["c"])
        assert flow.state(run) == "succeeded"

    def test_lets_a_step_that_starts_meanwhile_go_back_without_an_attempt(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        job = flow.claim()["a"]
        runs.pause(flow.engine, run)
        flow.scene.finish(job, "waiting", refund=1)
        assert flow.states(run) == {"a": "waiting"}
        runs.resume(flow.engine, run, RETENTION, now=flow.scene.now)
        flow.scene.admit()
        assert flow.claim()["a"].attempt == 1

    def test_that_is_over_when_such_a_step_goes_back_does_not_keep_it(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        job = flow.claim()["a"]
        runs.pause(flow.engine, run)
        runs.resume(flow.engine, run, RETENTION, now=flow.scene.now)
        flow.scene.finish(job, "waiting", refund=1)
        assert flow.claim()["a"].attempt == 1

    def test_is_told_to_the_steps_that_are_claimed_after_it(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        assert flow.claim()["a"].run_state == "running"
        other = flow.start(step("b"))
        execute(flow.engine, f"update evenflow_run set state = 'paused' where id = {other}")
        assert flow.claim()["b"].run_state == "paused"
        flow.scene.enqueue(new_job())
        assert [job.run_state for job in flow.scene.claim()] == [None]
        assert flow.state(run) == "running"


class TestACancel:
    def test_ends_the_run_now_and_tells_what_runs(self, flow: Flow) -> None:
        run = flow.start(
            step("a"), step("b", 0), NewStep("s", None, "sub", policy=Policy()), step("s/x", 1, container=2)
        )
        job = flow.claim()["a"]
        assert runs.cancel(flow.engine, run, RETENTION, "enough", now=flow.scene.now)
        assert not runs.cancel(flow.engine, run, RETENTION)
        assert flow.states(run) == {"a": "running", "b": "cancelled", "s": "cancelled", "s/x": "cancelled"}
        assert flow.scene.live(job.id)["cancel_why"] == "enough"
        assert flow.state(run) == "cancelled"

    @pytest.mark.parametrize("state", ["succeeded", "failed"])
    def test_is_not_undone_by_a_late_end(self, flow: Flow, state: str) -> None:
        run = flow.start(step("a"), step("b", 0))
        job = flow.claim()["a"]
        runs.cancel(flow.engine, run, RETENTION, now=flow.scene.now)
        flow.finish(job, state=state)
        assert flow.state(run) == "cancelled"
        assert flow.states(run) == {"a": state, "b": "cancelled"}
        assert runs.unsettled(flow.engine) == []

    def test_at_the_moment_of_an_end_deadlocks_nobody(self, flow: Flow) -> None:
        if not isinstance(flow.engine, PostgresEngine):
            pytest.skip("one writer at a time: nobody can wait for each other")
        other = second_engine(flow.engine)
        for _ in range(10):
            run = flow.start(*(step(f"s{number}") for number in range(20)), step("z", *range(20)))
            jobs = list(flow.claim().values())
            together = threading.Barrier(2)

            def end(jobs: Iterable[Claimed] = jobs, together: threading.Barrier = together) -> None:
                together.wait()
                flow.finish(*jobs)

            thread = threading.Thread(target=end)
            thread.start()
            together.wait()
            runs.cancel(other, run, RETENTION)
            thread.join(30)
            assert flow.state(run) == "cancelled"
            assert "waiting" not in flow.states(run).values()
        other.close()


class TestARetry:
    def test_opens_what_failed_and_was_skipped_and_leaves_what_succeeded(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0), step("c", 1), step("d", 0))
        flow.finish(flow.claim()["a"], result="1")
        jobs = flow.claim()
        flow.finish(jobs["b"], state="failed")
        flow.finish(jobs["d"])
        assert flow.state(run) == "failed"
        assert len(flow.retry(run) or ()) == 2
        assert flow.states(run) == {"a": "succeeded", "b": "ready", "c": "waiting", "d": "succeeded"}
        flow.finish(flow.claim()["b"])
        flow.finish(flow.claim()["c"])
        assert flow.state(run) == "succeeded"

    def test_of_a_paused_run_forgets_no_success_that_came_meanwhile(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c", 0), step("d", 1), on_error="pause")
        jobs = flow.claim()
        flow.finish(jobs["a"], state="failed")
        flow.finish(jobs["b"])
        assert flow.state(run) == "paused"
        flow.retry(run)
        assert runs.unsettled(flow.engine) == []
        assert flow.claim().keys() == {"a", "d"}

    def test_tells_what_is_below_a_step_that_can_only_be_skipped_again(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c", 0, 1, needs=2), step("d", 2))
        jobs = flow.claim()
        flow.finish(jobs["b"], state="skipped")
        flow.finish(jobs["a"], state="failed")
        assert flow.retry(run) == [flow.steps(run)["a"].id]
        assert flow.states(run) == {"a": "ready", "b": "skipped", "c": "skipped", "d": "skipped"}
        flow.finish(flow.claim()["a"], state="failed")
        assert flow.state(run) == "failed"
        assert flow.retry(run) == [flow.steps(run)["a"].id]
        flow.finish(flow.claim()["a"])
        assert flow.state(run) == "succeeded"

    def test_of_what_failed_without_a_failed_step_inside_ends_it_again(self, flow: Flow) -> None:
        fan_out = NewStep("m", None, "map", policy=Policy(needs=2))
        run = flow.start(fan_out, step("m[0]", container=0), step("z", 0))
        flow.finish(flow.claim()["m[0]"])
        before = flow.states(run)
        assert before == {"m": "failed", "m[0]": "succeeded", "z": "skipped"}
        assert flow.retry(run) == []
        assert (flow.states(run), flow.state(run)) == (before, "failed")

    def test_of_a_run_without_failures_does_nothing(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        assert flow.retry(run) is None
        flow.finish(flow.claim()["a"])
        assert flow.retry(run) is None

    def test_whose_jobs_are_no_longer_kept_is_refused_and_changes_nothing(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        flow.finish(flow.claim()["a"], state="failed", keep_us=0)
        with pytest.raises(EnqueueError, match="the jobs of 'a' are no longer kept"):
            flow.retry(run)
        assert flow.state(run) == "failed"


class TestAnAddition:
    def extend(self, flow: Flow, run: int, *new: NewStep, **fields: Any) -> list[int]:
        made = drive_together(
            flow.engine,
            lambda: workflows.extend_steps(run, new, flow.scene.ids, now=flow.scene.now, **fields),
        )
        flow.scene.admit()
        return made

    def test_is_waited_for_by_those_who_wait_for_the_step_that_made_it(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        job = flow.claim()["a"]
        place = runs.place_of(flow.engine, job.id)
        assert place is not None
        self.extend(flow, run, step("a/more"), children=place[3])
        flow.finish(job)
        assert flow.states(run)["b"] == "waiting"
        flow.finish(flow.claim()["a/more"])
        assert flow.claim().keys() == {"b"}

    def test_that_is_repeated_adds_nothing(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        first = self.extend(flow, run, step("x"), step("y"))
        before = flow.scene.contents()
        assert self.extend(flow, run, step("x"), step("y")) == first
        assert flow.scene.contents() == before

    def test_to_a_run_that_has_ended_is_refused(self, flow: Flow) -> None:
        run = flow.start(step("a"))
        runs.cancel(flow.engine, run, RETENTION)
        with pytest.raises(EnqueueError, match="has ended, or was cancelled"):
            self.extend(flow, run, step("x"))

    def test_below_an_ended_parent_goes_on_at_once_or_is_skipped(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b"), step("c"))
        jobs = flow.claim()
        flow.finish(jobs["a"])
        flow.finish(jobs["b"], state="failed")
        named = flow.steps(run)
        self.extend(
            flow,
            run,
            step("x", existing_parents=[named["a"].id]),
            step("y", existing_parents=[named["b"].id]),
        )
        assert flow.states(run)["x"] == "ready"
        assert flow.states(run)["y"] == "skipped"

    def test_below_a_parent_that_ends_at_that_moment_is_found_by_the_sweep(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0), step("z"))
        ends = [end_of(flow.claim()["a"])]
        if not isinstance(flow.engine, PostgresEngine):  # one after the other is all there is
            named = flow.steps(run)
            self.extend(flow, run, step("x", existing_parents=[named["a"].id]))
            flow.scene.advance(ALICE, *ends)
        else:
            with flow.engine.session() as session, session.transaction():
                told = workflows.end_steps(ends, ALICE, RETENTION, flow.scene.now)
                drive_on(session, told, flow.engine.schema, flow.engine.clock)
                self.extend(flow, run, step("x", existing_parents=[ends[0].id]))
            assert flow.states(run)["x"] == "waiting"
        flow.settle(*runs.unsettled(flow.engine))
        assert flow.states(run)["x"] == "ready"
        assert rows_of(flow.engine, "step_end") == []

    @pytest.mark.parametrize("before", ["note_open_steps", "add_steps", "add_edges", "weigh_steps"])
    def test_below_a_parent_that_ends_meanwhile_goes_on(self, flow: Flow, before: str) -> None:
        """Whichever of its statements comes after that end."""
        run = flow.start(step("a"), step("b", 0), step("z"))
        job, is_over = flow.claim()["a"], False

        def extending() -> Steps[list[int]]:
            nonlocal is_over
            adding = workflows.extend_steps(
                run, [step("x", existing_parents=[job.id])], flow.scene.ids, now=flow.scene.now
            )
            unit = next(adding)
            while True:
                if unit[0] == before and not is_over and isinstance(flow.engine, PostgresEngine):
                    with contextlib.closing(second_engine(flow.engine)) as other:
                        advance(other, ALICE, [end_of(job)], now=flow.scene.now)
                    is_over = True
                rows = yield unit
                try:
                    unit = adding.send(rows)
                except StopIteration as stop:
                    return cast("list[int]", stop.value)

        drive_together(flow.engine, extending)
        assert is_over == isinstance(flow.engine, PostgresEngine)
        if not is_over:
            flow.finish(job)
        flow.settle(*runs.unsettled(flow.engine))
        flow.scene.admit()
        assert flow.states(run)["x"] == "ready"

    def test_below_a_parent_that_runs_troubles_no_sweep(self, flow: Flow) -> None:
        run = flow.start(step("a"), step("b", 0))
        job = flow.claim()["a"]
        self.extend(flow, run, step("x", existing_parents=[job.id]))
        assert runs.unsettled(flow.engine) == []
        flow.finish(job)
        assert flow.states(run)["x"] == "ready"
        flow.settle(*runs.unsettled(flow.engine))
        assert rows_of(flow.engine, "step_end") == []


def test_a_wide_join_is_told_in_linear_time(scene: Scene) -> None:
    """Counted in looks, not in seconds: what is weighed per telling does not grow with the parents that have ended."""
    flow = Flow(scene)
    wide = 200
    run = flow.start(*(step(f"s{number}") for number in range(wide)), step("z", *range(wide)))
    jobs = list(flow.claim().values()) + list(flow.claim().values())
    for start in range(0, wide, 20):
        settled = flow.finish(*jobs[start : start + 20])
        assert len(settled.released) == int(start + 20 == wide)
    assert flow.claim().keys() == {"z"}
    assert flow.state(run) == "running"


nodes = st.integers(1, 7).flatmap(
    lambda count: st.tuples(
        *(
            st.fixed_dictionaries(
                {
                    "parents": st.sets(st.integers(0, place - 1), max_size=4) if place else st.just(set()),
                    "needs": st.sampled_from([None, None, 1, 2]),
                    "allow_failed": st.booleans(),
                    "body": st.sampled_from(["succeeded", "succeeded", "succeeded", "failed", "skipped"]),
                    "crashes": st.integers(0, 2),
                }
            )
            for place in range(count)
        )
    )
)


@settings(max_examples=examples(15), suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(graph=nodes, seed=st.integers(0, 2**32))
def test_random_graphs_end_as_the_model_says_whatever_order_crashes_and_lost_tellings(
    scene: Scene, graph: tuple[dict[str, Any], ...], seed: int
) -> None:
    """Bodies end in any order; owners die on the way; some ends are told by nobody but the sweep."""
    flow = Flow(scene)
    prefix = f"r{scene.ids._next}-"
    steps, model = [], {}
    for place, node in enumerate(graph):
        parents = sorted(node["parents"])
        needs = None if node["needs"] is None or not parents else min(node["needs"], len(parents))
        allow_failed = node["allow_failed"]
        job = {"queue": f"q{prefix}"}
        steps.append(step(f"{prefix}{place}", *parents, needs=needs, allow_failed=allow_failed, job=job))
        above = tuple(f"{prefix}{parent}" for parent in parents)
        is_skipped = node["body"] == "skipped"
        body = State.SUCCEEDED if is_skipped else State(node["body"])
        model[f"{prefix}{place}"] = Node(above, Join(needs, allow_failed), is_skipped, body)
    crashes = {f"{prefix}{place}": node["crashes"] for place, node in enumerate(graph)}
    run = flow.start(*steps)
    play(flow, run, f"q{prefix}", model, crashes, random.Random(seed))
    expected = resolved(model)
    assert {name: State(state) for name, state in flow.states(run).items()} == expected
    assert flow.state(run) == run_end(expected).value
    flow.settle(*runs.unsettled(flow.engine))  # notes that were told by others before the run ended
    assert rows_of(flow.engine, "step_end") == []


@contextlib.contextmanager
def held_by_another(engine: AnyEngine, run: int) -> Iterator[None]:
    """Somebody else holds the run, so ends cannot be told as they are written. On SQLite there is nobody else."""
    if not isinstance(engine, PostgresEngine):
        yield
        return
    with engine.session() as session, session.transaction():
        session.execute("select id from evenflow.run where id = %s for no key update", [run])
        yield


def play(
    flow: Flow, run: int, queue: str, model: dict[str, Node], crashes: dict[str, int], order: random.Random
) -> None:
    """Run the bodies of a run until it has ended, each at a worker of its own."""
    running: list[tuple[int, Claimed]] = []
    while flow.state(run) == "running":
        worker = flow.scene.ids.take_reserved(1)[0]
        flow.scene.register(worker)
        running += [(worker, job) for job in flow.scene.claim(1, worker=worker, queues=[queue])]
        if not running:
            flow.settle(*runs.unsettled(flow.engine))
            flow.scene.admit()
            continue
        owner, job = running.pop(order.randrange(len(running)))
        if crashes[job.task] and order.random() < 0.5:
            crashes[job.task] -= 1
            flow.scene.bury(owner)
            flow.scene.rescue()
            continue
        node = model[job.task]
        with held_by_another(flow.engine, run) if order.random() < 0.5 else contextlib.nullcontext():
            flow.scene.advance(
                owner, end_of(job, "skipped" if node.is_skipped else node.body.value, result="1")
            )
        if order.random() < 0.7:
            flow.settle(run)
            flow.scene.admit()


def test_the_parked_moment_is_a_date_that_can_be_shown() -> None:
    assert from_us(NEVER_US).year < 10_000
