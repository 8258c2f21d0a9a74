"""How values of one declared type are stored and read: a shape per annotation, built once, used for all jobs.

A shape stores a value plainly, since its type already says what the value is, and reads both that and the
tagged form. Shapes of single values are here; see also containers.py, choices.py and records.py.
"""

import abc
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from evenflow.codec.leaves import Leaf
from evenflow.codec.refused import Refused
from evenflow.codec.registry import registration_of, registration_with
from evenflow.codec.walk import Wire, decode_each, encode_each
from evenflow.codec.wire import (
    TAG,
    are_finite_floats,
    are_plain_ints,
    decode_any,
    encode_any,
    encode_float,
    encode_int,
    is_tagged,
    untag,
)


class Shape(abc.ABC):
    """What every shape offers. `name` is how messages call it, `native` the class of its values, if any.

    `is_plain` says that values travel as JSON scalars which already tell their type.
    """

    name: str = "Any"
    native: type | None = None
    is_plain: bool = False

    @abc.abstractmethod
    def encode(self, value: Any, depth: int) -> Wire:
        """The stored tree of `value`; `Refused` if it is not of this shape."""

    @abc.abstractmethod
    def decode(self, wire: Wire) -> Any:
        """The value of a stored tree; `Refused` if it does not fit this shape."""

    def encode_items(self, values: Collection[Any], depth: int) -> Sequence[Wire]:
        """Many at once: shapes with a check that needs no Python loop do it here."""
        return encode_each(values, self.encode, depth)

    def decode_items(self, wires: list[Wire]) -> list[Any]:
        """Many at once, as in `encode_items`."""
        return decode_each(wires, self.decode)

    def encode_other(self, value: Any, depth: int) -> Wire:
        """A value of another type: only one that stands in for any argument is let through."""
        if stands_in(value):
            return encode_any(value, depth)
        raise Refused(f"expected {self.name}, got {type(value).__name__}")

    def decode_other(self, wire: Wire) -> Any:
        """A tagged value in place of the plain one: right if of the native class, or if it stands in."""
        if not is_tagged(wire):
            raise Refused(f"expected {self.name}, got {type(wire).__name__}")
        value = untag(wire)
        if self.native is not None and isinstance(value, self.native):
            return value
        registration = registration_with(wire[TAG])
        if registration is not None and registration.stands_in:
            return value
        raise Refused(f"expected {self.name}, got {type(value).__name__}")


class AnyShape(Shape):
    """No declared type: the value tells what it is."""

    def encode(self, value: Any, depth: int) -> Wire:
        return encode_any(value, depth)

    def decode(self, wire: Wire) -> Any:
        return decode_any(wire)


class SameShape(Shape):
    """Text, bool or None: JSON carries them as they are."""

    is_plain = True

    def __init__(self, native: type) -> None:
        self.name = "None" if native is type(None) else native.__name__
        self.native = native
        self._only = frozenset({native})

    def encode(self, value: Any, depth: int) -> Wire:
        if type(value) is self.native:
            return value
        if isinstance(value, str) and self.native is str:
            return str.__str__(value)
        return self.encode_other(value, depth)

    def decode(self, wire: Wire) -> Any:
        return wire if type(wire) is self.native else self.decode_other(wire)

    def encode_items(self, values: Collection[Any], depth: int) -> Sequence[Wire]:
        return (
            list(values) if self._only.issuperset(map(type, values)) else super().encode_items(values, depth)
        )

    def decode_items(self, wires: list[Wire]) -> list[Any]:
        return wires if self._only.issuperset(map(type, wires)) else super().decode_items(wires)


class IntShape(Shape):
    """An int of any size. A bool is an int in Python and stays a bool."""

    name = "int"
    native = int
    is_plain = True
    _kinds = frozenset({int, bool})

    def encode(self, value: Any, depth: int) -> Wire:
        if type(value) is int:
            return encode_int(value)
        if type(value) is bool:
            return value
        return encode_int(int(value)) if isinstance(value, int) else self.encode_other(value, depth)

    def decode(self, wire: Wire) -> Any:
        return wire if type(wire) is int or type(wire) is bool else self.decode_other(wire)

    def encode_items(self, values: Collection[Any], depth: int) -> Sequence[Wire]:
        return list(values) if are_plain_ints(values) else super().encode_items(values, depth)

    def decode_items(self, wires: list[Wire]) -> list[Any]:
        return wires if self._kinds.issuperset(map(type, wires)) else super().decode_items(wires)


