"""The pump: the one thread of a worker process that speaks to the database.

Each round is one transaction: write the ends that have gathered, claim what fits into the free slots. Between rounds
it waits for wake-ups, ends, or the time to poll, whichever comes first.
"""

import collections
import enum
import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import msgspec

from evenflow.clock import lease_s
from evenflow.errors import StoreUnavailable
from evenflow.ids import id_text
from evenflow.job import Claimed, End
from evenflow.rules.retry import database_delay
from evenflow.settings import Settings
from evenflow.store import control, leases, limits, reads
from evenflow.store.advance import NOTHING, Advanced, Claim, advance, start
from evenflow.store.open import AnyEngine
from evenflow.store.signals import ARRIVAL, Signals, Waker, queue_mark, watch_signals
from evenflow.worker.outcome import released
from evenflow.worker.serving import Bounds, QueueList, Serving
from evenflow.worker.slots import Slots

log = logging.getLogger("evenflow.worker")

LINGER_S = 0.002
V_EVERY_S = 0.05
NAMES_EVERY_S = 2.0
PROGRESS_EVERY_S = 1.0
LEASE_MARGIN = 0.8
STUCK_GRACE_S = 2.0
UNTIL_EMPTY_S = 0.005
_encode = msgspec.json.Encoder().encode


class Stop(enum.IntEnum):
    """How much of a hurry a stop is in."""

    NO = 0
    GRACEFUL = 1
    AT_ONCE = 2


class WorkerGaveUp(Exception):
    """The database was away for longer than this worker was told to wait."""


@dataclass(frozen=True, slots=True)
class PumpOptions:
    """The ceilings of one worker process. 0 means: as many as there are slots."""

    concurrency: int = 10
    max_claim_batch: int = 0
    shutdown_timeout_s: float = 30.0
    until_empty: bool = False
    coalesce_notifies: int = 100
    prefetch: int = 0
    max_claim: int = 0
    max_jobs: int = 0
    is_supervised: bool = False


