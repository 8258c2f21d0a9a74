"""The pump: the one thread of a worker process that speaks to the database.

Each round is one transaction: write the ends that have gathered, claim what fits into the free slots. Between rounds
it waits for wake-ups, ends, or the time to poll, whichever comes first.
"""

import collections
import enum
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import msgspec

from evenflow.clock import lease_s
from evenflow.errors import StoreUnavailable
from evenflow.ids import id_text
from evenflow.job import Claimed, End
from evenflow.rules.breaker import Circuit
from evenflow.settings import Settings
from evenflow.store import bounds, control, durable, leases, limits, logs, reads, runs, workflows
from evenflow.store.advance import NOTHING, Advanced, Claim, advance, recharge, start
from evenflow.store.open import AnyEngine
from evenflow.store.signals import ARRIVAL, Signals, Waker, queue_mark, watch_signals
from evenflow.worker.gates import Gates
from evenflow.worker.lateness import Lateness
from evenflow.worker.outage import Outage, WorkerGaveUp
from evenflow.worker.outcome import unstarted
from evenflow.worker.patience import Impatient
from evenflow.worker.serving import Bounds, QueueList, Serving
from evenflow.worker.slots import Slots, is_rated, takes_lock

log = logging.getLogger("evenflow.worker")

LINGER_S = 0.002
V_EVERY_S = 0.05
NAMES_EVERY_S = 2.0
PROGRESS_EVERY_S = 1.0
COSTS_EVERY_S = 0.25
FILL_EVERY_S = 0.05
LEASE_MARGIN = 0.8
STUCK_GRACE_S = 2.0
MOST_SLOTS = 100_000
UNTIL_EMPTY_S = 0.005
STOPPING_TRY_S = 0.2
LATE_SAID_EVERY_S = 10.0
TEND_EVERY_S = 0.25
# A call that we gave up on may still be carried out by the server: for so long we look for claims we do not know of.
DOUBT_S = 120.0
DOUBT_EVERY_S = 5.0
_encode = msgspec.json.Encoder().encode


