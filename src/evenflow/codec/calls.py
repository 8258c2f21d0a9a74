"""Calls and results as JSON text: what the store keeps, byte for byte, and never looks into.

What could not be read back is refused before it is stored. Only errors of the public tree leave this module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evenflow.codec.annotations import shape_of
from evenflow.codec.refused import Refused
from evenflow.codec.signature import CallSignature
from evenflow.codec.walk import Wire
from evenflow.codec.wire import LONE_SURROGATE, decode_any, encode_any
from evenflow.errors import DecodeError, EvenflowError, PayloadError, ResultError

DEFAULT_MAX_BYTES = 256 * 1024
"""How large the text of a call or of a result may be, in UTF-8."""

_STORE_ELSEWHERE = "store the data elsewhere and send a reference"

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode


def encode_call(
    signature: CallSignature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> str:
    """Bind a call to the task's function and give its text, `[args, kwargs]`. Raises `PayloadError`.

    >>> def add(a: int, b: int) -> int: ...
    >>> encode_call(CallSignature(add), (1,), {"b": 2})
    '[[1,2],{}]'
    """
    wires = signature.encode(args, kwargs)
    try:
        text = _write(wires)
    except UnicodeEncodeError as error:
        raise PayloadError(f"task {signature.task!r}: {_surrogate_place(signature, wires)}") from error
    if len(text) > max_bytes:
        raise PayloadError(f"task {signature.task!r}: {_too_large(signature, wires, len(text), max_bytes)}")
    return text.decode()


def decode_call(text: str, signature: CallSignature | None = None) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a stored call by the function's annotations; without them, as far as the text tells.

    Raises `DecodeError` when the text does not fit.

    >>> decode_call('[[1,2],{}]')
    ((1, 2), {})
    """
    try:
        wires, named = _call_parts(_read(text))
        if signature is not None:
            return signature.decode(wires, named)
        return tuple(map(decode_any, wires)), {name: decode_any(wire) for name, wire in named.items()}
    except EvenflowError:
        raise
    except Exception as error:
        raise DecodeError(f"stored arguments cannot be read: {error}") from error


def encode_result(value: Any, max_bytes: int = DEFAULT_MAX_BYTES) -> str:
    """The text of what a task returned, readable also without the task at hand. Raises `ResultError`.

    >>> encode_result((1, "a"))
    '{"$evenflow":"tuple","v":[1,"a"]}'
    """
    try:
        text = _write(encode_any(value, 0, True))
    except UnicodeEncodeError as error:
        raise ResultError(f"result: {LONE_SURROGATE}") from error
    except Refused as refused:
        raise ResultError(f"result{' ' if refused.path else ': '}{refused}") from refused
    except (
        Exception
    ) as error:  # a property or comparison of the value's own; the run is over, so it must end here
        raise ResultError(f"result: could not be encoded: {type(error).__name__}: {error}") from error
    if len(text) > max_bytes:
        raise ResultError(
            f"result: {len(text)} bytes of JSON, at most {max_bytes} are kept; {_STORE_ELSEWHERE}"
        )
    return text.decode()


def decode_result(text: str, return_annotation: Any = Any) -> Any:
    """What a task returned, by its annotation as far as the function kept to it. Raises `DecodeError`.

    Python does not hold a function to its return annotation, so a result of another type comes back as it was
    returned. A result that names the annotated class, and no longer fits it, is an error.

    >>> decode_result('{"$evenflow":"tuple","v":[1,"a"]}', tuple[int, str])
    (1, 'a')
    """
    try:
        wire = _read(text)
        try:
            return shape_of(return_annotation).decode(wire)
        except Refused as refused:
            if refused.is_broken:
                raise
        return decode_any(wire)
    except EvenflowError:
        raise
    except Exception as error:
        raise DecodeError(f"the stored result cannot be read: {error}") from error


def _call_parts(tree: Wire) -> tuple[list[Wire], dict[str, Wire]]:
    if type(tree) is not list or len(tree) != 2 or type(tree[0]) is not list or type(tree[1]) is not dict:
        raise Refused("expected a list of positional arguments and an object of named ones")
    return tree[0], tree[1]


def _surrogate_place(signature: CallSignature, wires: tuple[list[Wire], dict[str, Wire]]) -> str:
    for name, wire in _by_argument(signature, wires):
        try:
            _write(wire)
        except UnicodeEncodeError:
            return f"argument {name!r}: {LONE_SURROGATE}"
    return f"the name of an argument: {LONE_SURROGATE}"


def _too_large(
    signature: CallSignature, wires: tuple[list[Wire], dict[str, Wire]], size: int, max_bytes: int
) -> str:
    sizes = {name: len(_write(wire)) for name, wire in _by_argument(signature, wires)}
    largest = max(sizes, key=sizes.__getitem__)
    return (
        f"argument {largest!r}: the arguments take {size} bytes of JSON, at most {max_bytes} are allowed, "
        f"and this one is the largest with {sizes[largest]}; {_STORE_ELSEWHERE}"
    )


def _by_argument(
    signature: CallSignature, wires: tuple[list[Wire], dict[str, Wire]]
) -> list[tuple[str, Wire]]:
    placed, named = wires
    names = [signature.position_name(index) for index in range(len(placed))]
    return [*zip(names, placed, strict=True), *named.items()]
