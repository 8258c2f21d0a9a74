"""Slots: where bodies run. Coroutines on one event loop, plain functions on threads, isolated ones in processes.

Each run gives exactly one End. Nothing here speaks to the database: ends go into a deque that the pump empties, and the
pump is woken when enough have gathered.
"""

import asyncio
import collections
import random
import time
from collections.abc import Callable, Sequence
from typing import Any

from evenflow.errors import ProcessExitError
from evenflow.hooks import Hooks
from evenflow.job import Claimed, End
from evenflow.settings import Settings
from evenflow.signing import KeyRing
from evenflow.worker.calling import Caller, Run, timed_out
from evenflow.worker.outcome import UnknownTask, crashed, raised, released
from evenflow.worker.processes import Processes
from evenflow.worker.registry import Registry
from evenflow.worker.threads import Threads


class Slots:
    """Runs jobs and collects their ends. One per worker process."""

    def __init__(
        self, registry: Registry, settings: Settings, *, loop: asyncio.AbstractEventLoop, threads: int,
        wake: Callable[[], None], hooks: Hooks, locator: str | None = None,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._loop = loop
        self._wake = wake
        keys = KeyRing.build(settings.signing_keys) if settings.signing_keys else None
        self._caller = Caller(
            keys=keys, require_signed=settings.require_signed, hooks=hooks, report=self._keep_report
        )
        self._threads: Threads[Run] = Threads(self._run_here, threads)
        self._processes = Processes(locator, self._keep_report)
        self.running: dict[int, Run] = {}
        self.ended: collections.deque[End] = collections.deque()
        self.wake_at = 1
        self.reports: dict[tuple[int, int], dict[str, Any]] = {}
        self.stuck: dict[Run, float] = {}
        self._timed: dict[int, Run] = {}

    def start(self, jobs: Sequence[Claimed]) -> None:
        """Begin to run claimed jobs. Called by the pump; returns at once."""
        coroutines, functions = [], []
        for job in jobs:
            run = Run(job, self._registry.entry(job))
            self.running[job.id] = run
            if run.entry is None:
                self._over(
                    run, raised(job, _unknown(job), self._registry.unknown, run.now(), random.random())
                )
            elif run.entry.place == "async":
                coroutines.append(run)
            else:
                functions.append(run)
                if run.entry.timeout_s is not None and run.entry.place == "thread":
                    self._timed[job.id] = run
        if coroutines:
            self._loop.call_soon_threadsafe(self._start_coroutines, coroutines)
        if functions:
            self._threads.submit(functions)

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
        runs = [run for run in list(self.running.values()) if not run.is_over]
        for run in runs:
            run.is_over = True
            self.running.pop(run.job.id, None)
            if run.context is not None:
                run.context.cancel("the worker stops")
            if run.task is not None:
                self._loop.call_soon_threadsafe(run.task.cancel)
        return [released(run.job) for run in runs]

    def tend(self) -> float | None:
        """Between the pump's rounds: end overdue functions, give waiting ones a thread. Seconds to the next look."""
        due = self._end_overdue()
        grow = self._threads.grow()
        return due if grow is None else grow if due is None else min(due, grow)

    def stuck_for(self) -> float:
        """For how many seconds the oldest function past its timeout has held on to its thread."""
        now = time.monotonic()
        self.stuck = {run: since for run, since in self.stuck.items() if not run.is_returned}
        return max((now - since for since in self.stuck.values()), default=0.0)

    def close(self) -> None:
        self._threads.close()
        self._processes.close()

    def _start_coroutines(self, runs: Sequence[Run]) -> None:
        create = self._loop.create_task
        for run in runs:
            run.task = create(self._run_on_loop(run))

    async def _run_on_loop(self, run: Run) -> None:
        assert run.entry is not None
        self._over(run, await self._caller.run_coroutine(run, run.entry))

    def _run_here(self, run: Run) -> None:
        entry = run.entry
        assert entry is not None
        if run.is_over:  # given back while it waited for a thread
            return
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
        if run.is_over:  # given back, or ended by its timeout, meanwhile
            return
        run.is_over = True
        self.running.pop(run.job.id, None)
        self.ended.append(end)
        if len(self.ended) >= self.wake_at:
            self._wake()

    def _end_overdue(self) -> float | None:
        """End functions past their timeout. Their thread cannot be ended: it is left behind, and counted as stuck."""
        now = time.monotonic()
        soonest: float | None = None
        for run in list(self._timed.values()):
            entry = run.entry
            assert entry is not None and entry.timeout_s is not None
            if run.is_over:
                self._timed.pop(run.job.id, None)
                continue
            left = run.started + entry.timeout_s - now
            if left > 0:
                soonest = left if soonest is None else min(soonest, left)
                continue
            if run.context is not None:
                run.context.cancel(f"timeout of {entry.timeout_s:g} s")
            self.stuck[run] = now
            self._threads.allow_more(1)
            self._over(run, raised(run.job, timed_out(entry), entry.rules, run.now(), random.random()))
        return soonest

    def _keep_report(self, job: int, epoch: int, said: dict[str, Any]) -> None:
        self.reports[job, epoch] = said


def _unknown(job: Claimed) -> UnknownTask:
    return UnknownTask(f"no task {job.task!r} is registered here; import its module, or correct its name")
