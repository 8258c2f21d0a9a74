"""The classes that users, and Evenflow's own edges, make storable: one table for the process.

Holds the table and its rules; how a registered value is stored is told in wire.py.
"""

import re
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple, TypeVar

from evenflow.codec.leaves import LEAVES
from evenflow.errors import ConfigError

OWN_TAGS = frozenset(
    {"int", "tuple", "set", "frozenset", "dict", "as", *(leaf.tag for leaf in LEAVES.values())}
)
"""Tags of the types that Evenflow stores by itself."""

_OWN_TYPES = frozenset(
    {str, int, float, bool, type(None), list, tuple, set, frozenset, dict, object, *LEAVES}
)
_TAG_PATTERN = re.compile(r"[a-z][a-z0-9_.-]{0,62}")

_V = TypeVar("_V")


class Registration(NamedTuple):
    """How values of one registered class are stored."""

    cls: type
    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]
    stands_in: bool


_registered: dict[type, Registration] = {}
_registered_tags: dict[str, Registration] = {}


def register_type(
    cls: type[_V],
    encode: Callable[[_V], Any],
    decode: Callable[[Any], Any],
    tag: str,
    *,
    stands_in: bool = False,
) -> None:
    """Make values of `cls` and of its subclasses storable, as arguments and as results.

    `encode` gives any storable value, `decode` gets it back; `tag` names the type in stored data for good.
    With `stands_in` a value may be given for an argument of any annotation, as a promise of something that
    fits. Registering the same class and tag again replaces the functions.

        register_type(Money, lambda m: [m.cents, m.currency], lambda v: Money(*v), tag="shop.money")
    """
    mistakes = list(_registration_mistakes(cls, tag))
    if mistakes:
        raise ConfigError(mistakes)
    registration = Registration(cls, tag, encode, decode, stands_in)
    _registered[cls] = registration
    _registered_tags[tag] = registration


def _registration_mistakes(cls: type, tag: str) -> Iterable[str]:
    if not _TAG_PATTERN.fullmatch(tag):
        yield f"register_type: expected a tag like 'shop.money', got {tag!r}"
    elif tag in OWN_TAGS:
        yield f"register_type: the tag {tag!r} belongs to Evenflow; choose another one"
    elif tag in _registered_tags and _registered_tags[tag].cls is not cls:
        yield f"register_type: the tag {tag!r} already belongs to {_registered_tags[tag].cls.__name__}"
    if cls in _OWN_TYPES:
        yield f"register_type: {cls.__name__} is stored by Evenflow itself"
    elif cls in _registered and _registered[cls].tag != tag:
        yield f"register_type: {cls.__name__} is already registered with the tag {_registered[cls].tag!r}"


def registration_of(cls: type) -> Registration | None:
    """The registration of `cls` or of its nearest base, if there is one."""
    if not _registered:
        return None
    for base in cls.__mro__:
        if base in _registered:
            return _registered[base]
    return None


def registration_with(tag: str) -> Registration | None:
    """The registration that stored values with this tag belong to, if there is one here."""
    return _registered_tags.get(tag)
