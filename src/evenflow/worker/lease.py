"""The lease of a worker: kept up by heartbeats, and in doubt after a call whose answer was lost."""

import logging
import time
from collections.abc import Sequence, Set

import msgspec

from evenflow.clock import lease_s
from evenflow.ids import id_text
from evenflow.job import End
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.engine import Engine

log = logging.getLogger("evenflow.worker")

MARGIN = 0.8  # of a lease: whoever has not beaten by then lets go of its jobs, before others may take them
# A call that we gave up on may still be carried out by the server: for so long we look for claims we do not know of.
DOUBT_S = 120.0
DOUBT_EVERY_S = 5.0
_encode = msgspec.json.Encoder().encode


class Lease:
    """Until when the jobs of this worker are its own. `beat_at` is when the next heartbeat is due, by the monotonic clock."""

    def __init__(self, store: Engine, worker: int, settings: Settings) -> None:
        self._store = store
        self._worker = worker
        self._length_s = settings.lease_ms / 1000
        self._beat_every_s = settings.heartbeat_ms / 1000
        self.claim_us = (settings.claim_lease_ms or settings.lease_ms) * 1000
        """For how long a prefetched job is ours without a start."""
        self._ends_at = lease_s() + self._length_s
        self._doubt_until = self._doubt_at = 0.0
        self._was_refused = False
        self.beat_at = 0.0

    def beat(self, about: dict[str, object], now: float) -> leases.Beat:
        """Renew it, with what others are to know about us. Where we are no longer alive, it is lost for good."""
        sent = lease_s()
        answer = leases.beat(
            self._store, self._worker, claim_lease_us=self.claim_us, about=_encode(about).decode()
        )
        self.beat_at = now + self._beat_every_s
        if answer.is_alive:
            self._ends_at = sent + self._length_s
        return answer

    def is_over(self) -> bool:
        """Whether we may count as dead already: frozen, or cut off, for too long."""
        return lease_s() >= self._ends_at

    def is_running_out(self) -> bool:
        """Whether it is time to let go of what runs, since others may soon take it."""
        return lease_s() > self._ends_at - self._length_s * (1 - MARGIN)

    def doubt(self, now: float) -> None:
        """The answer to a call was lost: it may have claimed or written. Also beat as soon as the store is back."""
        self._doubt_until, self._doubt_at, self.beat_at = now + DOUBT_S, 0.0, 0.0

    def say_lost(self, lost: Sequence[tuple[int, int]]) -> None:
        """Ends that the store has refused: others have these jobs. While we are in doubt they may also be our own.

        Whatever the reason, one look follows for what the store still takes for ours: nobody else returns it while we live.
        """
        self._was_refused = True
        for job, epoch in lost:
            if time.monotonic() < self._doubt_until:
                said = "job %s: the end of epoch %d was written before, or its lease is lost"
                log.info(said, id_text(job), epoch)
            else:
                said = "job %s: the lease of epoch %d was lost; its result is dropped"
                log.warning(said, id_text(job), epoch)

    def looks_for_unknown(self, now: float) -> bool:
        """Whether it is time to look for claims that we do not know of."""
        return self._was_refused or self._doubt_at <= now < self._doubt_until

    def unknown_claims(self, known: Set[tuple[int, int]], now: float) -> list[End]:
        """Claims whose answer was lost with its connection are ours without our knowing: the ends by which they go back.

        `known` are the (id, epoch) of all that is in flight here.
        """
        self._doubt_at, self._was_refused = now + DOUBT_EVERY_S, False
        unknown = leases.in_flight(self._store, self._worker) - known
        if unknown:
            log.warning("%d jobs were claimed by calls whose answer was lost: they go back", len(unknown))
        return [End(job, epoch, "ready", refund=1, unstarted=1) for job, epoch in sorted(unknown)]
