"""Keys made from a call's arguments: an argument's name, a template or a callable, compiled at declaration.

Two calls get the same key only if the values in it are the same: values are escaped where a template would
blur them, and a scope is part of the text. Only values with one obvious text are taken, never a repr.
"""

import inspect
import math
from collections.abc import Callable, Collection, Mapping
from datetime import date, time
from decimal import Decimal
from enum import Enum
from pathlib import PurePath
from string import Formatter
from typing import TypeAlias
from uuid import UUID

from evenflow.errors import ConfigError, EnqueueError
from evenflow.limits import KeySource

LONGEST_KEY = 255

Arguments: TypeAlias = Mapping[str, object]
_Render: TypeAlias = Callable[[Arguments], str | None]


class Key:
    """A compiled key. Call `text` with a call's arguments bound by name.

    None means that the rule does not apply to this call: the argument or the callable's answer is None.

    >>> key = Key("{tenant}/{region}", parameters=("tenant", "region"), task="bill", option="unique")
    >>> key.text({"tenant": "bob", "region": "eu"})
    'bob/eu'
    """

    __slots__ = ("_option", "_prefix", "_render", "_task")

    def __init__(
        self,
        source: KeySource,
        *,
        parameters: Collection[str],
        task: str,
        option: str,
        scope: str | None = None,
        takes_any_name: bool = False,
    ) -> None:
        """Compile `source` against the task's parameter names, or raise ConfigError.

        `scope` keeps equal keys of different owners apart; None leaves the text as it is, as for groups.
        `takes_any_name` is for functions with `**kwargs`, whose names are known at the call.
        """
        self._task = task
        self._option = option
        self._prefix = "" if scope is None else f"{_escaped(scope, ':')}:"
        known = None if takes_any_name else frozenset(parameters)
        try:
            self._render = _compiled(source, parameters, known)
        except ValueError as wrong:
            raise ConfigError(f"task {task!r}: {option}: {wrong}") from None

    def text(self, arguments: Arguments) -> str | None:
        """The key of this call, or None where the rule does not apply. Raises EnqueueError."""
        try:
            value = self._render(arguments)
            return None if value is None else _checked(self._prefix + value)
        except Exception as wrong:
            raise EnqueueError(f"task {self._task!r}: {self._option}: {_reason(wrong)}") from wrong


def scope_key(scope: str) -> str:
    """The key of a rule without one: everything in the scope shares it, and no keyed text equals it.

    >>> scope_key("bill")
    'bill'
    """
    try:
        return _checked(_escaped(scope, ":"))
    except ValueError as wrong:
        raise ConfigError(f"scope {scope!r}: {wrong}") from None


def called_by_name(
    make: Callable[..., object], *, parameters: Collection[str], task: str, option: str
) -> Callable[[Arguments], object]:
    """A callable on a call's arguments, given those that it names; or ConfigError, where it names others.

    >>> size = called_by_name(lambda tenant: len(tenant), parameters=("tenant", "page"), task="bill", option="to")
    >>> size({"tenant": "bob", "page": 1})
    3
    """
    try:
        return _by_name(make, parameters, frozenset(parameters))
    except ValueError as wrong:
        raise ConfigError(f"task {task!r}: {option}: {wrong}") from None


class _Plain(ValueError):
    """A refusal in our own words, told apart from whatever a user's callable raises."""


def _compiled(source: object, parameters: Collection[str], known: frozenset[str] | None) -> _Render:
    if callable(source):
        return _from_callable(source, parameters, known)
    if not isinstance(source, str) or not source:
        raise _Plain(f"expected an argument's name, a template or a callable, got {source!r}")
    if "{" in source or "}" in source:
        return _from_template(source, parameters, known)
    _check_names([source], parameters, known)
    return lambda arguments: _optional_text(source, _argument(arguments, source))


def _from_template(template: str, parameters: Collection[str], known: frozenset[str] | None) -> _Render:
    pieces = _pieces(template)
    names = [name for _, name, _ in pieces]
    _check_names(names, parameters, known)
    tail = _tail(template)

    def render(arguments: Arguments) -> str:
        text = ""
        for before, name, ends_with in pieces:
            value = _required_text(name, _argument(arguments, name))
            # Without this {a}/{b} would give ("x/y", "z") and ("x", "y/z") one key.
            text += before + (_escaped(value, ends_with) if ends_with else value)
        return text + tail

    return render


def _parsed(template: str) -> list[tuple[str, str | None]]:
    try:
        parts = list(Formatter().parse(template))
    except ValueError as wrong:
        raise _Plain(
            f"expected a template such as '{{tenant}}/{{region}}', got {template!r}: {wrong}"
        ) from None
    for _, name, spec, conversion in parts:
        if name is not None and (not name.isidentifier() or spec or conversion):
            raise _Plain(
                f"expected plain argument names in braces, got {template!r}; use a callable for more"
            )
    return [(literal, name) for literal, name, _, _ in parts]


