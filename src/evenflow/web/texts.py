"""Numbers, moments and lengths of time as pages write them. Pure; what comes out is text and is escaped by the templates."""

import re
from datetime import UTC, datetime

import msgspec

from evenflow.clock import from_us
from evenflow.store.dashboard import Count

_UNITS = (("d", 86_400), ("h", 3600), ("m", 60))
_SIZES = ("B", "KB", "MB", "GB", "TB")
REDACTED = "•••"
SECRET_NAMES = (
    "password",
    "passwd",
    "secret",
    "token",
    "api_key",
    "apikey",
    "authorization",
    "credential",
    "card",
    "cvv",
    "iban",
)


def span(length_us: float | None) -> str:
    """A length of time, short.

    >>> span(4_200), span(4_512_000), span(3_700_000_000), span(90_000_000_000), span(None)
    ('4 ms', '4.5 s', '1h 1m', '1d 1h', '–')
    """
    if length_us is None:
        return "–"
    if length_us < 1_000_000:
        return f"{max(length_us, 0) / 1000:.0f} ms"
    seconds = length_us / 1_000_000
    if seconds < 60:
        return f"{seconds:.1f} s"
    whole = int(seconds)
    for place, (name, size) in enumerate(_UNITS):
        if whole >= size:
            small_name, small = _UNITS[place + 1] if place + 1 < len(_UNITS) else ("s", 1)
            rest = whole % size // small
            return f"{whole // size}{name}" + (f" {rest}{small_name}" if rest else "")
    return f"{whole} s"


def number(value: float | Count | None) -> str:
    """A number with separators; a plus where counting stopped.

    >>> number(12345), number(Count(10_000, True)), number(None)
    ('12,345', '10,000+', '–')
    """
    if value is None:
        return "–"
    if isinstance(value, Count):
        return f"{value.jobs:,}{'+' if value.is_more else ''}"
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"


def size(length: int | None) -> str:
    """Bytes in a unit that people read.

    >>> size(900), size(3_500_000), size(None)
    ('900 B', '3.5 MB', '–')
    """
    if length is None:
        return "–"
    value, place = float(length), 0
    while value >= 1000 and place < len(_SIZES) - 1:
        value, place = value / 1000, place + 1
    return f"{value:.0f} B" if place == 0 else f"{value:.1f} {_SIZES[place]}"


def moment(stored: int | datetime | None) -> str:
    """A moment to the second, in UTC.

    >>> moment(1_000_000)
    '1970-01-01 00:00:01'
    """
    if stored is None:
        return "–"
    at = stored if isinstance(stored, datetime) else from_us(stored)
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S")


def machine_moment(stored: int | datetime | None) -> str:
    """A moment for `<time datetime=…>`."""
    if stored is None:
        return ""
    return (stored if isinstance(stored, datetime) else from_us(stored)).isoformat()


def pretty(value: object) -> str:
    """Any decoded value as indented JSON."""
    return msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode()


class Redaction:
    """Hides values whose names look secret, however deep they lie.

    >>> Redaction(["password"]).applied({"user": "ann", "db_password": "x"})
    {'user': 'ann', 'db_password': '•••'}
    """

    def __init__(self, names: "list[str] | tuple[str, ...]" = SECRET_NAMES) -> None:
        self._pattern = re.compile("|".join(map(re.escape, names)), re.IGNORECASE) if names else None

    def hides(self, name: object) -> bool:
        """Whether a value under this name is hidden."""
        return self._pattern is not None and isinstance(name, str) and self._pattern.search(name) is not None

    def applied(self, value: object) -> object:
        """The value with secrets hidden."""
        if self._pattern is None:
            return value
        if isinstance(value, dict):
            return {key: REDACTED if self.hides(key) else self.applied(each) for key, each in value.items()}
        if isinstance(value, list | tuple | set | frozenset):
            return [self.applied(each) for each in value]
        return value
