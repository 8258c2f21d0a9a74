"""Workflows in workers: conditions before the body, and runs that end right whatever dies on the way."""

import os
import signal
from pathlib import Path

import pytest

from evenflow import Conditional, ConfigError, Evenflow, Run
from evenflow.errors import Code
from evenflow.job import MAX_CRASHES
from tests.client.conftest import MakeApp
from tests.processes import wait_until
from tests.worker.command import Books, seldom
from tests.worker.conftest import StartWorker
from tests.worker.flows import declare


@pytest.fixture
def flows(app: Evenflow) -> Evenflow:
    return declare(app)


def states(run: "Run[object]") -> dict[str, str]:
    return {step.name: step.state for step in run.steps()}


class TestConditions:
    @pytest.mark.parametrize(("count", "expected"), [(3, "skipped"), (10, "succeeded")])
    def test_run_when_says_whether_a_step_runs(self, flows: Evenflow, count: int, expected: str) -> None:
        wf = flows.workflow("report")
        numbers = wf.step(flows.tasks["numbers"], count)
        total = wf.step(flows.tasks["total"], numbers.output, run_when="is_big")
        wf.step(flows.tasks["total"], [1], after=[total], name="after")
        run = wf.start()
        flows.run_worker(until_empty=True)
        assert states(run) == {"numbers": "succeeded", "total": expected, "after": expected}
        assert run.refresh().state == "succeeded"

    def test_skip_when_comes_first_and_skips(self, flows: Evenflow) -> None:
        asked = []

        @flows.condition
        def yes(ctx: Conditional) -> bool:
            asked.append((ctx.workflow, ctx.step, dict(ctx.states)))
            return True

        @flows.condition
        def never_asked(ctx: Conditional) -> bool:
            raise AssertionError("run_when was asked although skip_when said yes")

        wf = flows.workflow("report")
        numbers = wf.step(flows.tasks["numbers"], 1)
        wf.step(flows.tasks["total"], numbers.output, skip_when=yes, run_when=never_asked)
        run = wf.start()
        flows.run_worker(until_empty=True)
        assert states(run)["total"] == "skipped"
        assert asked == [("report", "total", {"numbers": "succeeded"})]
        (step,) = [each for each in run.steps() if each.name == "total"]
        assert step.error is not None
        assert (step.error.code, step.error.message) == (
            Code.WORKFLOW_CONDITION_SKIPPED,
            "skip_when 'yes' said yes",
        )

    @pytest.mark.parametrize("option", ["run_when", "skip_when"])
    def test_one_that_raises_fails_the_step_and_its_body_does_not_run(
        self, flows: Evenflow, option: str
    ) -> None:
        ran = []

        @flows.condition
        def broken(ctx: Conditional) -> bool:
            return bool(ctx.results["nobody"])

        @flows.task(name="witness")
        def witness() -> None:
            ran.append(1)

        wf = flows.workflow("report")
        if option == "run_when":
            wf.step(witness, run_when="broken")
        else:
            wf.step(witness, skip_when="broken")
        run = wf.start()
        flows.run_worker(until_empty=True)
        (step,) = run.steps()
        assert step.state == "failed"
        assert step.error is not None
        assert step.error.code == Code.WORKFLOW_CONDITION_EVALUATION_ERROR
        assert "'broken' raised KeyError" in step.error.message
        assert ran == []
        assert run.refresh().state == "failed"

    def test_one_that_nobody_registered_in_the_worker_fails_the_step(
        self, make_app: MakeApp, engine_url: str
    ) -> None:
        builder, worker = make_app(engine_url), make_app(engine_url)
        ran = []

        @builder.task(name="witness")
        @worker.task(name="witness")
        def witness() -> None:
            ran.append(1)

        wf = builder.workflow("report")
        wf.step(builder.tasks["witness"], run_when="elsewhere")
        run = wf.start()
        worker.run_worker(until_empty=True)
        (step,) = run.steps()
        assert step.state == "failed"
        assert step.error is not None
        assert step.error.code == Code.WORKFLOW_CONDITION_EVALUATION_ERROR
        assert "no condition 'elsewhere' is registered here; import its module" in step.error.message
        assert ran == []

    def test_declarations_that_cannot_work_are_refused(self, flows: Evenflow) -> None:
        with pytest.raises(ConfigError, match="condition 'is_big' is declared twice"):

            @flows.condition
            def is_big(ctx: Conditional) -> bool:
                return True

        with pytest.raises(ConfigError, match="expected a plain function"):

            @flows.condition
            async def later(ctx: Conditional) -> bool:
                return True

    def test_hold_for_sub_workflows_and_fan_outs(self, flows: Evenflow) -> None:
        @flows.condition
        def no(ctx: Conditional) -> bool:
            return False

        inner = flows.workflow("inner")
        inner.step(flows.tasks["numbers"], 1)
        wf = flows.workflow("report")
        wf.sub(inner, run_when=no)
        wf.map(flows.tasks["square"], [1, 2], run_when=no, name="squares")
        run = wf.start()
        flows.run_worker(until_empty=True)
        found = states(run)
        assert (found["inner"], found["inner/numbers"], found["squares"]) == ("skipped", "skipped", "skipped")
        assert run.refresh().state == "succeeded"


