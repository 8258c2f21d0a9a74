"""The gate before a workflow's step: whether its run goes on, what its conditions say, and the results it refers to."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from evenflow.codec import decode_result
from evenflow.conditions import Conditional
from evenflow.ids import id_text
from evenflow.job import Claimed, StepInputs
from evenflow.worker.outcome import CancelledByWish, ConditionFailed, RunPaused, SkippedByCondition

Conditions = Mapping[str, Callable[..., Any]]


@dataclass(frozen=True, slots=True)
class StepGate:
    """Lets steps through, or raises what keeps them from running."""

    conditions: Conditions

    def pass_through(self, job: Claimed) -> dict[str, str]:
        """The results of the step's parents, by name, as stored."""
        if job.run_state == "paused":
            raise RunPaused
        if job.run_state == "cancelled":
            raise CancelledByWish("the run of this step was cancelled")
        inputs = job.inputs
        if inputs is None:
            return {}
        if inputs.skip_when is not None and self._asked("skip_when", inputs.skip_when, job, inputs):
            raise SkippedByCondition(f"skip_when {inputs.skip_when!r} said yes")
        if inputs.run_when is not None and not self._asked("run_when", inputs.run_when, job, inputs):
            raise SkippedByCondition(f"run_when {inputs.run_when!r} said no")
        return {parent.name: parent.result for parent in inputs.parents if parent.result is not None}

    def _asked(self, option: str, name: str, job: Claimed, inputs: StepInputs) -> bool:
        condition = self.conditions.get(name)
        if condition is None:
            raise ConditionFailed(
                f"{option}: no condition {name!r} is registered here; import its module in the worker, or correct its name"
            )
        try:
            return bool(condition(_conditional(job, inputs)))
        except Exception as error:
            raise ConditionFailed(f"{option} {name!r} raised {type(error).__name__}: {error}") from error


def _conditional(job: Claimed, inputs: StepInputs) -> Conditional:
    return Conditional(
        run_id=id_text(job.run_id or 0),
        workflow=inputs.workflow,
        step=inputs.step,
        states={parent.name: parent.state or "running" for parent in inputs.parents},
        results={
            parent.name: decode_result(parent.result)
            for parent in inputs.parents
            if parent.result is not None
        },
    )
