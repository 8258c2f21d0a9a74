"""Cron expressions: when they fire next, what they say in words, and what is wrong with them.

The reading of expressions is cronsim's; what happens when clocks change is decided here:
- a fixed time (no `*` in seconds, minutes and hours) fires once a day: in the gap right after it, in the fold at the
  first pass;
- anything else follows the clock on the wall: what the gap leaves out does not fire, what the fold repeats fires twice.
"""

import difflib
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta, tzinfo
from functools import lru_cache
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError, available_timezones

from cronsim import CronSim, CronSimError

LONGEST_EXPRESSION = 200
NICKNAMES = {
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
    "@monthly": "0 0 1 * *",
    "@weekly": "0 0 * * 0",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@hourly": "0 * * * *",
}
_SECOND = timedelta(seconds=1)
# A fold repeats at most a day (a country that changed sides of the date line); clocks do not change twice within it.
_NEAR = timedelta(hours=25)
_SOME_MOMENT = datetime(2000, 1, 1)  # noqa: DTZ001 - a wall without a zone
_FIELDS = (
    ("minute", "0-59"),
    ("hour", "0-23"),
    ("day of month", "1-31, L for the last day, LW for the last weekday"),
    ("month", "1-12 or JAN-DEC"),
    ("day of week", "0-7 or SUN-SAT, 5L for the last Friday, 1#2 for the second Monday"),
)
_SECONDS_FIELD = ("second", "0-59")


def next_fire(expression: str, zone: str | tzinfo, after: datetime) -> datetime:
    """The first moment after `after` at which the expression fires in a time zone, told in the zone of `after`.

    >>> next_fire("30 2 * * *", "America/New_York", datetime(2026, 3, 8, 5, tzinfo=UTC)).isoformat()
    '2026-03-08T07:00:00+00:00'
    """
    if after.tzinfo is None or after.utcoffset() is None:
        raise ValueError(
            f"after: expected a datetime with a time zone, got the naive {after!r}; write datetime.now(UTC)"
        )
    place = zone_of(zone) if isinstance(zone, str) else zone
    fields = _read(expression)
    start = after.astimezone(UTC)
    find = _next_fixed if _is_fixed(fields) else _next_on_the_wall
    return find(fields, place, start).astimezone(after.tzinfo)


def explain(expression: str) -> str:
    """The expression in words.

    >>> explain("*/5 9-17 * * MON-FRI")
    'Every fifth minute from 09:00 through 17:59 on Monday through Friday'
    """
    return CronSim(" ".join(_read(expression)), _SOME_MOMENT).explain()


def cron_mistakes(expression: object) -> list[str]:
    """What is wrong with an expression: each bad field with its place and what it may hold.

    >>> cron_mistakes("0 24 * * *")
    ["cron '0 24 * * *': field 2 (hour) is '24'; expected 0-23"]
    """
    if not isinstance(expression, str):
        return [f"cron: expected a text such as '*/5 * * * *', got {expression!r}"]
    if expression.startswith("@"):
        return [] if expression.lower() in NICKNAMES else [_unknown_nickname(expression)]
    if len(expression) > LONGEST_EXPRESSION:
        return [f"cron: expected at most {LONGEST_EXPRESSION} characters, got {len(expression)}"]
    fields = expression.split()
    if len(fields) not in (5, 6):
        expected = "5 fields (minute, hour, day of month, month, day of week) or 6 with seconds first"
        return [f"cron {expression!r}: expected {expected}, got {len(fields)}"]
    names = _FIELDS if len(fields) == 5 else (_SECONDS_FIELD, *_FIELDS)
    found = [
        f"cron {expression!r}: field {place} ({name}) is {field!r}; expected {allowed}"
        for place, (field, (name, allowed)) in enumerate(zip(fields, names, strict=True), start=1)
        if not _is_readable(field, place - 1, len(fields))
    ]
    return found or _unreachable(expression)


def zone_mistakes(name: object) -> list[str]:
    """What is wrong with the name of a time zone.

    >>> zone_mistakes("Europe/Berln")
    ["timezone: there is no 'Europe/Berln'; did you mean 'Europe/Berlin'?"]
    """
    if not isinstance(name, str):
        return [f"timezone: expected a name such as 'Europe/Berlin', got {name!r}"]
    try:
        zone_of(name)
    except ValueError:
        near = difflib.get_close_matches(name, available_timezones(), n=1)
        advice = (
            f"did you mean {near[0]!r}?"
            if near
            else "write a name such as 'Europe/Berlin', or install tzdata"
        )
        return [f"timezone: there is no {name!r}; {advice}"]
    return []


