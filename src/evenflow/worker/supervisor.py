"""The supervisor: starts worker processes, watches and replaces them, runs the services, passes signals on, reaps.

Duties, in the order of its loop:
  1. carry out signals: TERM and INT stop gracefully, then at once; QUIT at once
  2. reap children that ended and have their jobs taken from them at once (it has proof of their death)
  3. end children that are no longer in the books: alive perhaps, but their jobs are run by others
  4. start successors, or end with a code that says why, when a service has died or starting is hopeless

The loop itself never waits for the database: threads do, so that a signal is obeyed whatever the database does.
"""

import contextlib
import logging
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from types import FrameType
from typing import Any

import msgspec

from evenflow.errors import StoreError
from evenflow.services.keeper import Keeper
from evenflow.services.scheduler import Plan
from evenflow.services.staff import all_services
from evenflow.services.undertaker import Death, Undertaker
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.open import AnyEngine, open_engine
from evenflow.store.signals import Interrupt, Waker, settle_wakers
from evenflow.worker.local import enter_books, new_worker_id
from evenflow.worker.orders import EXIT_FAILED, EXIT_GAVE_UP, EXIT_OK, EXIT_REFUSED, EXIT_REPLACE, Orders
from evenflow.worker.outage import WorkerGaveUp
from evenflow.worker.patience import Impatient, when_available
from evenflow.worker.processes import exit_error
from evenflow.worker.write_lock import WriteLockWatch

log = logging.getLogger("evenflow.supervisor")

LOOK_S = 0.5
LIST_EVERY = 2
LIVED_S = 10.0
MOST_REFUSALS = 3
MOST_FALSE_STARTS = 5
LONGEST_BACKOFF_S = 2.0  # a process that is killed again and again must not stop the others' work for long
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
    last_pid: int = 0
    failures: int = 0
    false_starts: int = 0
    has_served: bool = False
    start_at: float = 0.0


class Heart:
    """The supervisor's own heartbeat, and the list of its children that the store still counts among the living."""

    name = "heart"

    def __init__(self, engine: AnyEngine, settings: Settings, worker: int) -> None:
        self._store = Impatient(engine, settings)
        self._every_s = settings.heartbeat_ms / 1000
        self._worker = worker
        self._beats = 0
        self.children: set[int] | None = None

    def step(self) -> float:
        if not leases.beat(self._store, self._worker).is_alive:
            raise RuntimeError(
                "this supervisor was declared dead by another one; its children are not its own any more"
            )
        if self._beats % LIST_EVERY == 0:
            self.children = {row.pid for row in leases.workers(self._store) if row.parent == self._worker}
        self._beats += 1
        return self._every_s


class _Stopped(Exception):
    """A signal came while the supervisor was still waiting for the database."""


