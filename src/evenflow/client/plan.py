"""From workflows to what is stored: the flat list of steps with what each waits for, and every mistake on the way."""

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from datetime import datetime
from types import UnionType
from typing import Any, Union, get_args, get_origin

import msgspec

from evenflow.checks import whole
from evenflow.client.options import When
from evenflow.client.step import Condition, Output, Step, Steps, outputs_in
from evenflow.client.task import AnyTask, Task, moment
from evenflow.clock import to_us, wall_us
from evenflow.codec import Reference, encode_result, holds_reference
from evenflow.codec.hints import resolved_hints
from evenflow.durations import duration_us
from evenflow.errors import ConfigError, EvenflowError
from evenflow.job import NewJob
from evenflow.store.workflows import NewStep, Policy

BEGIN_TASK = "evenflow.begin"
SPREAD_TASK = "evenflow.spread"
NAME = re.compile(r"[A-Za-z0-9_.:-]{1,200}")
DEEPEST = 20
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
        self._check_cases(workflow, by_name)
        self.mistakes += [
            f"returns: {_unknown(each)}"
            for each in workflow.outputs or ()
            if not isinstance(each, Step) or each not in workflow.steps
        ]
        for step in workflow.steps:
            self._place(step, prefix, container, scope, by_name)
        if container is None:
            places = {step.name: place for place, step in enumerate(self.steps)}
            self.steps = [self._with_parents(step, places) for step in self.steps]

    def _check_cases(self, workflow: Steps, by_name: Mapping[str, str]) -> None:
        cases = workflow.cases
        if cases is None:
            return
        if not cases or not all(cases):
            self.mistakes.append(
                "succeeds_when: expected one or more cases with a step in each, as in succeeds_when([a, b], [c])"
            )
        self.mistakes += [
            f"succeeds_when: no step {name!r}" for case in cases for name in case if name not in by_name
        ]

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
        wrong = [*step.wrong]
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
            self.steps.append(timed(new, step.task.policy.run_after if isinstance(step.task, Task) else None))
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
        has_begin = bool(parents or any(conditions.values()) or step.good_until is not None)
        first = len(self.steps) + int(has_begin)
        if has_begin:
            until = None
            try:
                until = moment(step.good_until, wall_us())
            except (TypeError, ValueError, EvenflowError) as refused:
                wrong.append(f"good_until: {refused}")
            job = NewJob(BEGIN_TASK, "[[],{}]", _some_queue(step.sub), good_until=until)
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
        if prefix.count("/") > DEEPEST:
            self.mistakes.append(
                f"step {prefix[:60]!r}: workflows inside of each other, more than {DEEPEST} deep"
            )
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
        most = max(len(parents), 1)
        if isinstance(step.join, bool) or not isinstance(step.join, int) or not 1 <= step.join <= most:
            number = f"a number from 1 to {most}" if parents else "1, since it waits for no step"
            wrong.append(f"join: expected 'all', 'any' or {number}, got {step.join!r}")
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
        self._check_outputs(step, task, step.args, wrong)
        return job

    def _check_outputs(self, step: Step[Any], task: AnyTask, args: tuple[Any, ...], wrong: list[str]) -> None:
        """Outputs as arguments: of a type that fits, and not needed where they may be missing."""
        hints = resolved_hints(task.function)
        may_be_missing = step.join != "all" or step.allow_failed_deps
        for name, value in task.signature.arguments(args, step.kwargs).items():
            if isinstance(value, Output) and may_be_missing and task.signature.is_required(name):
                wrong.append(
                    f"argument {name!r} may be without a value when it starts; give the parameter a default"
                )
            wrong += [f"argument {name!r}: {text}" for text in _misfits(value, hints.get(name, Any))]

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
        self._check_list(step, wrong)
        self._check_calls(step, task, scope, wrong)
        if task.policy.unique_value is not None:
            wrong.append(
                f"the calls of a map cannot all have the unique key {task.policy.unique_value!r}; "
                "declare the task with unique=Unique(...) of what they differ in"
            )
        elif task.has_other_unique:
            wrong.append(
                "the calls of a map are unique as their task is declared; write unique= there, not in using(...)"
            )
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

    def _check_calls(self, step: Step[Any], task: AnyTask, scope: dict[int, str], wrong: list[str]) -> None:
        """The calls that a fan-out will make: of one that fits not, the first is told."""
        args, kwargs = referring(step.args, scope), referring(step.kwargs, scope)
        items = [Reference("item")] if isinstance(step.over, Output) else referring(list(step.over), scope)
        try:
            for item in items:
                task.signature.encode_template((item, *args), kwargs)
        except (EvenflowError, ValueError) as refused:
            wrong.append(_said(refused, task.name))
            return
        if isinstance(step.over, Output):
            made: Any = _Item(_made_by(step.over.step))
        else:
            made = step.over[0] if step.over else None
            if isinstance(step.needs, int) and step.needs > len(step.over):
                wrong.append(f"needs: expected at most {len(step.over)}, one for each item, got {step.needs}")
        self._check_outputs(step, task, (made, *step.args), wrong)

    def _check_list(self, step: Step[Any], wrong: list[str]) -> None:
        """An output to go over: it is a list, and it is there."""
        if not isinstance(step.over, Output):
            return
        if step.join != "all":
            wrong.append("the list to go over may be without a value when it starts; use join='all'")
        made = _made_by(step.over.step)
        if _cannot_be(made, list):
            wrong.append(
                f"expected a list to go over, got the output of {step.over.step.name!r}, which is {_type_name(made)}"
            )

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


