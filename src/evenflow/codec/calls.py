"""Calls and results as JSON text: what the store keeps, byte for byte, and never looks into.

What could not be read back is refused before it is stored. Only errors of the public tree leave this module.
"""

from collections.abc import Mapping, Sequence
from typing import Any

import msgspec

from evenflow.codec.annotations import shape_of
from evenflow.codec.references import MISSING, REFERENCE, Reference, filled
from evenflow.codec.refused import Refused
from evenflow.codec.signature import CallSignature
from evenflow.codec.walk import Wire
from evenflow.codec.wire import LONE_SURROGATE, TAG, decode_any, encode_any
from evenflow.errors import DecodeError, EvenflowError, PayloadError, ResultError

DEFAULT_MAX_BYTES = 256 * 1024
"""How large the text of a call or of a result may be, in UTF-8."""

_STORE_ELSEWHERE = "store the data elsewhere and send a reference"

_REFERRING = f'"{TAG}":"{REFERENCE}"'

_write = msgspec.json.Encoder().encode
_read = msgspec.json.Decoder().decode
_read_call = msgspec.json.Decoder(tuple[list[Any], dict[str, Any]]).decode


__all__ = [
    "DEFAULT_MAX_BYTES",
    "Reference",
    "call_wires",
    "decode_call",
    "decode_result",
    "encode_call",
    "encode_result",
    "encode_template",
    "may_refer",
    "readable_result",
]


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
    return _call_text(signature, signature.encode(args, kwargs), max_bytes)


def encode_template(
    signature: CallSignature,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    max_bytes: int = DEFAULT_MAX_BYTES,
) -> str:
    """`encode_call` for a call that refers to results of other steps.

    >>> def add(a: int, b: int) -> int: ...
    >>> encode_template(CallSignature(add), (1, Reference("first")), {})
    '[[1,{"$evenflow":"output","v":"first"}],{}]'
    """
    return _call_text(signature, signature.encode_template(args, kwargs), max_bytes)


def _call_text(signature: CallSignature, wires: tuple[list[Wire], dict[str, Wire]], max_bytes: int) -> str:
    try:
        text = _write(wires)
    except UnicodeEncodeError as error:
        raise PayloadError(f"task {signature.task!r}: {_surrogate_place(signature, wires)}") from error
    if len(text) > max_bytes:
        raise PayloadError(f"task {signature.task!r}: {_too_large(signature, wires, len(text), max_bytes)}")
    return text.decode()


def decode_call(
    text: str, signature: CallSignature | None = None, outputs: Mapping[str, str] | None = None
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a stored call by the function's annotations; without them, as far as the text tells.

    `outputs` are the results that the call may refer to, by the name of their step; an argument whose result is not
    there is left out. Without them references are shown as texts. Raises `DecodeError` when the text does not fit.

    >>> decode_call('[[1,2],{}]')
    ((1, 2), {})
    """
    try:
        wires, named = _call_parts(text)
        if _REFERRING in text:
            if outputs is None:
                return _shown(wires), {name: decode_any(_pictured(wire)) for name, wire in named.items()}
            wires, named = _filled(wires, named, outputs, signature)
        if signature is not None:
            return signature.decode(wires, named)
        return tuple(map(decode_any, wires)), {name: decode_any(wire) for name, wire in named.items()}
    except EvenflowError:
        raise
    except Exception as error:
        raise DecodeError(f"stored arguments cannot be read: {error}") from error


def may_refer(text: str) -> bool:
    """Whether a stored call can refer to results. A text among its arguments may look like it: no harm is done then."""
    return _REFERRING in text


def call_wires(text: str, outputs: Mapping[str, str]) -> tuple[list[Wire], dict[str, Wire]]:
    """The stored trees of a call's arguments, results in their places; what is not there is left out."""
    wires, named = _call_parts(text)
    return _filled(wires, named, outputs, None)


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
    except Exception as error:
        # A property or comparison of the value's own; the run is over, so it must end here.
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


def readable_result(text: str | None) -> Any:
    """A result to be shown, the same on every machine whatever code it has; `<why>` where it cannot be read.

    >>> readable_result('{"$evenflow":"tuple","v":[1,"a"]}')
    (1, 'a')
    """
    if text is None:
        return None
    try:
        return decode_result(text)
    except DecodeError as wrong:
        return f"<{wrong}>"


def _filled(
    wires: list[Wire], named: dict[str, Wire], outputs: Mapping[str, str], signature: CallSignature | None
) -> tuple[list[Wire], dict[str, Wire]]:
    """The call with results in their places. Behind an argument that is left out, the others go by name."""
    known = {name: _read(text) for name, text in outputs.items()}
    placed = [filled(wire, known) for wire in wires]
    others = {name: value for name, wire in named.items() if (value := filled(wire, known)) is not MISSING}
    first = next((place for place, value in enumerate(placed) if value is MISSING), len(placed))
    if signature is not None:
        behind = {signature.position_name(place): placed[place] for place in range(first + 1, len(placed))}
        others |= {name: value for name, value in behind.items() if value is not MISSING}
    return placed[:first], others


def _shown(wires: list[Wire]) -> tuple[Any, ...]:
    return tuple(decode_any(_pictured(wire)) for wire in wires)


def _pictured(wire: Wire) -> Wire:
    """A stored tree with texts in the place of references, for people."""
    if type(wire) is list:
        return [_pictured(each) for each in wire]
    if type(wire) is not dict:
        return wire
    if wire.get(TAG) == REFERENCE:
        return f"<output of {wire['v']}>"
    return {key: _pictured(each) for key, each in wire.items()}


def _call_parts(text: str) -> tuple[list[Wire], dict[str, Wire]]:
    try:
        return _read_call(text)
    except msgspec.ValidationError as error:
        raise Refused("expected a list of positional arguments and an object of named ones") from error


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
