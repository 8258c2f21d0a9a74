"""The options of a task and of one call: frozen values, checked where they are written."""

from collections.abc import Sequence
from dataclasses import dataclass, fields, replace
from datetime import datetime, timedelta
from typing import Any, Literal, TypeAlias, TypedDict, get_args

from evenflow.checks import instance, one_of, short_text, whole
from evenflow.durations import Duration, duration_us
from evenflow.errors import ConfigError
from evenflow.limits import Breaker, Concurrency, KeySource, Rate
from evenflow.queues import name_mistakes
from evenflow.rules.retry import NO_RETRY, Retry
from evenflow.unique import Unique

OnCrash: TypeAlias = Literal["retry", "fail"]
OnContention: TypeAlias = Literal["snooze", "skip", "fail"]
RunIn: TypeAlias = Literal["auto", "thread", "async", "process"]
When: TypeAlias = datetime | timedelta | float | str

PRIORITIES = (-100, 100)
LONGEST_LOCK = 200


class PolicyOptions(TypedDict, total=False):
    """How the jobs of a task are run, whoever declares it."""

    retry: Retry
    timeout: Duration | None
    good_until: Duration | None
    group: KeySource | None
    unique: Unique | bool | None
    concurrency: Concurrency | Sequence[Concurrency]
    rate: Rate | Sequence[Rate]
    single_instance: bool | str
    on_conflict: OnContention
    breaker: Breaker | None
    on_crash: OnCrash
    run_in: RunIn
    keep_result: Duration | None


class TaskOptions(PolicyOptions, total=False):
    """What `@app.task(...)` takes."""

    name: str | None
    queue: str
    priority: int


class CallOptions(TypedDict, total=False):
    """What `task.using(...)` takes for the calls that follow."""

    queue: str
    priority: int
    retry: Retry
    timeout: Duration | None
    run_after: When | None
    good_until: When | None
    group: str | None
    unique: Unique | str | bool | None
    single_instance: bool | str
    on_conflict: OnContention
    on_crash: OnCrash
    keep_result: Duration | None
    connection: Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """How a task's jobs are enqueued and run. `group` is a key over the arguments; `group_value` a group given as such."""

    queue: str = "default"
    priority: int = 0
    retry: Retry = NO_RETRY
    timeout: Duration | None = None
    run_after: When | None = None
    good_until: When | None = None
    group: KeySource | None = None
    group_value: str | None = None
    unique: Unique | None = None
    unique_value: str | None = None
    concurrency: tuple[Concurrency, ...] = ()
    rate: tuple[Rate, ...] = ()
    single_instance: bool | str = False
    on_conflict: OnContention = "snooze"
    breaker: Breaker | None = None
    on_crash: OnCrash = "retry"
    run_in: RunIn = "auto"
    keep_result: Duration | None = None

    @property
    def timeout_us(self) -> int | None:
        return None if self.timeout is None else duration_us(self.timeout)

    @property
    def keep_us(self) -> int | None:
        return None if self.keep_result is None else duration_us(self.keep_result)


def declared_policy(options: TaskOptions) -> tuple[Policy, list[str]]:
    """The policy of a task, and every mistake of its declaration."""
    known = {field.name for field in fields(Policy)} - {"run_after", "group_value", "unique_value"}
    given: dict[str, Any] = {name: value for name, value in options.items() if name != "name"}
    mistakes = [
        f"unknown option {name!r}; a task takes name, {', '.join(sorted(known))}"
        for name in sorted(given.keys() - known)
    ]
    given["unique"] = _unique(given.get("unique"))
    given["concurrency"] = _listed("concurrency", given.get("concurrency", ()), Concurrency, mistakes)
    given["rate"] = _listed("rate", given.get("rate", ()), Rate, mistakes)
    policy = Policy(**{name: value for name, value in given.items() if name in known})
    return policy, [*mistakes, *_mistakes(policy)]


