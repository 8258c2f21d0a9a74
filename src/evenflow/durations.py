"""Durations and rates as people write them, turned into whole microseconds and back.

The grammar is strict: a text needs a unit, nothing is guessed and nothing is cut off, because a timeout
misread is worse than one refused. Raises ValueError alone; callers add which option was meant.
"""

import math
import re
from datetime import timedelta
from fractions import Fraction
from typing import TypeAlias

Duration: TypeAlias = float | timedelta | str
"""Seconds as a number, a timedelta, or a text with a unit: `90`, `timedelta(minutes=1)`, `"5 minutes"`."""

SECOND_US = 1_000_000
DAY_US = 86_400 * SECOND_US
# A century. Added to any time of this era it still fits the 63 bits of a stored time with room to spare.
LONGEST_US = 36_525 * DAY_US

_UNIT_US = {
    "us": 1,
    "ms": 1_000,
    "s": SECOND_US,
    "m": 60 * SECOND_US,
    "h": 3_600 * SECOND_US,
    "d": DAY_US,
    "w": 7 * DAY_US,
}
_LONG_NAMES = {
    "us": ("microsecond",),
    "ms": ("millisecond",),
    "s": ("second", "sec"),
    "m": ("minute", "min"),
    "h": ("hour",),
    "d": ("day",),
    "w": ("week",),
}
_UNITS = dict(_UNIT_US)
_UNITS |= {
    name + plural: _UNIT_US[unit]
    for unit, names in _LONG_NAMES.items()
    for name in names
    for plural in ("", "s")
}

_DURATION = re.compile(r"([0-9]+(?:\.[0-9]+)?) ?([a-z]+)")
_RATE = re.compile(r"([0-9]+) ?/ ?(.+)")
_ADVICE = "write a number with a unit, such as '30s', '5 minutes' or '1h'"


def duration_us(value: Duration) -> int:
    """The length of a duration in microseconds.

    >>> duration_us("5 minutes"), duration_us(1.5), duration_us(timedelta(milliseconds=2))
    (300000000, 1500000, 2000)
    """
    if isinstance(value, str):
        return _bounded(_text_us(value), value)
    if isinstance(value, timedelta):
        return _bounded(value // timedelta(microseconds=1), value)
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ValueError(f"expected seconds, a timedelta or a text, got {value!r}; {_ADVICE}")
    return _bounded(_number_us(value), value)


def duration_seconds(value: Duration) -> float:
    """The length of a duration in seconds, under the same rules as `duration_us`.

    >>> duration_seconds("250ms")
    0.25
    """
    return duration_us(value) / SECOND_US


def format_duration(length_us: int) -> str:
    """The shortest exact text of a duration; `duration_us` reads it back.

    >>> format_duration(5_400_000_000), format_duration(1_500_000)
    ('90m', '1500ms')
    """
    if length_us == 0:
        return "0s"
    unit = next(name for name in reversed(_UNIT_US) if length_us % _UNIT_US[name] == 0)
    return f"{length_us // _UNIT_US[unit]}{unit}"


def parse_rate(text: str) -> tuple[int, int]:
    """How many, and in which window in microseconds. The window is a unit, or a duration for odd lengths.

    >>> parse_rate("60/minute"), parse_rate("10/30s")
    ((60, 60000000), (10, 30000000))
    """
    found = _RATE.fullmatch(text) if isinstance(text, str) else None
    if found is None:
        raise ValueError(f"expected a rate such as '60/minute', '5/s' or '10/30s', got {text!r}")
    count, window = int(found[1]), found[2]
    length_us = _UNITS[window] if window in _UNITS else duration_us(window)
    if count == 0 or length_us == 0:
        raise ValueError(
            f"expected a count and a window above 0, got {text!r}; leave the rate out for no limit"
        )
    return count, length_us


def format_rate(count: int, window_us: int) -> str:
    """The shortest exact text of a rate; `parse_rate` reads it back.

    >>> format_rate(60, 60_000_000), format_rate(10, 30_000_000)
    ('60/m', '10/30s')
    """
    window = format_duration(window_us)
    return f"{count}/{window[1:] if window[:1] == '1' and window[1:] in _UNITS else window}"


def _text_us(text: str) -> int:
    found = _DURATION.fullmatch(text)
    if found is None or found[2] not in _UNITS:
        raise ValueError(f"expected a duration, got {text!r}; {_ADVICE}")
    exact = Fraction(found[1]) * _UNITS[found[2]]
    if exact.denominator != 1:
        raise ValueError(f"expected whole microseconds, got {text!r}; nothing shorter can be kept")
    return int(exact)


def _number_us(seconds: float) -> int:
    if isinstance(seconds, int):
        return seconds * SECOND_US
    if not math.isfinite(seconds):
        raise ValueError(f"expected a finite number of seconds, got {seconds!r}")
    length_us = round(seconds * SECOND_US)
    if length_us == 0 and seconds != 0:
        raise ValueError(f"expected at least one microsecond, got {seconds!r} seconds")
    return length_us


def _bounded(length_us: int, value: object) -> int:
    if length_us < 0:
        raise ValueError(f"expected a duration of 0 or more, got {value!r}")
    if length_us > LONGEST_US:
        raise ValueError(f"expected at most a hundred years, got {value!r}")
    return length_us
