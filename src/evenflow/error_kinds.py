"""Kinds of errors as users list them: exception classes and error codes, in any mixture; and whether one matches."""

from collections.abc import Iterable
from typing import TypeAlias

ErrorKind: TypeAlias = type[BaseException] | str
"""What `on`, `give_up_on` and `ignore` list: exception classes and error codes, in any mixture."""


def listed_kinds(owner: str, option: str, given: object, mistakes: list[str]) -> tuple[ErrorKind, ...]:
    """One kind or several, as a tuple; what is no kind is added to the mistakes.

    >>> listed_kinds("Retry", "on", OSError, [])
    (<class 'OSError'>,)
    """
    listed = (given,) if isinstance(given, str | type) else given
    if not isinstance(listed, Iterable):
        listed = (given,)
    kinds: list[ErrorKind] = []
    for kind in listed:
        if (isinstance(kind, str) and kind) or (isinstance(kind, type) and issubclass(kind, BaseException)):
            kinds.append(kind)
        else:
            mistakes.append(f"{owner}: {option}: expected exception classes or error codes, got {kind!r}")
    return tuple(kinds)


def matches(kinds: object, error: BaseException | None, code: str) -> bool:
    """Whether an error, or its code, is among the kinds.

    >>> matches((OSError, "BUSY"), ConnectionError(), "UNHANDLED_ERROR"), matches((), OSError(), "BUSY")
    (True, False)
    """
    assert isinstance(kinds, tuple)
    return any(kind == code if isinstance(kind, str) else isinstance(error, kind) for kind in kinds)
