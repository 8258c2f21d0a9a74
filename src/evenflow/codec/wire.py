"""Any storable value as a tree that JSON can carry, and back, without knowing a declared type.

Holds the closed list of types and the tag that marks what JSON cannot say.
It knows nothing of annotations, tasks or text, and never imports anything by a stored name.
"""

import dataclasses
from collections.abc import Callable, Collection, Iterable, Mapping
from enum import Enum
from math import isfinite, isnan
from pathlib import PurePath
from types import NoneType
from typing import Any

import msgspec

from evenflow.codec.leaves import LEAVES
from evenflow.codec.refused import Refused
from evenflow.codec.registry import Registration, registration_of, registration_with
from evenflow.codec.walk import (
    Wire,
    check_depth,
    decode_each,
    decode_values,
    encode_each,
    encode_values,
)
from evenflow.errors import EvenflowError

TAG = "$evenflow"
"""The key that marks an object as a tagged value: `{"$evenflow": "tuple", "v": [1, 2]}`."""

CLASS_TAG = "as"
"""Tag of a value whose class is named under "t"; a reader without that class gets what it holds."""

LONE_SURROGATE = "text with a lone surrogate cannot be stored; it is no valid Unicode"

# 617 digits. Python lets nobody set its limit of digits for int-from-text below 640, so such a number can
# always be read back from JSON; larger ones travel as tagged hexadecimal text, which is read in linear time.
_PLAIN_INT_BOUND = 1 << 2048

_TEXT_ONLY = frozenset({str})
_UNCHECKED = frozenset({str, bool, NoneType})
_INTEGERS = frozenset({int, bool})
_FLOATS = frozenset({float})
_CONTAINERS = frozenset({list, dict})
_BASES = (str, int, float, bytes, list, tuple, set, frozenset, dict, *LEAVES)


def tagged(tag: str, wire: Wire) -> dict[str, Wire]:
    """The stored form of a value that JSON cannot tell from another one."""
    return {TAG: tag, "v": wire}


def tagged_class(name: str, wire: Wire) -> dict[str, Wire]:
    """The stored form of a value of the class called `name`."""
    return {TAG: CLASS_TAG, "t": name, "v": wire}


def is_tagged(wire: Wire) -> bool:
    """Whether a stored tree is a tagged value; a user's dict with that key is never stored as an object."""
    return type(wire) is dict and TAG in wire


def class_tag(wire: Wire) -> tuple[str, Wire] | None:
    """The class name and content of a stored value that names its class, else None."""
    if type(wire) is dict and wire.get(TAG) == CLASS_TAG:
        if type(wire.get("t")) is not str or "v" not in wire:
            raise Refused("a stored value names no class")
        return wire["t"], wire["v"]
    return None


def encode_any(value: Any, depth: int = 0, is_open: bool = False) -> Wire:
    """The stored tree of a value that nobody declared a type for.

    As an argument a value must come back as what it was, so a class of the user's is refused. With `is_open`,
    for results, such a value is stored under its class's name, to be read with or without the class.
    """
    encode = _ENCODERS.get(type(value))
    if encode is not None:
        return encode(value, depth, is_open)
    registration = registration_of(type(value))
    if registration is not None:
        return encode_registered(registration, value, depth)
    if is_open:
        return _encode_open(value, depth)
    raise Refused(_why_unknown(value))


def decode_any(wire: Wire) -> Any:
    """The value of a stored tree, as far as the tree itself tells."""
    kind = type(wire)
    if kind is list:
        return wire if _CONTAINERS.isdisjoint(map(type, wire)) else decode_each(wire, decode_any)
    if kind is not dict:
        return wire
    if TAG in wire:
        return untag(wire)
    return wire if _CONTAINERS.isdisjoint(map(type, wire.values())) else decode_values(wire, decode_any)


def untag(wire: dict[str, Wire]) -> Any:
    """The value of a tagged object."""
    tag = wire[TAG]
    if "v" not in wire or type(tag) is not str:
        raise Refused("a tagged value is malformed")
    reader = _TAG_READERS.get(tag)
    if reader is not None:
        return reader(wire["v"])
    registration = registration_with(tag)
    if registration is not None:
        return decode_registered(registration, wire["v"])
    raise Refused(f"nothing is registered here for stored values of type {tag!r}")


def encode_int(value: int) -> Wire:
    """An int as a JSON number, or tagged when it is too long for one."""
    if -_PLAIN_INT_BOUND < value < _PLAIN_INT_BOUND:
        return value
    return tagged("int", hex(value))


def encode_float(value: float) -> float:
    """A finite float as it is: JSON has no form for the others, and would store null."""
    if isfinite(value):
        return value
    name = "NaN" if isnan(value) else "Infinity" if value > 0 else "-Infinity"
    raise Refused(f"{name} cannot be stored; send None or a text instead")