class Supervisor:
    """Runs `orders` in as many processes as there are orders, until it is told to stop.

    `prepare` brings the tables up to date; it is tried until the database is there.
    """

    def __init__(
        self, settings: Settings, orders: list[Orders], *, prepare: Callable[[], None] = lambda: None, services: bool = True,
        plan: Plan | None = None, shutdown_timeout_s: float = 30.0,
    ) -> None:  # fmt: skip
        self._settings = settings
        self._prepare = prepare
        self._engine = open_engine(settings.database, settings.schema, pool_size=2)
        self._services = all_services(self._engine, settings, plan) if services else []
        self.id = new_worker_id()
        self._places = [Place(msgspec.structs.replace(each, parent=self.id)) for each in orders]
        self._shutdown_timeout_s = shutdown_timeout_s
        self._interrupt = Interrupt()
        self._signals: list[int] = []
        self._stop_at: float | None = None
        self._is_quitting = False
        self._code = EXIT_OK
        self._write_lock = WriteLockWatch(settings.database)

    def run(self) -> int:
        """Serve until stopped; the exit code of the command."""
        try:
            with self.obeys_signals():
                self._enter_books()
                self._serve()
        except _Stopped:
            log.info("stopped before the database was there")
        except WorkerGaveUp as gave_up:
            log.critical("%s", gave_up)
            self._code = EXIT_FAILED
        finally:
            settle_wakers(self._engine)
            self._engine.close()
            self._interrupt.close()
        return self._code

    def health(self) -> dict[str, Any]:
        """What the health port says. Ready means: every wanted process is in the books, and nobody is stopping."""
        children = [place.child for place in self._places if place.child is not None]
        serving = sum(child.was_seen for child in children)
        is_stopping = self._stop_at is not None
        return {
            "alive": self._code == EXIT_OK,
            "ready": self._code == EXIT_OK and not is_stopping and serving == len(self._places),
            "stopping": is_stopping,
            "processes": {"wanted": len(self._places), "running": len(children), "serving": serving},
        }

    def _enter_books(self) -> None:
        resilience = self._settings.resilience
        about = {"services": [service.name for service in self._services]}
        when_available(self._prepare, resilience, self._wait_for_database)

        def enter() -> None:
            enter_books(
                self._engine, self.id, kind="supervisor", host=socket.gethostname(), pid=os.getpid(),
                lease_us=self._settings.lease_ms * 1000, about=msgspec.json.encode(about).decode(),
            )  # fmt: skip

        when_available(enter, resilience, self._wait_for_database)

    def _wait_for_database(self, delay_s: float) -> None:
        ends_at = time.monotonic() + delay_s
        while (left := ends_at - time.monotonic()) > 0 and not self._signals:
            self._interrupt.wait(left)
        if self._signals:
            raise _Stopped

    def _serve(self) -> None:
        engine, settings = self._engine, self._settings
        self._heart = Heart(engine, settings, self.id)
        # Impatient like the heart, since it has the same thread: a call that hangs must not cost us our own lease.
        self._undertaker = Undertaker(Impatient(engine, settings), Waker(engine), settings, self.id)
        # The heart has a thread of its own: a service that takes its time must not cost us our lease. Nor may a pause
        # between two tries: when the database is back, whoever beats first would take us for dead.
        self._pulse = Keeper(
            [self._heart, self._undertaker], engine, settings, self._on_service_death, listens=False,
            longest_delay_s=settings.heartbeat_ms / 1000,
        )  # fmt: skip
        keepers = [self._pulse]
        if self._services:
            keepers.append(Keeper(self._services, engine, settings, self._on_service_death))
        for keeper in keepers:
            keeper.start()
        try:
            while not self._is_over():
                self._obey()
                self._reap()
                self._end_strangers()
                self._start_missing()
                self._interrupt.wait(LOOK_S if self._stop_at is None else 0.05)
        finally:
            self._end_all()
            for keeper in keepers:
                keeper.ask_to_stop()
            for keeper in keepers:
                keeper.stop()
            with contextlib.suppress(StoreError):
                self._bury_the_last()
                leases.bury(Impatient(engine, settings), {self.id: None})

    @contextlib.contextmanager
    def obeys_signals(self) -> Iterator[None]:
        """Within the block signals are noted, to be obeyed by `run`. It does this by itself; whoever tells others its process id
        does it before."""

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
        if self._stop_at is None:
            return
        stopping_s = time.monotonic() - self._stop_at
        # Children return their jobs by themselves after the timeout; those that do not are asked, then ended.
        if not self._is_quitting and stopping_s > self._shutdown_timeout_s + 1.0:
            log.warning("worker processes have not ended after %.0f s: they get QUIT", stopping_s)
            self._stop(hurries=True)
        elif self._is_quitting and stopping_s > QUIT_AFTER_S:
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
        for place in self._places:
            child = place.child
            if child is not None and child.process.poll() is not None:
                self._report_death(place, child)
                self._pulse.hasten(self._undertaker.name)
                self._judge(place, child)
        if os.getpid() == 1:
            self._reap_orphans()

    def _report_death(self, place: Place, child: Child) -> None:
        error = exit_error(f"worker process {child.process.pid}", child.process.returncode)
        place.child = None
        self._undertaker.report(Death(child.process.pid, error))

    def _bury_the_last(self) -> None:
        """Those who died when the keepers were being stopped: nobody else would return their jobs before a lease is over."""
        if not self._pulse.is_alive:
            self._undertaker.step()

    def _reap_orphans(self) -> None:
        """As process 1 of a container we inherit everybody's orphans: what children of children leave behind."""
        ours = {place.child.process.pid for place in self._places if place.child is not None}
        with contextlib.suppress(ChildProcessError):
            while (found := os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)) is not None:
                if found.si_pid in ours:  # left to the next pass, which wants to know how it ended
                    return
                os.waitpid(found.si_pid, 0)

    def _judge(self, place: Place, child: Child) -> None:
        """Why did it end, and when may the next one start?"""
        code = child.process.returncode
        lived_s = time.monotonic() - child.started_at
        place.has_served |= child.was_seen or code in (EXIT_OK, EXIT_REPLACE)
        place.failures = 0 if lived_s > LIVED_S or code == EXIT_REPLACE else place.failures + 1
        if self._stop_at is not None:
            return
        if code == EXIT_GAVE_UP:
            self._fail("a worker process gave up on the database")
        elif code == EXIT_REFUSED and (not place.has_served or place.failures >= MOST_REFUSALS):
            self._fail("worker processes cannot start: see the error above")
        elif code != EXIT_REPLACE:
            error = exit_error(f"worker process {child.process.pid}", code)
            self._postpone(place, error)

    def _postpone(self, place: Place, why: object) -> None:
        backoff = min(LONGEST_BACKOFF_S, 0.1 * 2 ** (place.failures - 1)) if place.failures > 1 else 0.0
        place.start_at = time.monotonic() + backoff
        log.error("%s; a new one starts%s", why, f" in {backoff:.1f} s" if backoff else "")

    def _end_strangers(self) -> None:
        """A child that the store has buried while it lives is stuck: others run its jobs, so it must not."""
        self._count_false_starts()
        alive = self._heart.children
        for place in self._places:
            child = place.child
            if child is None or alive is None:
                continue
            if child.process.pid in alive:
                child.was_seen = place.has_served = True
                place.false_starts = 0
            elif child.was_seen and self._stop_at is None:
                log.error("worker process %d shows no life: it is ended and replaced", child.process.pid)
                child.was_seen = False
                child.process.kill()
        frozen = self._write_lock.frozen_holder()
        if frozen is not None:
            self._end_frozen(frozen)

    def _end_frozen(self, pid: int) -> None:
        for place in self._places:
            if place.child is not None and place.child.process.pid == pid:
                log.error("worker process %d is frozen with the database's write lock: it is ended", pid)
                place.child.process.kill()
                return
        log.error(
            "process %d holds the database's write lock and does not let go: every writer waits for it", pid
        )

    def _count_false_starts(self) -> None:
        strangers = self._undertaker.take_strangers()
        for place in self._places:
            if place.last_pid in strangers and not place.has_served:
                place.false_starts += 1
                if place.false_starts >= MOST_FALSE_STARTS:
                    self._fail(
                        f"worker processes died {place.false_starts} times in a row before they could serve"
                    )

    def _start_missing(self) -> None:
        for place in self._places:
            if place.child is None and self._stop_at is None and time.monotonic() >= place.start_at:
                try:
                    place.child = _started(place.orders)
                    place.last_pid = place.child.process.pid
                except OSError as error:
                    place.failures += 1
                    self._postpone(place, f"a worker process could not be started ({error})")

    def _on_service_death(self, name: str, error: BaseException) -> None:
        self._fail(f"{name} died: {error}; the worker ends")

    def _fail(self, why: str) -> None:
        if self._code == EXIT_OK:
            log.critical("%s", why)
            self._code = EXIT_FAILED
            self._signals.append(signal.SIGTERM)
            self._interrupt.set()

    def _is_over(self) -> bool:
        return self._stop_at is not None and all(place.child is None for place in self._places)

    def _end_all(self) -> None:
        for place in self._places:
            if (child := place.child) is not None:
                child.process.kill()
                child.process.wait()
                self._report_death(place, child)


def _started(orders: Orders) -> Child:
    # A fresh interpreter: nothing of this process's connections and threads is inherited. Its standard input is
    # the lifeline; a process group of its own keeps Ctrl-C in a terminal from reaching it before us.
    process = subprocess.Popen(
        [sys.executable, "-m", "evenflow.worker.child"], stdin=subprocess.PIPE, start_new_session=True
    )
    assert process.stdin is not None
    with contextlib.suppress(BrokenPipeError):  # it died at once: reaped like any other
        process.stdin.write(msgspec.json.encode(orders) + b"\n")
        process.stdin.flush()
    return Child(process)
