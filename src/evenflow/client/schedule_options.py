"""The options of a schedule, checked where they are written: every mistake at once."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, get_args

from evenflow.checks import one_of, whole
from evenflow.client.options import PRIORITIES
from evenflow.codec import check_text, storable_text
from evenflow.durations import SECOND_US, Duration, duration_us
from evenflow.errors import PayloadError
from evenflow.rules.cron import cron_mistakes, zone_mistakes
from evenflow.schedule import CatchUp, Overlap

LONGEST_KEY = 255
SHORTEST_EVERY_US = SECOND_US


class ScheduleOptions(TypedDict, total=False):
    """What `app.recurring`, `app.schedules.add` and `app.schedules.update` take beside the pattern."""

    timezone: str
    args: Sequence[Any]
    kwargs: Mapping[str, Any] | None
    queue: str | None
    priority: int | None
    catch_up: CatchUp
    overlap: Overlap
    jitter: Duration
    description: str | None


def key_mistakes(key: object) -> list[str]:
    """What is wrong with the key of a schedule."""
    if not isinstance(key, str) or not key:
        return [f"key: expected a text of at least one character, got {key!r}"]
    try:
        check_text("key", key, LONGEST_KEY)
    except PayloadError as wrong:
        return [str(wrong)]
    return []


def pattern_mistakes(cron: object, every: Any, options: ScheduleOptions) -> list[str]:
    """What is wrong with when it fires: one of cron and every is wanted."""
    zone = options.get("timezone", "UTC")
    if (cron is None) == (every is None):
        given = "neither" if cron is None else f"cron={cron!r} and every={every!r}"
        return [
            f"expected cron= or every=, got {given}; write cron='*/5 * * * *' or every=timedelta(minutes=5)"
        ]
    if cron is not None:
        return [*cron_mistakes(cron), *zone_mistakes(zone)]
    found = _duration_mistakes("every", every, SHORTEST_EVERY_US)
    if zone != "UTC":
        found.append(f"timezone={zone!r} has no effect on every=, which is elapsed time; leave it out")
    return found


def option_mistakes(options: ScheduleOptions) -> list[str]:
    """What is wrong with the rest."""
    known = ScheduleOptions.__annotations__.keys()
    return [
        *(
            f"unknown option {name!r}; a schedule takes key, cron, every, {', '.join(sorted(known))}"
            for name in sorted(options.keys() - known)
        ),
        *one_of("catch_up", options.get("catch_up", "skip"), get_args(CatchUp)),
        *one_of("overlap", options.get("overlap", "allow"), get_args(Overlap)),
        *whole("priority", options.get("priority"), *PRIORITIES, optional=True),
        *_duration_mistakes("jitter", options.get("jitter", 0), 0),
        *_description_mistakes(options.get("description")),
    ]


def _description_mistakes(description: object) -> list[str]:
    if description is None:
        return []
    if not isinstance(description, str):
        return [f"description: expected a text, got {description!r}"]
    if description != storable_text(description, None):
        return [f"description: expected a text without NUL and lone surrogates, got {description!r}"]
    return []


def _duration_mistakes(option: str, value: Any, least_us: int) -> list[str]:
    try:
        length_us = duration_us(value)
    except ValueError as wrong:
        return [f"{option}: {wrong}"]
    return [] if length_us >= least_us else [f"{option}: expected at least one second, got {value!r}"]
