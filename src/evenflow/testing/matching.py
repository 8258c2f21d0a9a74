"""Which of the enqueued jobs a test speaks of: by task, arguments and options. And how that is told when it fails."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any, Protocol

from evenflow import Evenflow, Job, State, Task
from evenflow.clock import from_us, to_us
from evenflow.durations import Duration, duration_us

Arguments = Mapping[str, Any] | Sequence[Any]
Moment = datetime | Duration


class DjangoTask(Protocol):
    """A task of Django's tasks framework, as far as it has to be known here."""

    @property
    def module_path(self) -> str: ...


Named = Task[Any, Any, Any] | DjangoTask | str
SHOWN = 20
OPEN = frozenset(state for state in State if not state.is_end)


@dataclass(frozen=True, slots=True)
class Wanted:
    """What a job has to be like. What is None is not looked at."""

    task: str | None = None
    args: Arguments | None = None
    queue: str | None = None
    group: str | None = None
    priority: int | None = None
    states: frozenset[State] | None = None
    window: tuple[int, int] | None = None

    def matches(self, app: Evenflow, job: Job[Any]) -> bool:
        plain = (
            (self.task, job.task),
            (self.queue, job.queue),
            (self.group, job.group),
            (self.priority, job.priority),
        )
        if any(wanted is not None and wanted != found for wanted, found in plain):
            return False
        if self.states is not None and job.state not in self.states:
            return False
        if self.window is not None and not self.window[0] <= to_us(job.run_at) <= self.window[1]:
            return False
        return self.args is None or _has_arguments(app, job, self.args)

    def __str__(self) -> str:
        said = [
            None if self.task is None else f"task {self.task}",
            None if self.args is None else f"arguments {self.args!r}",
            *(
                None if value is None else f"{name} {value!r}"
                for name, value in (("queue", self.queue), ("group", self.group), ("priority", self.priority))
            ),
            None if self.window is None else "run_at {} to {}".format(*map(_shown_time, self.window)),
            None if self.states is None else f"state {_shown_states(self.states)}",
        ]
        return ", ".join(each for each in said if each is not None) or "any task"


def window_of(run_at: Moment | tuple[Moment, Moment] | None, now: int) -> tuple[int, int] | None:
    """A moment, a delay from now, or a pair of them, as the first and last time that fit. A single one may be off by a
    second, since a body or a request takes its time."""
    if run_at is None:
        return None
    if isinstance(run_at, tuple):
        first, last = (_moment_us(each, now) for each in run_at)
        return first, last
    at = _moment_us(run_at, now)
    return at - 1_000_000, at + 1_000_000


def task_name(task: Named | None) -> str | None:
    """The name of a task of ours or of Django's; a name is its own."""
    if task is None or isinstance(task, str):
        return task
    found = task.name if isinstance(task, Task) else getattr(task, "module_path", None)
    if not isinstance(found, str):
        raise TypeError(f"task: expected a task or its name, got {task!r}")
    return found


def refuse_unknown_names(app: Evenflow, task: str | None, args: Arguments | None) -> None:
    """TypeError for arguments that the task does not have: to refute a misspelt one would never fail."""
    declared = None if task is None else app.tasks.get(task)
    if declared is None or not isinstance(args, Mapping):
        return
    names = declared.signature.names
    if unknown := [name for name in args if name not in names]:
        raise TypeError(
            f"args: task {task!r} has no argument {unknown[0]!r}; it has {', '.join(names) or 'none'}"
        )


def listing(app: Evenflow, jobs: Sequence[Job[Any]]) -> str:
    """The jobs that there are, one per line."""
    if not jobs:
        return "nothing was enqueued"
    lines = [f"  {_described(app, job)}" for job in jobs[:SHOWN]]
    if len(jobs) > SHOWN:
        lines.append(f"  … and {len(jobs) - SHOWN} more")
    return "enqueued were:\n" + "\n".join(lines)


def fits(pattern: Any, value: Any) -> bool:
    """Whether a value is as the pattern says: a mapping names what has to be in it, a function decides, all else is equal.

    >>> fits({"id": 1}, {"id": 1, "name": "bob"}), fits(lambda age: age > 17, 18), fits([1], [1, 2])
    (True, True, False)
    """
    if isinstance(pattern, Mapping):
        found: Mapping[str, Any] = value if isinstance(value, Mapping) else _fields(value)
        return all(key in found and fits(wanted, found[key]) for key, wanted in pattern.items())
    if callable(pattern) and not isinstance(pattern, type):
        return bool(pattern(value))
    if isinstance(pattern, list | tuple) and isinstance(value, list | tuple):
        return len(pattern) == len(value) and all(map(fits, pattern, value))
    return bool(pattern == value)


def _fields(value: Any) -> dict[str, Any]:
    names: Iterable[str] = getattr(value, "__struct_fields__", ()) or getattr(value, "__dict__", {})
    return {name: getattr(value, name) for name in names if hasattr(value, name)}


def _has_arguments(app: Evenflow, job: Job[Any], wanted: Arguments) -> bool:
    args, kwargs = job.args, job.kwargs
    if not isinstance(wanted, Mapping):
        # They are stored in order however they were sent.
        return len(args) >= len(wanted) and all(map(fits, wanted, args))
    task = app.tasks.get(job.task)
    named = kwargs if task is None else task.signature.arguments(args, kwargs)
    return fits(wanted, named)


def _described(app: Evenflow, job: Job[Any]) -> str:
    said = [*(repr(each) for each in job.args), *(f"{name}={each!r}" for name, each in job.kwargs.items())]
    text = ", ".join(said)
    text = text if len(text) <= 200 else f"{text[:200]}…"
    group = "" if job.group is None else f", group {job.group!r}"
    return (
        f"{job.task}({text}): {job.state}, queue {job.queue!r}, priority {job.priority}{group}, "
        f"run_at {job.run_at:%Y-%m-%d %H:%M:%S}"
    )


def _moment_us(when: Moment, now: int) -> int:
    return to_us(when) if isinstance(when, datetime) else now + duration_us(when)


def _shown_time(us: int) -> str:
    return f"{from_us(us):%Y-%m-%d %H:%M:%S}"


def _shown_states(states: frozenset[State]) -> str:
    return "open" if states == OPEN else " or ".join(sorted(states))