class FloatShape(Shape):
    """A finite float, or an int, which stays an int: the run sees what a plain call would see."""

    name = "float"
    native = float
    is_plain = True
    _kinds = frozenset({float, int, bool})

    def encode(self, value: Any, depth: int) -> Wire:
        if type(value) is float:
            return encode_float(value)
        if isinstance(value, int):
            return encode_int(int(value)) if type(value) is not bool else value
        return encode_float(float(value)) if isinstance(value, float) else self.encode_other(value, depth)

    def decode(self, wire: Wire) -> Any:
        if type(wire) in self._kinds:
            return wire
        return INT.decode(wire) if is_tagged(wire) and wire[TAG] == "int" else self.decode_other(wire)

    def encode_items(self, values: Collection[Any], depth: int) -> Sequence[Wire]:
        return list(values) if are_finite_floats(values) else super().encode_items(values, depth)

    def decode_items(self, wires: list[Wire]) -> list[Any]:
        return wires if self._kinds.issuperset(map(type, wires)) else super().decode_items(wires)


class LeafShape(Shape):
    """A date, bytes, decimal number, path and the like: the text or number that its leaf makes of it."""

    def __init__(self, leaf: Leaf) -> None:
        self.name = leaf.cls.__name__
        self.native = leaf.cls
        self._leaf = leaf

    def encode(self, value: Any, depth: int) -> Wire:
        if type(value) is self.native:
            return self._leaf.encode(value)
        return (
            self._encode_subclass(value)
            if isinstance(value, self._leaf.cls)
            else self.encode_other(value, depth)
        )

    def decode(self, wire: Wire) -> Any:
        if type(wire) is not dict:
            return self._leaf.read(wire)
        if wire.get(TAG) == self._leaf.tag and "v" in wire:
            return self._leaf.read(wire["v"])
        return self.decode_other(wire)

    def _encode_subclass(self, value: Any) -> Wire:
        """A datetime for a date keeps what it is; any other subclass must come back equal."""
        wire = self._leaf.encode(value)
        if self._leaf.read(wire) == value:
            return wire
        return encode_any(value)


class ClassShape(Shape):
    """A class that only its registration, or its being a base of a listed type, makes storable."""

    def __init__(self, cls: type) -> None:
        self.name = cls.__name__
        self.native = cls

    def encode(self, value: Any, depth: int) -> Wire:
        assert self.native is not None
        return encode_any(value, depth) if isinstance(value, self.native) else self.encode_other(value, depth)

    def decode(self, wire: Wire) -> Any:
        assert self.native is not None
        if is_tagged(wire):
            return self.decode_other(wire)
        value = decode_any(wire)
        if isinstance(value, self.native):
            return value
        raise Refused(f"expected {self.name}, got {type(value).__name__}")


class ConstrainedShape(Shape):
    """A shape whose values must also keep the bounds of a `msgspec.Meta`."""

    def __init__(self, inner: Shape, constrained: Any) -> None:
        self.name = inner.name
        self.native = inner.native
        self.is_plain = inner.is_plain
        self._inner = inner
        self._constrained = constrained

    def encode(self, value: Any, depth: int) -> Wire:
        wire = self._inner.encode(value, depth)
        self._check(value)
        return wire

    def decode(self, wire: Wire) -> Any:
        value = self._inner.decode(wire)
        self._check(value)
        return value

    def _check(self, value: Any) -> None:
        if value is None or stands_in(value):
            return
        try:
            msgspec.convert(value, self._constrained)
        except (msgspec.ValidationError, TypeError) as error:
            # TypeError: a bound that makes no sense for the type.
            raise Refused(str(error)) from error


def stands_in(value: Any) -> bool:
    """Whether a value may be given for an argument of any annotation."""
    registration = registration_of(type(value))
    return registration is not None and registration.stands_in


ANY = AnyShape()
TEXT = SameShape(str)
BOOL = SameShape(bool)
NONE = SameShape(type(None))
INT = IntShape()
FLOAT = FloatShape()
