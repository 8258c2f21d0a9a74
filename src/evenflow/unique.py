"""Uniqueness of open jobs, as a task declares it. How it is kept is the store's: one unique index over all live rows."""

from dataclasses import dataclass
from typing import Literal, TypeAlias, get_args

from evenflow.checks import one_of
from evenflow.errors import ConfigError
from evenflow.limits import KeySource

OnDuplicate: TypeAlias = Literal["existing", "error"]


@dataclass(frozen=True, slots=True)
class Unique:
    """At most one open job per key. Without a key, all arguments together are the key.

    `on_conflict="existing"` gives the caller the job that is there, `"error"` raises `DuplicateJob`.

    >>> Unique("tenant").on_conflict
    'existing'
    """

    key: KeySource | None = None
    on_conflict: OnDuplicate = "existing"

    def __post_init__(self) -> None:
        mistakes = one_of("Unique: on_conflict", self.on_conflict, get_args(OnDuplicate))
        if mistakes:
            raise ConfigError(mistakes)
