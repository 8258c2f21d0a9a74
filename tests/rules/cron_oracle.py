"""An independent reading of cron, minute by minute: what `next_fire` is compared with. Knows nothing of cronsim.

A clock on the wall is watched in UTC minutes. A fixed time fires when the highest reading shown so far passes it, so a
gap fires at its end and a fold only at its first pass; anything else fires whenever the clock shows it.
"""

import calendar
import random
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache
from zoneinfo import ZoneInfo

MINUTE = timedelta(minutes=1)
Wall = tuple[int, int]  # day as an ordinal, minute of the day
MONTHS = ["JAN", "FEB", "MAR", "APR", "MAY", "JUN", "JUL", "AUG", "SEP", "OCT", "NOV", "DEC"]
DAYS = ["SUN", "MON", "TUE", "WED", "THU", "FRI", "SAT"]


class Expression:
    """Five fields, as sets of numbers; days by number, by weekday, or by both where either field begins with a star."""

    def __init__(self, text: str) -> None:
        minute, hour, day, month, weekday = text.split()
        minutes, hours = _numbers(minute, 0, 59), _numbers(hour, 0, 23)
        self.minutes_of_day = {60 * h + m for h in hours for m in minutes}
        self.days, self.is_last_day = (set(), True) if day == "L" else (_numbers(day, 1, 31), False)
        self.months = _numbers(month, 1, 12, MONTHS, 1)
        self.weekdays = {number % 7 for number in _numbers(weekday, 0, 7, DAYS, 0)}
        self.needs_both = day.startswith("*") or weekday.startswith("*")
        self.is_fixed = not minute.startswith("*") and not hour.startswith("*")
        self.matches_day = lru_cache(maxsize=None)(self._matches_day)

    def _matches_day(self, ordinal: int) -> bool:
        day = date.fromordinal(ordinal)
        is_last = day.day == calendar.monthrange(day.year, day.month)[1]
        by_number = day.day in self.days or (self.is_last_day and is_last)
        by_weekday = day.isoweekday() % 7 in self.weekdays
        matches = by_number and by_weekday if self.needs_both else by_number or by_weekday
        return day.month in self.months and matches


def _numbers(
    field: str, low: int, high: int, names: list[str] | None = None, first_name: int = 0
) -> set[int]:
    found: set[int] = set()
    for part in field.split(","):
        span, _, step = part.partition("/")
        begin, dash, end = span.partition("-")
        if span == "*":
            start, stop = low, high
        else:
            start = _number(begin, names, first_name)
            stop = _number(end, names, first_name) if dash else high if step else start
        found |= set(range(start, stop + 1, int(step or 1)))
    return found


def _number(text: str, names: list[str] | None, first_name: int) -> int:
    return names.index(text) + first_name if names and text in names else int(text)


class Window:
    """All UTC minutes from one moment to another, with what a clock of the zone shows at each."""

    def __init__(self, zone: str, start: datetime, end: datetime) -> None:
        self.zone, self.start, self.end = zone, start, end
        place = ZoneInfo(zone)
        count = (end - start) // MINUTE
        self.moments = [start + number * MINUTE for number in range(count + 1)]
        self.walls = [_wall(moment, place) for moment in self.moments]

    def fires(self, expression: Expression) -> list[datetime]:
        """When the expression fires after the start of the window, up to its end."""
        pairs = zip(self.moments[1:], self.walls[1:], strict=True)
        if not expression.is_fixed:
            return [moment for moment, wall in pairs if _matches(expression, wall)]
        found, highest = [], self.walls[0]
        for moment, wall in pairs:
            if wall > highest:
                passed = [wall] if wall == (highest[0], highest[1] + 1) else _walls_up_to(highest, wall)
                if any(_matches(expression, each) for each in passed):
                    found.append(moment)
                highest = wall
        return found


def _matches(expression: Expression, wall: Wall) -> bool:
    return wall[1] in expression.minutes_of_day and expression.matches_day(wall[0])


def _wall(moment: datetime, zone: ZoneInfo) -> Wall:
    shown = moment.astimezone(zone)
    return shown.toordinal(), 60 * shown.hour + shown.minute


def _walls_up_to(before: Wall, last: Wall) -> list[Wall]:
    first, end = before[0] * 1440 + before[1] + 1, last[0] * 1440 + last[1]
    return [divmod(number, 1440) for number in range(first, end + 1)]


def windows(zone: str, years: range, around: timedelta) -> list[Window]:
    """A window around every change of the clocks."""
    place, step = ZoneInfo(zone), timedelta(hours=12)
    moment, end = datetime(years.start, 1, 1, tzinfo=UTC), datetime(years.stop, 1, 1, tzinfo=UTC)
    found = []
    while moment < end:
        if _offset(moment + step, place) != _offset(moment, place):
            change = moment
            while _offset(change, place) == _offset(moment, place):
                change += timedelta(minutes=30)
            found.append(Window(zone, change - around, change + around))
        moment += step
    return found


def _offset(moment: datetime, zone: ZoneInfo) -> timedelta | None:
    return moment.astimezone(zone).utcoffset()


def expressions(count: int, chance: random.Random) -> list[str]:
    """Expressions of all kinds: fixed times and wildcards, mostly about the hours in which clocks change."""
    return [" ".join(_fields(chance)) for _ in range(count)]


def _fields(chance: random.Random) -> list[str]:
    minute = chance.choice(
        ["0", "1", "15", "30", "59", "0,30", "10-12", "*/20", "*/15", "0-59/25", str(chance.randrange(60))]
    )
    hours = [
        "0",
        "1",
        "2",
        "3",
        "2,3",
        "1-3",
        "0-5/2",
        "23",
        "*",
        "*/2",
        "*/3",
        "0-23",
        str(chance.randrange(24)),
    ]
    day = chance.choice(["*", "*", "*", "*", "*/2", "1-15", "L", str(chance.randrange(1, 29))])
    month = chance.choice(["*", "*", "*", "MAR-NOV", "*/2", "3,4,10,11", "OCT"])
    weekday = chance.choice(["*", "*", "*", "SUN", "0", "MON-FRI", "6,7", "*/2"])
    return [minute, chance.choice(hours), day, month, weekday]
