"""Workflows: steps and what they wait for, put together in Python, checked as a whole, then started as a run."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Protocol, TypeVar, get_args

from evenflow.checks import one_of
from evenflow.client.options import When
from evenflow.client.plan import NAME, Plan
from evenflow.client.run import Run
from evenflow.client.step import Condition, JoinRule, OnError, Output, Step, outputs_in
from evenflow.client.task import Call, Task
from evenflow.codec import storable_text
from evenflow.errors import ConfigError
from evenflow.rules.workflow import cycle
from evenflow.store.workflows import NewRun, Policy

T = TypeVar("T")


class Starter(Protocol):
    """What a workflow needs of its app to be started."""

    def start_run(self, new: NewRun, connection: Any = None) -> Run[Any]: ...
    async def astart_run(self, new: NewRun, connection: Any = None) -> Run[Any]: ...
    def condition_name(self, condition: Condition) -> str: ...


class Workflow:
    """Steps and the order between them. Made by `app.workflow(name)`; `start()` stores a run of it.

    >>> wf = app.workflow("report")                    # doctest: +SKIP
    >>> pages = wf.step(fetch, "https://example.org")  # doctest: +SKIP
    >>> words = wf.step(count, pages.output)           # doctest: +SKIP
    >>> wf.start().result(timeout=60)                  # doctest: +SKIP
    """

    def __init__(self, starter: Starter, name: str, on_error: OnError = "fail") -> None:
        self.name = name
        self.steps: list[Step[Any]] = []
        self._names: set[str] = set()
        self._named: Counter[str] = Counter()
        self._starter = starter
        self._on_error = on_error
        self._cases: list[list[str]] | None = None
        self._returned: tuple[Step[Any] | str, ...] | None = None
        wrong = [*one_of("on_error", on_error, get_args(OnError))]
        if not isinstance(name, str) or not NAME.fullmatch(name):
            wrong.append(f"name: expected up to 200 letters, digits and '_.:-', got {name!r}")
        if wrong:
            raise ConfigError([f"workflow {name!r}: {mistake}" for mistake in wrong])

    def step(
        self, task: "Task[Any, Any, T]", /, *args: Any, name: str | None = None, after: Iterable[Step[Any] | str] = (),
        join: JoinRule = "all", allow_failed_deps: bool = False, run_when: Condition | None = None,
        skip_when: Condition | None = None, good_until: When | None = None, kwargs: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Step[T]:  # fmt: skip
        """A call of a task. Outputs of other steps among its arguments, and `after`, are what it waits for.

        `join`: all of them, any, or so many. `allow_failed_deps`: they count however they ended; an output that is not
        there is left out. Conditions are asked when the step could start: `skip_when` first. Other options come with
        the task: `wf.step(fetch.using(priority=-5), url)`. `kwargs=` takes arguments whose names are options here.
        """
        chosen, wrong = _until(task, good_until)
        return self._add(
            Step(
                self._free_name(name, task), chosen, args, _named(named, kwargs, wrong), _listed(after), join,
                allow_failed_deps, run_when, skip_when, wrong=tuple(wrong),
            )
        )  # fmt: skip

    def map(
        self, task: "Task[Any, Any, T]", over: "Output[Any] | Sequence[Any]", /, *args: Any, name: str | None = None,
        after: Iterable[Step[Any] | str] = (), join: JoinRule = "all", run_when: Condition | None = None,
        skip_when: Condition | None = None, needs: int | None = None, good_until: When | None = None,
        kwargs: Mapping[str, Any] | None = None, **named: Any,
    ) -> "Step[list[T]]":  # fmt: skip
        """One call per item of a list, mostly another step's output: `task(item, *args, **named)`. Its output is the
        list of their results, in order. It fails with any of them, or with fewer than `needs` successes.
        """
        chosen, wrong = _until(task, good_until)
        return self._add(
            Step(
                self._free_name(name, task), chosen, args, _named(named, kwargs, wrong), _listed(after), join, False,
                run_when, skip_when, over=over, needs=needs, wrong=tuple(wrong),
            )
        )  # fmt: skip

    def sub(
        self, workflow: "Workflow", /, *, name: str | None = None, after: Iterable[Step[Any] | str] = (),
        join: JoinRule = "all", allow_failed_deps: bool = False, run_when: Condition | None = None,
        skip_when: Condition | None = None, good_until: When | None = None,
    ) -> Step[Any]:  # fmt: skip
        """Another workflow as one step. Its steps are part of this run, under the names `step/…`; it ends as that
        workflow would, and its output is that workflow's result. `good_until` is for its beginning; `on_error` is the
        outer workflow's."""
        if not isinstance(workflow, Workflow):
            raise ConfigError(
                [f"workflow {self.name!r}: sub: expected a workflow, got {workflow!r}; write app.workflow(…)"]
            )
        return self._add(
            Step(
                self._free_name(name, workflow), None, (), {}, _listed(after), join, allow_failed_deps, run_when,
                skip_when, sub=workflow, good_until=good_until,
            )
        )  # fmt: skip

    def group(self, *calls: Call[Any], after: Iterable[Step[Any] | str] = ()) -> list[Step[Any]]:
        """Calls that wait for nobody of each other: `wf.group(add.job(1, 2), add.job(3, 4))`."""
        if wrong := [call for call in calls if not isinstance(call, Call)]:
            raise ConfigError(
                [
                    f"workflow {self.name!r}: expected calls such as add.job(1, 2), got {each!r}"
                    for each in wrong
                ]
            )
        return [
            self._add(Step(self._free_name(None, call.task), call.task, after=_listed(after), call=call.new))
            for call in calls
        ]

    def chain(self, first: "Call[Any] | Step[Any]", *tasks: "Task[Any, Any, Any]") -> Step[Any]:
        """A call, then tasks that each take the result of the one before: `wf.chain(fetch.job(url), parse, store)`.
        The last step."""
        last = first if isinstance(first, Step) else self.group(first)[0]
        for task in tasks:
            last = self.step(task, last.output)
        return last

    def succeeds_when(self, *cases: Iterable[Step[Any] | str]) -> None:
        """The run succeeds if all steps of one of the cases do, whatever becomes of the others. Without this it fails
        with any step."""
        self._cases = [[each if isinstance(each, str) else each.name for each in case] for case in cases]

    def returns(self, *steps: Step[Any] | str) -> None:
        """Whose results are the run's: of one step, its result; of several, a dict by their names. Without this it is
        the steps that nobody waits for."""
        self._returned = steps

    def validate(self) -> None:
        """Check the whole; one ConfigError with every mistake. `start` does it as well."""
        self.planned()

    def start(self, id: str | None = None, *, connection: Any = None) -> Run[Any]:
        """Store a run; when this returns it is durable. With an `id`, a second start gives the run that is there.

        With `connection=` it lives and dies with the transaction of that connection.
        """
        return self._starter.start_run(self.planned(id), connection)

    async def astart(self, id: str | None = None, *, connection: Any = None) -> Run[Any]:
        """`start`, awaited."""
        return await self._starter.astart_run(self.planned(id), connection)

    def planned(self, key: str | None = None) -> NewRun:
        """The run as it would be stored, or ConfigError."""
        plan = Plan(self._starter.condition_name)
        plan.add(self, "", None, {})
        mistakes = plan.mistakes
        if key is not None and not _is_id(key):
            mistakes.append(f"id: expected a text of up to 200 characters, got {key!r}")
        waits = dict(plan.waits)
        while circle := cycle(waits):
            mistakes.append(f"these steps wait for each other: {' -> '.join(reversed(circle))}")
            waits = {name: parents for name, parents in waits.items() if name not in circle}
        if mistakes:
            raise ConfigError([f"workflow {self.name!r}: {mistake}" for mistake in mistakes])
        policy = Policy(self._cases, None, self.labelled_outputs(""))
        return NewRun(self.name, plan.steps, self._on_error, key, policy)

    @property
    def cases(self) -> list[list[str]] | None:
        return self._cases

    @property
    def outputs(self) -> list[Step[Any] | str] | None:
        """What `returns` has named: steps, and names that are not of any."""
        if self._returned is None:
            return None
        by_name = {step.name: step for step in self.steps}
        return [by_name.get(each, each) if isinstance(each, str) else each for each in self._returned]

    def labelled_outputs(self, prefix: str) -> list[tuple[str, str]]:
        """(label, full name) of the steps whose results are this workflow's."""
        returned = self.outputs
        if returned is not None:
            steps = [step for step in returned if isinstance(step, Step)]
        else:
            by_name = {step.name: step for step in self.steps}
            waited_for = {id(parent) for step in self.steps for parent in _parents(step, by_name)}
            steps = [step for step in self.steps if id(step) not in waited_for]
        return [(step.name, prefix + step.name) for step in steps]

    def _add(self, step: Step[Any]) -> Step[Any]:
        self.steps.append(step)
        self._names.add(step.name)
        return step

    def _free_name(self, name: str | None, of: Any) -> str:
        if name is not None:
            return name
        stem = re.sub(r"[^A-Za-z0-9_.:-]", "_", str(getattr(of, "name", of)).rpartition(".")[2]) or "step"
        while True:
            self._named[stem] += 1
            number = self._named[stem]
            candidate = stem if number == 1 else f"{stem}-{number}"
            if candidate not in self._names:
                return candidate

    def __repr__(self) -> str:
        return f"<Workflow {self.name} with {len(self.steps)} steps>"


