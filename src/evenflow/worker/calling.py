"""One run of one body: from a claimed job to its End. The same steps on an event loop, a thread or in a process."""

import asyncio
import contextvars
import logging
import random
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import msgspec

from evenflow.clock import from_us
from evenflow.codec import decode_call
from evenflow.context import Context
from evenflow.durable import Journal
from evenflow.hooks import Hooks
from evenflow.ids import EPOCH_MS, NUMBER_BITS, id_text
from evenflow.job import Claimed, End
from evenflow.signals import Signal
from evenflow.signing import KeyRing
from evenflow.store.advance import Advanced
from evenflow.worker.outcome import CancelledByWish, Expired, StartedLate, TimedOut, raised, succeeded
from evenflow.worker.registry import Entry
from evenflow.worker.step_gate import StepGate
from evenflow.worker.tally import Cell
from evenflow.worker.transaction import MakeTransaction, RunTransaction

log = logging.getLogger("evenflow.worker")

current_run: contextvars.ContextVar["Run | None"] = contextvars.ContextVar("evenflow_run", default=None)
"""The run that this code belongs to, for log filters and code far below a body."""

Report = Callable[[int, int, dict[str, Any]], None]
Say = Callable[[Claimed, str, str], None]
MakeJournal = Callable[[Claimed, Callable[[], int]], Journal]
NO_CONDITIONS = StepGate({})


class Run(msgspec.Struct, eq=False):
    """One job in one slot. A struct, since one is made for every job: several times quicker than an `__init__`."""

    job: Claimed
    entry: Entry | None
    start_by: float | None = None
    """By the monotonic clock. A body under a rate that comes later is not entered."""
    started: float = msgspec.field(default_factory=time.monotonic)
    """When it was claimed."""
    began: float = msgspec.field(default_factory=time.monotonic)
    """When a thread, or the loop, took it up; until then, when it was claimed."""
    cell: Cell | None = None
    """Where it is counted."""
    context: Context | None = None
    task: asyncio.Task[None] | None = None
    """Where its coroutine is under way."""
    cancel_why: str | None = None
    transaction: RunTransaction | None = None
    written: Advanced | None = None
    """What the store said to its end, where that went with the body's effects."""
    is_over: bool = False
    """Its end is decided: what the body does from now on is not heard."""
    is_returned: bool = False
    """The body has let go of its thread."""
    _undecided: bool = True

    def settle(self) -> bool:
        """True for the first to decide how this run ends, whichever thread that is: body, timeout or give-back."""
        try:
            del (
                self._undecided
            )  # of all who try only one can: a single act of the interpreter, without a lock
        except AttributeError:
            return False
        self.is_over = True
        return True

    def now(self) -> int:
        """The store's clock, as far as this run can tell: its claim's time and what has passed since."""
        return self.job.started_at + int((time.monotonic() - self.started) * 1_000_000)


