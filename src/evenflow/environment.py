"""Settings out of environment variables: texts are read strictly, and a mistake names its variable.

Knows texts and readers only; which variables exist is said by the settings themselves.
"""

import re
from collections.abc import Callable, Mapping
from typing import Any, TypeAlias

from evenflow.durations import Duration, duration_us

Readers: TypeAlias = Mapping[str, Callable[[str], Any]]
"""Setting name to the function that reads its text, or raises ValueError saying what was expected."""

_TRUTHS = {
    "1": True,
    "true": True,
    "yes": True,
    "on": True,
    "0": False,
    "false": False,
    "no": False,
    "off": False,
}


def read_environment(
    environ: Mapping[str, str], prefix: str, readers: Readers, mistakes: list[str]
) -> dict[str, Any]:
    """The settings that are set, by name. Unset ones are left out; malformed ones are added to `mistakes`.

    >>> read_environment({"EVENFLOW_LEASE_MS": "9000"}, "EVENFLOW_", {"lease_ms": whole_number}, [])
    {'lease_ms': 9000}
    """
    values: dict[str, Any] = {}
    for name, reader in readers.items():
        variable = prefix + name.upper()
        if variable not in environ:
            continue
        try:
            values[name] = reader(environ[variable])
        except ValueError as wrong:
            mistakes.append(f"{variable}: {wrong}; change the variable or unset it")
    return values


def whole_number(text: str) -> int:
    """A whole number in plain digits."""
    if not re.fullmatch(r"-?[0-9]{1,18}", text):
        raise ValueError(f"expected a whole number, got {text!r}")
    return int(text)


def truth(text: str) -> bool:
    """Yes or no, in the words people use."""
    if text.lower() not in _TRUTHS:
        raise ValueError(f"expected true or false, got {text!r}")
    return _TRUTHS[text.lower()]


def kept_for(text: str) -> Duration | None:
    """Seconds, a duration with a unit, or `forever`."""
    if text == "forever":
        return None
    value = int(text) if re.fullmatch(r"[0-9]{1,12}", text) else text
    duration_us(value)
    return value


def key_ring(text: str) -> dict[str, str]:
    """`id:secret` pairs with commas between them, the active key first. A refusal never shows the text."""
    pairs = [pair.partition(":") for pair in text.split(",")]
    names = {name for name, _, secret in pairs if name and secret}
    if len(names) < len(pairs):
        raise ValueError(
            "expected id:secret pairs with commas between them and no id twice, the active key first"
        )
    return {name: secret for name, _, secret in pairs}
