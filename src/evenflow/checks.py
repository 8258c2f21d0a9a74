"""Checks of single values, in one voice: what was expected, what came, what to do.

Each returns a list with one mistake or none, so that callers can collect them all before they raise.
"""

import math
from typing import TypeGuard

LARGEST = 2**31 - 1
"""The largest whole number that every database stores where a count is meant."""


def is_whole(value: object) -> TypeGuard[int]:
    """Whether a value is an int and not a bool, which Python counts among the ints."""
    return isinstance(value, int) and not isinstance(value, bool)


def whole(
    what: str, value: object, low: int, high: int | None = None, advice: str = "", *, optional: bool = False
) -> list[str]:
    """A whole number in a range, of which a database stores the end if none is given; `optional` lets None pass.

    >>> whole("lease_ms", 0, 20, 60_000)
    ['lease_ms: expected a whole number from 20 to 60,000, got 0']
    """
    if optional and value is None:
        return []
    end = LARGEST if high is None else high
    if is_whole(value) and low <= value <= end:
        return []
    is_open = high is None and not (is_whole(value) and value > end)
    span = f"of {low:,} or more" if is_open else f"from {low:,} to {end:,}"
    return [f"{what}: expected a whole number {span}, got {value!r}{'; ' + advice if advice else ''}"]


def short_text(what: str, value: object, longest: int) -> list[str]:
    """A text of some characters that every database stores.

    >>> short_text("Breaker: name", "", 200)
    ["Breaker: name: expected a text of 1 to 200 characters, got ''"]
    """
    if not isinstance(value, str) or not 1 <= len(value) <= longest:
        return [f"{what}: expected a text of 1 to {longest} characters, got {value!r}"]
    if "\0" in value or any("\ud800" <= character <= "\udfff" for character in value):
        return [f"{what}: expected a text without NUL and lone surrogates, got {value!r}; remove them"]
    return []


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