def encode_registered(registration: Registration, value: Any, depth: int) -> Wire:
    """A value of a registered class, through its own function."""
    check_depth(depth)
    try:
        stored = registration.encode(value)
    except Exception as error:
        raise Refused(
            f"{type(value).__name__} could not be encoded: {type(error).__name__}: {error}"
        ) from error
    return tagged(registration.tag, encode_any(stored, depth + 1))


def decode_registered(registration: Registration, wire: Wire) -> Any:
    """A value of a registered class; errors of Evenflow's own tree pass, as they name what to do."""
    stored = decode_any(wire)
    try:
        return registration.decode(stored)
    except EvenflowError:
        raise
    except Exception as error:
        reason = f"a stored {registration.tag} could not be decoded: {type(error).__name__}: {error}"
        raise Refused(reason) from error


def are_plain_ints(values: Collection[Any]) -> bool:
    """Whether all are ints that JSON carries as they are. The checks run without a Python loop."""
    if not values:
        return True
    return _INTEGERS.issuperset(map(type, values)) and (
        max(values) < _PLAIN_INT_BOUND and min(values) > -_PLAIN_INT_BOUND
    )


def are_finite_floats(values: Collection[Any]) -> bool:
    """Whether all are floats that JSON can carry."""
    return _FLOATS.issuperset(map(type, values)) and all(map(isfinite, values))


def has_plain_keys(mapping: Mapping[Any, Any]) -> bool:
    """Whether a dict can be a JSON object: text keys only, and none that would look like a tag."""
    return _TEXT_ONLY.issuperset(map(type, mapping)) and TAG not in mapping


def in_stored_order(wires: list[Wire]) -> list[Wire]:
    """The items of a set in an order of their own, since a set's order differs between processes."""
    try:
        return sorted(wires, key=msgspec.json.encode)
    except UnicodeEncodeError as error:
        raise Refused(LONE_SURROGATE) from error


def dump_model(model: Any) -> Any:
    """A pydantic model as plain data under the names that its own validation expects."""
    try:
        return model.model_dump(mode="json", by_alias=True, round_trip=True)
    except Exception as error:
        raise Refused(
            f"{type(model).__name__} could not be dumped: {type(error).__name__}: {error}"
        ) from error


def is_model_class(cls: type) -> bool:
    """Whether a class is a pydantic model, told by its two methods: pydantic itself is never imported."""
    return callable(getattr(cls, "model_dump", None)) and callable(getattr(cls, "model_validate", None))


def _are_unchanged(values: Collection[Any]) -> bool:
    return _UNCHECKED.issuperset(map(type, values)) or are_plain_ints(values) or are_finite_floats(values)


def _encode_same(value: Any, depth: int, is_open: bool) -> Wire:
    return value


def _encode_int(value: int, depth: int, is_open: bool) -> Wire:
    return encode_int(value)


def _encode_float(value: float, depth: int, is_open: bool) -> Wire:
    return encode_float(value)


def _encode_leaf(value: Any, depth: int, is_open: bool) -> Wire:
    leaf = LEAVES[type(value)]
    return tagged(leaf.tag, leaf.encode(value))


def _encode_list(value: Collection[Any], depth: int, is_open: bool) -> Wire:
    check_depth(depth)
    if _are_unchanged(value):
        return value
    return encode_each(value, _opening(is_open), depth + 1)


def _encode_tuple(value: tuple[Any, ...], depth: int, is_open: bool) -> Wire:
    return tagged("tuple", _encode_list(value, depth, is_open))


def _encode_set(value: Collection[Any], depth: int, is_open: bool) -> Wire:
    check_depth(depth)
    wires = encode_each(value, _opening(is_open), depth + 1)
    return tagged(type(value).__name__, in_stored_order(wires))


def _encode_dict(value: dict[Any, Any], depth: int, is_open: bool) -> Wire:
    check_depth(depth)
    encode = _opening(is_open)
    if not has_plain_keys(value):
        return tagged("dict", [encode_each(pair, encode, depth + 1) for pair in value.items()])
    if _are_unchanged(value.values()):
        return value
    return encode_values(value, encode, depth + 1)


def _opening(is_open: bool) -> Callable[[Any, int], Wire]:
    return _encode_any_open if is_open else encode_any


def _encode_any_open(value: Any, depth: int) -> Wire:
    return encode_any(value, depth, True)