def zone_of(name: str) -> tzinfo:
    """The time zone of this name; ValueError where there is none."""
    if name == "UTC":
        return UTC
    try:
        return ZoneInfo(name)
    except (ZoneInfoNotFoundError, ValueError, OSError) as wrong:
        raise ValueError(f"there is no time zone {name!r} here ({wrong})") from wrong


@lru_cache(maxsize=1000)
def _read(expression: str) -> tuple[str, ...]:
    """The fields of an expression, its nickname written out; ValueError with the mistakes of a bad one."""
    if mistakes := cron_mistakes(expression):
        raise ValueError("; ".join(mistakes))
    return tuple(NICKNAMES.get(expression.lower(), expression).upper().split())


def _is_fixed(fields: tuple[str, ...]) -> bool:
    return not any(field.startswith("*") for field in fields[:-3])


def _next_fixed(fields: tuple[str, ...], zone: tzinfo, after: datetime) -> datetime:
    # From walls to moments the order stays: what the gap swallows lands on its end, the fold counts by its first pass.
    for wall in _walls(fields, _wall(after, zone)):
        moment = _first_moment(wall, zone)
        if moment > after:
            return moment
    raise _never(fields)


def _next_on_the_wall(fields: tuple[str, ...], zone: tzinfo, after: datetime) -> datetime:
    wall = _wall(after, zone)
    repeated = _repeated_match(fields, zone, after, wall)
    for match in _walls(fields, wall):
        moment = next((each for each in _moments(match, zone) if each > after), None)
        if moment is not None:
            return moment if repeated is None else min(moment, repeated)
    raise _never(fields)


def _repeated_match(
    fields: tuple[str, ...], zone: tzinfo, after: datetime, wall: datetime
) -> datetime | None:
    """The first match after a fold that is near, where the clock goes back to before where it stands now."""
    before, behind = _offset(after, zone), _offset(after + _NEAR, zone)
    if behind >= before:
        return None
    change = _change(zone, after, after + _NEAR)
    begins = (change + behind).replace(tzinfo=None)
    if begins > wall:
        return None
    return next(_walls(fields, begins - _SECOND)).replace(tzinfo=UTC) - behind


def _change(zone: tzinfo, low: datetime, high: datetime) -> datetime:
    """The moment between two at which the offset of a zone changes. Clocks change at whole seconds."""
    low, high = low.replace(microsecond=0), high.replace(microsecond=0)
    before = _offset(low, zone)
    while high - low > _SECOND:
        middle = low + (high - low) // 2 // _SECOND * _SECOND
        low, high = (middle, high) if _offset(middle, zone) == before else (low, middle)
    return high


def _walls(fields: tuple[str, ...], after: datetime) -> Iterator[datetime]:
    """The matching readings of a clock that never changes, in order."""
    return CronSim(" ".join(fields), after)


def _first_moment(wall: datetime, zone: tzinfo) -> datetime:
    """When a clock of this zone shows `wall` for the first time; in a gap, the moment at which the gap ends."""
    moment = wall.replace(tzinfo=zone, fold=0).astimezone(UTC)
    if _wall(moment, zone) == wall:
        return moment
    # By the offset before the gap the reading lies beyond the change, by the one behind it before: it is between.
    return _change(zone, wall.replace(tzinfo=zone, fold=1).astimezone(UTC), moment)


def _moments(wall: datetime, zone: tzinfo) -> list[datetime]:
    """When a clock of this zone shows `wall`: never in a gap, twice in a fold, else once."""
    both = {wall.replace(tzinfo=zone, fold=fold).astimezone(UTC) for fold in (0, 1)}
    return sorted(moment for moment in both if _wall(moment, zone) == wall)


def _wall(moment: datetime, zone: tzinfo) -> datetime:
    return moment.astimezone(zone).replace(tzinfo=None, fold=0)


def _offset(moment: datetime, zone: tzinfo) -> timedelta:
    offset = moment.astimezone(zone).utcoffset()
    assert offset is not None
    return offset


def _is_readable(field: str, place: int, count: int) -> bool:
    fields = ["*"] * count
    fields[place] = field
    # Alone a day of 31 must not be refused for a month that is not there.
    try:
        CronSim(" ".join(fields), _SOME_MOMENT)
    except (CronSimError, AssertionError, ValueError):
        return False
    return True


def _unreachable(expression: str) -> list[str]:
    try:
        next(CronSim(expression, _SOME_MOMENT))
    except (CronSimError, StopIteration, RuntimeError):
        return [f"cron {expression!r}: no day matches it; mend the day of month, month and day of week"]
    return []


def _unknown_nickname(expression: str) -> str:
    return f"cron {expression!r}: expected 5 fields or one of {', '.join(NICKNAMES)}"


def _never(fields: tuple[str, ...]) -> ValueError:
    return ValueError(f"cron {' '.join(fields)!r} never fires again")
