"""Slots: where bodies run. Coroutines on one event loop, plain functions on threads; each run gives exactly one End.

Nothing here speaks to the database. Ends go into a deque that the pump empties; it is woken when enough have gathered.
"""

import asyncio
import collections
import contextvars
import random
import threading
import time
from collections.abc import Callable, Sequence
from datetime import timedelta
from typing import Any

from evenflow.clock import from_us
from evenflow.codec import decode_call
from evenflow.context import Context
from evenflow.ids import EPOCH_MS, NUMBER_BITS, id_text
from evenflow.job import Claimed, End
from evenflow.signing import KeyRing
from evenflow.worker.outcome import (
    CancelledByWish,
    Expired,
    TimedOut,
    UnknownTask,
    raised,
    released,
    succeeded,
)
from evenflow.worker.registry import Entry, Registry

current_context: contextvars.ContextVar[Context | None] = contextvars.ContextVar(
    "evenflow_context", default=None
)
"""The context of the run that this code belongs to, for log filters and code far below a body."""

_GROW_AFTER_S = 0.002
_IDLE_THREAD_S = 30.0


class Run:
    """One job in one slot."""

    __slots__ = ("cancel_why", "context", "entry", "is_over", "job", "started", "task")

    def __init__(self, job: Claimed, entry: Entry | None) -> None:
        self.job = job
        self.entry = entry
        self.started = time.monotonic()
        self.context: Context | None = None
        self.task: asyncio.Task[None] | None = None
        self.cancel_why: str | None = None
        self.is_over = False

    def now(self) -> int:
        """The store's clock, as far as this run can tell: its claim's time and what has passed since."""
        return self.job.started_at + int((time.monotonic() - self.started) * 1_000_000)


