"""The pump: the one thread of a worker process that speaks to the database.

Each round is one transaction: write the ends that have gathered, claim what fits into the free slots. Between rounds
it waits for wake-ups, ends, or the time to poll, whichever comes first. What it keeps in mind for that is in parts of
their own: the lease, what to claim and when, jobs that are held, what is stored beside the rounds, how to bear outages.
"""

import contextlib
import logging
import math
import random
import threading
import time
from collections.abc import Callable, Collection, Sequence

from evenflow.errors import StoreError, StoreUnavailable
from evenflow.job import Claimed, End
from evenflow.rules.breaker import Circuit
from evenflow.settings import Settings
from evenflow.store import bounds, control, durable, gates, reads, runs, workflows
from evenflow.store.advance import BACK, NOTHING, Advanced, Claim
from evenflow.store.open import AnyEngine
from evenflow.store.pipeline import Pipeline
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import ARRIVAL, Waker, Watcher, watch_signals
from evenflow.worker.claims import Claims, may_leave_more
from evenflow.worker.gates import Gates
from evenflow.worker.lease import Lease
from evenflow.worker.options import PumpOptions
from evenflow.worker.outage import Outage, WorkerGaveUp
from evenflow.worker.passing import Passing, way_of
from evenflow.worker.patience import Impatient
from evenflow.worker.prefetch import Prefetched
from evenflow.worker.rounds import Round, Rounds
from evenflow.worker.saving import Saving
from evenflow.worker.serving import QueueList, Serving
from evenflow.worker.slots import Slots
from evenflow.worker.starting import Starting
from evenflow.worker.stopping import Stop, Stopping

log = logging.getLogger("evenflow.worker")

LINGER_S = 0.002
NAMES_EVERY_S = 2.0
FILL_EVERY_S = 0.05
STUCK_GRACE_S = 2.0
UNTIL_EMPTY_S = 0.005
STOPPING_LOOK_S = 0.05
STOPPING_TRY_S = 0.2
TEND_EVERY_S = 0.25
LISTEN_EVERY_S = 0.25
LISTEN_FOR_S = 0.001
FEW = 3
HAND_OVER_S = 0.0001


