"""When a failed attempt is tried again, and how long that takes. Chance is an argument, never drawn here.

A task without `retry=` has one attempt: running work twice must be asked for. `Retry()` gives five.
"""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from evenflow.checks import true_or_false, whole
from evenflow.durations import Duration, duration_seconds
from evenflow.error_kinds import ErrorKind, listed_kinds, matches
from evenflow.errors import Code, ConfigError
from evenflow.signals import Fail, RetryLater

Shape: TypeAlias = Literal["exponential", "linear", "fixed"]
# Trying again cannot mend these, or would run work whose result was already lost once.
FINAL_CODES = frozenset(
    {
        Code.WORKER_SERIALIZATION_ERROR,
        Code.SIGNATURE_INVALID,
        Code.TASK_EXPIRED,
        Code.TASK_CANCELLED,
        Code.WORKFLOW_CONDITION_EVALUATION_ERROR,
        Code.WORKFLOW_CONDITION_SKIPPED,
        Code.WORKFLOW_DEPENDENCY_FAILED,
    }
)

_LONGEST_SHAPE_S = 3_600.0
_MOST_ATTEMPTS = 10_000
# 2 to this power exceeds every allowed delay, so a larger exponent changes nothing and could only overflow.
_LARGEST_EXPONENT = 64


@dataclass(frozen=True, slots=True)
class Retry:
    """How often and how patiently a task is tried again.

    `backoff` is a shape over `base` seconds, or a list of delays whose last entry repeats. `max` bounds
    every delay, jitter included; without it that is an hour for a shape, and room for the jitter of a
    list. `jitter` draws from half to one and a half of the delay, so that jobs that failed together do
    not return together. `on` names the only errors worth a retry (default: all), `give_up_on` those that
    never are, and wins; both take exception classes and codes.

    >>> Retry(max_attempts=3, base=2, jitter=False).delay(attempt=2, random=0.0)
    4.0
    """

    max_attempts: int = 5
    backoff: Shape | Sequence[Duration] = "exponential"
    base: Duration = 1.0
    max: Duration | None = None
    jitter: bool = True
    on: ErrorKind | Iterable[ErrorKind] = ()
    give_up_on: ErrorKind | Iterable[ErrorKind] = ()
    _base_s: float = field(init=False, repr=False, compare=False)
    _max_s: float = field(init=False, repr=False, compare=False)
    _delays_s: tuple[float, ...] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        mistakes: list[str] = []
        mistakes += whole("Retry: max_attempts", self.max_attempts, 1, _MOST_ATTEMPTS)
        mistakes += true_or_false("Retry: jitter", self.jitter)
        base_s = _seconds("base", self.base, mistakes)
        delays_s = _listed_delays(self.backoff, mistakes)
        default_s = 1.5 * max(delays_s) if delays_s else _LONGEST_SHAPE_S
        max_s = default_s if self.max is None else _seconds("max", self.max, mistakes)
        if not mistakes:
            _check_maximum(base_s, max_s, delays_s, mistakes)
        on, give_up_on = (
            listed_kinds("Retry", "on", self.on, mistakes),
            listed_kinds("Retry", "give_up_on", self.give_up_on, mistakes),
        )
        mistakes += [
            f"Retry: on: {kind} is final and never retried; leave it out"
            for kind in on
            if kind in FINAL_CODES
        ]
        if mistakes:
            raise ConfigError(mistakes)
        normal = {
            "on": on,
            "give_up_on": give_up_on,
            "_base_s": base_s,
            "_max_s": max_s,
            "_delays_s": delays_s,
        }
        if delays_s:
            normal["backoff"] = tuple(self.backoff)
        for name, value in normal.items():
            object.__setattr__(self, name, value)

    def delay(self, attempt: int, random: float) -> float:
        """Seconds from the end of `attempt` (1 is the first) to the next one; `random` is in [0, 1).

        >>> Retry(backoff=[1, 10, 60], jitter=False).delay(attempt=9, random=0.5)
        60.0
        """
        return _capped(self._plain_delay(attempt), self._max_s, random if self.jitter else None)

    def allows(self, error: BaseException | None = None, code: str | None = None) -> bool:
        """Whether an error of this kind is worth another attempt at all.

        >>> Retry(on=(OSError,)).allows(ValueError("no")), Retry(on=(OSError,)).allows(ConnectionError())
        (False, True)
        """
        if code is None:
            code = error.code if isinstance(error, Fail) else Code.UNHANDLED_ERROR
        if code in FINAL_CODES or matches(self.give_up_on, error, code):
            return False
        return not self.on or matches(self.on, error, code)

    def decide(
        self, attempt: int, random: float, error: BaseException | None = None, code: str | None = None
    ) -> float | None:
        """Seconds until the next attempt after `attempt` failed, or None: the job has failed for good.

        `Retry.later` overrides both the kind and the delay, but not the number of attempts.

        >>> Retry(max_attempts=2).decide(attempt=2, random=0.5, error=OSError()) is None
        True
        """
        if attempt >= self.max_attempts:
            return None
        if isinstance(error, RetryLater):
            return error.delay_us / 1_000_000
        return self.delay(attempt, random) if self.allows(error, code) else None

    @staticmethod
    def later(seconds: Duration) -> RetryLater:
        """For bodies, returned or raised: this attempt failed, try again in so many seconds.

        >>> Retry.later(30).delay_us
        30000000
        """
        return RetryLater(seconds)

    def _plain_delay(self, attempt: int) -> float:
        if self._delays_s:
            return self._delays_s[min(attempt, len(self._delays_s)) - 1]
        if self.backoff == "exponential":
            return math.ldexp(self._base_s, min(attempt - 1, _LARGEST_EXPONENT))
        return self._base_s * attempt if self.backoff == "linear" else self._base_s


