"""The language and the time zone of whoever enqueues a job, kept in its headers and restored when it runs.

Only what differs from the settings is stored: most jobs carry nothing.
"""

import contextlib
from collections.abc import Iterator, Sequence
from contextvars import ContextVar
from datetime import tzinfo
from typing import Any
from zoneinfo import ZoneInfo

import msgspec
from django.conf import settings
from django.utils import timezone, translation

from evenflow.client.handle import Job
from evenflow.client.task import Call

LANGUAGE, ZONE = "django.language", "django.timezone"
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.Decoder(dict[str, str]).decode
_is_stamped: ContextVar[bool] = ContextVar("evenflow_is_stamped", default=False)


@contextlib.contextmanager
def stamping(calls: Sequence[Call[Any]], _: list[Job[Any]]) -> Iterator[Sequence[Call[Any]]]:
    """Around every enqueue of a backend's app, whoever calls it."""
    yield calls if _is_stamped.get() else [stamped(call) for call in calls]


@contextlib.contextmanager
def as_stamped() -> Iterator[None]:
    """Calls that are sent in here were stamped when they were made: what is active now is not what counts."""
    token = _is_stamped.set(True)
    try:
        yield
    finally:
        _is_stamped.reset(token)


def stamped(call: Call[Any]) -> Call[Any]:
    """The call with the language and the time zone that are active here."""
    found = _active()
    if not found:
        return call
    before: dict[str, str] = _decode(call.new.headers) if call.new.headers else {}
    return Call(call.task, msgspec.structs.replace(call.new, headers=_encode(before | found).decode()))


@contextlib.contextmanager
def restored(headers: str | None) -> Iterator[None]:
    """Run what is inside with the language and time zone that the headers tell; with the settings' where they tell none."""
    found: dict[str, str] = _decode(headers) if headers and '"django.' in headers else {}
    with contextlib.ExitStack() as stack:
        if LANGUAGE in found:
            stack.enter_context(translation.override(found[LANGUAGE]))
        if ZONE in found:
            stack.enter_context(timezone.override(_zone_of(found[ZONE])))
        yield


def _active() -> dict[str, str]:
    found: dict[str, str] = {}
    language = translation.get_language()
    if settings.USE_I18N and language is not None and language != settings.LANGUAGE_CODE:
        found[LANGUAGE] = language
    if settings.USE_TZ and (zone := _zone(timezone.get_current_timezone())) != settings.TIME_ZONE:
        found[ZONE] = zone
    return found


def _zone(zone: tzinfo) -> str:
    """The name of a zone, or its distance from UTC in minutes where it has none."""
    if isinstance(zone, ZoneInfo) and zone.key:
        return zone.key
    offset = zone.utcoffset(None)
    if offset is None:  # a zone of another library: by its own name, which is an IANA name as a rule
        return str(zone)
    minutes = int(offset.total_seconds() // 60)
    return f"{minutes:+d}" if minutes else "UTC"


def _zone_of(stored: str) -> tzinfo:
    if stored[0] not in "+-":
        return ZoneInfo(stored)
    found: tzinfo = timezone.get_fixed_timezone(int(stored))
    return found
