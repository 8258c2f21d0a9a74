"""The dispatcher: jobs that are due, or have arrived, become ready; jobs past their good_until end."""

import logging
import time

from evenflow.settings import Retention
from evenflow.store import control, leases, limits, reads
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Waker

log = logging.getLogger("evenflow.services")

BATCH = 1000
LOOK_EVERY_S = 1.0


class Dispatcher:
    """Admits due and arrived jobs in bounded batches. Any number may run: locked rows are skipped."""

    name = "dispatcher"

    def __init__(self, engine: AnyEngine, retention: Retention, maintenance_s: float = 5.0) -> None:
        self._engine = engine
        self._retention = retention
        self._waker = Waker(engine)
        self._maintenance_s = maintenance_s
        self._sweep_at = 0.0

    def step(self) -> float:
        """One pass. Seconds until the next one is due; 0 while there is more to do."""
        admitted = control.admit(self._engine, top=BATCH)
        if admitted:
            self._waker.wake(*admitted)
        expired = control.expire(self._engine, self._retention, top=BATCH)
        if expired:
            log.info("%d jobs expired before they could start", len(expired))
        freed = leases.free_expired_claims(self._engine, top=BATCH)
        if time.monotonic() >= self._sweep_at:
            self._sweep_at = time.monotonic() + self._maintenance_s
            self._waker.wake(*limits.sweep(self._engine))
        if max(sum(admitted.values()), len(expired), len(freed)) >= BATCH:
            return 0.0
        due = control.next_due(self._engine)
        if due is None:
            return LOOK_EVERY_S
        return min(LOOK_EVERY_S, max(0.0, (due - reads.now_us(self._engine)) / 1_000_000))
