"""A worker in this process: the same pump and slots as a worker of its own, for tests, notebooks and small services."""

import asyncio
import contextlib
import logging
import os
import secrets
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from types import FrameType
from typing import Any

from evenflow.errors import StoreError
from evenflow.hooks import Hooks
from evenflow.ids import EPOCH_MS, id_text
from evenflow.settings import Settings
from evenflow.store import control, leases
from evenflow.store.engine import Engine
from evenflow.store.open import AnyEngine
from evenflow.worker.calling import MakeJournal
from evenflow.worker.options import PumpOptions
from evenflow.worker.patience import Impatient, when_available
from evenflow.worker.pump import Pump
from evenflow.worker.registry import Registry, TaskLike
from evenflow.worker.serving import QueueList
from evenflow.worker.slots import Slots
from evenflow.worker.step_gate import Conditions, StepGate
from evenflow.worker.stopping import Stop
from evenflow.worker.transaction import RunTransaction

log = logging.getLogger("evenflow.worker")


class _StoppedEarly(Exception):
    """A stop came while the worker was still waiting for the database."""


class LocalWorker:
    """One worker process's worth of work, on threads of this process. `run` blocks; `stop` ends it from elsewhere."""

    def __init__(
        self, tasks: Mapping[str, TaskLike], settings: Settings, engine: AnyEngine, queues: QueueList, options: PumpOptions, *,
        kind: str = "worker", parent: int | None = None, announce: Callable[[], None] = lambda: None,
        hooks: Hooks | None = None, locator: str | None = None, conditions: Conditions | None = None,
        journal: MakeJournal | None = None,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._engine = engine
        self._options = options
        self._kind = kind
        self._parent = parent
        self._hooks = hooks or Hooks()
        self.id = new_worker_id()
        self._loop = new_event_loop()
        self._slots = Slots(
            Registry(tasks, settings), settings, loop=self._loop, threads=options.concurrency, wake=self._wake,
            hooks=self._hooks, locator=locator, gate=StepGate(conditions or {}), journal=journal,
            worker=self.id,
            transact=lambda job, is_async: RunTransaction(engine, settings.retention, self.id, job, is_async),
        )  # fmt: skip
        self.pump = Pump(engine, self._slots, settings, queues, options, worker=self.id, announce=announce)
        self._error: BaseException | None = None
        self._is_stopped = threading.Event()
        self._is_over = threading.Event()

    def run(self) -> None:
        """Serve until stopped or empty. Raises what ended the pump.

        In the main thread TERM and INT stop it gracefully; a second one, and QUIT, at once.
        """
        try:
            self._hooks.worker_start()
            self._hooks.emit("worker.started", worker=id_text(self.id))
            self._serve()
            if self.has_lost_lease:
                self._hooks.emit("lease.lost", worker=id_text(self.id))
            self._hooks.emit("worker.stopped", worker=id_text(self.id))
            self._hooks.worker_stop()
        finally:
            close_event_loop(self._loop)
            if self._error is None:
                # Last of all: who leaves the books while it lives is taken for stuck by its supervisor. Also where a hook
                # has failed: nothing runs here any more.
                with contextlib.suppress(StoreError):
                    leases.bury(Impatient(self._engine, self._settings), {self.id: None})
        if self._error is not None:
            raise self._error

    def _enter_books(self) -> None:
        # Here and not where clients get ready: one that only enqueues need not know of the cap, and must not lift it.
        control.declare_cluster(self._engine, self._settings.cluster_wide_cap)
        enter_books(
            self._engine, self.id, kind=self._kind, parent=self._parent, host=socket.gethostname(), pid=os.getpid(),
            lease_us=self._settings.lease_ms * 1000,
        )  # fmt: skip

    def _serve(self) -> None:
        thread = threading.Thread(target=self._pump, name="evenflow-pump", daemon=True)
        asyncio.set_event_loop(self._loop)
        # Signals first: whoever is in the books must not be ended by a signal that it could obey.
        with self._signals():
            thread.start()
            try:
                self._turn_loop()
            finally:
                self.stop(Stop.AT_ONCE)
                thread.join()
                self._slots.close()

    def _turn_loop(self) -> None:
        """Run coroutines until the pump has stopped. A body may stop the loop, or start a task that raises SystemExit, which
        the loop hands on to whoever turns it: that ends the task, and reaches a body that waits for it, not the worker."""
        while not self._is_over.is_set():
            try:
                self._loop.run_forever()
            except (SystemExit, KeyboardInterrupt) as error:
                log.warning(
                    "a task that a body has started raised %s: the worker goes on", type(error).__name__
                )

    def stop(self, how: Stop = Stop.GRACEFUL) -> None:
        self.pump.stop(how)
        self._is_stopped.set()

    @property
    def has_lost_lease(self) -> bool:
        return self.pump.has_lost_lease.is_set()

    def _wait_for_database(self, delay_s: float) -> None:
        if self._is_stopped.wait(delay_s):
            raise _StoppedEarly

    def _wake(self) -> None:
        self.pump.wake()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        if threading.current_thread() is not threading.main_thread():
            yield
            return

        # Not by the loop's own handlers: uvloop loses what comes between their installation and the loop's first turn.
        def note(number: int, _frame: FrameType | None) -> None:
            hurries = self.pump.is_hurrying or number == signal.SIGQUIT
            # Here and not on the loop, which a coroutine may block: its neighbours are to go back all the same.
            self.pump.stop(Stop.AT_ONCE if hurries else Stop.GRACEFUL)
            self._loop.call_soon_threadsafe(self._on_signal, number, hurries)

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)
        before = {number: signal.signal(number, note) for number in numbers}
        self._loop.call_soon(_let_signals_in)
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _on_signal(self, number: int, hurries: bool) -> None:
        log.info(
            "%s: stopping %s",
            signal.Signals(number).name,
            "at once" if hurries else "when running jobs have ended",
        )
        self._is_stopped.set()

    def _pump(self) -> None:
        try:
            when_available(self._enter_books, self._settings.resilience, self._wait_for_database)
            self.pump.run()
        except _StoppedEarly:
            log.info("stopped before the database was there")
        except BaseException as error:
            self._error = error
        finally:
            self._is_over.set()
            with contextlib.suppress(RuntimeError):
                self._loop.call_soon_threadsafe(self._loop.stop)


