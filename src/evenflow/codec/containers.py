"""Shapes of lists, tuples, sets and dicts with declared contents."""

from collections.abc import Callable, Collection, Sequence
from typing import Any

from evenflow.codec.refused import Refused
from evenflow.codec.shapes import ANY, TEXT, Shape
from evenflow.codec.walk import Wire, check_depth, decode_values, encode_values
from evenflow.codec.wire import TAG, decode_pairs, has_plain_keys, hashable, in_stored_order, tagged

_BUILDERS: dict[str, Callable[[list[Any]], Any]] = {
    "list": list,
    "tuple": tuple,
    "set": lambda items: set(hashable(items)),
    "frozenset": lambda items: frozenset(hashable(items)),
}


class CollectionShape(Shape):
    """A list, tuple or set of one item shape; an abstract declaration takes several of them."""

    def __init__(self, name: str, native: type, item: Shape, others: tuple[type, ...] = ()) -> None:
        self.name = name
        self.native = native
        self._native: Any = native
        self._item = item
        self._kinds = {kind: kind.__name__ for kind in (native, *others)}

    def encode(self, value: Any, depth: int) -> Wire:
        if isinstance(value, self._native):
            return self._encode_items(value, depth)
        tag = self._kinds.get(type(value))
        if tag is not None:
            return tagged(tag, self._encode_items(value, depth))
        return self.encode_other(value, depth)

    def decode(self, wire: Wire) -> Any:
        tag, wires = self._native.__name__, wire
        if type(wire) is dict and wire.get(TAG) in self._kinds.values():
            tag, wires = wire[TAG], wire.get("v")
        if type(wires) is not list:
            return self.decode_other(wire)
        return _BUILDERS[tag](self._item.decode_items(wires))

    def _encode_items(self, value: Collection[Any], depth: int) -> Sequence[Wire]:
        check_depth(depth)
        wires = self._item.encode_items(value, depth + 1)
        return in_stored_order(list(wires)) if isinstance(value, set | frozenset) else wires


class TupleShape(Shape):
    """A tuple of a fixed length, each place with a shape of its own."""

    native = tuple

    def __init__(self, name: str, items: Sequence[Shape]) -> None:
        self.name = name
        self._items = items

    def encode(self, value: Any, depth: int) -> Wire:
        if not isinstance(value, tuple):
            return self.encode_other(value, depth)
        check_depth(depth)
        self._check_length(value)
        return [
            self._place(index, item.encode, value[index], depth + 1) for index, item in enumerate(self._items)
        ]

    def decode(self, wire: Wire) -> Any:
        wires = wire.get("v") if type(wire) is dict and wire.get(TAG) == "tuple" else wire
        if type(wires) is not list:
            return self.decode_other(wire)
        self._check_length(wires)
        return tuple(self._place(index, item.decode, wires[index]) for index, item in enumerate(self._items))

    def _check_length(self, value: Collection[Any]) -> None:
        if len(value) != len(self._items):
            raise Refused(f"expected {self.name}, got {len(value)} items")

    @staticmethod
    def _place(index: int, convert: Callable[..., Any], *given: Any) -> Any:
        try:
            return convert(*given)
        except Refused as refused:
            refused.under(f"[{index}]")
            raise


class DictShape(Shape):
    """A dict; one with text keys is an object, any other a list of pairs."""

    native = dict

    def __init__(self, name: str, key: Shape, value: Shape) -> None:
        self.name = name
        self._key = key
        self._value = value
        self._takes_any_text = key is TEXT or key is ANY

    def encode(self, value: Any, depth: int) -> Wire:
        if not isinstance(value, dict):
            return self.encode_other(value, depth)
        check_depth(depth)
        if self._takes_any_text and has_plain_keys(value):
            return encode_values(value, self._value.encode, depth + 1)
        return tagged("dict", [self._encode_pair(key, item, depth + 1) for key, item in value.items()])

    def decode(self, wire: Wire) -> Any:
        if type(wire) is not dict:
            return self.decode_other(wire)
        if TAG not in wire:
            values = decode_values(wire, self._value.decode)
            return values if self._takes_any_text else self._with_keys(values)
        if wire[TAG] == "dict":
            return decode_pairs(wire.get("v"), self._key.decode, self._value.decode)
        return self.decode_other(wire)

    def _encode_pair(self, key: Any, value: Any, depth: int) -> list[Wire]:
        try:
            return [self._key.encode(key, depth), self._value.encode(value, depth)]
        except Refused as refused:
            refused.under(f"[{type(key).__name__} key]")
            raise

    def _with_keys(self, values: dict[str, Any]) -> dict[Any, Any]:
        return {self._key.decode(key): value for key, value in values.items()}