class Stop(enum.IntEnum):
    """How much of a hurry a stop is in."""

    NO = 0
    DRAIN = 1  # running jobs get all the time they need
    GRACEFUL = 2  # they get the shutdown timeout
    AT_ONCE = 3


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
        self._store = Impatient(engine, settings)
        self._slots = slots
        self._settings = settings
        self._options = options
        self._queues = queues
        self._serving = Serving(queues)
        self._bounds = Bounds()
        self._lateness = Lateness()
        self._went_back = 0
        self._late_said_at = float("-inf")
        self._waker = Waker(engine)
        registry = slots.registry
        self._gates = Gates(
            self._store, lambda: registry.declared, settings.retention, slots.hooks, self._waker
        )
        self._signals: Signals | None = None
        self._announce = announce
        self.worker = worker
        self._stop = Stop.NO
        self._stop_at = 0.0
        self._unwritten: list[End] = []
        self._held: collections.deque[Claimed] = collections.deque()
        self._refused: list[Claimed] = []
        self._capped: set[str] = set()
        self._bounded: set[str] = set()
        self._filled_at = 0.0
        self._marks: set[str] = set()
        self._ran = 0
        self.needs_replacing = False
        self._hungry = True
        self._did_work = False
        self._outage = Outage(settings.resilience)
        self._doubt_until = self._doubt_at = 0.0
        self.progressed_at: float | None = None
        self._costs_at = self._poll_at = self._beat_at = self._names_at = self._moved_v_at = (
            self._progress_at
        ) = self._tend_at = 0.0
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
            if self._stop < Stop.GRACEFUL:
                self._stop_at = time.monotonic()
            self._stop = how
            self.wake()

    @property
    def is_hurrying(self) -> bool:
        """Whether running jobs have a limited time to end."""
        return self._stop >= Stop.GRACEFUL

    def run(self) -> None:
        """Until stopped: rounds and rests. Leaves nothing claimed behind."""
        self.progressed_at = time.monotonic()
        try:
            with watch_signals(self._engine, "wake", most=self._options.coalesce_notifies) as signals:
                self._signals = signals
                while self._goes_on(signals):
                    self.progressed_at = time.monotonic()
        finally:
            self._signals = None
            self.is_done.set()

    def _goes_on(self, signals: Signals) -> bool:
        """One round and its rest; False when the work of this pump is done."""
        try:
            if self._is_finished():
                return False
            self._did_work = False
            self._round()
            self._outage.succeeded(time.monotonic(), did_work=self._did_work)
            self._rest(signals)
        except StoreUnavailable as error:
            self._bear(error, signals)
        return True

    def _round(self) -> None:
        now = time.monotonic()
        if now >= self._beat_at or self._refused:
            self._beat(now)
        if self._doubt_at <= now < self._doubt_until:
            self._return_unknown_claims(now)
        if now >= self._names_at or (self._queues.patterns and now >= self._poll_at):
            self._learn_names(now)  # with each poll too, or a new queue would wait for both
        if self._stop is not Stop.NO:
            self._return_when_due()
        self._replace_if_needed()
        if now >= self._tend_at:  # also where one round follows another without a rest
            self._tend_at = now + TEND_EVERY_S
            self._slots.tend()
        self._take_ends()
        if self._slots.has_news and (now >= self._progress_at or self._slots.has_last_news):
            self._save_progress(now)
        if self._slots.costs and now >= self._costs_at:
            self._costs_at = now + COSTS_EVERY_S
            control.learn_costs(self._store, self._slots.taken_costs())
        if now >= self._gates.due_at and self._stop is Stop.NO:
            self._gates.tend(self._serving.names)
        claim = self._claim(now)
        if self._unwritten or claim is not NOTHING:
            self._exchange(claim, now)
        if self._held:
            self._start_held()

    def _exchange(self, claim: Claim, now: float) -> None:
        asked_at = time.monotonic()
        answer = advance(self._store, self.worker, self._unwritten, claim)
        self._did_work = bool(self._unwritten or answer.claimed)
        if any(end.state in ("ready", "scheduled") for end in self._unwritten):
            self._waker.wake_dispatchers()  # somebody else may run them, or has to make them ready in time
        if self._capped and len(self._unwritten) > len(answer.claimed):
            self._waker.wake(*self._capped)  # we leave room under a cap that others may be waiting for
        rouses = any(end.waits_for_event for end in self._unwritten)  # their event may have come meanwhile
        self._unwritten = []
        if claim is not NOTHING:
            self._hungry = (
                _may_leave_more(claim, answer.claimed) or bool(answer.freed) or answer.is_obstructed
            )
            self._postpone_poll(now)
            self._come_back_to_late(now)
            self._bounds.note(answer.claimed, answer.rounds, time.monotonic() - asked_at)
            if not self._hungry and (blind_until := self._bounds.blind_until) is not None:
                self._poll_at = min(self._poll_at, blind_until)
            if claim.moves_v and answer.claimed:
                self._moved_v_at = now
        if claim.lease_us is None:
            self._start(answer.claimed, asked_at)
        else:
            self._held.extend(answer.claimed)
        self._tell(answer)
        if answer.runs:
            self._settle(answer.runs)
        if rouses:
            durable.rouse(self._store)
        if self._bounded and claim is not NOTHING:
            self._fill(len(answer.claimed) < claim.top, now)
        if answer.freed:
            # Last, since it may fail: what was claimed has started by now, and a sweep finds the keys.
            self._pass_on(answer.freed)
        if answer.turned:
            self._gates.hear(answer.turned)
        if answer.is_obstructed and (freed := self._gates.clear_way([want.queue for want in claim.wants])):
            self._pass_on(freed)

    def _fill(self, is_hungry: bool, now: float) -> None:
        """Let jobs in that wait before bounded queues: at once where a claim found too few, else a few times a second."""
        if is_hungry or now - self._filled_at >= FILL_EVERY_S:
            self._filled_at = now
            filled = bounds.fill(self._store, self._bounded)
            self._hungry = self._hungry or bool(filled)
            self._waker.wake(*filled)

    def _pass_on(self, limiters: set[str]) -> None:
        """Keys that our jobs have let go of go to the next in line, wherever those are served."""
        queues = limits.promote(self._store, limiters)
        self._hungry = self._hungry or bool(queues & set(self._serving.names))
        self._waker.wake(*queues)

    def _settle(self, ended_in: Collection[int]) -> None:
        """Steps of workflows have ended: what waits for them goes on, wherever it is served. A sweep finds what we miss."""
        settled = workflows.settle(
            self._engine, ended_in, self._settings.retention, deadline_s=self._store.longest_s
        )
        self._hungry = self._hungry or not settled.queues.isdisjoint(self._serving.names)
        self._waker.wake(*settled.queues)
        if settled.ended:
            self._waker.announce_ends()
            self._announce()

    def _start(self, jobs: Sequence[Claimed], asked_at: float) -> None:
        locked = [job for job in jobs if takes_lock(job)]
        if locked:
            jobs = [job for job in jobs if not takes_lock(job)]
        self._ran += len(jobs)
        self._slots.start(self._with_inputs(jobs), asked_at)
        if locked:
            self._start_locked(locked, asked_at)

    def _start_locked(self, jobs: Sequence[Claimed], asked_at: float) -> None:
        """Jobs that do not wait for their locks: those that get them start, the others end without a run."""
        # First what has ended here meanwhile: a lock is held until the end of its holder is written.
        self._take_ends()
        if self._unwritten:
            self._exchange(NOTHING, time.monotonic())
        # Where this fails nothing has started: the claims are found again as ours without our knowing, and go back.
        granted = limits.take_locks(self._store, self.worker, jobs)
        refused = [job for job in jobs if job.id not in granted]
        holders = limits.locks(self._store, [job.id for job in refused]) if refused else {}
        starting = [job for job in jobs if job.id in granted]
        self._ran += len(starting)
        self._slots.start(self._with_inputs(starting), asked_at)
        self._unwritten += [
            self._slots.contended(job, *holders.get(job.id, ("its lock", None))) for job in refused
        ]

    def _with_inputs(self, jobs: Sequence[Claimed]) -> Sequence[Claimed]:
        """Steps of workflows with what they need to start; its parents' results are read where they are stored."""
        steps = [job.id for job in jobs if job.run_id is not None]
        if not steps:
            return jobs
        found = runs.inputs(self._store, steps)
        return [msgspec.structs.replace(job, inputs=found.get(job.id)) for job in jobs]

    def _start_held(self) -> None:
        """Prefetched jobs take free slots; each is asked for once more, since its claim may have run out meanwhile."""
        free = self._options.concurrency - len(self._slots.running)
        if self._stop is not Stop.NO:
            self._unwritten += [unstarted(job) for job in self._held]
            self._held.clear()
        elif free > 0:
            jobs = [self._held[place] for place in range(min(free, len(self._held)))]
            asked_at = time.monotonic()
            rated = [job for job in jobs if is_rated(job)]
            charged = recharge(self._store, self.worker, rated) if rated else set()
            able = [job for job in jobs if not is_rated(job) or job.id in charged]
            started = start(self._store, self.worker, able, under_caps=bool(self._capped)) if able else set()
            for _ in jobs:
                self._held.popleft()
            self._start([job for job in able if job.id in started], asked_at)
            self._refused += [job for job in jobs if job.id not in started]

    def _settle_refused(self, cancelled: dict[tuple[int, int], str]) -> None:
        """Prefetched jobs that may not start: cancelled meanwhile, or to be offered again when they may."""
        for job in self._refused:
            why = cancelled.get((job.id, job.epoch))
            self._unwritten.append(unstarted(job) if why is None else self._slots.withdrawn(job, why))
        self._refused = []

    def _free(self) -> int:
        """How many jobs this worker may still take."""
        if self._stop is not Stop.NO:
            return 0
        held = len(self._held) + len(self._refused)
        free = self._options.concurrency + self._options.prefetch - len(self._slots.running) - held
        if self._options.max_claim:
            free = min(free, self._options.max_claim - held)
        if self._options.max_jobs:
            free = min(free, self._options.max_jobs - self._ran - held)
        return free

    def _claim(self, now: float) -> Claim:
        free = self._free()
        if free <= 0 or not (self._hungry or self._unwritten or now >= self._poll_at):
            return NOTHING
        if lease_s() >= self._lease_ends_at:
            # Frozen or cut off for a while: first see whether we still count as alive.
            self._beat_at = 0.0
            return NOTHING
        most = min(free, self._options.max_claim_batch or free)
        wants = self._lateness.cut(self._serving.wants(most), now)
        if not wants:
            self._hungry = False
            self._postpone_poll(now)
            self._come_back_to_late(now)
            return NOTHING
        lease_us = self._claim_lease_us if self._options.prefetch else None
        moves_v = now - self._moved_v_at >= V_EVERY_S
        return Claim(wants, free, self._bounds.current(), lease_us, moves_v, bool(self._capped))

    def _postpone_poll(self, now: float) -> None:
        every_s = self._settings.resilience.notify_poll_interval_ms / 1000
        self._poll_at = now + every_s * random.uniform(0.9, 1.1)

    def _come_back_to_late(self, now: float) -> None:
        """A claim left out the queues of which too much was late: look again when they may be claimed from."""
        resumes_at = self._lateness.resumes_at(now)
        if resumes_at is not None:
            self._poll_at = min(self._poll_at, resumes_at)

    def _tell(self, answer: Advanced) -> None:
        if answer.awaited:
            self._waker.announce_ends()
            self._announce()
        for job, epoch in answer.lost:
            if time.monotonic() < self._doubt_until:
                log.info(
                    "job %s: the end of epoch %d was written before, or its lease is lost",
                    id_text(job),
                    epoch,
                )
            else:
                log.warning(
                    "job %s: the lease of epoch %d was lost; its result is dropped", id_text(job), epoch
                )

    def _take_ends(self) -> None:
        ended = self._slots.ended
        self._slots.wake_at = 1
        while ended:
            self._unwritten.append(ended.popleft())
        if self._slots.late:
            self._note_late()

    def _note_late(self) -> None:
        queues = [self._slots.late.popleft() for _ in range(len(self._slots.late))]
        now = time.monotonic()
        self._went_back += len(queues)
        if now >= self._late_said_at + LATE_SAID_EVERY_S:
            log.info(
                "%d jobs went back: this process was too busy to start them in time for their rates",
                self._went_back,
            )
            self._late_said_at, self._went_back = now, 0
        self._lateness.note(queues, self._options.concurrency, now)

    def _rest(self, signals: Signals) -> None:
        """Wait for something to do."""
        if self._refused or self._unwritten:
            return  # found while starting what was held: to be written without delay
        if self._hungry and self._free() > 0:
            return
        busy = len(self._slots.running)
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
        at = [self._beat_at]
        if self._free() > 0:
            at.append(self._poll_at)
        if self._slots.stuck and self._options.is_supervised:
            at.append(now + STUCK_GRACE_S / 4)
        at.append(self._gates.due_at if self._stop is Stop.NO else now + 0.05)
        if self._slots.has_news:
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
            if self._queues.patterns:
                self._names_at = 0.0
            if control.next_due(self._store) == 0:
                control.admit(self._store)
        else:
            self._hungry = self._hungry or bool(payloads & self._marks)
            if self._queues.patterns and payloads - self._marks:
                self._hungry, self._names_at = True, 0.0  # perhaps a queue that is new to us

    def _beat(self, now: float) -> None:
        sent = lease_s()
        answer = leases.beat(
            self._store, self.worker, claim_lease_us=self._claim_lease_us, about=self._about(now)
        )
        self._beat_at = now + self._settings.heartbeat_ms / 1000
        if not answer.is_alive:
            self._lose_lease("another process has declared this worker dead")
            return
        self._lease_ends_at = sent + self._settings.lease_ms / 1000
        for (job, epoch), why in answer.cancelled.items():
            self._slots.cancel(job, epoch, why)
        self._settle_refused(answer.cancelled)

    def _about(self, now: float) -> str:
        said = {
            "running": len(self._slots.running),
            "held": len(self._held),
            "concurrency": self._options.concurrency,
            "queues": [*self._queues.exact, *self._queues.patterns],
            "circuit": self._outage.circuit(now),
        }
        if self._outage.last_opening is not None:
            said["last_opening"] = self._outage.last_opening
        return _encode(said).decode()

    def _return_unknown_claims(self, now: float) -> None:
        """Claims whose answer was lost with its connection are ours without our knowing: they go back."""
        self._doubt_at = now + DOUBT_EVERY_S
        # In this order: a run that ends meanwhile is first among the ends, then no longer among the running.
        known = {(run.job.id, run.job.epoch) for run in list(self._slots.running.values())}
        self._take_ends()
        known |= {(end.id, end.epoch) for end in self._unwritten}
        known |= {(job.id, job.epoch) for job in (*self._held, *self._refused)}
        unknown = leases.in_flight(self._store, self.worker) - known
        if unknown:
            log.warning("%d jobs were claimed by calls whose answer was lost: they go back", len(unknown))
            self._unwritten += [
                End(job, epoch, "ready", refund=1, unstarted=1) for job, epoch in sorted(unknown)
            ]

    def _learn_names(self, now: float) -> None:
        rows = reads.queues(self._store)
        self._serving.learn(rows)
        served = set(self._serving.names)
        self._marks = set(map(queue_mark, served))
        self._slots.timed_queues = {row.name for row in rows if row.fair == "time"} & served
        if self._settings.cluster_wide_cap is not None:
            self._capped = served
        else:
            self._capped = {row.name for row in rows if row.max_concurrency is not None} & served
        self._bounded = {row.name for row in rows if row.max_ready is not None} & served
        self._names_at = now + NAMES_EVERY_S

    def _save_progress(self, now: float) -> None:
        self._progress_at = now + PROGRESS_EVERY_S
        if self._slots.lines:
            self._save_lines()
        reports = self._slots.taken_reports()
        try:
            leases.save_progress(
                self._store, self.worker, [(*attempt, text) for attempt, text in reports.items()]
            )
        except StoreUnavailable:
            self._slots.keep_unsaved(reports)
            raise

    def _save_lines(self) -> None:
        lines = [self._slots.lines.popleft() for _ in range(len(self._slots.lines))]
        try:
            logs.add(self._store, lines, self._settings.retention)
        except StoreUnavailable:
            self._slots.lines.extendleft(reversed(lines))
            raise

    def _return_when_due(self) -> None:
        if self._slots.running and (self._stop is Stop.AT_ONCE or self._is_late()):
            returned = self._slots.give_back()
            log.warning("stopping: %d running jobs go back to the queue", len(returned))
            self._unwritten += returned

    def _replace_if_needed(self) -> None:
        """A supervised process is replaced when it has run its number of jobs, or when a body will not come back."""
        if not self._options.is_supervised:
            return
        if self._slots.stuck and self._stop < Stop.GRACEFUL and self._slots.stuck_for() > STUCK_GRACE_S:
            log.error("a body goes on long after its job was taken from it: this process is replaced")
            self.needs_replacing = True
            self.stop(Stop.AT_ONCE)
            self._return_when_due()
        elif self._options.max_jobs and self._ran >= self._options.max_jobs:
            self.needs_replacing = True
            self.stop(Stop.DRAIN)

    def _is_finished(self) -> bool:
        if self.has_lost_lease.is_set() and not self._slots.running:
            return True
        if self._stop is not Stop.NO:
            return self._is_idle
        return self._options.until_empty and self._is_idle and not self._hungry and self._is_empty()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing runs here and nothing is left to be written."""
        return not (
            self._slots.running
            or self._slots.ended
            or self._unwritten
            or self._held
            or self._refused
            or self._slots.lines
        )

    def _is_empty(self) -> bool:
        due = control.next_due(self._store)
        if due is not None and due <= reads.now_us(self._store) and control.admit(self._store):
            self._hungry = True
            return False
        if self._queues.patterns:  # a dispatcher may have admitted into a queue that is new to us
            self._learn_names(time.monotonic())
        is_empty = not reads.has_open(self._store, self._serving.names)
        self._hungry = not is_empty
        return is_empty

    def _bear(self, error: StoreUnavailable, signals: Signals) -> None:
        """The database is away: keep what is unwritten, wait, try again; let go of the jobs when the lease runs out."""
        # In a hurry it is tried once more: a connection that died long ago is no proof that the database is away.
        if (self._stop is Stop.AT_ONCE or self._is_late()) and self._outage.failures:
            raise WorkerGaveUp(
                "the database stayed away during the stop; rescue will return the jobs"
            ) from error
        failed_at = time.monotonic()
        delay = self._outage.failed(error, failed_at, random.random())
        self._doubt_until, self._doubt_at, self._beat_at = failed_at + DOUBT_S, 0.0, 0.0
        while True:
            self.progressed_at = now = time.monotonic()
            self._give_up_without_lease()
            self._slots.tend()
            delay = min(delay, self._longest_delay(now))
            if now >= failed_at + delay:
                return
            signals.wait(min(failed_at + delay - now, 0.5))

    def _longest_delay(self, now: float) -> float:
        """Seconds that a try may be put off: when the database is back, whoever does not beat in time is taken for dead."""
        if self._stop is not Stop.NO:
            return STOPPING_TRY_S
        if self._slots.running:  # their lease is at stake
            return self._settings.heartbeat_ms / 1000
        if self._is_idle and self._outage.circuit(now) is Circuit.OPEN:
            return math.inf  # nothing is lost with this process, so the cooldown is kept
        return self._settings.lease_ms / 2000

    def _give_up_without_lease(self) -> None:
        margin_s = self._settings.lease_ms / 1000 * (1 - LEASE_MARGIN)
        if self._slots.running and lease_s() > self._lease_ends_at - margin_s:
            returned = self._slots.give_back()
            log.error(
                "the lease ran out while the database was away: %d running jobs are given up", len(returned)
            )
            self._unwritten += returned

    def _is_late(self) -> bool:
        """Whether the time that running jobs get after a stop is over."""
        return self.is_hurrying and time.monotonic() - self._stop_at >= self._options.shutdown_timeout_s

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
        self._refused, self._unwritten = [], []
        self.stop(Stop.AT_ONCE)


def _may_leave_more(claim: Claim, claimed: Sequence[Claimed]) -> bool:
    """Whether a claim that got this much may have left jobs behind: it, or one of its queues, was full."""
    if len(claimed) >= claim.top:
        return True
    taken = collections.Counter(job.queue for job in claimed)
    return any(taken[want.queue] >= want.top for want in claim.wants)
