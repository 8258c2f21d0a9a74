"""Checks of single values, in one voice: what was expected, what came, what to do.

Each returns a list with one mistake or none, so that callers can collect them all before they raise.
"""

import math
from typing import TypeGuard


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an int and not a bool, which Python counts among the ints."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(
    what: str, value: object, low: int, high: int | None = None, advice: str = "", *, optional: bool = False
) -> list[str]:
    """A whole number in a range; `optional` lets None pass.

    >>> whole("lease_ms", 0, 20, 60_000)
    ['lease_ms: expected a whole number from 20 to 60,000, got 0']
    """
    if optional and value is None:
        return []
    if is_whole(value) and low <= value and (high is None or value <= high):
        return []
    span = f"of {low:,} or more" if high is None else f"from {low:,} to {high:,}"
    return [f"{what}: expected a whole number {span}, got {value!r}{'; ' + advice if advice else ''}"]


def some_seconds(what: str, value: object) -> list[str]:
    """A finite number of seconds, 0 or more.

    >>> some_seconds("shutdown_timeout", float("nan"))
    ['shutdown_timeout: expected a number of seconds, 0 or more, got nan']
    """
    if isinstance(value, int | float) and 0 <= value < math.inf:
        return []
    return [f"{what}: expected a number of seconds, 0 or more, got {value!r}"]


def one_of(what: str, value: object, words: tuple[str, ...]) -> list[str]:
    """One of a closed list of words.

    >>> one_of("on_full", "drop", ("overflow", "reject"))
    ["on_full: expected 'overflow' or 'reject', got 'drop'"]
    """
    if isinstance(value, str) and value in words:
        return []
    return [f"{what}: expected {' or '.join(map(repr, words))}, got {value!r}"]


def true_or_false(what: str, value: object) -> list[str]:
    """A bool and nothing that merely counts as one."""
    return [] if isinstance(value, bool) else [f"{what}: expected True or False, got {value!r}"]


def instance(what: str, value: object, kind: type, example: str) -> list[str]:
    """An instance of one class, or None; `example` is what to write instead."""
    if value is None or isinstance(value, kind):
        return []
    return [f"{what}: expected {kind.__name__}, got {value!r}; write {example}"]
