"""Slots: where bodies run. Coroutines on one event loop, plain functions on threads, isolated ones in processes.

Each run gives exactly one End. Nothing here speaks to the database: ends go into a deque that the pump empties, and the
pump is woken when enough have gathered.
"""

import asyncio
import collections
import dataclasses
import itertools
import math
import operator
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import msgspec

from evenflow.codec import storable_text
from evenflow.errors import DecodeError, ProcessExitError, SignatureInvalid
from evenflow.hooks import Hooks
from evenflow.ids import id_text
from evenflow.job import ASKS_NOTHING, MAX_CRASHES, Claimed, End
from evenflow.settings import Settings
from evenflow.signing import KeyRing
from evenflow.store.advance import Advanced
from evenflow.store.logs import NewLine
from evenflow.worker.calling import NO_CONDITIONS, Caller, MakeJournal, Run, timed_out
from evenflow.worker.coroutines import Coroutines
from evenflow.worker.outcome import (
    CancelledByWish,
    LockContended,
    NotAllowed,
    Rules,
    UnknownTask,
    crashed,
    raised,
    released,
)
from evenflow.worker.processes import Processes
from evenflow.worker.registry import Entry, Registry
from evenflow.worker.step_gate import StepGate
from evenflow.worker.tally import Tally
from evenflow.worker.threads import Threads
from evenflow.worker.transaction import MakeTransaction
from evenflow.worker.turns import share_turns

# After its timeout a coroutine is cancelled; one that does not let go by then is ended without its consent.
UNWILLING_S = 2.0
# Jobs whose next crash would quarantine them run in processes of their own, so that it can only be their own doing.
SUSPECT_CRASHES = MAX_CRASHES - 1
SUSPECTS_AT_ONCE = 4
MOST_LINES = 10_000
LONGEST_LINE = 2_000
LONGEST_REPORT = 16_000
_encode = msgspec.json.Encoder().encode
# Jobs that have the same of these are run in the same way.
_kind = operator.attrgetter("queue", "task", "options", "crashes")


class Refusal(NamedTuple):
    """Why a job ends without a run, and by which rules."""

    why: Exception
    rules: Rules


