"""From workflows to what is stored: the flat list of steps with what each waits for, and every mistake on the way."""

import re
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

import msgspec

from evenflow.checks import whole
from evenflow.client.step import Condition, Output, Step, Steps, outputs_in
from evenflow.client.task import AnyTask, Task
from evenflow.clock import to_us
from evenflow.codec import Reference, encode_result, holds_reference
from evenflow.codec.hints import resolved_hints
from evenflow.durations import duration_us
from evenflow.errors import ConfigError, EvenflowError
from evenflow.job import NewJob
from evenflow.store.workflows import NewStep, Policy

BEGIN_TASK = "evenflow.begin"
SPREAD_TASK = "evenflow.spread"
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
_encode = msgspec.json.Encoder().encode
_ALIKE = ({int, float}, {int, bool}, {list, tuple, set, frozenset})


class Plan:
    """Turns a workflow, and those inside of it, into the flat list of steps that is stored; collects mistakes."""

    def __init__(self, condition_name: Callable[[Condition], str]) -> None:
        self.steps: list[NewStep] = []
        self.mistakes: list[str] = []
        self.waits: dict[str, list[str]] = {}
        self._condition_name = condition_name

    def add(self, workflow: Steps, prefix: str, container: int | None, around: dict[int, str]) -> None:
        """The steps of a workflow; `around` are the full names of steps that it may refer to from outside."""
        if not workflow.steps:
            self.mistakes.append(f"{_at(prefix)}expected at least one step, got none")
        self._check_names(workflow, prefix)
        scope = {**around, **{id(step): prefix + step.name for step in workflow.steps}}
        by_name = {step.name: prefix + step.name for step in workflow.steps}
        for case in workflow.cases or ():
            self.mistakes += [f"succeeds_when: no step {name!r}" for name in case if name not in by_name]
        for step in workflow.steps:
            self._place(step, prefix, container, scope, by_name)
        if container is None:
            places = {step.name: place for place, step in enumerate(self.steps)}
            self.steps = [self._with_parents(step, places) for step in self.steps]

    def _check_names(self, workflow: Steps, prefix: str) -> None:
        names = [step.name for step in workflow.steps]
        for name in names:
            if not isinstance(name, str) or not NAME.fullmatch(name):
                self.mistakes.append(
                    f"step {prefix}{name!r}: name: expected up to 200 letters, digits and '_.:-', got {name!r}"
                )
        for name, count in Counter(map(str, names)).items():
            if count > 1:
                self.mistakes.append(
                    f"step {prefix + name!r} is there {count} times; give each its own name="
                )

    def _place(
        self,
        step: Step[Any],
        prefix: str,
        container: int | None,
        scope: dict[int, str],
        by_name: dict[str, str],
    ) -> None:
        full = f"{prefix}{step.name}"
        wrong: list[str] = []
        parents = self._parents(step, scope, by_name, wrong)
        needs = self._needs(step, parents, wrong)
        conditions = self._conditions(step, wrong)
        if step.kind == "job":
            job = self._job(step, scope, wrong)
            self.waits[full] = parents
            new = NewStep(
                full, job, needs=needs, allow_failed=step.allow_failed_deps, container=container,
                ordinal=len(self.steps), **conditions,
            )  # fmt: skip
            self.steps.append(_timed(step, new))
        elif step.kind == "map":
            self._place_map(step, full, parents, needs, conditions, container, scope, wrong)
        else:
            self._place_sub(step, full, parents, needs, conditions, container, scope, wrong)
        self.mistakes += [f"step {full!r}: {mistake}" for mistake in wrong]

    def _place_map(
        self, step: Step[Any], full: str, parents: list[str], needs: int | None, conditions: dict[str, Any],
        container: int | None, scope: dict[int, str], wrong: list[str],
    ) -> None:  # fmt: skip
        """The fan-out: a job that spreads the list, and a container that ends with what it has spread."""
        place, begin = len(self.steps), f"{full}/begin"
        wrong += whole("needs", step.needs, 0, optional=True)
        job = self._spreading_job(step, full, scope, wrong)
        policy = Policy(needs=step.needs)
        self.steps.append(NewStep(full, None, "map", container=container, ordinal=place, policy=policy))
        self.steps.append(
            NewStep(begin, job, "begin", needs=needs, container=place, ordinal=-1, **conditions)
        )
        self.waits |= {begin: parents, full: [begin]}

    def _place_sub(
        self, step: Step[Any], full: str, parents: list[str], needs: int | None, conditions: dict[str, Any],
        container: int | None, scope: dict[int, str], wrong: list[str],
    ) -> None:  # fmt: skip
        """The sub-workflow: a container around its steps, and where it waits for something, a job to begin with."""
        assert step.sub is not None
        place, begin = len(self.steps), f"{full}/begin"
        policy = Policy(_prefixed(step.sub.cases, f"{full}/"), None, step.sub.labelled_outputs(f"{full}/"))
        self.steps.append(NewStep(full, None, "sub", container=container, ordinal=place, policy=policy))
        has_begin = bool(parents or any(conditions.values()))
        first = len(self.steps) + int(has_begin)
        if has_begin:
            job = NewJob(BEGIN_TASK, "[[],{}]", _some_queue(step.sub))
            begins = NewStep(
                begin, job, "begin", needs=needs, allow_failed=step.allow_failed_deps, container=place, ordinal=-1, **conditions,
            )  # fmt: skip
            self.steps.append(begins)
            self.waits[begin] = parents
        self.add_inner(step.sub, f"{full}/", place, scope)
        self.waits[full] = [begin] if has_begin else []
        inside = {inner.name for inner in self.steps[first:]}
        self.waits[full] += inside
        for inner in self.steps[first:]:
            if has_begin and inner.kind not in ("sub", "map") and inside.isdisjoint(self.waits[inner.name]):
                self.waits[inner.name].append(begin)
                if inner.needs is not None:
                    wrong.append(
                        f"its step {inner.name!r} waits for some of the steps around it; use join='all' there"
                    )

    def add_inner(self, workflow: Steps, prefix: str, container: int, scope: dict[int, str]) -> None:
        if prefix.count("/") > 20:
            self.mistakes.append(f"step {prefix[:60]!r}: workflows inside of each other, more than 20 deep")
            return
        self.add(workflow, prefix, container, scope)

    def _parents(
        self, step: Step[Any], scope: dict[int, str], by_name: dict[str, str], wrong: list[str]
    ) -> list[str]:
        found: dict[str, None] = {}
        for each in step.after:
            name = by_name.get(each) if isinstance(each, str) else scope.get(id(each))
            if name is None:
                wrong.append(f"after: {_unknown(each)}")
            else:
                found[name] = None
        for output in outputs_in((step.args, step.kwargs, step.over)):
            name = scope.get(id(output.step))
            if name is None:
                wrong.append(f"the output of {output.step.name!r}, which is a step of another workflow")
            else:
                found[name] = None
        return list(found)

    def _needs(self, step: Step[Any], parents: list[str], wrong: list[str]) -> int | None:
        if step.join == "all":
            return None
        if step.join == "any":
            return 1
        if (
            isinstance(step.join, bool)
            or not isinstance(step.join, int)
            or not 1 <= step.join <= max(len(parents), 1)
        ):
            wrong.append(
                f"join: expected 'all', 'any' or a number from 1 to {len(parents)}, got {step.join!r}"
            )
            return None
        return step.join

    def _conditions(self, step: Step[Any], wrong: list[str]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for option in ("run_when", "skip_when"):
            condition = getattr(step, option)
            if condition is None:
                continue
            try:
                found[option] = self._condition_name(condition)
            except ConfigError as refused:
                wrong += [f"{option}: {mistake}" for mistake in refused.mistakes]
        return found

    def _job(self, step: Step[Any], scope: dict[int, str], wrong: list[str]) -> NewJob | None:
        if step.call is not None:
            return step.call
        task: object = step.task
        if not isinstance(task, Task):
            wrong.append(f"expected a task, got {task!r}; write @app.task above the function")
            return None
        try:
            args, kwargs = referring(step.args, scope), referring(step.kwargs, scope)
            job = task.template(args, kwargs)
        except (EvenflowError, ValueError) as refused:
            wrong.append(_said(refused, task.name))
            return None
        self._check_outputs(step, task, wrong)
        return job

    def _check_outputs(self, step: Step[Any], task: AnyTask, wrong: list[str]) -> None:
        """Outputs as arguments: of a type that fits, and not needed where they may be missing."""
        hints = resolved_hints(task.function)
        may_be_missing = step.join != "all" or step.allow_failed_deps
        for name, value in task.signature.arguments(step.args, step.kwargs).items():
            if not isinstance(value, Output):
                continue
            if may_be_missing and task.signature.is_required(name):
                wrong.append(
                    f"argument {name!r} may be without a value when it starts; give the parameter a default"
                )
            made = (
                value.step.task.signature.return_annotation
                if value.step.task and value.step.kind == "job"
                else Any
            )
            if value.step.kind == "map":
                made = list
            if _cannot_be(made, hints.get(name, Any)):
                wrong.append(
                    f"argument {name!r}: expected {_type_name(hints[name])}, got the output of {value.step.name!r}, "
                    f"which is {_type_name(made)}"
                )

    def _spreading_job(
        self, step: Step[Any], full: str, scope: dict[int, str], wrong: list[str]
    ) -> NewJob | None:
        task: object = step.task
        if not isinstance(task, Task):
            wrong.append(f"expected a task, got {task!r}; write @app.task above the function")
            return None
        over = referring(step.over, scope)
        if not isinstance(over, Reference | list | tuple):
            wrong.append(f"expected a list or another step's output to go over, got {step.over!r}")
            return None
        try:
            args = encode_tree(referring(step.args, scope))
            kwargs = encode_tree(referring(step.kwargs, scope))
            plan = {
                "task": task.name,
                "args": args,
                "kwargs": kwargs,
                "name": full,
                "using": task.call_options(),
            }
            items = (
                {"$evenflow": "output", "v": over.name}
                if isinstance(over, Reference)
                else encode_tree(list(over))
            )
            payload = _encode([[items, _encode(plan).decode()], {}]).decode()
        except (EvenflowError, ValueError) as refused:
            wrong.append(str(refused))
            return None
        return NewJob(SPREAD_TASK, payload, task.policy.queue, task.policy.priority, max_attempts=3)

    def _with_parents(self, step: NewStep, places: Mapping[str, int]) -> NewStep:
        if step.kind in ("sub", "map"):
            return step  # its members are bound to it already
        found = [places[name] for name in self.waits.get(step.name, ()) if name in places]
        return msgspec.structs.replace(step, parents=found)


def referring(value: Any, scope: Mapping[int, str]) -> Any:
    """A value with references by name in the place of outputs."""
    if isinstance(value, Output):
        return Reference(scope.get(id(value.step), value.step.name))
    if type(value) is dict:
        return {key: referring(each, scope) for key, each in value.items()}
    if type(value) in (list, tuple):
        return type(value)(referring(each, scope) for each in value)
    return value


def encode_tree(value: Any) -> Any:
    """Values, some of which are references, as a tree for JSON."""
    if isinstance(value, Reference):
        return {"$evenflow": "output", "v": value.name}
    if holds_reference(value) or type(value) in (list, tuple, dict):
        if isinstance(value, dict):
            return {key: encode_tree(each) for key, each in value.items()}
        return [encode_tree(each) for each in value]
    return msgspec.Raw(encode_result(value).encode())


def _said(refused: Exception, task: str) -> str:
    """A refusal in the words of a workflow."""
    text, found, _ = str(refused).removeprefix(f"task {task!r}: ").partition(f"got {Reference.__name__}")
    return (
        f"{text}got an output, which is known only when the step starts; give using(group=…), or a value"
        if found
        else text
    )


def _timed(step: Step[Any], new: NewStep) -> NewStep:
    """A delay counts from the release of the step, a moment is a moment."""
    when = (
        None if new.job is None or step.task is None or step.call is not None else step.task.policy.run_after
    )
    if when is None:
        return new
    if isinstance(when, datetime):
        return msgspec.structs.replace(new, not_before=to_us(when))
    return msgspec.structs.replace(new, delay_us=duration_us(when))


def _prefixed(cases: list[list[str]] | None, prefix: str) -> list[list[str]] | None:
    return None if cases is None else [[prefix + name for name in case] for case in cases]


def _some_queue(workflow: Steps) -> str:
    """A queue that the workers of this workflow serve."""
    for step in workflow.steps:
        if step.sub is not None:
            return _some_queue(step.sub)
        if step.task is not None:
            return step.task.policy.queue
    return "default"


def _unknown(each: object) -> str:
    if isinstance(each, str):
        return f"no step {each!r} in this workflow"
    if isinstance(each, Step):
        return f"{each.name!r} is a step of another workflow"
    return f"expected a step or its name, got {each!r}"


def _at(prefix: str) -> str:
    return f"step {prefix[:-1]!r}: " if prefix else ""


def _cannot_be(made: Any, wanted: Any) -> bool:
    """Whether a result of one class can never be an argument of the other; where in doubt, it can."""
    if not isinstance(made, type) or not isinstance(wanted, type) or object in (made, wanted):
        return False
    if issubclass(made, wanted) or issubclass(wanted, made):
        return False
    plain = {str, int, float, bool, bytes, list, tuple, set, frozenset, dict}
    return made in plain and wanted in plain and not any({made, wanted} <= alike for alike in _ALIKE)


def _type_name(hint: Any) -> str:
    return str(getattr(hint, "__name__", hint))
