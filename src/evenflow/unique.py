"""Uniqueness of jobs, as a task declares it. How it is kept is the store's: one unique index over all live rows."""

from dataclasses import dataclass, field
from typing import Literal, TypeAlias, get_args

from evenflow.checks import one_of
from evenflow.durations import Duration, duration_us
from evenflow.errors import ConfigError
from evenflow.limits import KeySource

OnDuplicate: TypeAlias = Literal["existing", "error", "replace"]
MAX_WAITS = 10


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one open job per key. Without a key, all arguments together are the key.

    `on_conflict="existing"` gives the caller the job that is there, `"error"` raises `DuplicateJob`, `"replace"` makes
    the job that is there, if it has not started, what the new call says.

    `ttl` keeps the key taken for that long after the enqueue, even where the job ends before: at most one job per `ttl`
    (throttle). `debounce` delays the job by that long, and each new call within it replaces the job and starts the delay
    anew, until the job has waited for `max_wait` (default: ten times the delay).

    >>> Unique("tenant").on_conflict
    'existing'
    >>> Unique("tenant", debounce=5).max_wait_us
    50000000
    """

    key: KeySource | None = None
    ttl: Duration | None = None
    on_conflict: OnDuplicate = "existing"
    debounce: Duration | None = None
    max_wait: Duration | None = None
    ttl_us: int | None = field(init=False, repr=False)
    debounce_us: int | None = field(init=False, repr=False)
    max_wait_us: int | None = field(init=False, repr=False)

    def __post_init__(self) -> None:
        mistakes = one_of("Unique: on_conflict", self.on_conflict, get_args(OnDuplicate))
        ttl_us = _span_us("ttl", self.ttl, mistakes)
        debounce_us = _span_us("debounce", self.debounce, mistakes)
        max_wait_us = _span_us("max_wait", self.max_wait, mistakes)
        if debounce_us is None and self.max_wait is not None:
            mistakes.append("Unique: max_wait bounds a debounce; give debounce= too, or leave it out")
        elif debounce_us is not None:
            max_wait_us = MAX_WAITS * debounce_us if max_wait_us is None else max_wait_us
            mistakes += self._debounce_mistakes(debounce_us, max_wait_us)
        if mistakes:
            raise ConfigError(mistakes)
        object.__setattr__(self, "ttl_us", ttl_us)
        object.__setattr__(self, "debounce_us", debounce_us)
        object.__setattr__(self, "max_wait_us", max_wait_us)

    @property
    def replaces(self) -> bool:
        """Whether a new call changes the job that is there."""
        return self.on_conflict == "replace" or self.debounce_us is not None

    def _debounce_mistakes(self, debounce_us: int, max_wait_us: int) -> list[str]:
        found = []
        if self.on_conflict == "error":
            found.append("Unique: debounce replaces the job that is there; leave on_conflict='error' out")
        if self.ttl is not None:
            found.append("Unique: expected debounce or ttl, got both; give the task one of them")
        if max_wait_us < debounce_us:
            found.append(
                f"Unique: expected a max_wait of at least debounce={self.debounce!r}, got {self.max_wait!r}"
            )
        return found


def _span_us(option: str, value: Duration | None, mistakes: list[str]) -> int | None:
    if value is None:
        return None
    try:
        length_us = duration_us(value)
    except ValueError as wrong:
        mistakes.append(f"Unique: {option}: {wrong}")
        return None
    if length_us == 0:
        mistakes.append(f"Unique: expected {option} above 0, got {value!r}")
    return length_us
