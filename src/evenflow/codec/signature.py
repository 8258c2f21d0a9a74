"""What a task's function takes: a call is bound to it at enqueue and again at the run, by the same rules.

Built once per task. It arranges and converts arguments; it never calls the function and knows no text format.
"""

import inspect
import operator
import re
import sys
from collections.abc import Callable, Mapping, Sequence
from inspect import Parameter
from types import UnionType
from typing import Annotated, Any, NamedTuple, Union, get_args, get_origin

from evenflow.codec.annotations import shape_of
from evenflow.codec.choices import OptionalShape
from evenflow.codec.hints import Unresolved, resolved_hints
from evenflow.codec.references import encode_references, holds_reference
from evenflow.codec.refused import Refused
from evenflow.codec.shapes import ANY, Shape
from evenflow.codec.walk import Wire
from evenflow.errors import ConfigError, DecodeError, PayloadError

_POSITIONAL = (Parameter.POSITIONAL_ONLY, Parameter.POSITIONAL_OR_KEYWORD)


class Argument(NamedTuple):
    """One parameter that a call fills."""

    name: str
    kind: Any
    shape: Shape
    default: Any
    is_required: bool


class ContextPlace(NamedTuple):
    """Where the function wants its context: name, position if it has one, whether a keyword reaches it."""

    name: str
    position: int | None
    is_by_name: bool