def _let_signals_in() -> None:
    """Nothing: a signal that came while the loop was being entered is handled when Python code runs next."""


def new_worker_id() -> int:
    """A fresh identity: one incarnation of one process, never used again. Seconds, then 32 random bits: it needs no
    database, and of two that start in one second not one pair in four thousand million has the same."""
    return (int(time.time()) - EPOCH_MS // 1000) << 32 | secrets.randbits(32)


def enter_books(engine: Engine, worker: int, **about: Any) -> None:
    """Register a process. May be repeated when its answer was lost."""
    if all(row.id != worker for row in leases.workers(engine)):
        leases.register(engine, worker, **about)


def new_event_loop() -> asyncio.AbstractEventLoop:
    """uvloop where it is installed, else asyncio's own."""
    try:
        import uvloop
    except ImportError:
        return asyncio.new_event_loop()
    loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
    return loop


def close_event_loop(loop: asyncio.AbstractEventLoop) -> None:
    """Let cancelled coroutines run their finally blocks, then close; a Ctrl-C meanwhile only shortens that."""
    try:
        # Together with an earlier wish to stop it, which would cut short what follows.
        loop.call_soon(loop.stop)
        loop.run_forever()
        left = asyncio.all_tasks(loop)
        for task in left:
            task.cancel()
        if left:
            loop.run_until_complete(asyncio.wait(left, timeout=5.0))
        loop.run_until_complete(loop.shutdown_asyncgens())
    finally:
        asyncio.set_event_loop(None)
        loop.close()