class Pump:
    """Moves jobs between the store and the slots. `run` blocks until the worker has stopped."""

    def __init__(
        self, engine: AnyEngine, slots: Slots, settings: Settings, queues: QueueList, options: PumpOptions, *,
        worker: int, announce: Callable[[], None] = lambda: None,
    ) -> None:  # fmt: skip
        self.worker = worker
        self._engine = engine
        self._store = store = Impatient(engine, settings)
        self._slots = slots
        self._settings = settings
        self._options = options
        self._queues = queues
        self._announce = announce
        self._waker = Waker(engine)
        self._signals: Watcher | None = None
        self._serving = Serving(queues, has_cluster_cap=settings.cluster_wide_cap is not None)
        self._lease = Lease(store, worker, settings)
        self._claims = Claims(
            self._serving,
            poll_every_s=settings.resilience.notify_poll_interval_ms / 1000,
            batch=options.max_claim_batch,
            lease_us=self._lease.claim_us if options.prefetch else None,
            defers_v=isinstance(engine, PostgresEngine) and not options.prefetch,
        )
        pipeline = Pipeline(engine) if isinstance(engine, PostgresEngine) and not options.prefetch else None
        self._rounds = Rounds(store, worker, settings.retention, pipeline)
        self._prefetched = Prefetched(store, worker, slots)
        self._starting = Starting(store, worker, slots, self._write_ends)
        self._saving = Saving(store, worker, slots, settings.retention)
        registry = slots.registry
        self._gates = Gates(store, lambda: registry.declared, settings.retention, slots.hooks, self._waker)
        self._passing = Passing(store, self._hear_of_promoted, way=way_of(engine))
        self._outage = Outage(settings.resilience)
        self._stopping = Stopping(options.shutdown_timeout_s)
        self._unwritten: list[End] = []
        self._unnoted: tuple[Round, Advanced] | None = None
        self._has_promoted = self._did_work = self._keeps_flights = False
        self._names_at = self._tend_at = self._filled_at = self._listen_at = 0.0
        self.needs_replacing = False
        self.progressed_at: float | None = None
        self.has_lost_lease = threading.Event()
        self.is_done = threading.Event()

    def wake(self) -> None:
        """End the wait that is under way. Safe from any thread."""
        if self._signals is not None:
            self._signals.interrupt()

    def stop(self, how: Stop = Stop.GRACEFUL) -> None:
        """Stop claiming now; running jobs get their time, or none. Safe from any thread and from signal handlers."""
        if self._stopping.heed(how):
            self.wake()

    @property
    def is_hurrying(self) -> bool:
        """Whether running jobs have a limited time to end."""
        return self._stopping.is_hurrying

    def run(self) -> None:
        """Until stopped: rounds and rests. Leaves nothing claimed behind."""
        self.progressed_at = time.monotonic()
        try:
            with watch_signals(self._engine, "work", "wake", most=self._options.coalesce_notifies) as signals:
                self._signals = signals
                while self._goes_on(signals):
                    self.progressed_at = time.monotonic()
                with contextlib.suppress(StoreError):  # as good as it goes: nobody waits for them
                    self._saving.report_statistics(time.monotonic())
        finally:
            self._signals = None
            self._rounds.close()
            self._passing.close()
            self.is_done.set()

    def _goes_on(self, signals: Watcher) -> bool:
        """One round and its rest; False when the work of this pump is done."""
        try:
            if self._is_finished():
                return False
            self._did_work = False
            self._round()
            if not self._rounds:  # what was asked ahead proves nothing before it is answered
                self._outage.succeeded(time.monotonic(), did_work=self._did_work)
            self._rest(signals)
        except StoreUnavailable as error:
            self._bear(error, signals)
        return True

    def _round(self) -> None:
        now = time.monotonic()
        if now >= self._lease.beat_at or self._prefetched.refused:
            self._beat(now)
        if self._keeps_flights and not self._rounds:
            self._keeps_flights = False
            self._rounds.keep({job for job, _ in self._known()})
        if self._lease.looks_for_unknown(now):
            self._hear_all()
            self._return_unknown_claims(now)
        if now >= self._names_at or (self._queues.patterns and now >= self._claims.poll_at):
            self._learn_names(now)  # with each poll too, or a new queue would wait for both
        if self._stopping.is_on:
            self._return_when_due()
        self._replace_if_needed()
        if now >= self._tend_at:  # also where one round follows another without a rest
            self._tend_at = now + TEND_EVERY_S
            self._slots.tend()
            self._slots.tally.fold()
            self._rounds.tend()
        if not self._rounds or self._may_ask_ahead():
            self._take_ends()
        while self._slots.written:
            self._hear_of_written(self._slots.written.popleft())
        self._saving.save_due(now)
        if now >= self._gates.due_at and not self._stopping.is_on:
            self._gates.tend(self._serving.names)
        has_keys = (due_at := self._passing.due_at) is not None and now >= due_at
        carries = has_keys and self._passing.is_within
        if has_keys and not carries:
            self._passing.pass_on()
        if self._has_promoted or carries:
            # Perhaps by another thread: cleared before the claim that looks for it.
            self._has_promoted = False
            self._claims.hear_of_work()
        claim = self._claim(now)
        if self._unwritten or carries or claim is not NOTHING:
            self._exchange(claim)
        if self._prefetched.held:
            self._start_held()

    def _exchange(self, claim: Claim) -> None:
        """Write the ends that were taken, and claim: at once, or as a round whose answer is heard later."""
        if self._rounds.ask_ahead(self._unwritten, claim):
            self._unwritten = []
            return
        self._hear_all()
        asked, answer = self._rounds.exchange(self._unwritten, claim, self._passing.to_carry())
        self._unwritten = []
        self._go_on_with(asked, answer)

    def _hear_all(self) -> None:
        """The answers of all rounds that are under way."""
        while self._rounds:
            self._go_on_with(*self._rounds.hear())

    def _go_on_with(self, asked: Round, answer: Advanced) -> None:
        """What a round has brought: jobs start, and whoever waits for what it has written is told."""
        ends, claim = asked.ends, asked.claim
        self._unnoted = asked, answer
        try:
            self._begin(asked, answer)  # before all that can wait: a lone job is not to wait for it
        finally:
            self._note()
        now = time.monotonic()
        self._did_work = bool(ends or answer.claimed)
        self._outage.succeeded(now, did_work=self._did_work)
        if asked.may_return and any(end.state in BACK for end in ends):
            self._waker.wake_dispatchers()  # somebody else may run them, or has to make them ready in time
        if self._serving.capped and len(ends) > len(answer.claimed):
            # We leave room under a cap that others may be waiting for.
            self._waker.wake(*self._serving.capped)
        self._follow(answer, claim)
        if asked.may_return and any(end.waits_for_event for end in ends):
            durable.rouse(self._store)  # the event that they wait for may have come meanwhile
        if self._serving.bounded and claim.wants:
            self._fill(len(answer.claimed) < claim.top, now)
        if answer.is_obstructed and (freed := self._gates.clear_way([want.queue for want in claim.wants])):
            self._passing.give(freed)

    def _begin(self, asked: Round, answer: Advanced) -> None:
        if answer.settled is not None:
            # Before the bodies start: they would keep us from hearing the answer.
            self._go_on_after(answer.settled, {job.id for job in answer.claimed})
        if asked.claim.lease_us is None:
            self._start(answer.claimed, asked.asked_at)
            if 0 < len(answer.claimed) <= FEW and not self._slots.ended:
                # Whoever runs them has to wake up and needs Python's lock: it would wait for all that we do next.
                time.sleep(HAND_OVER_S)
        else:
            self._prefetched.hold(answer.claimed)

    def _note(self) -> None:
        """Keep in mind what the last round has brought, unless that was done."""
        if self._unnoted is None:
            return
        (asked, answer), self._unnoted = self._unnoted, None
        self._rounds.note(asked, answer)
        if asked.claim is not NOTHING:
            self._claims.note(asked.claim, answer, asked.asked_at, time.monotonic())

    def _hear_of_written(self, answer: Advanced) -> None:
        """An end was written together with the effects of its body: what an exchange does after its ends."""
        self._did_work = True
        self._claims.hear_of_work()
        self._waker.wake(*self._serving.capped)
        if answer.settled is not None:
            self._go_on_after(answer.settled)
        self._follow(answer)

    def _follow(self, answer: Advanced, claim: Claim | None = None) -> None:
        """What written ends have set free goes on, and whoever waits for them is told."""
        if answer.awaited:
            self._announce_ends()
        if answer.lost:
            self._lease.say_lost(answer.lost)
        if answer.runs or answer.arriving:
            # They could not be told with the ends of their steps. A sweep finds what we miss.
            retention = self._settings.retention
            self._go_on_after(workflows.settle(self._store, answer.runs, retention, arriving=answer.arriving))
        if answer.promoted is not None:
            self._passing.carried(answer.promoted, {want.queue for want in claim.wants} if claim else ())
        if answer.freed:
            has_work = claim is not None and may_leave_more(claim, answer.claimed)
            self._passing.give(answer.freed, is_urgent=not has_work)
        if answer.turned:
            self._gates.hear(answer.turned)

    def _fill(self, is_hungry: bool, now: float) -> None:
        """Let jobs in that wait before bounded queues: at once where a claim found too few, else a few times a second."""
        if is_hungry or now - self._filled_at >= FILL_EVERY_S:
            self._filled_at = now
            filled = bounds.fill(self._store, self._serving.bounded)
            if filled:
                self._claims.hear_of_work()
            self._waker.wake(*filled)

    def _hear_of_promoted(self, queues: set[str]) -> None:
        """Jobs that waited for keys are ready now. Called by the thread that passes keys on."""
        if not queues.isdisjoint(self._serving.names):
            self._has_promoted = True
            self.wake()
        self._waker.wake(*queues)

    def _go_on_after(self, settled: workflows.Settled, taken: Collection[int] = ()) -> None:
        """Steps of workflows have ended: what waited for them goes on, wherever it is served, unless we have it already."""
        if settled.ended:
            self._announce_ends()
        if settled.is_within(taken):
            return
        if not settled.queues.isdisjoint(self._serving.names):
            self._claims.hear_of_work()
        self._waker.wake(*settled.queues)

    def _announce_ends(self) -> None:
        self._waker.announce_ends()
        self._announce()

    def _start(self, jobs: Sequence[Claimed], asked_at: float) -> None:
        # In two lines: a start may write the ends that have gathered, and then they are another list.
        contended = self._starting.start(jobs, asked_at)
        self._unwritten += contended

    def _write_ends(self) -> None:
        """Write what has ended, without a claim. While jobs of a round start: some of them may be among the ended."""
        self._note()
        self._hear_all()
        self._take_ends()
        if self._unwritten:
            self._exchange(NOTHING)
            self._hear_all()

    def _start_held(self) -> None:
        """Prefetched jobs take free slots, or go back where this worker stops."""
        free = self._options.concurrency - len(self._slots.running)
        if self._stopping.is_on:
            self._unwritten += self._prefetched.give_back()
        elif free > 0:
            asked_at = time.monotonic()
            jobs = self._prefetched.startable(free, under_caps=bool(self._serving.capped))
            self._start(jobs, asked_at)

    def _free(self) -> int:
        """How many jobs this worker may still take."""
        if self._stopping.is_on:
            return 0
        held = len(self._prefetched)
        held += self._rounds.places
        free = self._options.concurrency + self._options.prefetch - len(self._slots.running) - held
        if self._options.max_claim:
            free = min(free, self._options.max_claim - held)
        if self._options.max_jobs:
            free = min(free, self._options.max_jobs - self._starting.started - held)
        return free

    def _claim(self, now: float) -> Claim:
        free = self._free()
        asks = free > 0 and (self._unwritten or (self._claims.is_due(now) and not self._rounds))
        if not asks and (self._rounds or now < self._claims.v_due_at):
            return NOTHING
        if self._lease.is_over():
            # Frozen or cut off for a while: first see whether we still count as alive.
            self._lease.beat_at = 0.0
            return NOTHING
        if not asks:
            return self._claims.catch_up()
        return self._claims.compose(free, now, is_alone=not self._unwritten)

    def _take_ends(self) -> None:
        ended = self._slots.ended
        self._slots.wake_at = 1
        while ended:
            self._unwritten.append(ended.popleft())
        if self._slots.late:
            queues = [self._slots.late.popleft() for _ in range(len(self._slots.late))]
            self._claims.note_late(queues, self._options.concurrency, time.monotonic())

    def _rest(self, signals: Watcher) -> None:
        """Wait for something to do."""
        if self._prefetched.refused or self._unwritten:
            return  # found while starting what was held: to be written without delay
        if self._rounds:
            self._await_answer(signals)
            return
        if self._claims.is_hungry and self._free() > 0:
            return
        busy = len(self._slots.running)
        if self._prefetched.held and busy < self._options.concurrency:
            return
        if not self._slots.ended:
            self._hear(signals.wait(self._time_to_rest()))
            self._heed_hint()
        if self._slots.ended and busy > 4 and not self._stopping.is_on:
            self._linger(signals, max(1, busy // 2))

    def _heed_hint(self) -> None:
        """Somebody has told of work while we rested: claim it now. What else may be due by now can wait for a claim."""
        if not self._claims.is_hungry or self._slots.ended or self._names_at == 0.0:
            return
        claim = self._claim(time.monotonic())
        if claim is not NOTHING:
            self._exchange(claim)

    def _linger(self, signals: Watcher, enough: int) -> None:
        """More ends are about to come: one transaction for many costs little more than for one."""
        self._slots.wake_at = enough
        if len(self._slots.ended) < enough:
            self._hear(signals.wait(LINGER_S))

    def _await_answer(self, signals: Watcher) -> None:
        """Until the oldest round under way is answered, or enough has ended for another one."""
        if self._rounds.has_room:
            self._slots.wake_at = self._rounds.enough(self._here)
            if self._may_ask_ahead():
                return
        if (now := time.monotonic()) >= self._listen_at:  # without a pause between rounds nobody else would
            self._listen_at = now + LISTEN_EVERY_S
            self._hear(signals.wait(LISTEN_FOR_S))
        is_overdue = self._rounds.is_overdue
        if not (is_overdue or self._rounds.is_answered):
            if not signals.wait_for(self._rounds.descriptor, self._time_to_rest()):
                return
            self._rounds.note_readable()
        # The next round goes first, unless it could claim nothing: what the answer brings takes all places.
        if is_overdue or not (self._may_ask_ahead() and self._free() > 0):
            self._go_on_with(*self._rounds.hear())
            if self._rounds.is_small(self._free(), len(self._slots.running)) and not self._stopping.is_on:
                self._linger(signals, self._rounds.enough(self._here))

    def _may_ask_ahead(self) -> bool:
        """Whether enough has ended for another round, while one is under way, or answered and not heard yet."""
        if self._keeps_flights:  # with each heartbeat there is a moment without a round under way
            return False
        return self._rounds.has_room and len(self._slots.ended) >= self._rounds.enough(self._here)

    @property
    def _here(self) -> int:
        """How many jobs run, or have ended and are not taken yet."""
        return len(self._slots.running) + len(self._slots.ended)

    def _time_to_rest(self) -> float:
        now = time.monotonic()
        at = [self._lease.beat_at, self._saving.due_at]
        if not self._rounds:
            at.append(self._claims.v_due_at)
            if self._free() > 0:
                at.append(self._claims.poll_at)
        if self._slots.stuck and self._options.is_supervised:
            at.append(now + STUCK_GRACE_S / 4)
        at.append(now + STOPPING_LOOK_S if self._stopping.is_on else self._gates.due_at)
        if (passes_on_at := self._passing.due_at) is not None:
            at.append(passes_on_at)
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
            self._claims.hear_of_work()
            if self._queues.patterns:
                self._names_at = 0.0
            if control.ahead(self._store).due == 0:
                self._admit()
        else:
            is_new = bool(self._queues.patterns and payloads - self._serving.marks)  # perhaps a queue of ours
            if is_new:
                self._names_at = 0.0
            if is_new or payloads & self._serving.marks:
                self._claims.hear_of_work()

    def _admit(self) -> bool:
        """Let in what has arrived, or is due; whether there was something. Whoever serves it is told, and may have looked before."""
        admitted = control.admit(self._store, self._settings.retention)
        self._waker.wake(*admitted)
        return bool(admitted)

    def _beat(self, now: float) -> None:
        answer = self._lease.beat(self._about(now), now)
        if not answer.is_alive:
            self._lose_lease()
            return
        for (job, epoch), why in answer.cancelled.items():
            self._slots.cancel(job, epoch, why)
        self._unwritten += self._prefetched.settle_refused(answer.cancelled)
        self._rounds.has_company = answer.has_company
        self._keeps_flights = self._rounds.has_flights

    def _about(self, now: float) -> dict[str, object]:
        """What others are told about this worker with each heartbeat."""
        said: dict[str, object] = {
            "running": len(self._slots.running),
            "held": len(self._prefetched.held),
            "concurrency": self._options.concurrency,
            "queues": [*self._queues.exact, *self._queues.patterns],
            "circuit": self._outage.circuit(now),
        }
        if self._outage.last_opening is not None:
            said["last_opening"] = self._outage.last_opening
        return said

    def _return_unknown_claims(self, now: float) -> None:
        """After a call whose answer was lost: what the store has in flight here, and we do not."""
        self._unwritten += self._lease.unknown_claims(self._known(), now)

    def _known(self) -> set[tuple[int, int]]:
        """(id, epoch) of all that may be in flight here, where no round is under way."""
        # In this order: a run that ends meanwhile is first among the ends, then no longer among the running.
        known = {(run.job.id, run.job.epoch) for run in list(self._slots.running.values())}
        self._take_ends()
        known |= {(end.id, end.epoch) for end in self._unwritten}
        return known | {(job.id, job.epoch) for job in self._prefetched}

    def _learn_names(self, now: float) -> None:
        self._serving.learn(reads.queues(self._store))
        self._slots.timed_queues = self._serving.timed
        self._names_at = now + NAMES_EVERY_S

    def _return_when_due(self) -> None:
        if self._slots.running and self._stopping.is_time_up():
            returned = self._slots.give_back()
            log.warning("stopping: %d running jobs go back to the queue", len(returned))
            self._unwritten += returned

    def _replace_if_needed(self) -> None:
        """A supervised process is replaced when it has run its number of jobs, or when a body will not come back."""
        if not self._options.is_supervised:
            return
        if self._slots.stuck and not self._stopping.is_hurrying and self._slots.stuck_for() > STUCK_GRACE_S:
            log.error("a body goes on long after its job was taken from it: this process is replaced")
            self.needs_replacing = True
            self.stop(Stop.AT_ONCE)
            self._return_when_due()
        elif self._options.max_jobs and self._starting.started >= self._options.max_jobs:
            self.needs_replacing = True
            self.stop(Stop.DRAIN)

    def _is_finished(self) -> bool:
        if self.has_lost_lease.is_set() and not self._slots.running:
            return True
        if self._stopping.is_on:
            return self._is_idle
        if self._passing.is_busy or self._has_promoted:
            return False
        return self._options.until_empty and self._is_idle and not self._claims.is_hungry and self._is_empty()

    @property
    def _is_idle(self) -> bool:
        """Whether nothing runs here and nothing is left to be written."""
        return not (
            self._slots.running
            or self._rounds
            or self._slots.ended
            or self._slots.written
            or self._unwritten
            or self._prefetched
            or self._slots.lines
        )

    def _is_empty(self) -> bool:
        ahead = control.ahead(self._store)
        if ahead.due is not None and ahead.due <= ahead.now and self._admit():
            self._claims.is_hungry = True
            return False
        if ahead.has_untold and (found := runs.unsettled(self._store)):
            # Steps that did not end in a worker, by their time for instance: what waited for them goes on.
            self._go_on_after(workflows.settle(self._store, found, self._settings.retention))
            self._claims.is_hungry = True
            return False
        if self._queues.patterns:  # a dispatcher may have admitted into a queue that is new to us
            self._learn_names(time.monotonic())
        is_empty = not reads.has_open(self._store, self._serving.names) and not gates.release(self._store)
        self._claims.is_hungry = not is_empty
        return is_empty

    def _bear(self, error: StoreUnavailable, signals: Watcher) -> None:
        """The database is away: keep what is unwritten, wait, try again; let go of the jobs when the lease runs out."""
        # In a hurry it is tried once more: a connection that died long ago is no proof that the database is away.
        if self._stopping.is_time_up() and self._outage.failures:
            raise WorkerGaveUp(
                "the database stayed away during the stop; rescue will return the jobs"
            ) from error
        failed_at = time.monotonic()
        self._unwritten = self._rounds.taken_back() + self._unwritten
        delay = self._outage.failed(error, failed_at, random.random())
        self._lease.doubt(failed_at)
        while True:
            self.progressed_at = now = time.monotonic()
            self._give_up_without_lease()
            self._slots.tend()
            delay = min(delay, self._longest_delay(now))
            if now >= failed_at + delay:
                self._claims.hear_of_work()  # perhaps: hints that came meanwhile were told to nobody
                return
            signals.wait(min(failed_at + delay - now, 0.5))

    def _longest_delay(self, now: float) -> float:
        """Seconds that a try may be put off: when the database is back, whoever does not beat in time is taken for dead."""
        if self._stopping.is_on:
            return STOPPING_TRY_S
        if self._slots.running:  # their lease is at stake
            return self._settings.heartbeat_ms / 1000
        if self._is_idle and self._outage.circuit(now) is Circuit.OPEN:
            return math.inf  # nothing is lost with this process, so the cooldown is kept
        return self._settings.lease_ms / 4000  # beside a call that may take half of a lease

    def _give_up_without_lease(self) -> None:
        if self._slots.running and self._lease.is_running_out():
            returned = self._slots.give_back()
            log.error(
                "the lease ran out while the database was away: %d running jobs are given up", len(returned)
            )
            self._unwritten += returned

    def _lose_lease(self) -> None:
        if not self.has_lost_lease.is_set():
            said = "the lease of this worker is gone (another process has declared this worker dead): "
            log.error(said + "%d running jobs are given up", len(self._slots.running))
        self.has_lost_lease.set()
        self._slots.give_back()
        self._slots.ended.clear()
        self._prefetched.forget()
        self._rounds.close()
        self._unwritten = []
        self.stop(Stop.AT_ONCE)
