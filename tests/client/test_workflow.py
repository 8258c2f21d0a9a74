"""Workflows as users build, start and control them; every run is served by a worker of the app."""

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

import psycopg
import pytest

from evenflow import (
    Concurrency,
    ConfigError,
    Context,
    DuplicateJob,
    EnqueueError,
    Evenflow,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    Retry,
    Run,
    RunCancelled,
    RunFailed,
    Unique,
)
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.processes import wait_until


class Tasks:
    """Some tasks of an app, and what they did."""

    def __init__(self, app: Evenflow) -> None:
        self.app = app
        self.calls: list[tuple[Any, ...]] = []

        @app.task(name="numbers")
        def numbers(count: int) -> list[int]:
            return list(range(count))

        @app.task(name="add")
        def add(a: int, b: int = 10) -> int:
            self.calls.append((a, b))
            return a + b

        @app.task(name="total")
        def total(values: list[int]) -> int:
            self.calls.append(tuple(values))
            return sum(values)

        @app.task(name="boom")
        def boom(value: int = 0) -> int:
            self.calls.append(("boom", value))
            raise ValueError("no")

        @app.task(name="shout")
        def shout(text: str) -> str:
            return text.upper()

        self.numbers, self.add, self.total, self.boom, self.shout = numbers, add, total, boom, shout


@pytest.fixture
def tasks(app: Evenflow) -> Tasks:
    return Tasks(app)


@pytest.fixture
def here(sqlite_app: Evenflow) -> Tasks:
    """For what no database has a word in."""
    return Tasks(sqlite_app)


def finished(run: "Run[Any]", app: Evenflow) -> "Run[Any]":
    app.run_worker(until_empty=True)
    return run.refresh()


def states(run: "Run[Any]") -> dict[str, str]:
    return {step.name: step.state for step in run.steps()}


