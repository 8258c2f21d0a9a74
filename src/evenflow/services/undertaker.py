"""The undertaker: takes the jobs of processes whose death is proven, at once, without waiting for a lease.

The last call of a process may be carried out after its death: the server has it already. What it claims belongs to nobody
then, and no body has seen it. So for a while after a burial the undertaker looks for such claims, and they go back as if
they had not been.
"""

import logging
import threading
import time
from dataclasses import dataclass

from evenflow.errors import Code, ProcessExitError
from evenflow.job import End, JobError
from evenflow.services.rescuer import rescue_orphans
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.advance import advance
from evenflow.store.callers import Relay
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Waker

log = logging.getLogger("evenflow.services")

IDLE_S = 3600.0
LATE_LOOKS_S = (0.2, 1.0, 5.0)


@dataclass(frozen=True, slots=True)
class Death:
    """A child that its parent has reaped: which process it was, and how it ended."""

    pid: int
    error: ProcessExitError


class Undertaker:
    """Buries the reaped children of one parent. While the database is away it keeps them in mind."""

    name = "undertaker"

    def __init__(self, store: AnyEngine | Relay, waker: Waker, settings: Settings, parent: int) -> None:
        self._store = store
        self._settings = settings
        self._parent = parent
        self._waker = waker
        self._lock = threading.Lock()
        self._deaths: list[Death] = []
        self._strangers: list[int] = []
        self._late_looks: list[tuple[float, int]] = []

    def report(self, death: Death) -> None:
        """Tell of a death, from any thread; the next step acts on it."""
        with self._lock:
            self._deaths.append(death)

    def take_strangers(self) -> list[int]:
        """Processes that were buried and were not in the books: they had died before they could serve."""
        with self._lock:
            strangers, self._strangers = self._strangers, []
        return strangers

    def step(self) -> float:
        """Bury everybody told of so far, and look after those who were buried lately."""
        with self._lock:
            deaths = list(self._deaths)
        if deaths:
            rows = {row.pid: row for row in leases.workers(self._store) if row.parent == self._parent}
            for death in deaths:
                self._bury(death, rows.get(death.pid))
        while self._late_looks and self._late_looks[0][0] <= time.monotonic():
            self._return_late_claims(self._late_looks[0][1])
            del self._late_looks[0]  # only now: should the store be away, it is looked for again
        return max(0.0, self._late_looks[0][0] - time.monotonic()) if self._late_looks else IDLE_S

    def _bury(self, death: Death, row: leases.Worker | None) -> None:
        if row is not None:
            leases.bury(self._store, {row.id: None})
            described = JobError(Code.WORKER_CRASHED, str(death.error), type(death.error).__qualname__)
            rescue_orphans(self._store, self._settings, described, self._waker)
            buried_at = time.monotonic()
            self._late_looks = sorted(
                [*self._late_looks, *((buried_at + look_s, row.id) for look_s in LATE_LOOKS_S)]
            )
        with self._lock:
            self._deaths.remove(death)
            if row is None:
                self._strangers.append(death.pid)

    def _return_late_claims(self, worker: int) -> None:
        late = leases.in_flight(self._store, worker)
        if late:
            log.warning(
                "%d jobs were claimed in the name of a process that was dead: they go back", len(late)
            )
            ends = [End(job, epoch, "ready", refund=1, unstarted=1) for job, epoch in sorted(late)]
            advance(self._store, worker, ends, retention=self._settings.retention)
            self._waker.wake_dispatchers()
