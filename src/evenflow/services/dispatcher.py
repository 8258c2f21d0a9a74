"""The dispatcher: jobs that are due, or have arrived, become ready; jobs past their good_until end."""

import logging
import time

from evenflow.settings import Retention
from evenflow.store import bounds, control, durable, gates, leases, limits, runs, workflows
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Waker

log = logging.getLogger("evenflow.services")

BATCH = 1000
LOOK_EVERY_S = 2.0
TIDY_EVERY_S = 5.0


class Dispatcher:
    """Admits due and arrived jobs in bounded batches. Any number may run: locked rows are skipped.

    Looks before it writes: on SQLite every commit wakes it, and a write of its own would hold up the workers'.
    """

    name = "dispatcher"

    def __init__(self, engine: AnyEngine, retention: Retention, maintenance_s: float = 5.0) -> None:
        self._engine = engine
        self._retention = retention
        self._waker = Waker(engine)
        self._maintenance_s = maintenance_s
        self._sweep_at = 0.0
        self._cursor = limits.START
        self._tidy_at = 0.0

    def step(self) -> float:
        """One pass. Seconds until the next one is due; 0 while there is more to do."""
        ahead = control.ahead(self._engine)
        if _due_in_s(ahead) <= 0:
            self._waker.wake(
                *control.admit(self._engine, self._retention, top=BATCH), *limits.free_spent(self._engine)
            )
            gates.release(self._engine)  # the next ones, where these were the first of many
            ahead = control.ahead(self._engine)
        due_in_s = _due_in_s(ahead)
        if ahead.has_untold:
            self._settle_runs()
        now = time.monotonic()
        if now >= self._tidy_at:
            self._tidy_at = now if self._tidy() else now + TIDY_EVERY_S
        if now >= self._sweep_at:
            self._sweep_at = now + self._maintenance_s
            promoted, self._cursor = limits.sweep(self._engine, self._cursor)
            self._waker.wake(*promoted, *bounds.fill_all(self._engine))
            roused = durable.rouse(self._engine)
            if gates.release(self._engine) or roused:  # whoever opened their gate did not come to it
                due_in_s = 0.0
        return max(0.0, min(due_in_s, min(self._tidy_at, self._sweep_at) - time.monotonic()))

    def _settle_runs(self) -> None:
        """Runs of workflows whose steps ended outside of a worker, or whose worker died before it told the others."""
        found = runs.unsettled(self._engine)
        if not found:
            return
        settled = workflows.settle(self._engine, found, self._retention)
        self._waker.wake(*settled.queues)
        if settled.ended:
            self._waker.announce_ends()

    def _tidy(self) -> bool:
        """End what has expired, free what was prefetched and forgotten. True while there is more of it."""
        expired = control.expire(self._engine, self._retention, top=BATCH)
        if expired:
            log.info("%d jobs expired before they could start", len(expired))
        freed = leases.free_expired_claims(self._engine, top=BATCH)
        if freed:
            self._waker.wake_dispatchers()
        return max(len(expired), len(freed)) >= BATCH


def _due_in_s(ahead: control.Ahead) -> float:
    """Seconds until there is something to admit, or until it is time to look again."""
    due = min((moment for moment in (ahead.due, ahead.free) if moment is not None), default=None)
    return LOOK_EVERY_S if due is None else min(LOOK_EVERY_S, (due - ahead.now) / 1_000_000)
