"""References inside a stored call: an argument that is the result of another step, put in its place when the call is run."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from evenflow.codec.refused import Refused
from evenflow.codec.walk import Wire
from evenflow.codec.wire import TAG, encode_any, tagged

REFERENCE = "output"


@dataclass(frozen=True, slots=True)
class Reference:
    """The result of the step with this name."""

    name: str


class Missing:
    """What stands where a result would, and there is none."""


MISSING = Missing()


def holds_reference(value: Any) -> bool:
    """Whether a value is a reference, or a list, tuple or dict with one in it."""
    if isinstance(value, Reference):
        return True
    if type(value) is dict:
        return any(map(holds_reference, value.values()))
    return type(value) in (list, tuple) and any(map(holds_reference, value))


def encode_references(value: Any) -> Wire:
    """The stored tree of a value that holds references."""
    if isinstance(value, Reference):
        return tagged(REFERENCE, value.name)
    if type(value) is list:
        return [encode_references(each) for each in value]
    if type(value) is tuple:
        return tagged("tuple", [encode_references(each) for each in value])
    if type(value) is dict and holds_reference(value):
        if any(type(key) is not str or key == TAG for key in value):
            raise Refused("a dict that holds outputs needs texts as keys")
        return {key: encode_references(each) for key, each in value.items()}
    return encode_any(value)


def filled(wire: Wire, outputs: Mapping[str, Wire]) -> Any:
    """A stored tree with results in the place of references. Where there is none, lists and dicts go without the item,
    and an argument is MISSING."""
    if type(wire) is list:
        items = [filled(each, outputs) for each in wire]
        return [item for item in items if item is not MISSING]
    if type(wire) is not dict:
        return wire
    if wire.get(TAG) == REFERENCE:
        return outputs.get(wire["v"], MISSING)
    values = {key: filled(each, outputs) for key, each in wire.items()}
    return {key: value for key, value in values.items() if value is not MISSING}
