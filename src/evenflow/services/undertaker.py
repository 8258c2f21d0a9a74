"""The undertaker: takes the jobs of processes whose death is proven, at once, without waiting for a lease."""

import threading
from dataclasses import dataclass

from evenflow.errors import Code, ProcessExitError
from evenflow.job import JobError
from evenflow.services.rescuer import rescue_orphans
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Waker

IDLE_S = 3600.0


@dataclass(frozen=True, slots=True)
class Death:
    """A child that its parent has reaped: which process it was, and how it ended."""

    pid: int
    error: ProcessExitError


class Undertaker:
    """Buries the reaped children of one parent. While the database is away it keeps them in mind."""

    name = "undertaker"

    def __init__(self, engine: AnyEngine, settings: Settings, parent: int) -> None:
        self._engine = engine
        self._settings = settings
        self._parent = parent
        self._waker = Waker(engine)
        self._lock = threading.Lock()
        self._deaths: list[Death] = []
        self._strangers: list[int] = []

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
        """Bury everybody told of so far."""
        with self._lock:
            deaths = list(self._deaths)
        if deaths:
            rows = {row.pid: row for row in leases.workers(self._engine) if row.parent == self._parent}
            for death in deaths:
                self._bury(death, rows.get(death.pid))
        return IDLE_S

    def _bury(self, death: Death, row: leases.Worker | None) -> None:
        if row is not None:
            leases.bury(self._engine, {row.id: None})
            described = JobError(Code.WORKER_CRASHED, str(death.error), type(death.error).__qualname__)
            rescue_orphans(self._engine, self._settings, described, self._waker)
        with self._lock:
            self._deaths.remove(death)
            if row is None:
                self._strangers.append(death.pid)