def timed(step: NewStep, when: When | None) -> NewStep:
    """A step that starts later. A delay counts from the release of the step, a moment is a moment."""
    if step.job is None or when is None:
        return step
    if isinstance(when, datetime):
        return msgspec.structs.replace(step, not_before=to_us(when))
    return msgspec.structs.replace(step, delay_us=duration_us(when))


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


@dataclass(frozen=True, slots=True)
class _Item:
    """One of a list that is not there yet."""

    of: Any


def _misfits(value: Any, wanted: Any) -> Iterator[str]:
    """Outputs inside of an argument that can never be what stands there."""
    if isinstance(value, Output):
        made = _made_by(value.step)
        if _cannot_be(made, wanted):
            yield f"expected {_type_name(wanted)}, got the output of {value.step.name!r}, which is {_type_name(made)}"
    elif isinstance(value, _Item):
        inside = get_args(value.of)
        if get_origin(value.of) is list and len(inside) == 1 and _cannot_be(inside[0], wanted):
            yield f"expected {_type_name(wanted)}, got an item of {_type_name(value.of)}"
    elif isinstance(value, list | tuple) and get_origin(wanted) in (list, set, frozenset):
        for each in value:
            yield from _misfits(each, get_args(wanted)[0])
    elif isinstance(value, dict) and get_origin(wanted) is dict:
        for each in value.values():
            yield from _misfits(each, get_args(wanted)[1])


def _cannot_be(made: Any, wanted: Any) -> bool:
    """Whether a result of one class can never be an argument of the other; where in doubt, it can."""
    if get_origin(wanted) in (Union, UnionType):
        return all(_cannot_be(made, each) for each in get_args(wanted))
    if get_origin(made) in (Union, UnionType):
        return all(_cannot_be(each, wanted) for each in get_args(made))
    made, wanted = get_origin(made) or made, get_origin(wanted) or wanted
    if not isinstance(made, type) or not isinstance(wanted, type) or object in (made, wanted):
        return False
    if issubclass(made, wanted) or issubclass(wanted, made):
        return False
    plain = {str, int, float, bool, bytes, list, tuple, set, frozenset, dict}
    return made in plain and wanted in plain and not any({made, wanted} <= alike for alike in _ALIKE)


def _made_by(step: Step[Any], depth: int = DEEPEST) -> Any:
    """The type of a step's output, as far as it is known."""
    if step.kind == "map":
        return list
    if step.sub is not None:
        returned = {name for _, name in step.sub.labelled_outputs("")}
        inside = [inner for inner in step.sub.steps if inner.name in returned]
        return _made_by(inside[0], depth - 1) if len(inside) == len(returned) == 1 and depth else Any
    return step.task.signature.return_annotation if step.task and step.kind == "job" else Any


def _type_name(hint: Any) -> str:
    return str(hint if get_origin(hint) else getattr(hint, "__name__", hint))