class Caller:
    """Calls bodies. Checks signature and expiry, decodes the arguments, gives them their context and surroundings."""

    def __init__(
        self, *, keys: KeyRing | None, require_signed: bool, hooks: Hooks, report: Report, say: Say,
        gate: StepGate = NO_CONDITIONS, journal: MakeJournal | None = None, transact: MakeTransaction | None = None,
    ) -> None:  # fmt: skip
        self._gate = gate
        self._journal = journal
        self._transact = transact
        self._say = say
        self._keys = keys
        self._require_signed = require_signed
        self._hooks = hooks
        self._report = report

    def verify(self, job: Claimed) -> None:
        """Raises SignatureInvalid for a job that was forged, or that is not signed where it has to be."""
        if self._keys is not None and (job.signature is not None or self._require_signed):
            self._keys.verify(
                job.signature, queue=job.queue, task=job.task, job_id=id_text(job.id), payload=job.payload,
                group=job.group, created_at_us=((job.id >> NUMBER_BITS) + EPOCH_MS) * 1000,
            )  # fmt: skip

    async def run_coroutine(self, run: Run, entry: Entry) -> End:
        """The end of a coroutine body. A timeout or a wish to cancel reaches it as a cancellation."""
        timer: asyncio.Timeout | None = None
        current_run.set(run)  # a coroutine has variables of its own: nothing to take back
        try:
            args, kwargs = self._prepare(run, entry)
            if entry.timeout_s is None and run.context is None:
                value = await entry.function(*args, **kwargs)
            else:
                value = None  # where a surrounding hook swallows the body's error
                async with asyncio.timeout(entry.timeout_s) as timer:
                    with nullcontext() if run.context is None else self._hooks.around(run.context):
                        value = _heard(await entry.function(*args, **kwargs), run)
            end = succeeded(run.job, value, entry.rules, run.now, random.random)
            if run.transaction is not None:
                run.written = await run.transaction.afinish(end)
            return end
        except BaseException as error:
            # SystemExit and friends come from user code: they end the job, not the worker.
            if isinstance(error, TimeoutError) and timer is not None and timer.expired():
                error = timed_out(entry)
            elif isinstance(error, asyncio.CancelledError) and run.cancel_why is not None:
                error = CancelledByWish(run.cancel_why)
            if run.transaction is not None:
                with _undoing(run):
                    await run.transaction.aroll_back()
            return self._ended(run, entry, error)

    def run_function(self, run: Run, entry: Entry) -> End:
        """The end of a plain body, run on this thread. Context variables that it sets do not reach the next one."""
        return contextvars.copy_context().run(self._run_function, run, entry)

    def _run_function(self, run: Run, entry: Entry) -> End:
        current_run.set(run)
        try:
            args, kwargs = self._prepare(run, entry)
            value = None
            if run.context is None:
                value = entry.function(*args, **kwargs)
            else:
                with self._hooks.around(run.context):
                    value = _heard(entry.function(*args, **kwargs), run)
            end = succeeded(run.job, value, entry.rules, run.now, random.random)
            if run.transaction is not None:
                run.written = run.transaction.finish(end)
            return end
        except BaseException as error:
            if run.transaction is not None:
                with _undoing(run):
                    run.transaction.roll_back()
            return self._ended(run, entry, error)

    def _ended(self, run: Run, entry: Entry, error: BaseException) -> End:
        """The end of a body that raised. One that somebody wanted to stop is not tried again."""
        end = raised(run.job, error, entry.rules, run.now(), random.random())
        if run.cancel_why is not None and end.state in ("ready", "scheduled"):
            return raised(run.job, CancelledByWish(run.cancel_why), entry.rules, run.now(), random.random())
        return end

    def _prepare(self, run: Run, entry: Entry) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """The arguments of a run. Raises what keeps the body from running."""
        job = run.job
        if job.good_until is not None and run.now() >= job.good_until:
            raise Expired
        if run.cancel_why is not None:
            raise CancelledByWish(run.cancel_why)
        if self._keys is not None:
            self.verify(job)
        outputs = None if job.run_id is None else self._gate.pass_through(job)
        args, kwargs = decode_call(job.payload, entry.signature, outputs)
        if entry.signature.context is not None or self._hooks.surrounds:
            run.context = self._context(run, entry)
            _pass_on_wish(run, run.context)
            args, kwargs = entry.signature.inject(args, kwargs, run.context)
        if run.start_by is not None and time.monotonic() > run.start_by:  # last of all: the body comes next
            raise StartedLate
        return args, kwargs

    def _context(self, run: Run, entry: Entry) -> Context:
        job = run.job
        timeout = entry.timeout_s
        return Context(
            job_id=id_text(job.id), task=job.task, attempt=job.attempt, fence=job.epoch, queue=job.queue, group=job.group,
            deadline=None if timeout is None else from_us(run.now()) + timedelta(seconds=timeout),
            report=lambda said: self._report(job.id, job.epoch, dict(said)),
            say=lambda level, line: self._say(job, level, line),
            journal=None if self._journal is None else self._journal(job, run.now), is_async=entry.is_async,
            run_id=None if job.run_id is None else id_text(job.run_id),
            step_name=None if job.inputs is None else job.inputs.step,
            headers=None if job.headers is None else _headers(job.headers),
            transact=None if self._transact is None else lambda: self._begun(run, entry),
        )  # fmt: skip

    def _begun(self, run: Run, entry: Entry) -> RunTransaction:
        """The transaction of a run, made when its body asks for it."""
        assert self._transact is not None
        if run.transaction is None:
            run.transaction = self._transact(run.job, entry.is_async)
        return run.transaction


@contextmanager
def _undoing(run: Run) -> Iterator[None]:
    """The run has its end already, whatever becomes of its connection: what goes wrong with it is logged."""
    try:
        yield
    except BaseException:
        log.exception("the transaction of job %s could not be rolled back", id_text(run.job.id))


def _heard(value: Any, run: Run) -> Any:
    """What a body returned. A signal is raised where hooks surround the body: what it says is for them as well."""
    if run.context is not None and isinstance(value, Signal):
        raise value
    return value


def _headers(text: str) -> dict[str, str]:
    """The headers of a job; none where somebody has written something else there."""
    try:
        return msgspec.json.decode(text, type=dict[str, str])
    except msgspec.DecodeError:
        return {}


def _pass_on_wish(run: Run, context: Context) -> None:
    """A wish to cancel that came after we looked for one, when there was no context to tell it to."""
    if run.cancel_why is not None:
        context.cancel(run.cancel_why)


def timed_out(entry: Entry) -> TimedOut:
    return TimedOut(f"task {entry.name!r} ran longer than {entry.timeout_s:g} s")
