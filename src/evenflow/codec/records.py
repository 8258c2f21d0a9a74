"""Shapes of the user's own classes: dataclasses, structs, named tuples, typed dicts, enums, pydantic models.

A record is stored as an object of its fields and built again by calling its class, so its checks run again.
How a field's annotation becomes a shape is handed in, because a record may contain itself.
"""

import abc
import dataclasses
import typing
from collections.abc import Callable, Collection, Mapping
from enum import Enum
from functools import cached_property
from typing import Any, NamedTuple, TypeAlias

import msgspec

from evenflow.codec.hints import resolved_hints
from evenflow.codec.refused import Refused
from evenflow.codec.shapes import Shape, stands_in
from evenflow.codec.walk import Wire, check_depth
from evenflow.codec.wire import (
    TAG,
    class_tag,
    decode_any,
    dump_model,
    encode_any,
    is_model_class,
    is_tagged,
    record_values,
)

ShapeOf: TypeAlias = Callable[[Any], Shape]


class Field(NamedTuple):
    """One field of a record. `is_set_later`: the constructor does not take it."""

    name: str
    shape: Shape
    is_required: bool
    is_set_later: bool = False


def class_shape(cls: type, shape_of: ShapeOf) -> Shape | None:
    """The shape of a class with fields, an enum or a model; None for any other class."""
    if issubclass(cls, Enum):
        return EnumShape(cls)
    if typing.is_typeddict(cls):
        return TypedDictShape(cls, shape_of)
    if is_model_class(cls):
        return ModelShape(cls)
    if dataclasses.is_dataclass(cls) or issubclass(cls, msgspec.Struct):
        return RecordShape(cls, shape_of)
    if issubclass(cls, tuple) and hasattr(cls, "_fields"):
        return RecordShape(cls, shape_of)
    return None


class NamedShape(Shape):
    """A class of the user's. A stored result of it names it, a stored argument need not."""

    def __init__(self, cls: type) -> None:
        self.name = cls.__name__
        self.native = cls

    def decode(self, wire: Wire) -> Any:
        named = class_tag(wire)
        if named is None:
            return self.build(wire)
        if named[0] != self.name:
            raise Refused(f"expected {self.name}, got {named[0]}")
        try:
            return self.build(named[1])
        except Refused as refused:
            refused.is_broken = True
            raise

    @abc.abstractmethod
    def build(self, wire: Wire) -> Any:
        """The value from what was stored of it."""


class EnumShape(NamedShape):
    """A member of an enum, by its value."""

    def __init__(self, cls: type[Enum]) -> None:
        super().__init__(cls)
        self._enum = cls

    def encode(self, value: Any, depth: int) -> Wire:
        return (
            encode_any(value.value, depth)
            if isinstance(value, self._enum)
            else self.encode_other(value, depth)
        )

    def build(self, wire: Wire) -> Any:
        value = decode_any(wire)
        if stands_in(value):
            return value
        try:
            return self._enum(value)
        except Exception as error:
            raise Refused(f"{self.name} has no member with the stored value") from error


class ModelShape(NamedShape):
    """A pydantic model, through its own dump and validation."""

    def __init__(self, cls: Any) -> None:
        super().__init__(cls)
        self._model = cls

    def encode(self, value: Any, depth: int) -> Wire:
        if type(value) is not self._model:
            return self.encode_other(value, depth)
        dumped = dump_model(value)
        # A dump may hide (secrets), rename or drop what validation wants: find out now, not in the worker.
        if self._validated(dumped) != value:
            raise Refused(
                f"{self.name} does not come back equal from its own model_dump; send plain data instead"
            )
        return encode_any(dumped, depth)

    def build(self, wire: Wire) -> Any:
        value = decode_any(wire)
        return value if stands_in(value) else self._validated(value)

    def _validated(self, data: Any) -> Any:
        try:
            return self._model.model_validate(data)
        except Exception as error:
            raise Refused(f"{self.name} refuses what its model_dump gave: {type(error).__name__}") from error


