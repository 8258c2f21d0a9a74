"""Limits and schedules on top of Django's `@task`: decorators that note on the function what Evenflow is to know of it.

They change nothing for other backends, so a project may run its tests with another one. Each may stand above `@task`, where
it gets a task, or below it, where it gets the function. A mistake is refused where it is written.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import timedelta
from typing import Any, TypeVar, Unpack

from evenflow import Concurrency, ConfigError, Rate
from evenflow.client.options import PolicyOptions, TaskOptions, declared_policy
from evenflow.client.schedule_options import ScheduleOptions, key_mistakes, option_mistakes, pattern_mistakes
from evenflow.client.task import Task as EvenflowTask
from evenflow.contrib.django import compat
from evenflow.contrib.django.registry import path_of
from evenflow.durations import Duration
from evenflow.limits import KeySource
from evenflow.schedule import CatchUp, Overlap

T = TypeVar("T")
_NOTE = "__evenflow__"
# Said by Django's own decorator.
_DJANGO_OPTIONS = {
    "name": "the function's own path",
    "queue": "@task(queue_name=…)",
    "priority": "@task(priority=…)",
}


@dataclass(frozen=True, slots=True)
class Recurrence:
    """One schedule of a task, as `recurring` was told it."""

    cron: str | None
    every: Duration | None
    key: str | None
    options: ScheduleOptions


@dataclass(frozen=True, slots=True)
class Declared:
    """Everything that the decorators have noted on one function."""

    options: TaskOptions = field(default_factory=TaskOptions)
    schedules: tuple[Recurrence, ...] = ()


NOTHING = Declared()


def declared(function: Callable[..., Any]) -> Declared:
    """What the decorators have noted on this function."""
    found: Declared = getattr(function, _NOTE, NOTHING)
    return found


def policy(**options: Unpack[PolicyOptions]) -> Callable[[T], T]:
    """Say how a Django task's jobs are run: `@policy(retry=Retry(max_attempts=5), timeout=30, group="tenant")`.

    Takes every option of `@app.task`, but for the queue and the priority, which Django's `@task` says.
    """
    return lambda target: _noted(target, dict(options))


def limits_concurrency(
    *, to: int | Mapping[str, int] | Callable[..., int] = 1, key: KeySource | None = None,
    duration: float | timedelta | str = 180, group: str | None = None, on_conflict: Any = "block",
) -> Callable[[T], T]:  # fmt: skip
    """At most `to` jobs of this task at once per key, over the whole cluster: `@limits_concurrency(to=2, key="tenant")`.

    `key` is an argument's name, a template or a callable on the arguments. Tasks that name the same `group` share their keys.
    Several may stand above each other, and all hold.
    """
    limit = Concurrency(to, key, duration, group, on_conflict)
    return lambda target: _noted(target, {}, concurrency=(limit,))


def limits_rate(limit: str, *, key: KeySource | None = None, burst: int | None = None) -> Callable[[T], T]:
    """At most so many starts in any window: `@limits_rate("60/minute", key="tenant")`. Several may stand above each other."""
    rate = Rate(limit, key, burst)
    return lambda target: _noted(target, {}, rate=(rate,))


def recurring(
    schedule: str | None = None, *, every: Duration | None = None, key: str | None = None, timezone: str | None = None,
    args: Sequence[Any] = (), kwargs: Mapping[str, Any] | None = None, queue_name: str | None = None,
    priority: int | None = None, catch_up: CatchUp = "skip", overlap: Overlap = "allow", jitter: Duration = 0,
    description: str | None = None,
) -> Callable[[T], T]:  # fmt: skip
    """Let a Django task recur: `@recurring("30 2 * * *")`, or `@recurring(every=timedelta(minutes=5))`.

    The cron expression is read in `timezone`, by default in `settings.TIME_ZONE`. `priority` is Django's: the larger
    number comes first.
    """
    options: ScheduleOptions = {
        "args": args, "kwargs": kwargs, "queue": queue_name, "priority": None if priority is None else -priority,
        "catch_up": catch_up, "overlap": overlap, "jitter": jitter, "description": description,
    }  # fmt: skip
    if timezone is not None:
        options["timezone"] = timezone
    found = Recurrence(schedule, every, key, options)
    mistakes = [*pattern_mistakes(schedule, every, options), *option_mistakes(options)]
    mistakes += [] if key is None else key_mistakes(key)
    return lambda target: _scheduled(target, found, mistakes)


def function_of(target: Any) -> Callable[..., Any]:
    """The function behind a Django task, or the function itself."""
    function: Callable[..., Any] = target.func if isinstance(target, compat.Task) else target
    if not callable(function):
        raise ConfigError(f"expected a function or a task of Django, got {target!r}; write it above @task")
    return function


def _noted(target: T, options: dict[str, Any], **added: tuple[Any, ...]) -> T:
    function = function_of(target)
    path, before = path_of(function), declared(function)
    wrong = [
        f"task {path!r}: {name}: not an option here; Django says it: {said}"
        for name, said in _DJANGO_OPTIONS.items()
        if name in options
    ]
    if wrong:
        raise ConfigError(wrong)
    merged: Any = {**before.options, **options}
    for name, limits in added.items():
        merged[name] = (*limits, *_listed(merged.get(name, ())))
    _check(path, function, merged)
    setattr(function, _NOTE, replace(before, options=merged))
    return target


def _listed(given: Any) -> tuple[Any, ...]:
    return tuple(given) if isinstance(given, list | tuple) else (given,)


def _check(path: str, function: Callable[..., Any], options: Any) -> None:
    """Every mistake of what has been declared so far; keys that name no parameter are among them."""
    made, found = declared_policy(options)
    mistakes = [f"task {path!r}: {mistake}" for mistake in found]
    if not mistakes:
        nobody: Any = None  # nothing is sent
        EvenflowTask(function, path, made, nobody)
    if mistakes:
        raise ConfigError(mistakes)


def _scheduled(target: T, schedule: Recurrence, mistakes: list[str]) -> T:
    function = function_of(target)
    path, before = path_of(function), declared(function)
    key = schedule.key or path
    if mistakes:
        raise ConfigError([f"schedule {key!r}: {mistake}" for mistake in mistakes])
    if any((each.key or path) == key for each in before.schedules):
        raise ConfigError(f"schedule {key!r} is declared twice; give one of them another key=")
    setattr(function, _NOTE, replace(before, schedules=(*before.schedules, schedule)))
    return target
