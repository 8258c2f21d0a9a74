"""Time: wall time is stored, in microseconds since the Unix epoch; elapsed time is measured on clocks that never step."""

import time
from datetime import UTC, datetime, timedelta

MICROSECOND = timedelta(microseconds=1)
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
# CLOCK_BOOTTIME counts while a machine is suspended, as a lease does; other systems have only the monotonic clock.
_LEASE_CLOCK = getattr(time, "CLOCK_BOOTTIME", None)


def wall_us() -> int:
    """Now, as this host sees it. Decides nothing where a database has a clock of its own."""
    return time.time_ns() // 1000


class Clock:
    """The clock that statements go by: the database's own, unless a test has set another."""

    __slots__ = ("set_us",)

    def __init__(self) -> None:
        self.set_us: int | None = None

    def wall_us(self) -> int:
        """Now, where this host's clock is the database's, or has to stand in for it."""
        return time.time_ns() // 1000 if self.set_us is None else self.set_us


def lease_s() -> float:
    """Seconds on the clock that leases are measured with: monotonic, and counting while suspended."""
    return time.clock_gettime(_LEASE_CLOCK) if _LEASE_CLOCK is not None else time.monotonic()


def to_us(moment: datetime) -> int:
    """A moment as stored.

    >>> to_us(datetime(1970, 1, 1, 0, 0, 1, tzinfo=UTC))
    1000000
    """
    return (moment - _EPOCH) // MICROSECOND


def from_us(stored: int) -> datetime:
    """A stored moment, in UTC.

    >>> from_us(1_000_000).isoformat()
    '1970-01-01T00:00:01+00:00'
    """
    return _EPOCH + timedelta(microseconds=stored)