class RecordShape(NamedShape):
    """A dataclass, struct or named tuple. Its fields are read at first use, as it may refer to itself."""

    def __init__(self, cls: type, shape_of: ShapeOf) -> None:
        super().__init__(cls)
        self._class: Any = cls
        self._shape_of = shape_of

    def encode(self, value: Any, depth: int) -> Wire:
        if type(value) is not self._class:
            return self.encode_other(value, depth)
        return encode_fields(self._fields, record_values(value) or {}, depth)

    def build(self, wire: Wire) -> Any:
        if is_tagged(wire):
            return self.decode_other(wire)
        given = decode_fields(self.name, self._fields, wire)
        later = {name: given.pop(name) for name in self._set_later & given.keys()}
        try:
            record = self._class(**given)
        except Exception as error:
            raise Refused(
                f"{self.name} refuses its stored fields: {type(error).__name__}: {error}"
            ) from error
        for name, value in later.items():
            object.__setattr__(record, name, value)
        return record

    @cached_property
    def _fields(self) -> tuple[Field, ...]:
        if dataclasses.is_dataclass(self._class):
            return _dataclass_fields(self._class, self._shape_of)
        if issubclass(self._class, msgspec.Struct):
            return _struct_fields(self._class, self._shape_of)
        return _named_tuple_fields(self._class, self._shape_of)

    @cached_property
    def _set_later(self) -> frozenset[str]:
        return frozenset(field.name for field in self._fields if field.is_set_later)


class TypedDictShape(Shape):
    """A dict with declared keys."""

    def __init__(self, cls: Any, shape_of: ShapeOf) -> None:
        self.name = cls.__name__
        self._class = cls
        self._shape_of = shape_of

    def encode(self, value: Any, depth: int) -> Wire:
        if not isinstance(value, dict):
            return self.encode_other(value, depth)
        unknown = sorted(map(str, value.keys() - {field.name for field in self._fields}))
        if unknown or TAG in value:
            raise Refused(f"{self.name} has no key {unknown[0] if unknown else TAG!r}")
        return encode_fields(self._fields, value, depth)

    def decode(self, wire: Wire) -> Any:
        return self.decode_other(wire) if is_tagged(wire) else decode_fields(self.name, self._fields, wire)

    @cached_property
    def _fields(self) -> tuple[Field, ...]:
        hints = resolved_hints(self._class)
        required: Collection[str] = self._class.__required_keys__
        return tuple(Field(name, self._shape_of(hint), name in required) for name, hint in hints.items())


def encode_fields(fields: tuple[Field, ...], values: Mapping[str, Any], depth: int) -> dict[str, Wire]:
    """The stored object of a record's fields; absent ones that have a default stay absent."""
    check_depth(depth)
    wires: dict[str, Wire] = {}
    name = ""
    try:
        for name, shape, is_required, _ in fields:
            if name in values:
                wires[name] = shape.encode(values[name], depth + 1)
            elif is_required:
                raise Refused("missing")
    except Refused as refused:
        refused.under(f".{name}")
        raise
    return wires


def decode_fields(record: str, fields: tuple[Field, ...], wire: Wire) -> dict[str, Any]:
    """Field values from a stored object. Fields that the class lost are dropped, new ones take defaults."""
    if type(wire) is not dict:
        raise Refused(f"expected the fields of {record}, got {type(wire).__name__}")
    values: dict[str, Any] = {}
    name = ""
    try:
        for name, shape, is_required, _ in fields:
            if name in wire:
                values[name] = shape.decode(wire[name])
            elif is_required:
                raise Refused("missing")
    except Refused as refused:
        refused.under(f".{name}")
        raise
    return values


def _dataclass_fields(cls: Any, shape_of: ShapeOf) -> tuple[Field, ...]:
    hints = resolved_hints(cls)
    if any(isinstance(hint, dataclasses.InitVar) for hint in hints.values()):
        raise Refused(f"{cls.__name__} has an InitVar, which it does not keep; it cannot be built again")
    return tuple(
        Field(field.name, shape_of(hints[field.name]), field.init and not _has_default(field), not field.init)
        for field in dataclasses.fields(cls)
    )


def _has_default(field: "dataclasses.Field[Any]") -> bool:
    return field.default is not dataclasses.MISSING or field.default_factory is not dataclasses.MISSING


def _struct_fields(cls: type[msgspec.Struct], shape_of: ShapeOf) -> tuple[Field, ...]:
    return tuple(
        Field(field.name, shape_of(field.type), field.required) for field in msgspec.structs.fields(cls)
    )


def _named_tuple_fields(cls: Any, shape_of: ShapeOf) -> tuple[Field, ...]:
    hints = resolved_hints(cls)
    return tuple(
        Field(name, shape_of(hints.get(name, Any)), name not in cls._field_defaults) for name in cls._fields
    )