class Pump:
    """Moves jobs between the store and the slots. `run` blocks until the worker has stopped."""

    def __init__(
        self, engine: AnyEngine, slots: Slots, settings: Settings, queues: QueueList, options: PumpOptions, *,
        worker: int, announce: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self._engine = engine
        self._slots = slots
        self._settings = settings
        self._options = options
        self._queues = queues
        self._serving = Serving(queues)
        self._bounds = Bounds()
        self._waker = Waker(engine)
        self._signals: Signals | None = None
        self._announce = announce
        self.worker = worker
        self._stop = Stop.NO
        self._stop_at = 0.0
        self._unwritten: list[End] = []
        self._held: collections.deque[Claimed] = collections.deque()
        self._capped: set[str] = set()
        self._ran = 0
        self.needs_replacing = False
        self._hungry = True
        self._failures = 0
        self._poll_at = self._beat_at = self._names_at = self._moved_v_at = self._progress_at = 0.0
        self._claim_lease_us = (settings.claim_lease_ms or settings.lease_ms) * 1000
        self._lease_ends_at = lease_s() + settings.lease_ms / 1000
        self.has_lost_lease = threading.Event()
        self.is_done = threading.Event()

    def wake(self) -> None:
        """End the wait that is under way. Safe from any thread."""
        if self._signals is not None:
            self._signals.interrupt()

    def stop(self, how: Stop = Stop.GRACEFUL) -> None:
        """Stop claiming now; running jobs get their time, or none. Safe from any thread and from signal handlers."""
        if how > self._stop:
            if self._stop is Stop.NO:
                self._stop_at = time.monotonic()
            self._stop = how
            self.wake()

    @property
    def is_stopping(self) -> bool:
        return self._stop is not Stop.NO

    def run(self) -> None:
        """Until stopped: rounds and rests. Leaves nothing claimed behind."""
        try:
            with watch_signals(self._engine, "wake", most=self._options.coalesce_notifies) as signals:
                self._signals = signals
                while not self._is_finished():
                    try:
                        self._round()
                        self._failures = 0
                    except StoreUnavailable as error:
                        self._bear(error, signals)
                        continue
                    self._rest(signals)
        finally:
            self._signals = None
            self.is_done.set()

    def _round(self) -> None:
        now = time.monotonic()
        if now >= self._beat_at:
            self._beat(now)
        if now >= self._names_at:
            self._learn_names(now)
        if self._stop is not Stop.NO:
            self._return_when_due()
        if self._slots.reports and now >= self._progress_at:
            self._save_progress(now)
        self._replace_if_needed()
        self._take_ends()
        claim = self._claim(now)
        if self._unwritten or claim is not NOTHING:
            self._exchange(claim, now)
        if self._held:
            self._start_held()

    def _exchange(self, claim: Claim, now: float) -> None:
        answer = advance(self._engine, self.worker, self._unwritten, claim)
        if self._capped and len(self._unwritten) > len(answer.claimed):
            self._waker.wake(*self._capped)  # we leave room under a cap that others may be waiting for
        self._unwritten = []
        if answer.freed:
            self._pass_on(answer.freed)
        if claim is not NOTHING:
            self._hungry = len(answer.claimed) >= claim.top or bool(answer.freed)
            self._poll_at = now + self._settings.resilience.notify_poll_interval_ms / 1000 * random.uniform(
                0.9, 1.1
            )
            self._bounds.note(answer.claimed, answer.moved)
            if claim.moves_v and answer.claimed:
                self._moved_v_at = now
        if claim.lease_us is None:
            self._start(answer.claimed)
        else:
            self._held.extend(answer.claimed)
        self._tell(answer)

    def _pass_on(self, limiters: set[str]) -> None:
        """Keys that our jobs have let go of go to the next in line, wherever those are served."""
        queues = limits.promote(self._engine, limiters)
        self._hungry = self._hungry or bool(queues & set(self._serving.names))
        self._waker.wake(*queues)

    def _start(self, jobs: Sequence[Claimed]) -> None:
        self._ran += len(jobs)
        self._slots.start(jobs)

    def _start_held(self) -> None:
        """Prefetched jobs take free slots; each is asked for once more, since its claim may have run out meanwhile."""
        free = self._options.concurrency - len(self._slots.running)
        if self._stop is not Stop.NO:
            self._unwritten += [released(job) for job in self._held]
            self._held.clear()
        elif free > 0:
            jobs = [self._held.popleft() for _ in range(min(free, len(self._held)))]
            started = start(self._engine, self.worker, jobs, under_caps=bool(self._capped))
            self._start([job for job in jobs if job.id in started])
            self._unwritten += [released(job) for job in jobs if job.id not in started]

    def _claim(self, now: float) -> Claim:
        if self._stop is not Stop.NO:
            return NOTHING
        prefetch = self._options.prefetch
        held = len(self._held)
        free = self._options.concurrency + prefetch - len(self._slots.running) - held
        if self._options.max_claim:
            free = min(free, self._options.max_claim - held)
        if free <= 0 or not (self._hungry or self._unwritten or now >= self._poll_at):
            return NOTHING
        wants = self._serving.wants(min(free, self._options.max_claim_batch or free))
        if not wants:
            self._hungry = False
            return NOTHING
        lease_us = self._claim_lease_us if prefetch else None
        moves_v = now - self._moved_v_at >= V_EVERY_S
        return Claim(wants, free, self._bounds.current(), lease_us, moves_v, bool(self._capped))

    def _tell(self, answer: Advanced) -> None:
        if answer.awaited:
            self._waker.announce_ends()
            self._announce()
        for job, epoch in answer.lost:
            log.warning("job %s: the lease of epoch %d was lost; its result is dropped", id_text(job), epoch)

    def _take_ends(self) -> None:
        ended = self._slots.ended
        self._slots.wake_at = 1
        while ended:
            self._unwritten.append(ended.popleft())

    def _rest(self, signals: Signals) -> None:
        """Wait for something to do."""
        busy = len(self._slots.running)
        if (
            self._stop is Stop.NO
            and self._hungry
            and busy + len(self._held) < self._options.concurrency + self._options.prefetch
        ):
            return
        if self._held and busy < self._options.concurrency:
            return
        if not self._slots.ended:
            self._hear(signals.wait(self._time_to_rest()))
        if self._slots.ended and busy > 4 and self._stop is Stop.NO:
            # More ends are about to come: one transaction for many costs little more than for one.
            self._slots.wake_at = max(1, busy // 2)
            if len(self._slots.ended) < self._slots.wake_at:
                self._hear(signals.wait(LINGER_S))

    def _time_to_rest(self) -> float:
        now = time.monotonic()
        at = [self._poll_at, self._beat_at]
        if self._slots.stuck and self._options.is_supervised:
            at.append(now + STUCK_GRACE_S / 4)
        if self._stop is not Stop.NO:
            at.append(min(now + 0.05, self._stop_at + self._options.shutdown_timeout_s))
        if self._slots.reports:
            at.append(self._progress_at)
        if self._options.until_empty and not self._slots.running:
            at.append(now + UNTIL_EMPTY_S)
        tend = self._slots.tend()
        if tend is not None:
            at.append(now + tend)
        return max(0.0, min(at) - now)

    def _hear(self, payloads: set[str]) -> None:
        if not payloads:
            return
        if ARRIVAL in payloads:
            self._hungry = True
            if control.next_due(self._engine) == 0:
                control.admit(self._engine)
        elif self._queues.patterns:
            self._hungry, self._names_at = True, 0.0
        elif payloads & {queue_mark(name) for name in self._serving.names}:
            self._hungry = True

    def _beat(self, now: float) -> None:
        sent = lease_s()
        about = _encode(
            {"running": len(self._slots.running), "concurrency": self._options.concurrency}
        ).decode()
        answer = leases.beat(self._engine, self.worker, claim_lease_us=self._claim_lease_us, about=about)
        self._beat_at = now + self._settings.heartbeat_ms / 1000
        if not answer.is_alive:
            self._lose_lease("another process has declared this worker dead")
            return
        self._lease_ends_at = sent + self._settings.lease_ms / 1000
        for (job, epoch), why in answer.cancelled.items():
            self._slots.cancel(job, epoch, why)

    def _learn_names(self, now: float) -> None:
        rows = reads.queues(self._engine)
        self._serving.learn(rows)
        served = set(self._serving.names)
        if self._settings.cluster_wide_cap is not None:
            self._capped = served
        else:
            self._capped = {row.name for row in rows if row.max_concurrency is not None} & served
        self._names_at = now + NAMES_EVERY_S

    def _save_progress(self, now: float) -> None:
        reports, self._slots.reports = self._slots.reports, {}
        self._progress_at = now + PROGRESS_EVERY_S
        leases.save_progress(
            self._engine,
            self.worker,
            [(job, epoch, _encode(said).decode()) for (job, epoch), said in reports.items()],
        )

    def _return_when_due(self) -> None:
        is_late = time.monotonic() - self._stop_at >= self._options.shutdown_timeout_s
        if self._slots.running and (self._stop is Stop.AT_ONCE or is_late):
            returned = self._slots.give_back()
            log.warning("stopping: %d running jobs go back to the queue", len(returned))
            self._unwritten += returned

    def _replace_if_needed(self) -> None:
        """A supervised process is replaced when it has run its number of jobs, or when a thread will not come back."""
        if not self._options.is_supervised or self._stop is not Stop.NO:
            return
        if self._options.max_jobs and self._ran >= self._options.max_jobs:
            self.needs_replacing = True
            self.stop(Stop.GRACEFUL)
        elif self._slots.stuck and self._slots.stuck_for() > STUCK_GRACE_S:
            log.error("a function holds its thread long after its timeout: this process is replaced")
            self.needs_replacing = True
            self.stop(Stop.AT_ONCE)

    def _is_finished(self) -> bool:
        if self.has_lost_lease.is_set() and not self._slots.running:
            return True
        is_idle = not (self._slots.running or self._slots.ended or self._unwritten or self._held)
        if self._stop is not Stop.NO:
            return is_idle
        return self._options.until_empty and is_idle and not self._hungry and self._is_empty()

    def _is_empty(self) -> bool:
        due = control.next_due(self._engine)
        if due is not None and due <= reads.now_us(self._engine) and control.admit(self._engine):
            self._hungry = True
            return False
        is_empty = not reads.has_open(self._engine, self._serving.names)
        self._hungry = not is_empty
        return is_empty

    def _bear(self, error: StoreUnavailable, signals: Signals) -> None:
        """The database is away: keep what is unwritten, wait, try again; let go of the jobs when the lease runs out."""
        resilience = self._settings.resilience
        delay = database_delay(
            resilience.db_retry_initial_ms, resilience.db_retry_max_ms, self._failures, random.random()
        )
        self._failures += 1
        log.warning("the database is unavailable (%s); try %d in %.1f s", error, self._failures + 1, delay)
        if resilience.db_retry_max_attempts and self._failures >= resilience.db_retry_max_attempts:
            raise WorkerGaveUp(
                f"the database was unavailable {self._failures} times in a row: {error}"
            ) from error
        if self._slots.running and lease_s() > self._lease_ends_at - self._settings.lease_ms / 1000 * (
            1 - LEASE_MARGIN
        ):
            log.error(
                "the lease ran out while the database was away: %d running jobs are given up",
                len(self._slots.running),
            )
            self._unwritten += self._slots.give_back()
        if self._stop is not Stop.NO and time.monotonic() - self._stop_at >= self._options.shutdown_timeout_s:
            raise WorkerGaveUp(
                "the database stayed away during the stop; rescue will return the jobs"
            ) from error
        ends_at = time.monotonic() + delay
        while (left := ends_at - time.monotonic()) > 0 and self._stop is Stop.NO:
            signals.wait(min(left, 0.5))

    def _lose_lease(self, why: str) -> None:
        if not self.has_lost_lease.is_set():
            log.error(
                "the lease of this worker is gone (%s): %d running jobs are given up",
                why,
                len(self._slots.running),
            )
        self.has_lost_lease.set()
        self._slots.give_back()
        self._slots.ended.clear()
        self._held.clear()
        self._unwritten = []
        self.stop(Stop.AT_ONCE)
