"""Shapes of values that are one of several things: optional, union, literal."""

import contextlib
from collections.abc import Sequence
from enum import Enum
from typing import Any

from evenflow.codec.refused import Refused
from evenflow.codec.shapes import Shape, stands_in
from evenflow.codec.walk import Wire
from evenflow.codec.wire import class_tag, encode_any, is_tagged, tagged_class


class OptionalShape(Shape):
    """A shape, or None."""

    def __init__(self, inner: Shape) -> None:
        self.name = f"{inner.name} or None"
        self.native = inner.native
        self.is_plain = inner.is_plain
        self._inner = inner

    def encode(self, value: Any, depth: int) -> Wire:
        return None if value is None else self._inner.encode(value, depth)

    def decode(self, wire: Wire) -> Any:
        return None if wire is None else self._inner.decode(wire)


class UnionShape(Shape):
    """One of several shapes. Plain scalars are stored as they are, anything else with the name of its arm."""

    def __init__(self, arms: Sequence[Shape]) -> None:
        self.name = " or ".join(arm.name for arm in arms)
        self.is_plain = all(arm.is_plain for arm in arms)
        self._arms = arms
        self._plain_first = sorted(arms, key=lambda arm: not arm.is_plain)

    def encode(self, value: Any, depth: int) -> Wire:
        exact = [arm for arm in self._arms if arm.native is type(value)]
        if len(exact) == 1:
            return self._encode_by(exact[0], value, depth)
        if not stands_in(value):
            for arm in exact or self._arms:
                with contextlib.suppress(Refused):
                    return self._encode_by(arm, value, depth)
        return self.encode_other(value, depth)

    def decode(self, wire: Wire) -> Any:
        named = class_tag(wire)
        if named is None:
            return self._decode_first(self._plain_first, wire, wire)
        arms = [arm for arm in self._arms if arm.name == named[0]]
        if not arms:
            return self.decode_other(wire)
        try:
            return self._decode_first(arms, named[1], wire)
        except Refused as refused:
            refused.is_broken = True
            raise

    @staticmethod
    def _encode_by(arm: Shape, value: Any, depth: int) -> Wire:
        wire = arm.encode(value, depth)
        return wire if arm.is_plain else tagged_class(arm.name, wire)

    def _decode_first(self, arms: Sequence[Shape], content: Wire, wire: Wire) -> Any:
        for arm in arms:
            try:
                return arm.decode(content)
            except Refused as refused:
                if refused.is_broken or len(arms) == 1:
                    raise
        return self.decode_other(wire)


class LiteralShape(Shape):
    """One of a few given values."""

    def __init__(self, options: Sequence[Any]) -> None:
        self.name = "one of " + ", ".join(repr(option) for option in options)
        self._wires = [(option, _literal_wire(option)) for option in options]
        self.is_plain = not any(is_tagged(wire) for _, wire in self._wires)

    def encode(self, value: Any, depth: int) -> Wire:
        for option, wire in self._wires:
            if type(value) is type(option) and value == option:
                return wire
        for option, wire in self._wires:
            if isinstance(value, type(option)) and value == option:
                return wire
        if stands_in(value):
            return self.encode_other(value, depth)
        raise Refused(f"expected {self.name}, got another {type(value).__name__}")

    def decode(self, wire: Wire) -> Any:
        for option, stored in self._wires:
            if type(stored) is type(wire) and stored == wire:
                return option
        return self.decode_other(wire)


def _literal_wire(option: Any) -> Wire:
    if isinstance(option, Enum):
        return tagged_class(type(option).__name__, encode_any(option.value))
    return encode_any(option)