def _pieces(template: str) -> list[tuple[str, str, str]]:
    """Per argument: the text before it, its name, and the character that ends it where another follows."""
    parts = [part for part in _joined(_parsed(template)) if part[1] is not None]
    if not parts:
        raise _Plain(
            f"expected an argument in braces, got {template!r}; a key that never varies needs no template"
        )
    pieces = []
    for (before, name), following in zip(parts, [*parts[1:], None], strict=True):
        if following is not None and not following[0]:
            raise _Plain(f"expected a separator between the arguments in {template!r}, such as '/'")
        if following is not None and following[0][0] == "\\":
            raise _Plain(
                f"expected a separator other than a backslash in {template!r}; it marks escapes in keys"
            )
        pieces.append((before, str(name), following[0][0] if following else ""))
    return pieces


def _joined(parts: list[tuple[str, str | None]]) -> list[tuple[str, str | None]]:
    """Literal runs joined: the parser splits them at doubled braces."""
    joined: list[tuple[str, str | None]] = []
    held = ""
    for literal, name in parts:
        held += literal
        if name is not None:
            joined.append((held, name))
            held = ""
    return [*joined, (held, None)]


def _tail(template: str) -> str:
    return _joined(_parsed(template))[-1][0]


def _from_callable(
    make: Callable[..., object], parameters: Collection[str], known: frozenset[str] | None
) -> _Render:
    call = _by_name(make, parameters, known)
    return lambda arguments: _optional_text("the key", call(arguments))


def _by_name(
    make: Callable[..., object], parameters: Collection[str], known: frozenset[str] | None
) -> Callable[[Arguments], object]:
    if inspect.iscoroutinefunction(make):
        raise _Plain("expected a plain callable, got a coroutine function; keys are made without waiting")
    try:
        wanted = list(inspect.signature(make).parameters.values())
    except (TypeError, ValueError):
        raise _Plain(
            f"expected a callable with a readable signature, got {make!r}; wrap it in a lambda"
        ) from None
    if len(wanted) == 1 and _takes_mapping(wanted[0], parameters):
        return lambda arguments: make(dict(arguments))
    _check_callable(wanted, parameters, known)
    if any(each.kind is each.VAR_KEYWORD for each in wanted):
        return lambda arguments: make(**arguments)
    names = [each.name for each in wanted if each.kind is not each.VAR_POSITIONAL]
    return lambda arguments: make(**{name: arguments[name] for name in names if name in arguments})


def _takes_mapping(parameter: inspect.Parameter, parameters: Collection[str]) -> bool:
    """`lambda call: call["tenant"]`: one parameter that is none of the arguments gets all as a dict."""
    positional = parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD)
    return positional and parameter.name not in parameters


def _check_callable(
    wanted: list[inspect.Parameter], parameters: Collection[str], known: frozenset[str] | None
) -> None:
    if any(each.kind is each.POSITIONAL_ONLY for each in wanted):
        raise _Plain("expected a callable that takes the arguments by name, got positional-only parameters")
    open_kinds = (inspect.Parameter.VAR_KEYWORD, inspect.Parameter.VAR_POSITIONAL)
    required = [each.name for each in wanted if each.kind not in open_kinds and each.default is each.empty]
    _check_names(required, parameters, known)


def _check_names(names: list[str], parameters: Collection[str], known: frozenset[str] | None) -> None:
    missing = [name for name in names if known is not None and name not in known]
    if missing:
        has = ", ".join(map(repr, parameters)) or "none"
        raise _Plain(f"expected arguments of the function, got {', '.join(map(repr, missing))}; it has {has}")


def _argument(arguments: Arguments, name: str) -> object:
    if name not in arguments:
        raise _Plain(f"the call has no argument {name!r}")
    return arguments[name]


def _required_text(name: str, value: object) -> str:
    text = _optional_text(name, value)
    if text is None:
        raise _Plain(f"argument {name!r} is None; a template needs a value, a callable may return None")
    return text


def _optional_text(what: str, value: object) -> str | None:
    if value is None or (isinstance(value, str) and not isinstance(value, Enum)):
        return value
    if isinstance(value, Enum):
        return _optional_text(what, value.value)
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float) and not math.isfinite(value):
        raise _Plain(f"{what}: {value!r} is not a value that equals itself or can be stored")
    if isinstance(value, int | float | Decimal | UUID | PurePath):
        return str(value)
    if isinstance(value, date | time):
        return value.isoformat()
    raise _Plain(
        f"{what}: expected text, a number, a date, a UUID, a path or an enum, got {type(value).__name__}; "
        "use a callable that returns its text"
    )


def _escaped(text: str, separator: str) -> str:
    return text.replace("\\", "\\\\").replace(separator, "\\" + separator)


def _checked(text: str) -> str:
    if len(text) > LONGEST_KEY:
        raise _Plain(
            f"expected a key of at most {LONGEST_KEY} characters, got {len(text)}; shorten or hash it"
        )
    if "\0" in text:
        raise _Plain(f"expected a key without NUL, got {text!r}")
    if not text.isascii() and any("\ud800" <= character <= "\udfff" for character in text):
        raise _Plain(f"expected a key that is valid text, got a lone surrogate in {text!r}")
    return text


def _reason(wrong: Exception) -> str:
    return (
        str(wrong) if isinstance(wrong, _Plain) else f"making the key raised {type(wrong).__name__}: {wrong}"
    )
