"""Recurrence: the slots of a schedule in stored time, which of them fire after a delay, and how far jitter moves one.

A slot is a moment at which a schedule should fire. Slots follow from the pattern alone, never from when somebody looked.
"""

import hashlib
from dataclasses import dataclass

from evenflow.clock import from_us, to_us
from evenflow.durations import SECOND_US, format_duration
from evenflow.rules.cron import explain, next_fire

MOST_CAUGHT_UP = 100
LATE_US = 60 * SECOND_US
_GROWTH = 8
_UNITS = {
    "us": "microsecond",
    "ms": "millisecond",
    "s": "second",
    "m": "minute",
    "h": "hour",
    "d": "day",
    "w": "week",
}


@dataclass(frozen=True, slots=True)
class Pattern:
    """When a schedule fires: by a cron expression in a time zone, or every so many microseconds since `anchor`."""

    cron: str | None
    every_us: int | None
    timezone: str = "UTC"
    anchor: int = 0

    def next_after(self, moment: int) -> int:
        """The first slot after a moment.

        >>> Pattern(None, 60 * SECOND_US, anchor=5).next_after(5)
        60000005
        """
        if self.every_us is not None:
            return self.anchor + max(0, (moment - self.anchor) // self.every_us + 1) * self.every_us
        assert self.cron is not None
        return to_us(next_fire(self.cron, self.timezone, from_us(moment)))

    def latest(self, first: int, until: int, most: int) -> list[int]:
        """The last slots from `first` to `until`, at most `most`. Its cost does not grow with the time between.

        >>> Pattern("0 * * * *", None).latest(0, 7 * 3600 * SECOND_US, 2)
        [21600000000, 25200000000]
        """
        window = most * SECOND_US
        while True:
            start = max(first, until - window)
            found = self._between(start, until)
            if start == first or len(found) >= most:
                return found[-most:]
            window *= _GROWTH

    def _between(self, start: int, until: int) -> list[int]:
        found = []
        slot = self.next_after(start - 1)
        while slot <= until:
            found.append(slot)
            slot = self.next_after(slot)
        return found

    def in_words(self) -> str:
        """The pattern as people say it.

        >>> Pattern("30 2 * * *", None, "Europe/Berlin").in_words()
        'At 02:30 every day (Europe/Berlin)'
        """
        if self.every_us is not None:
            return _every_in_words(self.every_us)
        assert self.cron is not None
        return f"{explain(self.cron)} ({self.timezone})"


@dataclass(frozen=True, slots=True)
class Due:
    """What a schedule does now: the slots that fire, the slot that comes next, and whether others were passed over."""

    slots: list[int]
    next_run: int
    passed: bool


def due(pattern: Pattern, first: int, now: int, catch_up: str) -> Due:
    """Which slots from `first` to `now` fire, and which one is next.

    A slot that is late by no more than a minute is on time: its scheduler was busy, or being replaced. Beyond that
    "skip" passes everything over, "one" fires the latest slot, "all" the latest hundred.
    """
    most = MOST_CAUGHT_UP if catch_up == "all" else 1
    missed = pattern.latest(first, now, most + 1)
    if not missed:  # the pattern has changed under its row
        return Due([], pattern.next_after(now), False)
    slots = missed[-most:]
    if catch_up == "skip" and slots[-1] < now - LATE_US:
        slots = []
    return Due(slots, pattern.next_after(missed[-1]), len(slots) < len(missed))


def jitter_us(key: str, slot: int, most_us: int) -> int:
    """How much later than its slot a run starts: by chance, but the same for everybody who asks."""
    if most_us == 0:
        return 0
    digest = hashlib.sha256(f"{key}@{slot}".encode()).digest()
    return int.from_bytes(digest[:8], "big") % (most_us + 1)


def _every_in_words(every_us: int) -> str:
    text = format_duration(every_us)
    count = text.rstrip("".join(_UNITS))
    unit = _UNITS[text.removeprefix(count)]
    return f"Every {unit}" if count == "1" else f"Every {count} {unit}s"