def _is_id(key: object) -> bool:
    return isinstance(key, str) and 0 < len(key) <= 200 and key == storable_text(key, None)


def _until(task: Any, good_until: When | None) -> tuple[Any, list[str]]:
    """The task with the time until which it may start, and what is wrong with that."""
    if good_until is None or not isinstance(task, Task):
        return task, []
    try:
        return task.using(good_until=good_until), []
    except ConfigError as refused:
        return task, [mistake.removeprefix(f"task {task.name!r}: ") for mistake in refused.mistakes]


def _named(named: dict[str, Any], kwargs: Any, wrong: list[str]) -> dict[str, Any]:
    """The arguments by name, from both places."""
    if kwargs is not None and not isinstance(kwargs, Mapping):
        wrong.append(f"kwargs: expected a dict of arguments, got {kwargs!r}")
        return named
    return {**named, **(kwargs or {})}


def _listed(after: Any) -> tuple[Any, ...]:
    # What is neither is told with all other mistakes of the workflow.
    return tuple(after) if isinstance(after, Iterable) and not isinstance(after, Step | str) else (after,)


def _parents(
    step: Step[Any], by_name: Mapping[str, Step[Any]], around: Sequence[object] = ()
) -> Iterator[Step[Any] | None]:
    """What a step waits for, with all that is inside of it; None for a name that is not of this workflow."""
    for each in step.after:
        yield by_name.get(each) if isinstance(each, str) else each
    yield from (output.step for output in outputs_in((step.args, step.kwargs, step.over)))
    if step.sub is not None and step.sub not in around:
        for inner in step.sub.steps:
            yield from _parents(inner, {}, (*around, step.sub))