@pytest.mark.process
class TestProcesses:
    def test_a_thousand_steps_fan_out_and_in_while_workers_are_killed(
        self, start_worker: StartWorker, make_app: MakeApp, engine_url: str, books: Books
    ) -> None:
        app = declare(make_app(engine_url))
        wf = app.workflow("squares")
        numbers = wf.step(app.tasks["numbers"], 1000)
        squares = wf.map(app.tasks["square"], numbers.output, name="squares")
        wf.step(app.tasks["total"], squares.output)
        worker = start_worker(
            engine_url, "--processes", "2", "--concurrency", "4", locator="tests.worker.flows:app"
        )
        run = wf.start()
        # Fewer kills than quarantine a job: the rescued go behind all others, and a slow look finds them running at the end once
        # more; with two crashes they run in processes of their own, which are slow to start, and a third kill would hit them there.
        shares = (100, 600)
        assert len(shares) < MAX_CRASHES
        for share in shares:
            wait_until(seldom(lambda share=share: ended(books) >= share), f"{share} ends", 100)  # type: ignore[misc]
            for pid in worker.children()[:1]:
                os.kill(pid, signal.SIGKILL)
        wait_until(seldom(lambda: run.refresh().state != "running"), "the end of the run", 100)
        bad = [(step.name, step.state, step.error) for step in run.steps() if step.state != "succeeded"]
        assert bad == []
        assert run.result(timeout=0) == sum(number * number for number in range(1000))
        found = states(run)
        assert len(found) == 1004
        assert set(found.values()) == {"succeeded"}
        assert app.stats() == {}

    @pytest.mark.either
    def test_a_durable_step_is_done_once_although_its_process_dies_after_it(
        self, start_worker: StartWorker, make_app: MakeApp, engine_url: str, tmp_path: Path
    ) -> None:
        app = declare(make_app(engine_url))
        start_worker(engine_url, "--processes", "1", "--concurrency", "2", locator="tests.worker.flows:app")
        assert app.tasks["pay"].enqueue("bob").result(timeout=60) == "bob paid 42"
        assert (tmp_path / "bob-charges").read_text() == "x"

    @pytest.mark.either
    def test_steps_in_processes_of_their_own_ask_their_conditions_there(
        self, start_worker: StartWorker, make_app: MakeApp, engine_url: str, tmp_path: Path
    ) -> None:
        app = declare(make_app(engine_url))
        wf = app.workflow("marks")
        only = wf.step(app.tasks["numbers"], 20, name="numbers")
        wf.step(app.tasks["mark"], "asked", after=[only], name="asked", run_when="is_big")
        wf.step(app.tasks["mark"], "skipped", after=[only], name="skipped", skip_when="is_big")
        start_worker(engine_url, "--processes", "1", locator="tests.worker.flows:app")
        run = wf.start()
        run.result(timeout=60)
        assert (tmp_path / "asked").exists()
        assert not (tmp_path / "skipped").exists()
        assert states(run) == {"numbers": "succeeded", "asked": "succeeded", "skipped": "skipped"}


def ended(books: Books) -> int:
    ((count,),) = books.rows("select count(*) from {step} where ended_at is not null")
    return int(count)
