"""Slots: where bodies run. Coroutines on one event loop, plain functions on threads, isolated ones in processes.

Each run gives exactly one End. Nothing here speaks to the database: ends go into a deque that the pump empties, and the
pump is woken when enough have gathered.
"""

import asyncio
import collections
import dataclasses
import itertools
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

import msgspec

from evenflow.clock import wall_us
from evenflow.codec import storable_text
from evenflow.errors import DecodeError, ProcessExitError
from evenflow.hooks import Hooks
from evenflow.ids import id_text
from evenflow.job import MAX_CRASHES, Claimed, End
from evenflow.settings import Settings
from evenflow.signing import KeyRing
from evenflow.store.logs import NewLine
from evenflow.worker.calling import NO_CONDITIONS, Caller, MakeJournal, Run, timed_out
from evenflow.worker.outcome import (
    CancelledByWish,
    LockContended,
    UnknownTask,
    crashed,
    raised,
    released,
)
from evenflow.worker.processes import Processes
from evenflow.worker.registry import Registry
from evenflow.worker.step_gate import StepGate
from evenflow.worker.threads import Threads

# After its timeout a coroutine is cancelled; one that does not let go by then is ended without its consent.
UNWILLING_S = 2.0
# Jobs whose next crash would quarantine them run in processes of their own, so that it can only be their own doing.
SUSPECT_CRASHES = MAX_CRASHES - 1
SUSPECTS_AT_ONCE = 4
MOST_LINES = 10_000
LONGEST_LINE = 2_000
LONGEST_REPORT = 16_000
_encode = msgspec.json.Encoder().encode


