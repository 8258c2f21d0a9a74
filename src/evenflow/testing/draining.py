"""Running jobs on the thread of the test, one after the other: the worker's own pump with slots that do not wait."""

import asyncio
import collections
import contextlib
import dataclasses
import functools
import os
import random
import socket
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar

from evenflow import Evenflow
from evenflow.context import is_tested
from evenflow.errors import StoreError
from evenflow.job import Claimed, End
from evenflow.services.dispatcher import Dispatcher
from evenflow.services.scheduler import Scheduler
from evenflow.signals import Fail, Signal, Suspend
from evenflow.store import control, leases
from evenflow.store.open import AnyEngine
from evenflow.worker.calling import Run, timed_out
from evenflow.worker.local import close_event_loop, enter_books, new_worker_id
from evenflow.worker.options import PumpOptions
from evenflow.worker.outcome import raised
from evenflow.worker.pump import Pump
from evenflow.worker.registry import Entry, Registry
from evenflow.worker.serving import QueueList
from evenflow.worker.slots import Slots
from evenflow.worker.step_gate import StepGate
from evenflow.worker.stopping import Stop
from evenflow.worker.transaction import RunTransaction

T = TypeVar("T")


class Drained(collections.Counter[str]):
    """How many runs ended in which state: `drained["succeeded"]`. Those that will be tried again, or that snoozed, count
    under the state that they went to: `scheduled` or `ready`."""


class InlineSlots(Slots):
    """Runs each body at once, on the pump's own thread. `most` runs end the drain."""

    def __init__(self, *args: Any, most: int | None = None, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.drained = Drained()
        self.raised: list[BaseException] = []
        self._most = most
        self.enough: Callable[[], None] = lambda: None

    def start(self, jobs: Sequence[Claimed], asked_at: float | None = None) -> None:
        for job in jobs:
            now = time.monotonic()
            for run in self._runs([job], now if asked_at is None else asked_at, now):
                assert run.entry is not None
                run.entry = self._watched(run.entry)
                if run.entry.is_async:
                    self._run_awaited(run)
                else:
                    self._run_here(run)
        if self._most is not None and self.drained.total() >= self._most:
            self.enough()

    def _run_awaited(self, run: Run) -> None:
        token = is_tested.set(True)  # its coroutine gets a copy
        try:
            self._loop.run_until_complete(self._coroutines.serve(collections.deque((run,))))
        finally:
            is_tested.reset(token)

    def _over(self, run: Run, end: End) -> None:
        entry = run.entry
        # Nobody looks after a body on this thread: that it took too long is found afterwards.
        timeout_s = None if entry is None or entry.is_async else entry.timeout_s
        if entry is not None and timeout_s is not None and time.monotonic() - run.began > timeout_s:
            end = raised(run.job, timed_out(entry), entry.rules, run.now(), random.random())
        self.drained[end.state] += 1
        super()._over(run, end)

    def _watched(self, entry: Entry) -> Entry:
        """The same body, here whatever process it asks for, and what it raises is kept."""
        function = entry.function

        @functools.wraps(function)
        def watched(*args: Any, **kwargs: Any) -> Any:
            with self._kept():
                return function(*args, **kwargs)

        @functools.wraps(function)
        async def awaited(*args: Any, **kwargs: Any) -> Any:
            with self._kept():
                return await function(*args, **kwargs)

        place = "async" if entry.is_async else "thread"
        return dataclasses.replace(entry, place=place, function=awaited if entry.is_async else watched)

    @contextlib.contextmanager
    def _kept(self) -> Iterator[None]:
        try:
            yield
        except BaseException as error:
            if isinstance(error, Fail) or not isinstance(error, Signal | Suspend):
                self.raised.append(error)
            raise


class InlinePump(Pump):
    """A pump that stops when nothing can be claimed: it waits for no other worker, and for no queue that is held."""

    def _is_empty(self) -> bool:
        known = set(self._serving.names)
        self._claims.is_hungry = bool(control.admit(self._store, self._settings.retention))
        if self._queues.patterns:
            self._learn_names(time.monotonic())
            self._claims.is_hungry |= set(self._serving.names) != known
        return not self._claims.is_hungry


class Drain:
    """Runs what can run now. Before each pass it does what the services of a worker do beside it."""

    def __init__(self, app: Evenflow, engine: AnyEngine, scheduler_id: int) -> None:
        self._app = app
        self._engine = engine
        self._scheduler_id = scheduler_id

    def run(self, queues: Sequence[str], *, most: int | None, raises: bool) -> Drained:
        """Until nothing is left that could run at this moment, or `most` have run."""
        total = Drained()
        while most is None or total.total() < most:
            self.serve()
            drained = self._pass(queues, None if most is None else most - total.total(), raises)
            total += drained
            if not drained:
                break
        return total

    def serve(self) -> None:
        """Fire schedules, let in what is due, end what has expired, pass keys on."""
        scheduler = Scheduler(self._engine, self._app.schedules)
        scheduler.id = self._scheduler_id
        scheduler.step()
        settings = self._app.settings
        Dispatcher(self._engine, settings.retention, settings.concurrency_maintenance_interval_s).step()

    def _pass(self, queues: Sequence[str], most: int | None, raises: bool) -> Drained:
        loop = asyncio.new_event_loop()
        try:
            worker = new_worker_id()
            slots = self._slots(loop, most, worker)
            self._pump(slots, queues, worker)
        finally:
            close_event_loop(loop)
        if raises and slots.raised:
            raise slots.raised[0]
        return slots.drained

    def _slots(self, loop: asyncio.AbstractEventLoop, most: int | None, worker: int) -> InlineSlots:
        app, engine = self._app, self._engine
        return InlineSlots(
            Registry(app.tasks, app.settings), app.settings, loop=loop, threads=1, wake=lambda: None, hooks=app.hooks,
            gate=StepGate(app.conditions), journal=app.journal, most=most,
            transact=lambda job, is_async: RunTransaction(engine, app.settings.retention, worker, job, is_async),
        )  # fmt: skip

    def _pump(self, slots: InlineSlots, queues: Sequence[str], worker: int) -> None:
        settings = self._app.settings
        options = PumpOptions(concurrency=1, until_empty=True)
        pump = InlinePump(self._engine, slots, settings, QueueList.parse(queues), options, worker=worker)
        slots.enough = lambda: pump.stop(Stop.DRAIN)
        enter_books(
            self._engine, worker, kind="worker", parent=None, host=socket.gethostname(), pid=os.getpid(),
            lease_us=settings.lease_ms * 1000,
        )  # fmt: skip
        try:
            pump.run()
        finally:
            slots.close()
            with contextlib.suppress(StoreError):
                leases.bury(self._engine, {worker: None})


def apart_from_loops(act: Callable[[], T]) -> T:
    """Do something that turns event loops; on another thread where this one turns a loop already."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return act()
    outcome: list[T] = []
    errors: list[BaseException] = []

    def caught() -> None:
        try:
            outcome.append(act())
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=caught, name="evenflow-testing")
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return outcome[0]