class Slots:
    """Runs jobs and collects their ends. One per worker process."""

    def __init__(
        self, registry: Registry, *, loop: asyncio.AbstractEventLoop, threads: int, wake: Callable[[], None],
        keys: KeyRing | None = None, require_signed: bool = False,
    ) -> None:  # fmt: skip
        self._registry = registry
        self._loop = loop
        self._wake = wake
        self._keys = keys
        self._require_signed = require_signed
        self._threads = Threads(self._run_here, threads)
        self.running: dict[int, Run] = {}
        self.ended: collections.deque[End] = collections.deque()
        self.wake_at = 1
        self.reports: dict[tuple[int, int], dict[str, Any]] = {}
        self.overdue: list[Run] = []

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
        """The ends with which everything that still runs is returned; what it finishes later is not accepted."""
        runs = [run for run in list(self.running.values()) if not run.is_over]
        for run in runs:
            run.is_over = True
            self.running.pop(run.job.id, None)
            if run.task is not None:
                self._loop.call_soon_threadsafe(run.task.cancel)
        return [released(run.job) for run in runs]

    def tend(self) -> float | None:
        """Between the pump's rounds: give waiting functions another thread, find overdue ones. Seconds to the next look."""
        self._find_overdue()
        return self._threads.grow()

    def close(self) -> None:
        self._threads.close()

    def _start_coroutines(self, runs: Sequence[Run]) -> None:
        create = self._loop.create_task
        for run in runs:
            run.task = create(self._run_coroutine(run))

    async def _run_coroutine(self, run: Run) -> None:
        job, entry = run.job, run.entry
        assert entry is not None
        try:
            args, kwargs = self._call(run, entry)
            if entry.timeout_s is None:
                value = await entry.function(*args, **kwargs)
            else:
                async with asyncio.timeout(entry.timeout_s) as timer:
                    value = await entry.function(*args, **kwargs)
            end = succeeded(job, value, entry.rules, run.now(), random.random())
        except (
            BaseException
        ) as error:  # SystemExit and friends come from user code: they end the job, not the worker
            if isinstance(error, TimeoutError) and entry.timeout_s is not None and timer.expired():
                error = _timed_out(entry)
            elif isinstance(error, asyncio.CancelledError) and run.cancel_why is not None:
                error = CancelledByWish(run.cancel_why)
            end = raised(job, error, entry.rules, run.now(), random.random())
        self._over(run, end)

    def _run_here(self, run: Run) -> None:
        """Run a plain function on the calling thread."""
        job, entry = run.job, run.entry
        assert entry is not None
        if run.is_over:
            return
        token = None
        try:
            args, kwargs = self._call(run, entry)
            token = current_context.set(run.context)
            value = entry.function(*args, **kwargs)
            end = succeeded(job, value, entry.rules, run.now(), random.random())
        except BaseException as error:
            if run.cancel_why is not None and not isinstance(error, Exception):
                error = CancelledByWish(run.cancel_why)
            end = raised(job, error, entry.rules, run.now(), random.random())
        finally:
            if token is not None:
                current_context.reset(token)
        self._over(run, end)

    def _call(self, run: Run, entry: Entry) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a run, checked and decoded. Raises what keeps the body from running."""
        job = run.job
        if job.good_until is not None and run.now() >= job.good_until:
            raise Expired
        if run.cancel_why is not None:
            raise CancelledByWish(run.cancel_why)
        if self._keys is not None and (job.signature is not None or self._require_signed):
            self._keys.verify(
                job.signature, queue=job.queue, task=job.task, job_id=id_text(job.id), payload=job.payload, group=job.group,
                created_at_us=((job.id >> NUMBER_BITS) + EPOCH_MS) * 1000,
            )  # fmt: skip
        args, kwargs = decode_call(job.payload, entry.signature)
        if entry.signature.context is None:
            return args, kwargs
        run.context = self._context(run, entry)
        return entry.signature.inject(args, kwargs, run.context)

    def _context(self, run: Run, entry: Entry) -> Context:
        job = run.job
        key = (job.id, job.epoch)
        return Context(
            job_id=id_text(job.id), task=job.task, attempt=job.attempt, fence=job.epoch, queue=job.queue, group=job.group,
            deadline=None if entry.timeout_s is None else from_us(run.now()) + timedelta(seconds=entry.timeout_s),
            report=lambda said: self.reports.__setitem__(key, dict(said)),
        )  # fmt: skip

    def _over(self, run: Run, end: End) -> None:
        if run.is_over:  # given back, or ended by its timeout, meanwhile
            return
        run.is_over = True
        self.running.pop(run.job.id, None)
        self.ended.append(end)
        if len(self.ended) >= self.wake_at:
            self._wake()

    def _find_overdue(self) -> None:
        """Functions past their timeout: a thread cannot be ended, so the job ends and the thread is left behind."""
        now = time.monotonic()
        for run in list(self.running.values()):
            entry = run.entry
            if (
                entry is None
                or entry.timeout_s is None
                or entry.place == "async"
                or now - run.started < entry.timeout_s
            ):
                continue
            if run.context is not None:
                run.context.cancel(f"timeout of {entry.timeout_s:g} s")
            self.overdue.append(run)
            self._over(run, raised(run.job, _timed_out(entry), entry.rules, run.now(), random.random()))


class Threads:
    """Threads for plain functions. As few as keep the work flowing: a second one starts only when the first is stuck.

    Short functions on many threads mostly wait for the interpreter's lock; one thread runs them several times faster.
    """

    def __init__(self, run: Callable[[Run], None], most: int) -> None:
        self._run = run
        self._most = most
        self._work: collections.deque[Run] = collections.deque()
        self._lock = threading.Condition()
        self._idle = 0
        self._alive = 0
        self._busy = 0
        self._step = 1
        self._taken = self._looked_at = 0
        self._closed = False

    def submit(self, runs: Sequence[Run]) -> None:
        """Run these, in order, on one thread more than nobody if all are idle."""
        with self._lock:
            self._work.extend(runs)
            if self._busy == 0:
                self._add(1)

    def grow(self) -> float | None:
        """Call every few milliseconds: where work waits and none was taken since the last call, add threads."""
        if not self._work:
            self._step = 1
            return None
        with self._lock:
            if self._taken == self._looked_at:
                self._add(self._step)
                self._step *= 2
            else:
                self._step = 1
            self._looked_at = self._taken
        return _GROW_AFTER_S

    def close(self) -> None:
        with self._lock:
            self._closed = True
            self._lock.notify_all()

    def _add(self, count: int) -> None:
        woken = min(count, self._idle)
        self._lock.notify(woken)
        for _ in range(min(count - woken, self._most - self._alive)):
            self._alive += 1
            threading.Thread(target=self._serve, name="evenflow-slot", daemon=True).start()

    def _serve(self) -> None:
        try:
            while self._await_work():
                try:
                    while True:
                        run = self._work.popleft()
                        self._taken += 1
                        self._run(run)
                except IndexError:
                    pass
                with self._lock:
                    self._busy -= 1
        finally:
            with self._lock:
                self._alive -= 1

    def _await_work(self) -> bool:
        with self._lock:
            while not self._work and not self._closed:
                self._idle += 1
                try:
                    if not self._lock.wait(_IDLE_THREAD_S) and not self._work:
                        return False
                finally:
                    self._idle -= 1
            self._busy += not self._closed
            return not self._closed


def _unknown(job: Claimed) -> UnknownTask:
    return UnknownTask(f"no task {job.task!r} is registered here; import its module, or correct its name")


def _timed_out(entry: Entry) -> TimedOut:
    return TimedOut(f"task {entry.name!r} ran longer than {entry.timeout_s:g} s")