class CallSignature:
    """The parameters of a task's function, with a shape for each annotation.

    A parameter annotated with `context_type` is filled by the worker and is no part of a call.

    >>> def add(a: int, b: int = 2) -> int: ...
    >>> CallSignature(add).bind((), {"a": 1})
    ((1,), {})
    >>> CallSignature(add).arguments((1,), {})
    {'a': 1, 'b': 2}
    """

    def __init__(
        self, function: Callable[..., Any], *, task: str | None = None, context_type: type | None = None
    ) -> None:
        self.task = task if task is not None else str(getattr(function, "__name__", function))
        hints = resolved_hints(function)
        parameters = _parameters(function, self.task)
        self.return_annotation: Any = hints.get("return", Any)
        self.context = _context_place(parameters, hints, context_type, self.task)
        taken = {self.context.name} if self.context else set()
        arguments = [
            _argument(each, hints.get(each.name, Any)) for each in parameters if each.name not in taken
        ]
        self._positional = tuple(each for each in arguments if each.kind in _POSITIONAL)
        self._keyword_only = tuple(each for each in arguments if each.kind is Parameter.KEYWORD_ONLY)
        self._rest = next((each for each in arguments if each.kind is Parameter.VAR_POSITIONAL), None)
        self._extra = next((each for each in arguments if each.kind is Parameter.VAR_KEYWORD), None)
        self.names = tuple(each.name for each in arguments)
        self._prepare()

    def bind(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Check a call against the function; give it back with every argument in its one usual place.

        Raises `PayloadError` that names the task and the argument that is unknown, missing, given twice, of
        the wrong type, or holds what cannot be stored.
        """
        arranged = self._arranged_for_enqueue(args, kwargs)
        self.encode(*arranged)
        return arranged

    def arguments(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> dict[str, Any]:
        """The arguments of a call by name, defaults filled in; values are not checked here."""
        if not kwargs and len(args) == self._complete:
            return dict(zip(self._positional_names, args, strict=True))
        arranged, named = self._arranged_for_enqueue(args, kwargs)
        found = dict(self._defaults)
        found.update(zip(self._positional_names, arranged, strict=False))
        found.update((name, value) for name, value in named.items() if name in self._by_name)
        if self._rest:
            found[self._rest.name] = arranged[self._most :]
        if self._extra:
            found[self._extra.name] = {name: named[name] for name in named if name not in self._by_name}
        return found

    def encode(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> tuple[list[Wire], dict[str, Wire]]:
        """Bind a call and convert it to the trees that are stored. Raises `PayloadError` like `bind`."""
        if kwargs or not self._fewest <= len(args) <= self._most:
            args, kwargs = self._arranged_for_enqueue(args, kwargs)
        try:
            if not kwargs and len(args) <= self._most:
                wires = []
                # A comprehension over a zip takes half as long again for the few arguments that calls have.
                for place, value in enumerate(args):
                    wires.append(self._encoders[place](value, 0))
                return wires, {}
        except Refused:
            pass  # the careful way below finds out which argument it was
        try:
            return self._each(args, kwargs, lambda shape, value: shape.encode(value, 0))
        except Refused as refused:
            raise PayloadError(self._about(refused)) from refused

    def encode_template(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[list[Wire], dict[str, Wire]]:
        """`encode` for a call some of whose arguments are, or hold, results of other steps."""
        arranged, named = self._arranged_for_enqueue(args, kwargs)
        try:
            return self._each(arranged, named, _encode_referring)
        except Refused as refused:
            raise PayloadError(self._about(refused)) from refused

    def decode_first(self, wire: Wire) -> Any:
        """The value of a stored tree as the first positional argument."""
        shape = self._positional[0].shape if self._positional else self._rest.shape if self._rest else ANY
        try:
            return shape.decode(wire)
        except Refused as refused:
            raise DecodeError(self._about(refused)) from refused

    @property
    def positional_names(self) -> list[str]:
        """The parameters that a call may give in order."""
        return [each.name for each in self._positional]

    @property
    def keyword_only_names(self) -> list[str]:
        """The parameters that a call can give by name alone."""
        return [each.name for each in self._keyword_only]

    @property
    def takes_rest(self) -> bool:
        """Whether there is a parameter `*args`."""
        return self._rest is not None

    @property
    def takes_extra(self) -> bool:
        """Whether there is a parameter `**kwargs`."""
        return self._extra is not None

    def place_of(self, name: str) -> int | None:
        """Where the argument of this name stands among the positional ones of a call; None where it does not."""
        return self._positional_names.index(name) if name in self._positional_names else None

    def is_required(self, name: str) -> bool:
        """Whether a call must give the parameter of this name."""
        return any(
            each.name == name and each.is_required for each in (*self._positional, *self._keyword_only)
        )

    def decode(
        self, wires: Sequence[Wire], named: Mapping[str, Wire]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a stored call, by the annotations. Raises `DecodeError` if they do not fit."""
        try:
            if not named and self._fewest <= len(wires) <= self._most:
                return tuple(map(operator.call, self._decoders, wires)), {}
        except Refused:
            pass  # as in encode
        try:
            arranged, rest = self._arranged(wires, named)
            values, others = self._each(arranged, rest, lambda shape, wire: shape.decode(wire))
        except Refused as refused:
            raise DecodeError(self._about(refused)) from refused
        return tuple(values), others

    def inject(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], context: Any
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The call as the function takes it, the context in its place; unchanged if it wants none."""
        place = self.context
        if place is None:
            return tuple(args), dict(kwargs)
        if place.position is not None and not place.is_by_name and len(args) < place.position:
            args = (*args, *(each.default for each in self._positional[len(args) : place.position]))
        if place.position is None or len(args) < place.position:
            return tuple(args), {**kwargs, place.name: context}
        return (*args[: place.position], context, *args[place.position :]), dict(kwargs)

    def position_name(self, index: int) -> str:
        """The name of the parameter that the positional argument at `index` fills."""
        if index < self._most:
            return self._positional_names[index]
        return f"*{self._rest.name}" if self._rest else f"[{index}]"

    def _prepare(self) -> None:
        """What the two directions need on every call, computed once."""
        declared = (*self._positional, *self._keyword_only)
        self._by_name = {each.name: each for each in declared if each.kind is not Parameter.POSITIONAL_ONLY}
        self._defaults = tuple((each.name, each.default) for each in declared)
        self._positional_names = tuple(each.name for each in self._positional)
        self._decoders = tuple(each.shape.decode for each in self._positional)
        self._encoders = tuple(each.shape.encode for each in self._positional)
        self._most = len(self._positional)
        is_positional_enough = not any(each.is_required for each in self._keyword_only)
        required = sum(each.is_required for each in self._positional)
        self._fewest = required if is_positional_enough else sys.maxsize
        # Which keywords make a call complete when the first n arguments are given by position.
        self._tails = [set(self._positional_names[count:]) for count in range(self._most + 1)]
        is_simple = len(self._by_name) == self._most and not self._rest and not self._extra
        self._complete = self._most if is_simple and not self._keyword_only else -1

    def _arranged_for_enqueue(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        try:
            return self._arranged(args, kwargs)
        except Refused as refused:
            raise PayloadError(self._about(refused)) from refused

    def _arranged(
        self, args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Positions first, as far as they go without a gap, then keywords in the function's order."""
        if len(args) + len(kwargs) == self._complete and kwargs.keys() == self._tails[len(args)]:
            return (*args, *[kwargs[name] for name in self._positional_names[len(args) :]]), {}
        if len(args) > self._most and self._rest is None:
            raise Refused(f"takes at most {self._most} positional arguments, got {len(args)}")
        placed, left = list(args), dict(kwargs)
        self._check_names(placed, left)
        for argument in self._positional[len(placed) :]:
            if argument.name not in left or argument.kind is Parameter.POSITIONAL_ONLY:
                break
            placed.append(left.pop(argument.name))
        self._check_missing(placed, left)
        named = {name: left.pop(name) for name in self._by_name if name in left}
        return tuple(placed), {**named, **left}

    def _check_names(self, placed: Sequence[Any], left: Mapping[str, Any]) -> None:
        for name in left:
            if self.context and name == self.context.name:
                raise Refused(f"argument {name!r} is filled by the worker; leave it out")
            if name in self._positional_names[: len(placed)] and name in self._by_name:
                raise Refused(f"argument {name!r} is given twice")
            if name in self._by_name or self._extra is not None:
                continue
            if name in self._positional_names:
                raise Refused(f"argument {name!r} can only be given by position")
            raise Refused(f"unknown argument {name!r}; it takes {', '.join(self.names) or 'none'}")

    def _check_missing(self, placed: Sequence[Any], left: Mapping[str, Any]) -> None:
        for argument in (*self._positional[len(placed) :], *self._keyword_only):
            is_given = argument.name in left and argument.name in self._by_name
            if argument.is_required and not is_given:
                raise Refused(f"argument {argument.name!r} is missing")

    def _each(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], convert: Callable[[Shape, Any], Any]
    ) -> tuple[list[Any], dict[str, Any]]:
        placed = [_named(each, convert, value) for each, value in zip(self._positional, args, strict=False)]
        if self._rest:
            rest = self._rest._replace(name=f"*{self._rest.name}")
            placed += [_named(rest, convert, value) for value in args[self._most :]]
        named = {name: _named(self._argument_called(name), convert, value) for name, value in kwargs.items()}
        return placed, named

    def _argument_called(self, name: str) -> Argument:
        known = self._by_name.get(name)
        if known is not None:
            return known
        assert self._extra is not None
        return self._extra._replace(name=name)

    def _about(self, refused: Refused) -> str:
        return f"task {self.task!r}: {refused.reason}"


