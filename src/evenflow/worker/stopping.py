"""Stopping: how much of a hurry a stop is in, and whether running jobs have had their time. No I/O."""

import enum
import time


class Stop(enum.IntEnum):
    """How much of a hurry a stop is in."""

    NO = 0
    DRAIN = 1  # running jobs get all the time they need
    GRACEFUL = 2  # they get the shutdown timeout
    AT_ONCE = 3


class Stopping:
    """The stop that one worker was told, if any: it becomes more urgent, never less."""

    def __init__(self, timeout_s: float) -> None:
        self._timeout_s = timeout_s
        self._began_at = 0.0
        self._how = Stop.NO

    def heed(self, how: Stop) -> bool:
        """Somebody wants a stop; whether that is news. Safe from any thread and from signal handlers."""
        if how <= self._how:
            return False
        if self._how < Stop.GRACEFUL:
            self._began_at = time.monotonic()
        self._how = how
        return True

    @property
    def is_on(self) -> bool:
        return self._how is not Stop.NO

    @property
    def is_hurrying(self) -> bool:
        """Whether running jobs have a limited time to end."""
        return self._how >= Stop.GRACEFUL

    def is_time_up(self) -> bool:
        """Whether running jobs get no more time."""
        if self._how is Stop.AT_ONCE:
            return True
        return self.is_hurrying and time.monotonic() - self._began_at >= self._timeout_s