def database_delay(initial_ms: int, max_ms: int, failures: int, random: float) -> float:
    """Seconds to wait before the database is tried again, after `failures` (from 0) earlier waits in a row.

    >>> database_delay(initial_ms=500, max_ms=30_000, failures=1, random=0.5)
    1.0
    """
    return _capped(math.ldexp(initial_ms, min(failures, _LARGEST_EXPONENT)), max_ms, random) / 1_000


def _capped(delay: float, longest: float, random: float | None) -> float:
    if random is None:
        return min(longest, delay)
    # Half to one and a half of the delay, cut to the cap *after* jitter: nothing exceeds what the user wrote
    # down, and delays that have reached the cap still spread below it instead of falling on one instant.
    low, high = 0.5 * min(longest, delay), min(longest, 1.5 * delay)
    return min(high, low + (high - low) * random)


def _seconds(option: str, value: Duration, mistakes: list[str]) -> float:
    try:
        return duration_seconds(value)
    except ValueError as wrong:
        mistakes.append(f"Retry: {option}: {wrong}")
        return 0.0


def _listed_delays(backoff: object, mistakes: list[str]) -> tuple[float, ...]:
    if isinstance(backoff, str) and backoff in get_args(Shape):
        return ()
    if isinstance(backoff, str) or not isinstance(backoff, Sequence) or not backoff:
        expected = ", ".join(map(repr, get_args(Shape)))
        mistakes.append(f"Retry: backoff: expected {expected} or a list of seconds, got {backoff!r}")
        return ()
    return tuple(_seconds(f"backoff[{index}]", value, mistakes) for index, value in enumerate(backoff))


def _check_maximum(base_s: float, max_s: float, delays_s: tuple[float, ...], mistakes: list[str]) -> None:
    name, longest = ("the longest entry of backoff", max(delays_s)) if delays_s else ("base", base_s)
    if longest > max_s:
        mistakes.append(
            f"Retry: max: expected at least {name}, {longest:g} s, got {max_s:g} s; raise max or lower it"
        )


NO_RETRY = Retry(max_attempts=1)
"""The policy of a task that declares none."""
