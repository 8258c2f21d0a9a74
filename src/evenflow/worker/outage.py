"""How a worker bears a database that fails: growing delays, a breaker, an end of patience. No I/O; time and chance are given."""

import logging

from evenflow.errors import StoreUnavailable
from evenflow.limits import Breaker
from evenflow.rules.breaker import (
    BreakerState,
    Circuit,
    allow,
    circuit,
    record_failure,
    record_idle,
    record_success,
)
from evenflow.rules.retry import database_delay
from evenflow.settings import Resilience

log = logging.getLogger("evenflow.worker")

_CLOSED = BreakerState()
_PROBE = "pump"  # one pump per process, so its own name is token enough


class WorkerGaveUp(Exception):
    """The database was away for longer than this worker was told to wait."""


class Outage:
    """Counts failures of the database in a row. A failing task is no failure of the database and is never told here.

    The breaker's state lives in memory, since the store that would keep it is what fails.
    """

    def __init__(self, resilience: Resilience) -> None:
        self._resilience = resilience
        self._breaker = Breaker(resilience.circuit_breaker_threshold, resilience.circuit_breaker_cooldown_s)
        self._state = BreakerState()
        self.failures = 0
        self.last_opening: dict[str, object] | None = None

    def failed(self, error: StoreUnavailable, now: float, random: float) -> float:
        """A round failed. Seconds to stay away from the database; WorkerGaveUp where patience ends."""
        self.failures += 1
        check_patience(self._resilience, self.failures, error)
        opened_before = self._state.opened_at
        now_us = _us(now)
        state = allow(self._breaker, self._state, now_us, _PROBE).state
        self._state = record_failure(self._breaker, state, now_us, _PROBE)
        if self._state.opened_at != opened_before and self._state.opened_at is not None:
            return self._open(error)
        return delay_after(self._resilience, self.failures, error, random)

    def succeeded(self, now: float, *, did_work: bool) -> None:
        """A round reached the database. One that wrote nothing and found nothing proves little while the breaker is closed."""
        self.failures = 0
        if self._state == _CLOSED:
            return
        state = allow(self._breaker, self._state, _us(now), _PROBE).state
        self._state = record_success(state, _PROBE) if did_work else record_idle(state, _PROBE)
        if state.opened_at is not None and self._state.opened_at is None:
            log.warning("circuit-closed: the database answers again")

    def circuit(self, now: float) -> Circuit:
        """The breaker's state in a word."""
        return circuit(self._breaker, self._state, _us(now))

    def _open(self, error: StoreUnavailable) -> float:
        cooldown_s = self._breaker.cooldown_us / 1_000_000
        self.last_opening = {"failures": self._state.failures, "reason": str(error)}
        log.error(
            "circuit-open: the database failed %d times in a row (%s); the next try is in %g s",
            self._state.failures,
            error,
            cooldown_s,
        )
        return cooldown_s


def check_patience(resilience: Resilience, failures: int, error: StoreUnavailable) -> None:
    """WorkerGaveUp after so many failures in a row as this worker was told to bear."""
    if resilience.db_retry_max_attempts and failures >= resilience.db_retry_max_attempts:
        raise WorkerGaveUp(f"the database was unavailable {failures} times in a row: {error}") from error


def delay_after(resilience: Resilience, failures: int, error: StoreUnavailable, random: float) -> float:
    """Seconds until the next try after so many failures in a row; said in the log."""
    delay = database_delay(resilience.db_retry_initial_ms, resilience.db_retry_max_ms, failures - 1, random)
    log.warning("the database is unavailable (%s); try %d in %.1f s", error, failures + 1, delay)
    return delay


def _us(seconds: float) -> int:
    return int(seconds * 1_000_000)