def _encode_referring(shape: Shape, value: Any) -> Wire:
    return encode_references(value) if holds_reference(value) else shape.encode(value, 0)


def _named(argument: Argument, convert: Callable[[Shape, Any], Any], value: Any) -> Any:
    try:
        return convert(argument.shape, value)
    except Refused as refused:
        place = f" at {refused.path}" if refused.path else ""
        raise Refused(f"argument {argument.name!r}{place}: {refused.reason}") from refused


def _parameters(function: Callable[..., Any], task: str) -> list[Parameter]:
    try:
        return list(inspect.signature(function).parameters.values())
    except (ValueError, TypeError) as error:
        raise ConfigError(
            f"task {task!r}: expected a function whose parameters can be read: {error}"
        ) from error


def _argument(parameter: Parameter, hint: Any) -> Argument:
    shape = shape_of(hint)
    if parameter.default is None and shape is not ANY:
        shape = OptionalShape(shape)  # `x: int = None` means what it meant before PEP 484 was mended
    has_default = parameter.default is not Parameter.empty
    is_variable = parameter.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD)
    return Argument(
        parameter.name, parameter.kind, shape, parameter.default, not has_default and not is_variable
    )


def _context_place(
    parameters: Sequence[Parameter], hints: Mapping[str, Any], context_type: type | None, task: str
) -> ContextPlace | None:
    if context_type is None:
        return None
    found = [each for each in parameters if _is_context(hints.get(each.name), context_type)]
    if len(found) > 1:
        names = ", ".join(each.name for each in found)
        raise ConfigError(f"task {task!r}: expected one {context_type.__name__} parameter, got {names}")
    if not found:
        return None
    place = found[0]
    if place.kind in (Parameter.VAR_POSITIONAL, Parameter.VAR_KEYWORD):
        raise ConfigError(
            f"task {task!r}: {place} cannot be a {context_type.__name__}; give it a name of its own"
        )
    index = parameters.index(place) if place.kind in _POSITIONAL else None
    return ContextPlace(place.name, index, place.kind is not Parameter.POSITIONAL_ONLY)


def _is_context(hint: Any, context_type: type) -> bool:
    if isinstance(hint, Unresolved):
        return context_type.__name__ in re.findall(r"\w+", hint.text)
    if get_origin(hint) in (Union, UnionType, Annotated):
        return any(_is_context(arm, context_type) for arm in get_args(hint))
    origin = get_origin(hint) or hint
    return isinstance(origin, type) and issubclass(origin, context_type)