def _encode_open(value: Any, depth: int) -> Wire:
    """A value of the user's class by what it holds, under the name of its class."""
    cls = type(value)
    check_depth(depth)
    if isinstance(value, Enum):
        return tagged_class(cls.__name__, encode_any(value.value, depth + 1, True))
    if is_model_class(cls):
        return tagged_class(cls.__name__, encode_any(dump_model(value), depth + 1, True))
    if isinstance(value, PurePath):
        return tagged("path", str(value))
    fields = record_values(value)
    if fields is not None:
        return tagged_class(cls.__name__, encode_values(fields, _encode_any_open, depth + 1))
    base = _base_value(value)
    if base is None:
        raise Refused(_why_unknown(value))
    return encode_any(base, depth, True)


def record_values(value: Any) -> dict[str, Any] | None:
    """The fields of a dataclass, msgspec.Struct or named tuple by name; None for anything else."""
    if dataclasses.is_dataclass(value):
        names: Iterable[str] = [field.name for field in dataclasses.fields(value)]
    elif isinstance(value, msgspec.Struct):
        names = value.__struct_fields__
    elif isinstance(value, tuple) and hasattr(value, "_fields"):
        names = getattr(value, "_fields")  # noqa: B009 - no type says that a tuple has them
    else:
        return None
    found = {name: getattr(value, name, msgspec.UNSET) for name in names}
    return {name: field for name, field in found.items() if field is not msgspec.UNSET}


def _base_value(value: Any) -> Any:
    """An equal value of the listed type that a subclass extends, or None."""
    for base in _BASES:
        if isinstance(value, base) and not isinstance(value, bool):
            copy = str.__str__(value) if base is str else _rebuilt(base, value)
            return copy if copy is not None and copy == value else None
    return None


def _rebuilt(base: type, value: Any) -> Any:
    leaf = LEAVES.get(base)
    return base(value) if leaf is None else leaf.read(leaf.encode(value))


def _why_unknown(value: Any) -> str:
    cls = type(value)
    if isinstance(value, Enum) or record_values(value) is not None or is_model_class(cls):
        return f"{cls.__name__} needs a declared type to come back as one; annotate the parameter with it"
    for base in _BASES:
        if isinstance(value, base):
            return f"{cls.__name__} would come back as {base.__name__}; convert it, or annotate the parameter"
    return f"values of type {cls.__name__} cannot be stored; send plain data, or register the type"


def _read_int(wire: Wire) -> int:
    if type(wire) is not str:
        raise Refused(f"expected the text of an int, got {type(wire).__name__}")
    try:
        return int(wire, 16)
    except ValueError as error:
        raise Refused("expected the hexadecimal text of an int") from error


def _read_items(wire: Wire) -> list[Any]:
    if type(wire) is not list:
        raise Refused(f"expected a stored list, got {type(wire).__name__}")
    return decode_each(wire, decode_any)


def _read_tuple(wire: Wire) -> tuple[Any, ...]:
    return tuple(_read_items(wire))


def _read_set(wire: Wire) -> set[Any]:
    return set(hashable(_read_items(wire)))


def _read_frozenset(wire: Wire) -> frozenset[Any]:
    return frozenset(hashable(_read_items(wire)))


def _read_dict(wire: Wire) -> dict[Any, Any]:
    return decode_pairs(wire, decode_any, decode_any)


def decode_pairs(
    wire: Wire, decode_key: Callable[[Wire], Any], decode: Callable[[Wire], Any]
) -> dict[Any, Any]:
    """A dict from its stored pairs."""
    if type(wire) is not list or not all(type(pair) is list and len(pair) == 2 for pair in wire):
        raise Refused("expected a stored list of pairs")
    keys = hashable([decode_key(key) for key, _ in wire])
    return dict(zip(keys, [decode(value) for _, value in wire], strict=True))


def hashable(values: list[Any]) -> list[Any]:
    """The values, refused if one of them cannot be in a set or be a key."""
    try:
        for value in values:
            hash(value)
    except TypeError as error:
        raise Refused("a stored set or dict holds an item that cannot be in one") from error
    return values


_ENCODERS: dict[type, Callable[[Any, int, bool], Wire]] = {
    str: _encode_same,
    bool: _encode_same,
    NoneType: _encode_same,
    int: _encode_int,
    float: _encode_float,
    list: _encode_list,
    tuple: _encode_tuple,
    set: _encode_set,
    frozenset: _encode_set,
    dict: _encode_dict,
    **dict.fromkeys(LEAVES, _encode_leaf),
}

_TAG_READERS: dict[str, Callable[[Wire], Any]] = {
    "int": _read_int,
    "tuple": _read_tuple,
    "set": _read_set,
    "frozenset": _read_frozenset,
    "dict": _read_dict,
    CLASS_TAG: decode_any,
    **{leaf.tag: leaf.read for leaf in LEAVES.values()},
}
