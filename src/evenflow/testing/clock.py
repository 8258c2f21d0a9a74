"""The clock of an app under test: it stands still until the test moves it."""

from collections.abc import Callable
from datetime import datetime, timedelta

from evenflow.clock import Clock, from_us, to_us
from evenflow.durations import Duration, duration_us


class FakeClock:
    """Moves the time of a whole app: what it enqueues, its workers, schedules, delays, retries and rates.

    >>> kit.clock.advance(hours=1)                                      # doctest: +SKIP
    >>> kit.clock.travel(datetime(2027, 1, 1, tzinfo=UTC))              # doctest: +SKIP
    """

    def __init__(self, clock: Clock, now: datetime | None, before_move: Callable[[], None]) -> None:
        self._clock = clock
        self._before_move = before_move
        if now is not None and now.tzinfo is None:
            raise ValueError(f"now: expected a datetime with a time zone, got the naive {now!r}")
        clock.set_us = clock.wall_us() if now is None else to_us(now)

    @property
    def now(self) -> datetime:
        """The time that it shows."""
        return from_us(self.now_us)

    @property
    def now_us(self) -> int:
        return self._clock.wall_us()

    def advance(self, by: Duration | None = None, **parts: float) -> datetime:
        """Move on by seconds, a timedelta, or its parts: `advance(90)`, `advance(hours=1, minutes=30)`. The new time.

        Nothing runs by itself: `kit.drain()` runs what has become due, `kit.run_for(hours=1)` also on the way."""
        if (by is None) == (not parts):
            raise TypeError("advance: expected seconds or a timedelta, or parts such as hours=1")
        return self._move(self.now_us + duration_us(timedelta(**parts) if by is None else by))

    def travel(self, to: datetime) -> datetime:
        """Jump to a moment, also into the past. The new time."""
        if to.tzinfo is None:
            raise ValueError(f"travel: expected a datetime with a time zone, got the naive {to!r}")
        return self._move(to_us(to))

    def _move(self, to: int) -> datetime:
        self._before_move()
        self._clock.set_us = to
        return from_us(to)
