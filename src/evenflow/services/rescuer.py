"""The rescuer: notices workers that stand still and takes their jobs from them."""

import logging

from evenflow.clock import lease_s
from evenflow.errors import Code, ProcessPrunedError, StoreError
from evenflow.ids import id_text
from evenflow.job import JobError
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.engine import Engine
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Waker

log = logging.getLogger("evenflow.services")

SWEEP_EVERY = 5


class Rescuer:
    """Judges by its own clock and its own successful looks: a worker is dead when its beat has not changed for a lease.

    No wall clock is compared, and an outage of the database ages nobody: after a look that failed, or came late,
    everybody has a fresh lease. Nor does a database that can be read but not written, as with a full disk: where nobody at
    all has beaten since the last look, the observer's own process included, that time counts for nobody. (One whose commits
    hang while heartbeats, which do not wait for the disk, get through is no such case: workers go on beating then.)
    Orphans that nobody buried just now are looked for at every fifth look.
    """

    name = "rescuer"

    def __init__(self, engine: AnyEngine, settings: Settings) -> None:
        self._engine = engine
        self._settings = settings
        self._waker = Waker(engine)
        self._seen: dict[int, tuple[int, float]] = {}
        self._looked_at: float | None = None
        self._every_s = settings.heartbeat_ms / 1000
        self._looks = self._strays_after = 0

    def step(self) -> float:
        """One look. Seconds until the next."""
        dead = self._find_dead()
        if dead:
            for worker in leases.bury(self._engine, dead):
                log.warning(
                    "worker %s has shown no life for its lease: its jobs are taken from it", id_text(worker)
                )
        if self._looks % SWEEP_EVERY == 0:
            self._look_for_strays()
        if dead or self._looks % SWEEP_EVERY == 0:
            rescue_orphans(self._engine, self._settings, _PRUNED, self._waker)
        self._looks += 1
        return self._every_s

    def _look_for_strays(self) -> None:
        self._strays_after, strays = leases.note_strays(self._engine, self._strays_after)
        if strays:
            log.warning("%d jobs were in flight without a note of their claim: they have one now", strays)

    def _find_dead(self) -> dict[int, int | None]:
        try:
            present = leases.workers(self._engine)
        except StoreError:
            self._seen = {}
            raise
        now = lease_s()
        if self._looked_at is not None and now - self._looked_at > 3 * self._every_s:
            self._seen = {}
        self._seen = self._aged(present, now)
        self._looked_at = now
        return {
            worker.id: worker.beat
            for worker in present
            if now - self._seen[worker.id][1] >= worker.lease_us / 1_000_000
        }

    def _aged(self, present: list[leases.Worker], now: float) -> dict[int, tuple[int, float]]:
        """Worker -> its beat, and since when that stands still."""
        before = {worker.id: self._seen.get(worker.id, (-1, now)) for worker in present}
        has_any_beaten = any(before[worker.id][0] != worker.beat for worker in present)
        uncounted_s = 0.0 if has_any_beaten or self._looked_at is None else now - self._looked_at
        return {
            worker.id: (worker.beat, now if beat != worker.beat else since + uncounted_s)
            for worker, (beat, since) in ((worker, before[worker.id]) for worker in present)
        }


def rescue_orphans(engine: Engine, settings: Settings, error: JobError, waker: Waker) -> int:
    """Take the jobs of everybody who is no longer in the books; how many."""
    count = 0
    while True:
        rescued = leases.rescue(engine, error, settings.retention)
        for job in rescued:
            log.warning("job %s lost its worker (%s): now %s", id_text(job.id), error.class_name, job.state)
        count += len(rescued)
        waker.wake(*{job.queue for job in rescued if job.state == "ready"})
        if len(rescued) < leases.BATCH:
            return count


_PRUNED = JobError(
    Code.WORKER_CRASHED, "the heartbeat of the worker that ran this job ran out", ProcessPrunedError.__name__
)
