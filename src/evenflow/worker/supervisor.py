"""The supervisor: starts worker processes, watches and replaces them, runs the services, passes signals on, reaps.

Duties, in the order of its loop:
  1. reap children that ended, take their jobs from them at once (it has proof of their death), start successors
  2. end children that are no longer in the books: alive perhaps, but their jobs are run by others
  3. carry out signals: TERM and INT stop gracefully, then at once; QUIT at once
  4. end, with a code that says why, when a service has died or starting is hopeless
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec

from evenflow.errors import Code, StoreError
from evenflow.job import JobError
from evenflow.services.dispatcher import Dispatcher
from evenflow.services.keeper import Keeper, Service
from evenflow.services.pruner import Pruner
from evenflow.services.rescuer import Rescuer, rescue_orphans
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.open import AnyEngine, open_engine
from evenflow.store.signals import Interrupt, Waker
from evenflow.worker.local import new_worker_id
from evenflow.worker.orders import EXIT_FAILED, EXIT_OK, EXIT_REFUSED, EXIT_REPLACE, Orders
from evenflow.worker.processes import exit_error

log = logging.getLogger("evenflow.supervisor")

LOOK_S = 0.5
LIVED_S = 10.0
MOST_REFUSALS = 3
LONGEST_BACKOFF_S = 30.0
QUIT_AFTER_S = 5.0


@dataclass(slots=True)
class Child:
    """One worker process and its place."""

    process: subprocess.Popen[bytes]
    started_at: float = field(default_factory=time.monotonic)
    was_seen: bool = False


@dataclass(slots=True)
class Place:
    """Room for one worker process, with the history that decides when the next one may start."""

    orders: Orders
    child: Child | None = None
    failures: int = 0
    start_at: float = 0.0


class Heart:
    """The supervisor's own heartbeat, and the list of its children that the store still counts among the living."""

    name = "heart"

    def __init__(self, engine: AnyEngine, settings: Settings, worker: int) -> None:
        self._engine = engine
        self._every_s = settings.heartbeat_ms / 1000
        self._worker = worker
        self.children: set[int] | None = None

    def step(self) -> float:
        if not leases.beat(self._engine, self._worker).is_alive:
            raise RuntimeError(
                "this supervisor was declared dead by another one; its children are not its own any more"
            )
        self.children = {row.pid for row in leases.workers(self._engine) if row.parent == self._worker}
        return self._every_s


