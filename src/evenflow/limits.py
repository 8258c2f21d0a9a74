"""The limits that a queue or a task declares: rates and breakers, as frozen values that check themselves.

They only say what is wanted. How a rate admits and how a breaker opens is decided in `evenflow.rules`.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Literal, TypeAlias, get_args

from evenflow.checks import is_whole, one_of, short_text, whole
from evenflow.durations import duration_us, parse_rate
from evenflow.error_kinds import ErrorKind, listed_kinds
from evenflow.errors import ConfigError

KeySource: TypeAlias = str | Callable[..., object]
"""How a key is made from a call: an argument's name, a template (`"{tenant}/{region}"`) or a callable."""
OnOpen: TypeAlias = Literal["wait", "fail"]
LONGEST_NAME = 200


@dataclass(frozen=True, slots=True)
class Rate:
    """At most so many starts in any window of the given length, over the whole cluster.

    `key` gives each value of the key a window of its own. `burst` is how many may be claimed at once (default: the
    whole count); smaller values spread the claims, `burst=1` spaces them evenly, and bodies start right after them.

    >>> Rate("60/minute", key="tenant", burst=10).window_us
    60000000
    """

    limit: str
    key: KeySource | None = None
    burst: int | None = None
    count: int = field(init=False, repr=False)
    window_us: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        try:
            count, window_us = parse_rate(self.limit)
        except ValueError as wrong:
            raise ConfigError(f"Rate: {wrong}") from None
        if count > window_us:
            # Stored times cannot tell such starts apart, so no promise could be kept.
            raise ConfigError(f"Rate: expected at most one start per microsecond, got {self.limit!r}")
        if self.burst is not None and not (is_whole(self.burst) and 1 <= self.burst <= count):
            raise ConfigError(
                f"Rate({self.limit!r}): expected a burst from 1 to {count}, got {self.burst!r}; "
                "more at once than the limit would break the limit"
            )
        _check_key("Rate", self.key)
        object.__setattr__(self, "count", count)
        object.__setattr__(self, "window_us", window_us)

    @property
    def at_once(self) -> int:
        """How many may start at one instant: the burst, or the whole count."""
        return self.count if self.burst is None else self.burst


@dataclass(frozen=True, slots=True)
class Breaker:
    """After so many failures in a row nothing starts for a cooldown; then one probe decides.

    A `name` lets several tasks or queues share one breaker; without it each has its own. `probe_lease_s`
    bounds how long a probe that shows no life keeps the next one waiting (default: the cooldown). `on` names the
    only errors that count (default: all that a body ends with), `ignore` those that never do, and wins; both take
    exception classes and codes. While it is open jobs wait, or end as failed (`on_open="fail"`), and use no attempt.

    >>> Breaker(failure_threshold=3, cooldown_s=30, ignore=ValueError).cooldown_us
    30000000
    """

    failure_threshold: int = 5
    cooldown_s: float | timedelta = 60
    name: str | None = None
    probe_lease_s: float | timedelta | None = None
    on: ErrorKind | Iterable[ErrorKind] = ()
    ignore: ErrorKind | Iterable[ErrorKind] = ()
    on_open: OnOpen = "wait"
    cooldown_us: int = field(init=False, repr=False)
    probe_lease_us: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = whole("Breaker: failure_threshold", self.failure_threshold, 1)
        mistakes += [] if self.name is None else short_text("Breaker: name", self.name, LONGEST_NAME)
        cooldown_us = _span_us("cooldown_s", self.cooldown_s, mistakes)
        lease_us = cooldown_us
        if self.probe_lease_s is not None:
            lease_us = _span_us("probe_lease_s", self.probe_lease_s, mistakes)
        mistakes += one_of("Breaker: on_open", self.on_open, get_args(OnOpen))
        on = listed_kinds("Breaker", "on", self.on, mistakes)
        ignore = listed_kinds("Breaker", "ignore", self.ignore, mistakes)
        if mistakes:
            raise ConfigError(mistakes)
        object.__setattr__(self, "on", on)
        object.__setattr__(self, "ignore", ignore)
        object.__setattr__(self, "cooldown_us", cooldown_us)
        object.__setattr__(self, "probe_lease_us", lease_us)


@dataclass(frozen=True, slots=True)
class Concurrency:
    """At most `to` jobs at once per key, over the whole cluster; those beyond wait, in the order of priority and turn.

    `to` is a number, a table from key to number (`"*"` for the rest), or a callable on the arguments. `scope` lets
    several tasks share their keys (default: the task's own name). `duration` bounds how long a job that does not start
    may keep its place; a running job keeps it for as long as it lives, and loses it when its worker is gone.
    `on_conflict="discard"` ends jobs that find their key full, instead of letting them wait.

    >>> Concurrency(to=2, key="tenant").duration_us
    180000000
    """

    to: int | Mapping[str, int] | Callable[..., int] = 1
    key: KeySource | None = None
    duration: float | timedelta | str = 180
    scope: str | None = None
    on_conflict: Literal["block", "discard"] = "block"
    duration_us: int = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = one_of("Concurrency: on_conflict", self.on_conflict, ("block", "discard"))
        numbers = (
            self.to.values() if isinstance(self.to, Mapping) else () if callable(self.to) else (self.to,)
        )
        for number in numbers:
            mistakes += whole("Concurrency: to", number, 1)
        if isinstance(self.to, Mapping):
            mistakes += _table_mistakes(self.to, self.key)
        mistakes += [] if self.scope is None else short_text("Concurrency: scope", self.scope, LONGEST_NAME)
        length_us = 0
        try:
            length_us = duration_us(self.duration)
        except ValueError as wrong:
            mistakes.append(f"Concurrency: duration: {wrong}")
        if not mistakes and length_us == 0:
            mistakes.append(f"Concurrency: expected a duration above 0, got {self.duration!r}")
        if mistakes:
            raise ConfigError(mistakes)
        _check_key("Concurrency", self.key)
        object.__setattr__(self, "duration_us", length_us)


def _table_mistakes(table: Mapping[str, int], key: KeySource | None) -> list[str]:
    found = []
    if key is None:
        found.append("Concurrency: a table of limits needs a key to look up; write key='tenant'")
    if not table:
        found.append("Concurrency: to: expected a table with a limit or more, got none; write {'*': 1}")
    found += [
        f"Concurrency: to: expected keys that are texts, got {each!r}; write {str(each)!r}"
        for each in table
        if not isinstance(each, str)
    ]
    return found


def _span_us(option: str, value: float | timedelta, mistakes: list[str]) -> int:
    try:
        length_us = duration_us(value)
    except ValueError as wrong:
        mistakes.append(f"Breaker: {option}: {wrong}")
        return 0
    if length_us == 0:
        mistakes.append(f"Breaker: expected {option} above 0, got {value!r}")
    return length_us


def _check_key(owner: str, key: object) -> None:
    if key is not None and not callable(key) and not (isinstance(key, str) and key):
        raise ConfigError(
            f"{owner}: expected a key that is an argument's name, a template such as '{{tenant}}/{{region}}' "
            f"or a callable, got {key!r}"
        )