class TestARun:
    def test_passes_results_along_and_returns_the_last_one(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        one = wf.step(tasks.add, 1, 2)
        two = wf.step(tasks.add, one.output, b=one.output)
        wf.step(tasks.total, [one.output, two.output, 100])
        run = wf.start()
        assert run.state == "running"
        assert finished(run, tasks.app).state == "succeeded"
        assert run.result(timeout=0) == 3 + 6 + 100
        assert run.results() == {"add": 3, "add-2": 6, "total": 109}

    def test_has_rows_for_its_steps(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        first = wf.step(tasks.boom, name="first")
        wf.step(tasks.add, 1, name="second", after=[first])
        run = finished(wf.start(), tasks.app)
        one, two = run.steps()
        assert (one.name, one.task, one.state, one.parents) == ("first", "boom", "failed", ())
        assert one.error is not None
        assert one.error.message == "no"
        assert (two.name, two.state, two.parents) == ("second", "skipped", ("first",))
        assert two.error is not None
        assert (two.error.code, two.error.message) == ("WORKFLOW_DEPENDENCY_FAILED", "first ended failed")
        assert one.job_id is not None
        assert tasks.app.job(one.job_id).state == "failed"

    def test_that_failed_raises_with_the_run(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.step(tasks.boom)
        run = finished(wf.start(), tasks.app)
        with pytest.raises(
            RunFailed, match="ended failed: WORKFLOW_STEP_FAILED: step 'boom' ended failed"
        ) as raised:
            run.result()
        assert isinstance(raised.value, JobFailed)
        assert raised.value.job == run

    def test_with_several_last_steps_returns_all_their_results_by_name(self, tasks: Tasks) -> None:
        run = tasks.app.group(tasks.add.job(1), tasks.add.job(2), name="both").start()
        assert finished(run, tasks.app).result() == {"add": 11, "add-2": 12}

    def test_returns_what_it_was_told_to_return(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        one = wf.step(tasks.add, 1)
        wf.step(tasks.add, one.output)
        wf.returns(one)
        assert finished(wf.start(), tasks.app).result() == 11

    def test_started_twice_with_one_id_is_one_run(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.step(tasks.add, 1)
        run, again = wf.start(id="monday"), wf.start(id="monday")
        assert (run, run.is_new, again.is_new, run.key) == (again, True, False, "monday")
        assert tasks.app.workflow_run("monday") == tasks.app.workflow_run(run.id) == run
        assert [each.id for each in tasks.app.workflow_runs(workflow="report")] == [run.id]
        tasks.app.run_worker(until_empty=True)
        assert len(tasks.calls) == 1

    def test_that_does_not_exist_is_not_found(self, tasks: Tasks) -> None:
        with pytest.raises(JobNotFound):
            tasks.app.workflow_run("nothing")
        with pytest.raises(JobNotFound):
            tasks.app.workflow_run("0000000000001")

    def test_is_waited_for_while_a_worker_serves_it(self, tasks: Tasks) -> None:
        wf = tasks.app.chain(tasks.add.job(1), tasks.add, tasks.add)
        with serving(tasks.app):
            assert wf.start().result(timeout=30) == 31

    def test_can_be_awaited(self, tasks: Tasks) -> None:
        async def play() -> Any:
            run = await tasks.app.chain(tasks.add.job(1), tasks.add).astart()
            with pytest.raises(ResultTimeout, match=r"run .* has not ended within 0.05 s"):
                await run.aresult(timeout=0.05)
            with serving(tasks.app):
                return await run.aresult(timeout=30)

        assert asyncio.run(play()) == 21

    def test_is_waited_for_no_longer_than_told(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.step(tasks.add, 1)
        with pytest.raises(ResultTimeout):
            wf.start().result(timeout=0)

    def test_obeys_what_steps_declare_like_any_job(self, tasks: Tasks) -> None:
        tried = []

        @tasks.app.task(name="flaky", retry=Retry(max_attempts=3, base=0), queue="other")
        def flaky() -> int:
            tried.append(1)
            if len(tried) < 3:
                raise ValueError("again")
            return 1

        wf = tasks.app.workflow("report")
        step = wf.step(flaky.using(priority=-7))
        wf.step(tasks.add, step.output)
        run = finished(wf.start(), tasks.app)
        assert run.result() == 11
        job = next(each for each in run.steps() if each.name == "flaky")
        assert job.job_id is not None
        found = tasks.app.job(job.job_id)
        assert (found.priority, found.queue, found.attempt) == (-7, "other", 3)

    def test_lives_and_dies_with_the_caller_s_transaction(
        self, postgres_app: Evenflow, postgres_url: str
    ) -> None:
        tasks = Tasks(postgres_app)
        wf = postgres_app.workflow("report")
        wf.step(tasks.total, [wf.step(tasks.add, 1).output])
        with psycopg.connect(postgres_url) as connection:
            gone = wf.start(connection=connection)
            connection.rollback()
            kept = wf.start(connection=connection)
            connection.commit()
        with pytest.raises(JobNotFound):
            gone.refresh()
        assert finished(kept, postgres_app).result() == 11

    def test_that_is_refused_leaves_nothing_in_a_transaction_that_goes_on(
        self, postgres_app: Evenflow, postgres_url: str
    ) -> None:
        tasks = Tasks(postgres_app)

        @postgres_app.task(name="sole", unique=Unique("name"))
        def sole(name: str) -> None: ...

        holder = sole.enqueue("bob")
        wf = postgres_app.workflow("report")
        first = wf.step(tasks.add, 1)
        wf.step(sole, "bob", after=[first])
        with psycopg.connect(postgres_url) as connection:
            with pytest.raises(DuplicateJob):
                wf.start(connection=connection)
            connection.commit()
        assert postgres_app.workflow_runs() == []
        assert [job.id for job in postgres_app.jobs()] == [holder.id]

    def test_with_a_taken_unique_key_is_refused_as_a_whole(self, tasks: Tasks) -> None:
        @tasks.app.task(name="sole", unique=Unique("name"))
        def sole(name: str) -> None: ...

        sole.enqueue("bob")
        wf = tasks.app.workflow("report")
        wf.step(tasks.add, 1)
        wf.step(sole, "bob")
        with pytest.raises(DuplicateJob):
            wf.start(id="x")
        with pytest.raises(JobNotFound):
            tasks.app.workflow_run("x")

    def test_takes_concurrency_keys_of_its_steps(self, tasks: Tasks) -> None:
        @tasks.app.task(name="careful", concurrency=Concurrency(to=1, key="who"))
        def careful(who: str) -> str:
            return who

        wf = tasks.app.workflow("report")
        first = wf.step(tasks.add, 1)
        for _ in range(5):
            wf.step(careful, "bob", after=[first])
        assert finished(wf.start(), tasks.app).state == "succeeded"


class TestControl:
    def test_cancel_ends_a_run_and_its_waiters(self, tasks: Tasks) -> None:
        run = tasks.app.chain(tasks.add.job(1), tasks.add).start()
        assert run.cancel("enough")
        assert not run.cancel()
        with pytest.raises(RunCancelled, match="enough"):
            run.result(timeout=30)
        tasks.app.run_worker(until_empty=True)
        assert tasks.calls == []

    def test_a_paused_run_starts_nothing_until_it_is_resumed(self, tasks: Tasks) -> None:
        run = tasks.app.chain(tasks.add.job(1), tasks.add).start()
        assert run.pause("a look first")
        assert (run.state, run.paused_why) == ("paused", "a look first")
        tasks.app.run_worker(until_empty=True)
        assert tasks.calls == []
        assert run.resume()
        assert not run.resume()
        assert finished(run, tasks.app).result() == 21

    def test_a_retry_runs_only_what_did_not_succeed(self, tasks: Tasks) -> None:
        ok: list[int] = []

        @tasks.app.task(name="mended")
        def mended(value: int) -> int:
            if not ok:
                raise ValueError("not yet")
            return value

        wf = tasks.app.workflow("report")
        one = wf.step(tasks.add, 1)
        wf.step(tasks.total, [wf.step(mended, one.output).output])
        run = finished(wf.start(), tasks.app)
        assert states(run) == {"add": "succeeded", "mended": "failed", "total": "skipped"}
        ok.append(1)
        assert run.retry() == 2
        assert finished(run, tasks.app).result() == 11
        assert tasks.calls == [(1, 10), (11,)]
        assert run.retry() == 0

    def test_on_error_pause_waits_for_a_decision(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report", on_error="pause")
        bad = wf.step(tasks.boom)
        wf.step(tasks.add, 1, after=[bad], allow_failed_deps=True)
        run = finished(wf.start(), tasks.app)
        assert (run.state, run.paused_why) == ("paused", "step 'boom' ended failed")
        assert states(run) == {"boom": "failed", "add": "waiting"}
        run.resume()
        assert finished(run, tasks.app).state == "failed"
        assert states(run)["add"] == "succeeded"

    def test_a_step_cancelled_by_hand_is_told_on_by_the_services(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        first = wf.step(tasks.add.using(queue="nobody"), 1, name="first")
        wf.step(tasks.add, 2, after=[first])
        run = wf.start()
        job = run.steps()[0].job_id
        assert job is not None
        with serving(tasks.app, queues=["default"]):
            tasks.app.cancel(job)
            wait_until(lambda: run.refresh().state == "failed", "the run to fail")
        assert states(run) == {"first": "cancelled", "add": "skipped"}


class TestJoins:
    def test_any_goes_on_with_the_first_and_takes_what_is_there(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        bad, good = wf.step(tasks.boom), wf.step(tasks.add, 1)
        wf.step(tasks.add, 5, bad.output, join="any", after=[good], name="last")
        run = finished(wf.start(), tasks.app)
        assert run.results()["last"] == 15  # b has its default

    def test_outputs_that_are_not_there_are_left_out_of_lists_and_arguments(self, tasks: Tasks) -> None:
        seen = []

        @tasks.app.task(name="gather")
        def gather(first: int, second: int = -1, third: int = -3, *, many: list[int]) -> None:
            seen.append((first, second, third, many))

        wf = tasks.app.workflow("report")
        bad, good = wf.step(tasks.boom), wf.step(tasks.add, 1)
        wf.step(gather, 0, bad.output, 7, many=[bad.output, good.output], allow_failed_deps=True)
        finished(wf.start(), tasks.app)
        assert seen == [(0, -1, 7, [11])]

    def test_cases_decide_about_success(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        bad, good = wf.step(tasks.boom), wf.step(tasks.add, 1)
        wf.succeeds_when([bad], [good])
        wf.returns(good)
        assert finished(wf.start(), tasks.app).result() == 11
        wf.succeeds_when([bad, good])
        run = finished(wf.start(), tasks.app)
        assert run.error is not None
        assert run.error.code == "WORKFLOW_SUCCESS_CASE_NOT_MET"


class TestAFanOut:
    def test_runs_once_per_item_and_joins_in_order(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        items = wf.step(tasks.numbers, 20)
        parts = wf.map(tasks.add, items.output, 100)
        wf.step(tasks.total, parts.output)
        run = finished(wf.start(), tasks.app)
        assert run.result() == sum(range(20)) + 2000
        assert run.results()["add"] == [100 + number for number in range(20)]
        assert "add[19]" in states(run)

    def test_over_nothing_succeeds_with_an_empty_list(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.step(tasks.total, wf.map(tasks.add, wf.step(tasks.numbers, 0).output).output)
        assert finished(wf.start(), tasks.app).result() == 0

    @pytest.mark.parametrize("made", [(1, 2), {1, 2}, frozenset({1, 2})])
    def test_goes_over_what_is_as_good_as_a_list(self, here: Tasks, made: Any) -> None:
        @here.app.task(name="make")
        def make() -> Any:
            return made

        wf = here.app.workflow("report")
        wf.step(here.total, wf.map(here.add, wf.step(make).output).output)
        assert finished(wf.start(), here.app).result() == 11 + 12

    @pytest.mark.parametrize("made", [None, 5, "ab", {"a": 1}])
    def test_over_anything_else_fails_at_once(self, here: Tasks, made: Any) -> None:
        @here.app.task(name="make")
        def make() -> Any:
            return made

        wf = here.app.workflow("report")
        wf.map(here.add, wf.step(make).output)
        run = finished(wf.start(), here.app)
        begin = next(step for step in run.steps() if step.name == "add/begin")
        assert begin.error is not None
        assert begin.error.message == f"expected a list to go over, got {type(made).__name__}"
        assert (run.state, here.calls) == ("failed", [])

    def test_fails_with_one_of_its_members_or_does_with_enough(self, tasks: Tasks) -> None:
        @tasks.app.task(name="picky")
        def picky(value: int) -> int:
            if value == 1:
                raise ValueError(value)
            return value

        for needs, expected in ((None, "failed"), (2, "succeeded"), (3, "failed")):
            wf = tasks.app.workflow("report")
            parts = wf.map(picky, [0, 1, 2], needs=needs, name="parts")
            wf.step(tasks.total, parts.output)
            run = finished(wf.start(), tasks.app)
            assert states(run)["parts"] == expected
            if expected == "succeeded":
                assert run.results()["total"] == 2

    def test_refers_to_other_results_and_keeps_what_using_said(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        extra = wf.step(tasks.add, 1)
        parts = wf.map(tasks.add.using(priority=-3, group="bob"), [1, 2], extra.output, name="parts")
        wf.step(tasks.total, parts.output)
        run = finished(wf.start(), tasks.app)
        assert run.result() == 12 + 13
        member = next(step for step in run.steps() if step.name == "parts[0]")
        assert member.job_id is not None
        job = tasks.app.job(member.job_id)
        assert (job.priority, job.group, job.args) == (-3, "bob", (1, "<output of add>"))

    def test_that_needs_more_than_there_were_says_so(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.map(tasks.add, wf.step(tasks.numbers, 2, name="numbers").output, needs=5)
        run = finished(wf.start(), tasks.app)
        (step,) = [step for step in run.steps() if step.name == "add"]
        assert step.error is not None
        assert step.error.message == "expected at least 5 successes, got 2"

    def test_is_good_until_a_time(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.map(tasks.add, wf.step(tasks.numbers, 2, name="numbers").output, good_until=60)
        run = finished(wf.start(), tasks.app)
        assert run.state == "succeeded"
        (member, *_) = [step for step in run.steps() if step.name == "add[0]"]
        assert member.job_id is not None
        assert tasks.app.job(member.job_id).good_until is not None


class TestAStepThatExpires:
    def test_lets_the_others_go_on_in_one_run_of_the_worker(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        late = wf.step(tasks.add, 1, name="late", good_until=0.001)
        wf.step(tasks.add, 2, name="dependent", after=[late])
        wf.step(tasks.add, 3, name="anyway", after=[late], allow_failed_deps=True)
        run = wf.start()
        time.sleep(0.01)
        assert finished(run, tasks.app).state == "failed"
        assert states(run) == {"late": "expired", "dependent": "skipped", "anyway": "succeeded"}

    def test_ends_a_sub_workflow_before_it_begins(self, tasks: Tasks) -> None:
        inner = tasks.app.workflow("inner")
        inner.step(tasks.add, 1, name="one")
        wf = tasks.app.workflow("report")
        wf.sub(inner, name="inner", good_until=0.001)
        run = wf.start()
        time.sleep(0.01)
        assert finished(run, tasks.app).state == "failed"
        assert states(run)["inner/one"] == "skipped"
        assert tasks.calls == []


class TestADelay:
    """`run_after` of a step counts from when the steps before are done, however the step came about."""

    def test_of_a_call_in_a_group(self, here: Tasks) -> None:
        wf = here.app.workflow("report")
        wf.group(here.add.using(run_after=60).job(1), after=[wf.step(here.add, 1, name="first")])
        assert states(finished(wf.start(), here.app)) == {"first": "succeeded", "add": "scheduled"}

    @pytest.mark.parametrize("when", [60, datetime(2100, 1, 1, tzinfo=UTC)])
    def test_of_the_members_of_a_fan_out(self, here: Tasks, when: Any) -> None:
        wf = here.app.workflow("report")
        wf.map(here.add.using(run_after=when), [1], wf.step(here.add, 1, name="first").output, name="m")
        wf.map(here.add.using(run_after=when), [1], name="n")
        found = states(finished(wf.start(), here.app))
        assert (found["m[0]"], found["n[0]"]) == ("scheduled", "scheduled")

    def test_of_an_added_step(self, here: Tasks) -> None:
        @here.app.task(name="adding")
        def adding(ctx: Context) -> None:
            ctx.add_step(here.add, 1, name="one")
            ctx.add_step(here.add.using(run_after=60), 1, name="two", after=["adding/one"])

        wf = here.app.workflow("report")
        wf.step(adding)
        found = states(finished(wf.start(), here.app))
        assert found == {"adding": "succeeded", "adding/one": "succeeded", "adding/two": "scheduled"}


class TestASubWorkflow:
    def inner(self, tasks: Tasks, value: Any) -> Any:
        wf = tasks.app.workflow("inner")
        one = wf.step(tasks.add, value, name="one")
        wf.step(tasks.add, one.output, name="two")
        return wf

    def test_is_one_step_with_the_result_of_its_own(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        first = wf.step(tasks.add, 0)
        left = wf.sub(self.inner(tasks, first.output), name="left")
        right = wf.sub(self.inner(tasks, 100), name="right", after=[first])
        wf.step(tasks.total, [left.output, right.output])
        run = finished(wf.start(), tasks.app)
        assert run.result() == 30 + 120
        assert {"left", "left/one", "left/two", "right/begin"} <= states(run).keys()

    def test_that_fails_fails_its_step_and_skips_what_waits_for_it(self, tasks: Tasks) -> None:
        bad = tasks.app.workflow("bad")
        bad.step(tasks.boom)
        wf = tasks.app.workflow("report")
        sub = wf.sub(bad)
        wf.step(tasks.add, 1, after=[sub])
        run = finished(wf.start(), tasks.app)
        assert states(run) == {"bad": "failed", "bad/boom": "failed", "add": "skipped"}

    def test_that_does_not_begin_is_skipped_with_all_its_steps(self, tasks: Tasks) -> None:
        wf = tasks.app.workflow("report")
        wf.sub(self.inner(tasks, 1), name="sub", after=[wf.step(tasks.boom)])
        run = finished(wf.start(), tasks.app)
        assert {
            name: state for name, state in states(run).items() if name.startswith("sub")
        } == dict.fromkeys(["sub", "sub/begin", "sub/one", "sub/two"], "skipped")

    def test_whose_steps_wait_for_one_outside_takes_its_place_as_the_last(self, here: Tasks) -> None:
        innermost = here.app.workflow("innermost")
        inner = here.app.workflow("inner")
        outer = here.app.workflow("outer")
        one, two = outer.step(here.add, 1, name="one"), outer.step(here.add, 2, name="two")
        innermost.step(here.add, one.output)
        inner.sub(innermost, name="innermost", after=[two])
        outer.sub(inner, name="inner")
        assert finished(outer.start(), here.app).result() == 21

    def test_may_hold_others_and_fan_outs(self, tasks: Tasks) -> None:
        middle = tasks.app.workflow("middle")
        parts = middle.map(tasks.add, [1, 2, 3], name="parts")
        middle.step(tasks.total, parts.output)
        outer = tasks.app.workflow("outer")
        outer.sub(middle, name="m")
        wf = tasks.app.workflow("report")
        first = wf.step(tasks.add, 0)
        wf.step(tasks.add, wf.sub(outer, name="o", after=[first]).output)
        run = finished(wf.start(), tasks.app)
        assert run.result() == 36 + 10
        assert states(run)["o/m/parts[2]"] == "succeeded"


class TestAddedSteps:
    def test_are_known_by_their_own_names_to_who_added_them_and_beside_it(self, tasks: Tasks) -> None:
        @tasks.app.task(name="grow")
        def grow(ctx: Context) -> None:
            ctx.add_step(tasks.add, ctx.output("seed"), name="leaf")
            ctx.add_step(tasks.add, ctx.output("leaf"), name="tip", after="leaf")

        inner = tasks.app.workflow("inner")
        inner.step(grow, after=[inner.step(tasks.add, 1, name="seed")])
        assert finished(inner.start(), tasks.app).results()["grow/tip"] == 1 + 10 + 10 + 10
        wf = tasks.app.workflow("report")
        wf.step(tasks.add, 100, name="seed")
        wf.sub(inner, name="inner")
        assert finished(wf.start(), tasks.app).results()["inner/grow/tip"] == 1 + 10 + 10 + 10

    def test_are_waited_for_by_what_comes_after(self, tasks: Tasks) -> None:
        @tasks.app.task(name="grow")
        def grow(ctx: Context, count: int) -> None:
            for number in range(count):
                ctx.add_step(tasks.add, number, name="leaf")

        wf = tasks.app.workflow("report")
        first = wf.step(grow, 3)
        wf.step(tasks.total, [100], after=[first])
        run = finished(wf.start(), tasks.app)
        assert run.state == "succeeded"
        assert tasks.calls[-1] == (100,)
        assert sorted(name for name in states(run) if "/" in name) == [
            "grow/leaf",
            "grow/leaf-2",
            "grow/leaf-3",
        ]

    def test_are_added_once_over_attempts_and_may_refer_to_results(self, tasks: Tasks) -> None:
        @tasks.app.task(name="grow", retry=Retry(max_attempts=2, base=0))
        async def grow(ctx: Context) -> None:
            await ctx.add_step(tasks.total, [ctx.output("add"), 1])
            if ctx.attempt == 1:
                raise ValueError("again")

        wf = tasks.app.workflow("report")
        first = wf.step(tasks.add, 1)
        wf.step(grow, after=[first])
        run = finished(wf.start(), tasks.app)
        assert run.state == "succeeded"
        assert run.results()["grow/total"] == 12
        assert len(tasks.calls) == 2

    def test_need_a_workflow(self, tasks: Tasks) -> None:
        @tasks.app.task(name="grow")
        def grow(ctx: Context) -> None:
            ctx.add_step(tasks.add, 1)

        job = grow.enqueue()
        tasks.app.run_worker(until_empty=True)
        with pytest.raises(JobFailed, match="by a step of a workflow only"):
            job.result()


class TestMistakes:
    def refused(self, build: Callable[[Any], Any], here: Tasks) -> list[str]:
        wf = here.app.workflow("report")
        build(wf)
        with pytest.raises(ConfigError) as raised:
            wf.validate()
        return [mistake.removeprefix("workflow 'report': ") for mistake in raised.value.mistakes]

    def test_are_told_all_at_once(self, here: Tasks) -> None:
        other = here.app.workflow("other").step(here.add, 1, name="far")

        def build(wf: Any) -> None:
            wf.step(here.add, "one", name="a")
            wf.step(here.add, other.output, name="b")
            wf.step(here.add, 1, name="c", after=["nobody", other])
            wf.step(here.add, 1, 2, 3, name="d")
            wf.step(here.add, 1, name="d", join=2)

        found = self.refused(build, here)
        assert len(found) == 7
        text = "\n".join(found)
        for part in (
            "step 'd' is there 2 times", "step 'a': argument 'a': expected int", "step 'b': the output of 'far'",
            "step 'c': after: no step 'nobody'", "step 'c': after: 'far' is a step of another workflow",
            "step 'd': takes at most 2 positional arguments", "step 'd': join: expected",
        ):  # fmt: skip
            assert part in text

    def test_steps_that_wait_for_each_other(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.step(here.add, 1, name="a", after=["c"])
            wf.step(here.add, 1, name="b", after=["a"])
            wf.step(here.add, 1, name="c", after=["b"])

        assert self.refused(build, here) == ["these steps wait for each other: a -> b -> c -> a"]

    def test_no_steps_at_all(self, here: Tasks) -> None:
        assert self.refused(lambda wf: None, here) == ["expected at least one step, got none"]

    def test_outputs_of_a_type_that_can_never_fit(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.step(here.shout, wf.step(here.add, 1).output)

        assert self.refused(build, here) == [
            "step 'shout': argument 'text': expected str, got the output of 'add', which is int"
        ]

    def test_outputs_that_may_be_missing_where_they_are_needed(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.step(here.add, wf.step(here.add, 1).output, join="any", name="z")

        assert self.refused(build, here) == [
            "step 'z': argument 'a' may be without a value when it starts; give the parameter a default"
        ]

    def test_keys_made_of_results_that_are_not_there_yet(self, here: Tasks) -> None:
        @here.app.task(name="grouped", group="who")
        def grouped(who: str) -> None: ...

        def build(wf: Any) -> None:
            wf.step(grouped, wf.step(here.shout, "x").output)

        (found,) = self.refused(build, here)
        assert "step 'grouped': group: who: " in found
        assert "got an output, which is known only when the step starts" in found

    def test_conditions_that_are_functions_nobody_registered(self, here: Tasks) -> None:
        (found,) = self.refused(lambda wf: wf.step(here.add, 1, run_when=lambda ctx: True), here)
        assert "step 'add': run_when: expected a condition or its name" in found

    def test_cases_of_steps_that_are_not_there(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.step(here.add, 1)
            wf.succeeds_when(["add", "sub"])

        assert self.refused(build, here) == ["succeeds_when: no step 'sub'"]

    @pytest.mark.parametrize("cases", [(), ([],), (["add"], [])])
    def test_cases_without_a_step(self, here: Tasks, cases: Any) -> None:
        def build(wf: Any) -> None:
            wf.step(here.add, 1)
            wf.succeeds_when(*cases)

        (found,) = self.refused(build, here)
        assert "succeeds_when: expected one or more cases with a step in each" in found

    def test_results_of_steps_that_are_not_there(self, here: Tasks) -> None:
        other = here.app.workflow("other").step(here.add, 1, name="far")

        def build(wf: Any) -> None:
            wf.step(here.add, 1, name="far")
            wf.returns(other)

        assert self.refused(build, here) == ["returns: 'far' is a step of another workflow"]

    def test_joins_of_more_than_there_is(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            one = wf.step(here.add, 1, name="one", join=5)
            wf.step(here.add, 1, name="two", join=3, after=[one])

        assert self.refused(build, here) == [
            "step 'one': join: expected 'all', 'any' or 1, since it waits for no step, got 5",
            "step 'two': join: expected 'all', 'any' or a number from 1 to 1, got 3",
        ]

    def test_parents_that_are_none(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.step(here.add, 1, after=None)
            wf.step(here.add, 1, after=[5])

        assert self.refused(build, here) == [
            "step 'add': after: expected a step or its name, got None",
            "step 'add-2': after: expected a step or its name, got 5",
        ]

    def test_fan_outs_over_what_is_no_list_or_may_be_missing(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.map(here.add, wf.step(here.add, 1, name="one").output, name="a")
            wf.map(here.add, wf.step(here.numbers, 1).output, after=["one"], join="any", name="b")
            wf.map(here.add, None, name="c")

        assert self.refused(build, here) == [
            "step 'a': expected a list to go over, got the output of 'one', which is int",
            "step 'b': the list to go over may be without a value when it starts; use join='all'",
            "step 'c': expected a list or another step's output to go over, got None",
        ]

    def test_calls_of_a_fan_out_that_do_not_fit(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            numbers = wf.step(here.numbers, 2, name="numbers").output
            wf.map(here.add, [1], "x", name="a")
            wf.map(here.add, [1], 1, 2, 3, name="b")
            wf.map(here.add, [1, "x"], name="c")
            wf.map(here.shout, numbers, name="d")
            wf.map(here.add, numbers, nam="x", name="e")
            wf.map(here.add, [1], wf.step(here.shout, "x", name="text").output, name="f")
            wf.map(here.add, [1], needs=2, name="g")
            wf.map(here.add, [1], good_until="junk", name="h")

        found = self.refused(build, here)
        assert [mistake.partition(":")[0] for mistake in found] == [f"step '{name}'" for name in "abcdefgh"]
        for mistake, text in zip(
            found,
            [
                "argument 'b': expected int, got str",
                "takes at most 2 positional arguments, got 4",
                "argument 'a': expected int, got str",
                "argument 'text': expected str, got an item of list[int]",
                "unknown argument 'nam'",
                "argument 'b': expected int, got the output of 'text', which is str",
                "needs: expected at most 1, one for each item, got 2",
                "good_until: expected",
            ],
            strict=True,
        ):
            assert text in mistake

    def test_outputs_inside_of_lists_of_generic_types_and_of_sub_workflows(self, here: Tasks) -> None:
        inner = here.app.workflow("inner")
        inner.step(here.add, 1)

        def build(wf: Any) -> None:
            wf.step(here.shout, wf.step(here.numbers, 1, name="numbers").output, name="a")
            wf.step(here.total, [wf.step(here.shout, "x", name="text").output], name="b")
            wf.step(here.shout, wf.sub(inner, name="inner").output, name="c")

        assert self.refused(build, here) == [
            "step 'a': argument 'text': expected str, got the output of 'numbers', which is list[int]",
            "step 'b': argument 'values': expected int, got the output of 'text', which is str",
            "step 'c': argument 'text': expected str, got the output of 'inner', which is int",
        ]

    def test_all_of_them_are_told_at_once(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.step(here.add, "x", name="a", good_until="junk")
            wf.step(here.add, 1, name="b", kwargs=[1])
            for one, other in (("c", "d"), ("e", "f")):
                wf.step(here.add, 1, name=one, after=[other])
                wf.step(here.add, 1, name=other, after=[one])
            wf.sub(here.app.group(here.add.job(1)), name="g", good_until="junk")

        found = self.refused(build, here)
        assert sum("these steps wait for each other" in mistake for mistake in found) == 2
        assert sum("good_until: " in mistake for mistake in found) == 2
        assert sum("step 'a': " in mistake for mistake in found) == 2
        assert any("kwargs: expected a dict of arguments, got [1]" in mistake for mistake in found)

    def test_a_workflow_inside_of_itself_and_a_number_that_is_none(self, here: Tasks) -> None:
        def build(wf: Any) -> None:
            wf.returns("self")
            wf.step(here.add, wf.sub(wf, name="self").output, name="a")
            wf.map(here.add, [1], needs="x", name="b")

        found = self.refused(build, here)
        assert any("more than 20 deep" in mistake for mistake in found)
        assert any("step 'b': needs: expected" in mistake for mistake in found)

    def test_of_states_and_events(self, here: Tasks) -> None:
        with pytest.raises(ValueError, match="state: expected one of running"):
            here.app.workflow_runs(state="weird")
        with pytest.raises(EnqueueError, match="expected the name of an event"):
            here.app.emit("")

    @pytest.mark.parametrize(
        ("build", "text"),
        [
            (lambda wf, here: wf.group(here.add.job(1), here.add), "expected calls such as add.job"),
            (lambda wf, here: wf.group(7), "expected calls such as add.job"),
            (lambda wf, here: wf.chain(here.add), "expected calls such as add.job"),
            (lambda wf, here: wf.sub(5), "sub: expected a workflow, got 5"),
        ],
    )
    def test_of_kind_are_told_where_they_are_made(self, here: Tasks, build: Any, text: str) -> None:
        with pytest.raises(ConfigError, match=text):
            build(here.app.workflow("report"), here)

    def test_one_unique_key_for_all_calls_of_a_fan_out(self, here: Tasks) -> None:
        (found,) = self.refused(lambda wf: wf.map(here.add.using(unique="today"), [1, 2]), here)
        assert "the calls of a map cannot all have the unique key 'today'" in found

    @pytest.mark.parametrize("unique", [Unique("a"), True])
    def test_another_uniqueness_for_the_calls_of_a_fan_out(self, here: Tasks, unique: Any) -> None:
        (found,) = self.refused(lambda wf: wf.map(here.add.using(unique=unique), [1, 2]), here)
        assert "write unique= there, not in using(...)" in found
        here.app.workflow("report").map(here.add.using(unique=False, priority=3), [1, 2])

    def test_results_can_be_named(self, here: Tasks) -> None:
        wf = here.app.workflow("report")
        wf.step(here.add, 1, name="a")
        wf.step(here.add, 2, name="b")
        wf.returns("a")
        assert finished(wf.start(), here.app).result() == 11
        wf.returns("c")
        with pytest.raises(ConfigError, match="returns: no step 'c' in this workflow"):
            wf.validate()

    def test_of_names_and_options(self, here: Tasks) -> None:
        with pytest.raises(ConfigError, match="workflow 'a b': on_error: expected"):
            here.app.workflow("a b", on_error="retry")  # type: ignore[arg-type]
        (found,) = self.refused(lambda wf: wf.step(here.add, 1, name="a/b"), here)
        assert "name: expected up to 200 letters" in found
        (found,) = self.refused(lambda wf: wf.map(here.add, 5), here)
        assert "expected a list or another step's output" in found
        wf = here.app.workflow("report")
        wf.step(here.add, 1)
        for wrong in ("", "x" * 201, "a\0", "\ud800", 5):
            with pytest.raises(ConfigError, match="id: expected a text"):
                wf.start(id=wrong)  # type: ignore[arg-type]


def test_a_step_that_is_not_a_task_is_refused(here: Tasks) -> None:
    wf = here.app.workflow("report")
    wf.step(print, 1)  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="expected a task, got <built-in function print>"):
        wf.start()


def test_signed_runs_verify_what_was_written(make_app: MakeApp, engine_url: str) -> None:
    app = make_app(engine_url, signing_keys="k" * 32, require_signed=True)
    tasks = Tasks(app)
    wf = app.workflow("report")
    wf.step(tasks.total, wf.map(tasks.add, [1, wf.step(tasks.add, 1).output]).output)
    assert finished(wf.start(), app).result() == 11 + 21
