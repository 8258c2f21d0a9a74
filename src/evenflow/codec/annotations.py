"""From an annotation to its shape. The one place that knows how Python spells types."""

import functools
import inspect
import types
import typing
from collections import abc
from pathlib import PurePath
from typing import Annotated, Any, Literal, TypeVar, Union

import msgspec

from evenflow.codec.choices import LiteralShape, OptionalShape, UnionShape
from evenflow.codec.containers import CollectionShape, DictShape, TupleShape
from evenflow.codec.leaves import LEAVES, path_leaf
from evenflow.codec.records import class_shape
from evenflow.codec.registry import registration_of
from evenflow.codec.shapes import (
    ANY,
    BOOL,
    FLOAT,
    INT,
    NONE,
    TEXT,
    ClassShape,
    ConstrainedShape,
    LeafShape,
    Shape,
)

_SINGLE: dict[Any, Shape] = {
    Any: ANY,
    object: ANY,
    inspect.Parameter.empty: ANY,
    str: TEXT,
    int: INT,
    float: FLOAT,
    bool: BOOL,
    None: NONE,
    type(None): NONE,
    **{leaf.cls: LeafShape(leaf) for leaf in LEAVES.values()},
}

_COLLECTIONS: dict[Any, tuple[type, tuple[type, ...]]] = {
    list: (list, ()),
    set: (set, ()),
    frozenset: (frozenset, ()),
    tuple: (tuple, ()),
    abc.MutableSequence: (list, ()),
    abc.Sequence: (list, (tuple,)),
    abc.MutableSet: (set, ()),
    abc.Set: (set, (frozenset,)),
    abc.Collection: (list, (tuple, set, frozenset)),
    abc.Iterable: (list, (tuple, set, frozenset)),
}

_MAPPINGS = frozenset({dict, abc.Mapping, abc.MutableMapping})

# Wrappers that say something about a place and nothing about the value in it.
_TRANSPARENT = frozenset({typing.Required, typing.NotRequired, typing.Final})


def shape_of(annotation: Any) -> Shape:
    """The shape of an annotation; what it cannot tell is left to each value.

    >>> shape_of(list[int]).name
    'list[int]'
    """
    try:
        return _cached_shape(annotation)
    except TypeError:  # an annotation may hold something unhashable
        return _compiled(annotation)


@functools.lru_cache(maxsize=2048)
def _cached_shape(annotation: Any) -> Shape:
    return _compiled(annotation)


def _compiled(annotation: Any) -> Shape:
    annotation = _unwrapped(annotation)
    origin = typing.get_origin(annotation)
    arguments = typing.get_args(annotation)
    if origin is None:
        return _single_shape(annotation)
    if origin is Annotated:
        return _constrained_shape(annotation)
    if origin in (Union, types.UnionType):
        return _union_shape(arguments)
    if origin is Literal:
        return LiteralShape(arguments)
    if origin in _TRANSPARENT:
        return shape_of(arguments[0])
    return _generic_shape(origin, arguments)


def _unwrapped(annotation: Any) -> Any:
    """Behind NewType, type aliases and type variables, the type that values really have."""
    while True:
        if isinstance(annotation, TypeVar):
            annotation = Any if annotation.__bound__ is None else annotation.__bound__
        elif hasattr(annotation, "__supertype__"):
            annotation = annotation.__supertype__
        elif type(annotation).__name__ == "TypeAliasType":
            annotation = annotation.__value__
        else:
            return annotation


def _single_shape(annotation: Any) -> Shape:
    try:
        known = _SINGLE.get(annotation)
    except TypeError:
        return ANY
    if known is not None:
        return known
    return _shape_of_class(annotation) if isinstance(annotation, type) else ANY


def _shape_of_class(cls: type) -> Shape:
    if cls in _COLLECTIONS or cls in _MAPPINGS:
        return _generic_shape(cls, ())
    if registration_of(cls) is not None:
        return ClassShape(cls)
    if issubclass(cls, PurePath):
        return LeafShape(path_leaf(cls))
    known = class_shape(cls, shape_of)
    if known is not None:
        return known
    return ClassShape(cls) if _allows_isinstance(cls) else ANY


def _allows_isinstance(cls: type) -> bool:
    try:
        isinstance(None, cls)
    except TypeError:  # a protocol that is for type checkers only
        return False
    return True


def _generic_shape(origin: Any, arguments: tuple[Any, ...]) -> Shape:
    if origin in _MAPPINGS:
        key, value = arguments or (Any, Any)
        return DictShape(_spelled("dict", arguments), shape_of(key), shape_of(value))
    if origin is tuple and arguments and arguments[-1] is not Ellipsis:
        return TupleShape(_spelled("tuple", arguments), [shape_of(item) for item in arguments])
    if origin in _COLLECTIONS:
        native, others = _COLLECTIONS[origin]
        item = arguments[0] if arguments else Any
        return CollectionShape(_spelled(origin.__name__, arguments), native, shape_of(item), others)
    return _single_shape(origin)


def _spelled(name: str, arguments: tuple[Any, ...]) -> str:
    inner = ", ".join("..." if item is Ellipsis else shape_of(item).name for item in arguments)
    return f"{name}[{inner}]" if arguments else name


def _union_shape(arguments: tuple[Any, ...]) -> Shape:
    arms = [shape_of(item) for item in arguments if item is not msgspec.UnsetType]
    if ANY in arms:
        return ANY
    values = [arm for arm in arms if arm is not NONE]
    if len(values) == 1:
        return OptionalShape(values[0]) if NONE in arms else values[0]
    return UnionShape(arms)


def _constrained_shape(annotation: Any) -> Shape:
    inner = shape_of(annotation.__origin__)
    bounds = [item for item in annotation.__metadata__ if isinstance(item, msgspec.Meta)]
    if not bounds or inner.native is None:
        return inner
    constrained: Any = inner.native
    for bound in bounds:
        constrained = Annotated[constrained, bound]
    return ConstrainedShape(inner, constrained)
