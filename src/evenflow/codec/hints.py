"""Reading annotations: what a function's or a class's hints mean, even where some cannot be resolved."""

import functools
import inspect
import typing
from collections.abc import Mapping
from typing import Any


class Unresolved:
    """An annotation whose name is not there at run time, as under `if TYPE_CHECKING:`."""

    def __init__(self, text: str) -> None:
        self.text = text


def resolved_hints(target: Any) -> dict[str, Any]:
    """Name to annotation, texts resolved, `Annotated` kept; what cannot be resolved is an `Unresolved`.

    >>> resolved_hints(resolved_hints)["return"]
    dict[str, typing.Any]
    """
    source = _annotated_object(target)
    try:
        return typing.get_type_hints(source, include_extras=True)
    except Exception:  # any expression may stand in an annotation, so anything may come out of it
        raw = getattr(source, "__annotations__", {})
        return {name: _resolved_alone(name, hint, source) for name, hint in raw.items()}


def _annotated_object(target: Any) -> Any:
    """The function that carries the annotations, behind decorators, partials and callable objects."""
    target = inspect.unwrap(target)
    if isinstance(target, functools.partial):
        return _annotated_object(target.func)
    if inspect.isclass(target) or inspect.isroutine(target):
        return target
    return type(target).__call__


def _resolved_alone(name: str, hint: Any, source: Any) -> Any:
    holder = type("Holder", (), {"__annotations__": {name: hint}})
    try:
        return typing.get_type_hints(holder, _globals_of(source), include_extras=True)[name]
    except Exception:
        return Unresolved(hint) if isinstance(hint, str) else hint


def _globals_of(source: Any) -> dict[str, Any]:
    own: Mapping[str, Any] | None = getattr(source, "__globals__", None)
    if own is None:
        module = inspect.getmodule(source)
        own = vars(module) if module is not None else {}
    return dict(own)
