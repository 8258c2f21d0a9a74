"""Walking through containers: how deep, and where a refused item was. Knows no types of its own."""

import reprlib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from evenflow.codec.refused import Refused

Wire: TypeAlias = Any
"""A tree of str, int, float, bool, None, list and dict with text keys."""

MAX_DEPTH = 64
"""Containers within containers; a deeper value is refused."""


def check_depth(depth: int) -> None:
    """Refuse a container with `MAX_DEPTH` others around it; this also ends a walk through a cycle."""
    if depth >= MAX_DEPTH:
        raise Refused(f"nested more than {MAX_DEPTH} levels deep, or contains itself; flatten it")


def encode_each(values: Iterable[Any], encode: Callable[[Any, int], Wire], depth: int) -> list[Wire]:
    """Every item by the same function, the index named when one is refused."""
    wires: list[Wire] = []
    try:
        for value in values:
            wires.append(encode(value, depth))
    except Refused as refused:
        refused.under(f"[{len(wires)}]")
        raise
    return wires


def decode_each(wires: Iterable[Wire], decode: Callable[[Wire], Any]) -> list[Any]:
    """Every item by the same function, the index named when one is refused."""
    values: list[Any] = []
    try:
        for wire in wires:
            values.append(decode(wire))
    except Refused as refused:
        refused.under(f"[{len(values)}]")
        raise
    return values


def encode_values(
    mapping: Mapping[str, Any], encode: Callable[[Any, int], Wire], depth: int
) -> dict[str, Wire]:
    """Every value of a dict with text keys, the key named when one is refused."""
    wires: dict[str, Wire] = {}
    key = ""
    try:
        for key, value in mapping.items():
            wires[key] = encode(value, depth)
    except Refused as refused:
        refused.under(f"[{reprlib.repr(key)}]")
        raise
    return wires


def decode_values(mapping: Mapping[str, Wire], decode: Callable[[Wire], Any]) -> dict[str, Any]:
    """Every value of a stored object, the key named when one is refused."""
    values: dict[str, Any] = {}
    key = ""
    try:
        for key, wire in mapping.items():
            values[key] = decode(wire)
    except Refused as refused:
        refused.under(f"[{reprlib.repr(key)}]")
        raise
    return values