class Slots:
    """Runs jobs and collects their ends. One per worker process."""

    def __init__(
        self, registry: Registry, settings: Settings, *, loop: asyncio.AbstractEventLoop, threads: int,
        wake: Callable[[], None], hooks: Hooks, locator: str | None = None, gate: StepGate = NO_CONDITIONS,
        journal: MakeJournal | None = None, transact: MakeTransaction | None = None, worker: int = 0,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._loop = loop
        self._wake = wake
        self._hooks = hooks
        keys = KeyRing.build(settings.signing_keys) if settings.signing_keys else None
        self._caller = Caller(
            keys=keys,
            require_signed=settings.require_signed,
            hooks=hooks,
            report=self._keep_report,
            say=self._keep_line,
            gate=gate,
            journal=journal,
            transact=transact,
        )
        self._locator = locator
        self._coroutines = Coroutines(loop, self._caller.run_coroutine, self._over)
        self._threads: Threads[Run] = Threads(self._run_here, threads, share_turns)
        self._suspects: Threads[Run] = Threads(self._run_here, min(threads, SUSPECTS_AT_ONCE))
        self._processes = Processes(locator, self._keep_report, self._keep_line, worker)
        self.running: dict[int, Run] = {}
        self.ended: collections.deque[End] = collections.deque()
        self.written: collections.deque[Advanced] = collections.deque()
        """What the store answered to ends that were written together with the effects of their bodies."""
        self.late: collections.deque[str] = collections.deque()
        """The queues of jobs that went back because their bodies would have started too late for their rates."""
        self.wake_at: float = 1
        """With so many ends the pump is woken, once: whenever it has looked at them it says anew how many."""
        self.reports: dict[tuple[int, int], str] = {}
        self.tally = Tally()
        self.timed_queues: set[str] = set()
        self.costs: dict[tuple[str, str], tuple[int, int]] = {}
        self._cost_lock = threading.Lock()
        self.lines: collections.deque[NewLine] = collections.deque(maxlen=MOST_LINES)
        self._line_number = itertools.count()
        self.stuck: dict[Run, float] = {}
        self._timed: dict[int, Run] = {}

    def start(self, jobs: Sequence[Claimed], asked_at: float | None = None) -> None:
        """Begin to run claimed jobs. Called by the pump; returns at once.

        `asked_at` is when their claim was sent, by the monotonic clock: bodies under a rate must start soon after it.
        """
        now = time.monotonic()
        coroutines: list[Run] = []
        functions: list[Run] = []
        suspects: list[Run] = []
        for _, alike in itertools.groupby(jobs, _kind):
            same = list(alike)
            self._note_started(same)
            runs = self._runs(same, now if asked_at is None else asked_at, now)
            if not runs:
                continue
            entry, job = runs[0].entry, runs[0].job
            assert entry is not None
            if entry.place == "async":
                coroutines += runs
            elif entry.place == "process" and job.crashes >= SUSPECT_CRASHES:
                suspects += runs
            else:
                functions += runs
            if entry.timeout_s is not None and entry.place != "process":
                self._timed.update((run.job.id, run) for run in runs)
        if coroutines:
            self._coroutines.submit(coroutines)
        if functions:
            self._threads.submit(functions)
        if suspects:
            self._suspects.submit(suspects)

    def asks(self, job: Claimed) -> bool:
        """Whether a step of a workflow needs more than its job to start: conditions, results, or a context with its name."""
        if job.options is None or ASKS_NOTHING not in job.options or self._hooks.surrounds:
            return True
        task = self._registry.signature(job.task)
        return task is None or task.context is not None

    def cancel(self, job: int, epoch: int, why: str) -> None:
        """Somebody wants this job to stop: its context says so, and a coroutine is cancelled."""
        run = self.running.get(job)
        if run is None or run.job.epoch != epoch or run.cancel_why is not None:
            return
        run.cancel_why = why or "cancelled by request"
        if run.context is not None:
            run.context.cancel(run.cancel_why)
        self._coroutines.cancel(run)

    def give_back(self) -> list[End]:
        """The ends with which everything that still runs is returned; what it finishes later is not heard."""
        runs = [run for run in list(self.running.values()) if run.settle()]
        for run in runs:
            self.running.pop(run.job.id, None)
            self._leave_behind(run, "the worker has given this job back", time.monotonic())
            self._coroutines.cancel(run)
        return [released(run.job, run.entry.rules if run.entry else None) for run in runs]

    def withdrawn(self, job: Claimed, why: str) -> End:
        """The end of a prefetched job that somebody cancelled before it could start."""
        run = Run(job, None)
        wish = CancelledByWish(why or "cancelled by request")
        end = raised(job, wish, self._registry.final, run.now(), random.random())
        self.tally.cell(job).ends.append((end, 0.0))
        return end

    def genuine(self, jobs: Sequence[Claimed]) -> list[Claimed]:
        """Those of these jobs that may ask for their locks; the others, forged or unreadable, end here.

        Without it what is forged would be skipped as contended, and look as if it had been in order.
        """
        return [job for job in jobs if self._is_genuine(job)]

    def contended(self, job: Claimed, lock: str, holder: int | None) -> End:
        """The end of a claimed job whose lock another one holds: skipped, or an attempt that failed."""
        entry = self._registry.entry(job)
        held_by = "another job" if holder is None else f"job {id_text(holder)}"
        refusal = LockContended(f"already running: {lock} is held by {held_by}", skips=_skips(job))
        rules = self._registry.unknown if entry is None else entry.rules
        end = raised(job, refusal, rules, Run(job, None).now(), random.random())
        self.tally.cell(job).ends.append((end, 0.0))
        return end

    @property
    def hooks(self) -> Hooks:
        return self._hooks

    @property
    def registry(self) -> Registry:
        return self._registry

    @property
    def has_news(self) -> bool:
        """Whether bodies have reported or logged something that is not stored yet."""
        return bool(self.reports or self.lines)

    @property
    def has_last_news(self) -> bool:
        """Whether some of it is of a run that has ended: it has to be stored before the end, or never."""
        return not self.running or any(job not in self.running for job, _ in list(self.reports))

    def taken_reports(self) -> dict[tuple[int, int], str]:
        """What bodies have reported since the last call. One by one, since they go on reporting meanwhile."""
        return dict(self.reports.popitem() for _ in range(len(self.reports)))

    def taken_costs(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The costs since the last call: (queue, group) -> (runs, microseconds)."""
        with self._cost_lock:
            costs, self.costs = self.costs, {}
        return costs

    def keep_unsaved(self, reports: dict[tuple[int, int], str]) -> None:
        """Take back reports that could not be stored; newer ones of the same run count."""
        for attempt, text in reports.items():
            self.reports.setdefault(attempt, text)

    def tend(self) -> float | None:
        """Between the pump's rounds: end overdue functions, give waiting ones a thread. Seconds to the next look."""
        looks = (self._end_overdue(), self._threads.grow(), self._suspects.grow())
        return min((look for look in looks if look is not None), default=None)

    def stuck_for(self) -> float:
        """For how many seconds the oldest body whose end was decided without it has been going on."""
        now = time.monotonic()
        self._forget_returned()
        return max((now - since for since in self.stuck.values()), default=0.0)

    def close(self) -> None:
        self._threads.close()
        self._suspects.close()
        self._processes.close()

    def _note_started(self, jobs: Sequence[Claimed]) -> None:
        """Count jobs of one kind, and tell of them."""
        self.tally.cell(jobs[0]).waits += [job.started_at - job.run_at for job in jobs]
        if self._hooks.listens:
            for job in jobs:
                waited_s = (job.started_at - job.run_at) / 1_000_000
                self._hooks.emit("job.started", **_fields(job), waited_s=waited_s)

    def _runs(self, jobs: Sequence[Claimed], asked_at: float, now: float) -> list[Run]:
        """Jobs of one kind as runs; none where they cannot be run, and then they have ended already."""
        entry, cell = self._entry(jobs[0]), self.tally.cell(jobs[0])
        if isinstance(entry, Refusal):
            for job in jobs:
                self._refuse(job, entry)
            return []
        start_by = None if entry.start_within_s is None else asked_at + entry.start_within_s
        runs = [Run(job, entry, start_by, now, now, cell) for job in jobs]
        for run in runs:
            self.running[run.job.id] = run
        return runs

    def _entry(self, job: Claimed) -> Entry | Refusal:
        """How jobs of this kind are run, or why they are not."""
        registry = self._registry
        if not registry.allows(job):
            return Refusal(_misplaced(job), registry.final)
        try:
            entry = registry.entry(job)
        except Exception as error:
            return Refusal(_unreadable(error), registry.final)
        if entry is None:
            return Refusal(_unknown(job), registry.unknown)
        if job.crashes >= SUSPECT_CRASHES and self._locator is not None:
            return dataclasses.replace(entry, place="process")
        return entry

    def _is_genuine(self, job: Claimed) -> bool:
        rules = self._registry.final
        try:
            entry = self._registry.entry(job)
            rules = rules if entry is None else entry.rules
            self._caller.verify(job)
        except SignatureInvalid as forged:
            self._refuse(job, Refusal(forged, rules))
            return False
        except Exception as error:
            self._refuse(job, Refusal(_unreadable(error), rules))
            return False
        return True

    def _refuse(self, job: Claimed, refusal: Refusal) -> None:
        """End a job that cannot be run."""
        run = self.running[job.id] = Run(job, None)
        self._over(run, raised(job, refusal.why, refusal.rules, run.now(), random.random()))

    def _run_here(self, run: Run) -> None:
        entry = run.entry
        assert entry is not None
        if run.is_over:  # given back, or timed out, while it waited for a thread
            run.is_returned = True
            return
        run.began = time.monotonic()
        try:
            end = self._isolated(run) if entry.place == "process" else self._caller.run_function(run, entry)
        finally:
            run.is_returned = True
        self._over(run, end)

    def _isolated(self, run: Run) -> End:
        entry = run.entry
        assert entry is not None
        try:
            return self._processes.run(run, entry)
        except ProcessExitError as error:
            return crashed(run.job, error, entry.fails_on_crash, entry.rules, run.now())
        except Exception as error:
            return raised(run.job, error, entry.rules, run.now(), random.random())

    def _over(self, run: Run, end: End) -> None:
        if not run.settle():  # given back, or ended by its timeout, meanwhile
            return
        if run.written is not None:
            self.written.append(run.written)
        else:
            self.ended.append(end)  # first, so that the pump finds every run in one of the two places
        job = run.job
        self.running.pop(job.id, None)
        cell = run.cell or self.tally.cell(job)
        if end.state == "succeeded":
            cell.runs.append(time.monotonic() - run.began)
        else:
            cell.ends.append((end, time.monotonic() - run.began))
            if end.unstarted:
                self.late.append(job.queue)
        if job.group is not None and job.queue in self.timed_queues:
            self._note_cost(run, job.group)
        if self._hooks.listens:
            ran_s = time.monotonic() - run.started
            self._hooks.emit("job.ended", **_fields(job), state=end.state, ran_s=ran_s)
        # None left: the pump has taken this one before its slot was free, and has to look again.
        if run.written is not None or not self.ended or len(self.ended) >= self.wake_at:
            # Before the wake-up, after which it is the pump's: every end that follows would wake what is awake.
            self.wake_at = math.inf
            self._wake()

    def _end_overdue(self) -> float | None:
        """End bodies past their timeout. A thread cannot be ended: it is left behind, and counted as stuck."""
        now = time.monotonic()
        soonest: float | None = None
        for run in list(self._timed.values()):
            entry = run.entry
            assert entry is not None and entry.timeout_s is not None
            if run.is_over:
                self._timed.pop(run.job.id, None)
                continue
            due = run.started + entry.timeout_s
            left = due - now + (UNWILLING_S if entry.place == "async" else 0.0)
            if left > 0:
                soonest = left if soonest is None else min(soonest, left)
                continue
            self._leave_behind(run, f"timeout of {entry.timeout_s:g} s", due)
            self._over(run, raised(run.job, timed_out(entry), entry.rules, run.now(), random.random()))
        return soonest

    def _leave_behind(self, run: Run, why: str, since: float) -> None:
        """The end of this run is decided while its body goes on: tell it, and do without its thread."""
        if run.context is not None:
            run.context.cancel(why)
        if run.is_returned or run.entry is None or run.entry.place == "process":
            return
        self._forget_returned()
        self.stuck[run] = since
        if run.entry.place == "thread":
            self._threads.allow_more(1)

    def _forget_returned(self) -> None:
        self.stuck = {run: since for run, since in self.stuck.items() if not run.is_returned}

    def _note_cost(self, run: Run, group: str) -> None:
        """What a run of a queue that is fair by time has taken, for the pump to report."""
        key, spent_us = (run.job.queue, group), int((time.monotonic() - run.began) * 1_000_000)
        with self._cost_lock:
            runs, total_us = self.costs.get(key, (0, 0))
            self.costs[key] = (runs + 1, total_us + spent_us)

    def _keep_line(self, job: Claimed, level: str, line: str) -> None:
        """A line that a body logged. Of a flood, the latest are kept."""
        run = self.running.get(job.id)
        if run is None or run.job.epoch != job.epoch:
            return  # its end is decided: a body that goes on talking must not keep a stop waiting
        text = storable_text(line, LONGEST_LINE)
        self.lines.append(NewLine(job.id, run.now(), job.attempt, next(self._line_number), level, text))

    def _keep_report(self, job: int, epoch: int, said: dict[str, Any]) -> None:
        # Encoded here, on the body's own thread: a report that cannot be stored is the body's error, not the pump's.
        text = _encode(said).decode()
        if len(text) > LONGEST_REPORT:
            raise ValueError(
                f"expected a progress report of up to {LONGEST_REPORT} characters, got {len(text)}"
            )
        self.reports[job, epoch] = text


def _fields(job: Claimed) -> dict[str, object]:
    return {"job_id": id_text(job.id), "task": job.task, "queue": job.queue, "attempt": job.attempt}


def _unknown(job: Claimed) -> UnknownTask:
    return UnknownTask(f"no task {job.task!r} is registered here; import its module, or correct its name")


def _misplaced(job: Claimed) -> NotAllowed:
    return NotAllowed(f"task {job.task!r} may not run in queue {job.queue!r}: its tasks= does not name it")


def _unreadable(error: Exception) -> DecodeError:
    return DecodeError(f"the options stored with this job cannot be read: {error}")


def takes_lock(job: Claimed) -> bool:
    """Whether a claimed job has a lock to take before its body starts."""
    return job.options is not None and '"lock":' in job.options


def is_rated(job: Claimed) -> bool:
    """Whether a claimed job has to start soon, because a rate counts its start."""
    return job.options is not None and '"start_us":' in job.options


def _skips(job: Claimed) -> bool:
    said: dict[str, Any] = msgspec.json.decode(job.options or "{}")
    return said.get("lock") == "skip"