def changed_policy(task: str, policy: Policy, options: CallOptions) -> Policy:
    """The policy with what one call says differently, or ConfigError with every mistake."""
    changes: dict[str, Any] = {name: value for name, value in options.items() if name != "connection"}
    known = CallOptions.__annotations__.keys() - {"connection"}
    mistakes = [
        f"unknown option {name!r}; using() takes connection, {', '.join(sorted(known))}"
        for name in sorted(changes.keys() - known)
    ]
    changes = {name: value for name, value in changes.items() if name in known}
    if "group" in changes:
        changes["group_value"] = changes.pop("group")
    if isinstance(unique := changes.get("unique"), str):
        changes["unique_value"] = unique
        changes["unique"] = policy.unique or Unique()
    elif "unique" in changes:
        changes |= {"unique": _unique(unique), "unique_value": None}
    changed = replace(policy, **changes)
    mistakes += _mistakes(changed)
    if mistakes:
        raise ConfigError([f"task {task!r}: {mistake}" for mistake in mistakes])
    return changed


def _listed(option: str, given: Any, kind: type, mistakes: list[str]) -> tuple[Any, ...]:
    """One rule or several, as a tuple."""
    rules = (given,) if isinstance(given, kind) or not isinstance(given, list | tuple) else tuple(given)
    mistakes += [
        f"{option}: expected {kind.__name__}, got {rule!r}; write {option}={kind.__name__}(…)"
        for rule in rules
        if not isinstance(rule, kind)
    ]
    return rules


def _unique(value: Any) -> Any:
    return Unique() if value is True else None if value is False else value


def _mistakes(policy: Policy) -> list[str]:
    retry: object = policy.retry
    unique: object = policy.unique
    group: object = policy.group_value
    found = [
        *name_mistakes(policy.queue),
        *whole("priority", policy.priority, *PRIORITIES),
        *_single_instance_mistakes(policy),
        *one_of("on_crash", policy.on_crash, get_args(OnCrash)),
        *one_of("run_in", policy.run_in, get_args(RunIn)),
        *instance("breaker", policy.breaker, Breaker, "breaker=Breaker()"),
        *_moment_mistakes("run_after", policy.run_after),
        *_moment_mistakes("good_until", policy.good_until),
        *_duration_mistakes("timeout", policy.timeout, least_us=1),
        *_duration_mistakes("keep_result", policy.keep_result, least_us=0),
    ]
    if not isinstance(retry, Retry):
        found.append(f"retry: expected a Retry, got {retry!r}; write retry=Retry(max_attempts=5)")
    if unique is not None and not isinstance(unique, Unique):
        found.append(
            f"unique: expected a Unique, True or False, got {unique!r}; write unique=Unique('tenant')"
        )
    if group is not None and not isinstance(group, str):
        found.append(f"group: expected a text, got {group!r}; write group=str(...)")
    return found


def _single_instance_mistakes(policy: Policy) -> list[str]:
    found = one_of("on_conflict", policy.on_conflict, get_args(OnContention))
    lock: object = policy.single_instance
    if not isinstance(lock, bool | str):
        found.append(
            f"single_instance: expected True, False or a name of 1 to {LONGEST_LOCK} characters, got {lock!r}"
        )
    elif isinstance(lock, str):
        found += short_text("single_instance", lock, LONGEST_LOCK)
    if not found and policy.on_conflict != "snooze" and lock is False:
        found.append(
            f"on_conflict={policy.on_conflict!r} has no effect without single_instance; write single_instance=True"
        )
    return found


def _duration_mistakes(option: str, value: Duration | None, least_us: int) -> list[str]:
    if value is None:
        return []
    try:
        length_us = duration_us(value)
    except ValueError as wrong:
        return [f"{option}: {wrong}"]
    return [] if length_us >= least_us else [f"{option}: expected more than 0 seconds, got {value!r}"]


def _moment_mistakes(option: str, value: When | None) -> list[str]:
    if not isinstance(value, datetime):
        return _duration_mistakes(option, value, least_us=0)
    if value.tzinfo is None or value.utcoffset() is None:
        return [
            f"{option}: expected a datetime with a time zone, got the naive {value!r}; write datetime.now(UTC) + …"
        ]
    return []
