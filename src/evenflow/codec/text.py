"""The rules for texts that go into columns of their own: names, keys and groups are refused, words for people mended."""

import re

from evenflow.errors import PayloadError

LONGEST_MESSAGE = 4_000
_CONTROL_OR_SURROGATE = re.compile("[\x00-\x1f\x7f-\x9f\ud800-\udfff]")


def check_text(what: str, value: str, max_length: int = 255) -> str:
    """Give `value` back, or raise a `PayloadError` that says which `what` has which fault.

    >>> check_text("group", "tenant-7", 255)
    'tenant-7'
    """
    if not isinstance(value, str):
        raise PayloadError(f"{what}: expected text, got {type(value).__name__}")
    if len(value) > max_length:
        raise PayloadError(f"{what}: expected at most {max_length} characters, got {len(value)}")
    if not value.isprintable():
        _check_characters(what, value)
    return value


def storable_text(text: str, limit: int | None = LONGEST_MESSAGE) -> str:
    """Text that every database stores: no NUL, no lone surrogates. For what is read by people alone, such as messages.

    >>> storable_text("cut off by\\0")
    'cut off by\\\\0'
    """
    clean = text.replace("\0", "\\0").encode("utf-8", "replace").decode()
    return clean if limit is None or len(clean) <= limit else clean[:limit] + "…"


def remark(what: str, text: str | None) -> str | None:
    """What somebody said beside an act (`who`, `why`), as it is stored; None where nothing was said.

    >>> remark("why", "the bank moves"), remark("who", None)
    ('the bank moves', None)
    """
    if text is not None and not isinstance(text, str):
        raise PayloadError(f"{what}: expected text, got {type(text).__name__}")
    return storable_text(text) if text else None


def _check_characters(what: str, value: str) -> None:
    found = _CONTROL_OR_SURROGATE.search(value)
    if found is None:
        return
    code = ord(found.group())
    kind = "NUL" if code == 0 else "a lone surrogate" if code >= 0xD800 else "a control character"
    raise PayloadError(
        f"{what}: {kind} (U+{code:04X} at position {found.start()}) cannot be stored; remove it"
    )