class Slots:
    """Runs jobs and collects their ends. One per worker process."""

    def __init__(
        self, registry: Registry, settings: Settings, *, loop: asyncio.AbstractEventLoop, threads: int,
        wake: Callable[[], None], hooks: Hooks, locator: str | None = None, gate: StepGate = NO_CONDITIONS,
        journal: MakeJournal | None = None,
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
        )
        self._locator = locator
        self._threads: Threads[Run] = Threads(self._run_here, threads)
        self._suspects: Threads[Run] = Threads(self._run_here, min(threads, SUSPECTS_AT_ONCE))
        self._processes = Processes(locator, self._keep_report, self._keep_line)
        self.running: dict[int, Run] = {}
        self.ended: collections.deque[End] = collections.deque()
        self.late: collections.deque[str] = collections.deque()
        """The queues of jobs that went back because their bodies would have started too late for their rates."""
        self.wake_at = 1
        self.reports: dict[tuple[int, int], str] = {}
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
        coroutines, functions, suspects = [], [], []
        for job in jobs:
            run = self._run(job, time.monotonic() if asked_at is None else asked_at)
            if self._hooks.listens:
                waited_s = (job.started_at - job.run_at) / 1_000_000
                self._hooks.emit("job.started", **_fields(job), waited_s=waited_s)
            if run.entry is None:
                continue
            if run.entry.place == "async":
                coroutines.append(run)
            elif run.entry.place == "process" and job.crashes >= SUSPECT_CRASHES:
                suspects.append(run)
            else:
                functions.append(run)
            if run.entry.timeout_s is not None and run.entry.place != "process":
                self._timed[job.id] = run
        if coroutines:
            self._loop.call_soon_threadsafe(self._start_coroutines, coroutines)
        if functions:
            self._threads.submit(functions)
        if suspects:
            self._suspects.submit(suspects)

    def cancel(self, job: int, epoch: int, why: str) -> None:
        """Somebody wants this job to stop: its context says so, and a coroutine is cancelled."""
        run = self.running.get(job)
        if run is None or run.job.epoch != epoch or run.cancel_why is not None:
            return
        run.cancel_why = why or "cancelled by request"
        if run.context is not None:
            run.context.cancel(run.cancel_why)
        if run.task is not None:
            self._loop.call_soon_threadsafe(run.task.cancel)

    def give_back(self) -> list[End]:
        """The ends with which everything that still runs is returned; what it finishes later is not heard."""
        runs = [run for run in list(self.running.values()) if run.settle()]
        for run in runs:
            self.running.pop(run.job.id, None)
            self._leave_behind(run, "the worker has given this job back", time.monotonic())
            if run.task is not None:
                self._loop.call_soon_threadsafe(run.task.cancel)
        return [released(run.job, run.entry.rules if run.entry else None) for run in runs]

    def withdrawn(self, job: Claimed, why: str) -> End:
        """The end of a prefetched job that somebody cancelled before it could start."""
        run = Run(job, None)
        wish = CancelledByWish(why or "cancelled by request")
        return raised(job, wish, self._registry.final, run.now(), random.random())

    def contended(self, job: Claimed, lock: str, holder: int | None) -> End:
        """The end of a claimed job whose lock another one holds: skipped, or an attempt that failed."""
        entry = self._registry.entry(job)
        held_by = "another job" if holder is None else f"job {id_text(holder)}"
        refusal = LockContended(f"already running: {lock} is held by {held_by}", skips=_skips(job))
        rules = self._registry.unknown if entry is None else entry.rules
        return raised(job, refusal, rules, Run(job, None).now(), random.random())

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

    def _start_coroutines(self, runs: Sequence[Run]) -> None:
        create = self._loop.create_task
        for run in runs:
            run.task = create(self._run_on_loop(run))

    def _run(self, job: Claimed, asked_at: float) -> Run:
        """The job as a run; without an entry where it cannot be run, and then it has ended already."""
        try:
            entry = self._registry.entry(job)
        except Exception as error:
            run = self.running[job.id] = Run(job, None)
            unreadable = DecodeError(f"the options stored with this job cannot be read: {error}")
            self._over(run, raised(job, unreadable, self._registry.final, run.now(), random.random()))
            return run
        if entry is not None and job.crashes >= SUSPECT_CRASHES and self._locator is not None:
            entry = dataclasses.replace(entry, place="process")
        start_by = None if entry is None or entry.start_within_s is None else asked_at + entry.start_within_s
        run = self.running[job.id] = Run(job, entry, start_by)
        if entry is None:
            self._over(run, raised(job, _unknown(job), self._registry.unknown, run.now(), random.random()))
        return run

    async def _run_on_loop(self, run: Run) -> None:
        assert run.entry is not None
        run.began = time.monotonic()
        try:
            end = await self._caller.run_coroutine(run, run.entry)
        finally:
            run.is_returned = True
        self._over(run, end)

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
        self.ended.append(end)  # first, so that the pump finds every run in one of the two places
        self.running.pop(run.job.id, None)
        if end.unstarted:
            self.late.append(run.job.queue)
        if run.job.queue in self.timed_queues and run.job.group is not None:
            self._note_cost(run, run.job.group)
        if self._hooks.listens:
            ran_s = time.monotonic() - run.started
            self._hooks.emit("job.ended", **_fields(run.job), state=end.state, ran_s=ran_s)
        if len(self.ended) >= self.wake_at:
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

    def taken_costs(self) -> dict[tuple[str, str], tuple[int, int]]:
        """The costs since the last call: (queue, group) -> (runs, microseconds)."""
        with self._cost_lock:
            costs, self.costs = self.costs, {}
        return costs

    def _keep_line(self, job: Claimed, level: str, line: str) -> None:
        """A line that a body logged. Of a flood, the latest are kept."""
        text = storable_text(line, LONGEST_LINE)
        self.lines.append(NewLine(job.id, wall_us(), job.attempt, next(self._line_number), level, text))

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


def takes_lock(job: Claimed) -> bool:
    """Whether a claimed job has a lock to take before its body starts."""
    return job.options is not None and '"lock":' in job.options


def is_rated(job: Claimed) -> bool:
    """Whether a claimed job has to start soon, because a rate counts its start."""
    return job.options is not None and '"start_us":' in job.options


def _skips(job: Claimed) -> bool:
    said: dict[str, Any] = msgspec.json.decode(job.options or "{}")
    return said.get("lock") == "skip"