class Supervisor:
    """Runs `orders` in as many processes as there are orders, until it is told to stop."""

    def __init__(
        self,
        settings: Settings,
        orders: list[Orders],
        *,
        services: bool = True,
        shutdown_timeout_s: float = 30.0,
    ) -> None:
        self._settings = settings
        self._engine = open_engine(settings.database, settings.schema, pool_size=2)
        self._waker = Waker(self._engine)
        self.id = new_worker_id(self._engine)
        self._places = [Place(msgspec.structs.replace(each, parent=self.id)) for each in orders]
        self._shutdown_timeout_s = shutdown_timeout_s
        self._interrupt = Interrupt()
        self._signals: list[int] = []
        self._stop_at: float | None = None
        self._is_quitting = False
        self._code = EXIT_OK
        self._heart = Heart(self._engine, settings, self.id)
        running: list[Service] = [self._heart]
        if services:
            running += [
                Dispatcher(self._engine, settings.retention, settings.concurrency_maintenance_interval_s),
                Rescuer(self._engine, settings),
                Pruner(self._engine),
            ]
        self._keeper = Keeper(running, self._engine, settings, self._on_service_death)

    def run(self) -> int:
        """Serve until stopped; the exit code of the command."""
        leases.register(
            self._engine, self.id, kind="supervisor", host=socket.gethostname(), pid=os.getpid(),
            lease_us=self._settings.lease_ms * 1000,
        )  # fmt: skip
        self._keeper.start()
        try:
            with self._handled_signals():
                while not self._is_over():
                    self._obey()
                    self._reap()
                    self._end_strangers()
                    self._start_missing()
                    self._interrupt.wait(LOOK_S if self._stop_at is None else 0.05)
        finally:
            self._end_all()
            self._keeper.stop()
            with contextlib.suppress(StoreError):
                leases.bury(self._engine, {self.id: None})
            self._engine.close()
        return self._code

    @contextlib.contextmanager
    def _handled_signals(self) -> Iterator[None]:
        # Handlers only note the number; the loop acts. SIGCHLD ends its wait, so that a dead child is noticed at once.
        def note(number: int, _frame: FrameType | None) -> None:
            if number != signal.SIGCHLD:
                self._signals.append(number)
            self._interrupt.set()

        numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT, signal.SIGCHLD)
        before: dict[int, Any] = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def _obey(self) -> None:
        while self._signals:
            number = self._signals.pop(0)
            hurries = number == signal.SIGQUIT or self._stop_at is not None
            log.info(
                "%s: stopping %s",
                signal.Signals(number).name,
                "at once" if hurries else "when running jobs have ended",
            )
            self._stop(hurries)
        if self._stop_at is not None and not self._is_quitting:
            # Children return their jobs by themselves after the timeout; those that do not are asked, then ended.
            if time.monotonic() - self._stop_at > self._shutdown_timeout_s + 1.0:
                self._stop(hurries=True)
        elif (
            self._is_quitting
            and self._stop_at is not None
            and time.monotonic() - self._stop_at > QUIT_AFTER_S
        ):
            self._signal_all(signal.SIGKILL)

    def _stop(self, hurries: bool) -> None:
        if self._stop_at is None or (hurries and not self._is_quitting):
            self._stop_at = time.monotonic()
            self._is_quitting = hurries
            self._signal_all(signal.SIGQUIT if hurries else signal.SIGTERM)

    def _signal_all(self, number: int) -> None:
        for place in self._places:
            if place.child is not None:
                with contextlib.suppress(ProcessLookupError):
                    place.child.process.send_signal(number)

    def _reap(self) -> None:
        dead = []
        for place in self._places:
            if place.child is not None and place.child.process.poll() is not None:
                dead.append((place, place.child))
                place.child = None
        if dead:
            self._rescue_from([child for _, child in dead])
            for place, child in dead:
                self._judge(place, child)

    def _rescue_from(self, children: list[Child]) -> None:
        """Their death is proven, so their jobs are free now. If the database is away, the rescuer does it later."""
        pids = {child.process.pid: child.process.returncode for child in children}
        try:
            rows = [row for row in leases.workers(self._engine) if row.parent == self.id and row.pid in pids]
            for row in rows:
                error = exit_error(f"worker process {row.pid}", pids[row.pid])
                leases.bury(self._engine, {row.id: None})
                described = JobError(Code.WORKER_CRASHED, str(error), type(error).__qualname__)
                rescue_orphans(self._engine, self._settings, described, self._waker)
        except StoreError as error:
            log.warning("the jobs of dead processes wait for the rescuer: %s", error)

    def _judge(self, place: Place, child: Child) -> None:
        """Why did it end, and when may the next one start?"""
        code = child.process.returncode
        lived_s = time.monotonic() - child.started_at
        place.failures = 0 if lived_s > LIVED_S or code == EXIT_REPLACE else place.failures + 1
        if self._stop_at is not None:
            return
        if code == EXIT_REFUSED and (not child.was_seen or place.failures >= MOST_REFUSALS):
            log.critical("worker processes cannot start: see the error above")
            self._fail()
            return
        backoff = min(LONGEST_BACKOFF_S, 0.1 * 2 ** (place.failures - 1)) if place.failures > 1 else 0.0
        place.start_at = time.monotonic() + backoff
        if code != EXIT_REPLACE:
            error = exit_error(f"worker process {child.process.pid}", code)
            log.error("%s; a new one starts%s", error, f" in {backoff:.1f} s" if backoff else "")

    def _end_strangers(self) -> None:
        """A child that the store has buried while it lives is stuck: others run its jobs, so it must not."""
        alive = self._heart.children
        if alive is None:
            return
        for place in self._places:
            child = place.child
            if child is None:
                continue
            if child.process.pid in alive:
                child.was_seen = True
            elif child.was_seen and self._stop_at is None:
                log.error("worker process %d shows no life: it is ended and replaced", child.process.pid)
                child.was_seen = False
                child.process.kill()

    def _start_missing(self) -> None:
        for place in self._places:
            if place.child is None and self._stop_at is None and time.monotonic() >= place.start_at:
                place.child = self._start(place.orders)

    def _start(self, orders: Orders) -> Child:
        # A fresh interpreter: nothing of this process's connections and threads is inherited. Its standard input is
        # the lifeline; a process group of its own keeps Ctrl-C in a terminal from reaching it before us.
        process = subprocess.Popen(
            [sys.executable, "-m", "evenflow.worker.child"], stdin=subprocess.PIPE, start_new_session=True
        )
        assert process.stdin is not None
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
        return Child(process)

    def _on_service_death(self, name: str, error: BaseException) -> None:
        log.critical("%s died: %s; the worker ends", name, error)
        self._fail()

    def _fail(self) -> None:
        self._code = EXIT_FAILED
        self._signals.append(signal.SIGTERM)
        self._interrupt.set()

    def _is_over(self) -> bool:
        return self._stop_at is not None and all(place.child is None for place in self._places)

    def _end_all(self) -> None:
        for place in self._places:
            if place.child is not None:
                place.child.process.kill()
                place.child.process.wait()
