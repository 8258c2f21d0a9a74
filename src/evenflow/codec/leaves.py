"""The single values that JSON has no form for (dates, bytes, exact numbers, paths), each as text or a number.

Pure conversions, one pair per type. Nothing here knows of tags, containers or annotations.
"""

from binascii import a2b_base64, b2a_base64
from collections.abc import Callable
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from pathlib import Path, PurePath
from typing import Any, NamedTuple
from uuid import UUID
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from evenflow.codec.refused import Refused

_SECONDS_PER_DAY = 86_400
_DAYS_OF_A_FLOAT = 100_000  # near the longest timedelta of all, the float's own rounding would be beyond it
_FOLD_SUFFIX = "_fold=1"


class Leaf(NamedTuple):
    """A type, its name in stored data, and the two directions. `decode` may raise anything."""

    cls: type
    tag: str
    encode: Callable[[Any], Any]
    decode: Callable[[Any], Any]

    def read(self, wire: Any) -> Any:
        """`decode`, with every failure turned into `Refused`."""
        try:
            return self.decode(wire)
        except Refused:
            raise
        except Exception as error:
            raise Refused(f"stored {type(wire).__name__} cannot be read as {self.tag}") from error


def _encode_bytes(value: bytes) -> str:
    return b2a_base64(value, newline=False).decode("ascii")


def _decode_bytes(wire: str) -> bytes:
    return a2b_base64(wire.encode("ascii"), strict_mode=True)


def _encode_moment(value: datetime | time) -> str:
    """ISO 8601, then the zone's name in brackets (RFC 9557): an offset alone forgets the zone's rules."""
    zone = value.tzinfo
    if isinstance(zone, ZoneInfo) and zone.key:
        return f"{value.isoformat()}[{zone.key}]"
    if zone is None:
        return f"{value.isoformat()}[{_FOLD_SUFFIX}]" if value.fold else value.isoformat()
    _check_offset(value)
    return value.isoformat()


def _check_offset(value: datetime | time) -> None:
    """Refuse an offset that would be forgotten: one that is not given, and one that ISO 8601 cannot say."""
    offset = value.utcoffset()
    if offset is None:
        raise Refused(f"a {type(value).__name__} whose zone gives no offset cannot be stored; use a ZoneInfo")
    if offset.microseconds:
        raise Refused(f"a {type(value).__name__} with an offset of fractions of a second cannot be stored")


def _decode_datetime(wire: str) -> datetime:
    text, suffix = _split_suffix(wire)
    moment = datetime.fromisoformat(text)
    if not suffix:
        return moment
    if suffix == _FOLD_SUFFIX:
        return moment.replace(fold=1)
    return _in_zone(moment, suffix)


def _in_zone(moment: datetime, key: str) -> datetime:
    """The stored wall clock in its zone; where the zone's rules have changed, the stored instant wins."""
    zone = _zone(key)
    wall = moment.replace(tzinfo=zone)
    for candidate in (wall, wall.replace(fold=1)):
        if candidate.utcoffset() == moment.utcoffset():
            return candidate
    return moment.astimezone(zone)


def _zone(key: str) -> ZoneInfo:
    try:
        return ZoneInfo(key)
    except ZoneInfoNotFoundError as error:
        raise Refused(f"time zone {key[:64]!r} is not known on this machine; install tzdata") from error


def _decode_time(wire: str) -> time:
    text, suffix = _split_suffix(wire)
    value = time.fromisoformat(text)
    if not suffix:
        return value
    return value.replace(fold=1) if suffix == _FOLD_SUFFIX else value.replace(tzinfo=_zone(suffix))


def _split_suffix(wire: str) -> tuple[str, str]:
    if not wire.endswith("]"):
        return wire, ""
    text, _, suffix = wire[:-1].partition("[")
    return text, suffix


def _encode_timedelta(value: timedelta) -> int | float | list[int]:
    """Total seconds; beyond some 285 years a float forgets microseconds, so those few become a pair."""
    whole = value.days * _SECONDS_PER_DAY + value.seconds
    if not value.microseconds:
        return whole
    total = value.total_seconds()
    if abs(value.days) < _DAYS_OF_A_FLOAT and timedelta(seconds=total) == value:
        return total
    return [whole, value.microseconds]


def _decode_timedelta(wire: int | float | list[int]) -> timedelta:
    if type(wire) is list:
        seconds, microseconds = wire
        return timedelta(seconds=seconds, microseconds=microseconds)
    if type(wire) is int or type(wire) is float:
        return timedelta(seconds=wire)
    raise Refused(f"expected a number of seconds, got {type(wire).__name__}")


def _encode_decimal(value: Decimal) -> str:
    if not value.is_finite():
        raise Refused(f"{value} cannot be stored; send None or a text instead")
    return str(value)


def _decode_decimal(wire: str) -> Decimal:
    if type(wire) is not str:
        raise Refused(f"expected the text of a decimal number, got {type(wire).__name__}")
    value = Decimal(wire)
    if not value.is_finite():
        raise Refused("expected a finite decimal number")
    return value


def path_leaf(cls: type[PurePath]) -> Leaf:
    """The leaf of a path class; a stored path becomes the class that the reader declares."""

    def decode(wire: str) -> PurePath:
        if type(wire) is not str:
            raise Refused(f"expected the text of a path, got {type(wire).__name__}")
        return cls(wire)

    return Leaf(cls, "path", str, decode)


LEAVES: dict[type, Leaf] = {
    bytes: Leaf(bytes, "bytes", _encode_bytes, _decode_bytes),
    datetime: Leaf(datetime, "datetime", _encode_moment, _decode_datetime),
    date: Leaf(date, "date", date.isoformat, date.fromisoformat),
    time: Leaf(time, "time", _encode_moment, _decode_time),
    timedelta: Leaf(timedelta, "timedelta", _encode_timedelta, _decode_timedelta),
    Decimal: Leaf(Decimal, "decimal", _encode_decimal, _decode_decimal),
    UUID: Leaf(UUID, "uuid", str, UUID),
    type(Path()): path_leaf(Path),
}
"""Every leaf by the exact class of its values."""
