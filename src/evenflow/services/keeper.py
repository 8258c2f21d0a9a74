"""The thread that runs services, one step at a time. A service that fails for good ends the worker."""

import contextlib
import logging
import random
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Protocol

from evenflow.errors import StoreUnavailable
from evenflow.rules.retry import database_delay
from evenflow.settings import Settings
from evenflow.store.open import AnyEngine
from evenflow.store.signals import ARRIVAL, SCHEDULES, Interrupt, Signals, watch_signals

log = logging.getLogger("evenflow.services")

LONGEST_END_S = 5.0
_WANTED = {ARRIVAL: "dispatcher", SCHEDULES: "scheduler"}
_SHORTEST_S = 0.02  # arrivals come in crowds: look at most this often
_PUNCTUAL_S = 0.002  # what is due at a known time is not made to wait for a crowd


class Service(Protocol):
    """A house keeper: `step` does a bounded piece of work and says when it wants to be called again."""

    name: str

    def step(self) -> float: ...


class Keeper:
    """Runs services until stopped. Database outages are waited out as the settings say; any other error is fatal.

    `longest_delay_s` is for services that a lease hangs on: the time between two tries is at most that, and they never
    give up. Tries are then no measure of patience; the other processes of the worker count theirs.
    """

    def __init__(
        self,
        services: Sequence[Service],
        engine: AnyEngine,
        settings: Settings,
        on_death: Callable[[str, BaseException], None],
        *,
        listens: bool = True,
        longest_delay_s: float | None = None,
    ) -> None:
        self._due: dict[str, float] = {service.name: 0.0 for service in services}
        self._hastened: set[str] = set()
        self._services = services
        self._engine = engine
        self._resilience = settings.resilience
        self._on_death = on_death
        self._listens = listens
        self._longest_delay_s = longest_delay_s
        self._failures = 0
        self._stopped = threading.Event()
        self._signals: Signals | None = None
        names = "-".join(service.name for service in services)
        self._thread = threading.Thread(target=self._run, name=f"evenflow-{names}", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def ask_to_stop(self) -> None:
        """Let the step that is under way be the last. Returns at once: several can end at the same time."""
        self._stopped.set()
        self._interrupt()

    def stop(self) -> None:
        """End the thread and wait for it, but not for ever: a database that has fallen silent holds its steps up."""
        self.ask_to_stop()
        self._thread.join(timeout=LONGEST_END_S)

    def hasten(self, name: str) -> None:
        """Let a service take another step, now or when the one that is under way is over. Safe from any thread."""
        self._hastened.add(name)
        self._interrupt()

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _interrupt(self) -> None:
        signals = self._signals
        if signals is not None:
            signals.interrupt()

    def _run(self) -> None:
        try:
            with self._watched() as self._signals:
                while not self._stopped.is_set() and self._goes_on(self._signals):
                    pass
        except BaseException as error:
            log.exception("a service died")
            self._on_death("services", error)

    def _goes_on(self, signals: Signals) -> bool:
        """Do what is due, and wait for what comes next; False where patience has ended."""
        try:
            self._step_due()
            self._failures = 0
            self._wait(signals)
        except StoreUnavailable as error:
            return self._bear(error)
        return True

    @contextlib.contextmanager
    def _watched(self) -> Iterator[Signals]:
        if self._listens:
            with watch_signals(self._engine, "wake") as signals:
                yield signals
            return
        deaf = _Deaf()
        try:
            yield deaf
        finally:
            deaf.close()

    def _step_due(self) -> None:
        for service in self._services:
            if self._is_due(service.name) and not self._stopped.is_set():
                # Before the step, which may not see what comes meanwhile; and one that fails is due again.
                self._hastened.discard(service.name)
                self._due[service.name] = 0.0
                self._due[service.name] = time.monotonic() + service.step()

    def _is_due(self, name: str) -> bool:
        return name in self._hastened or time.monotonic() >= self._due[name]

    def _wait(self, signals: Signals) -> None:
        left = min(self._due.values()) - time.monotonic()
        if left <= 0 or self._hastened:
            return
        heard = signals.wait(max(_PUNCTUAL_S, left))
        wanted = {name for payload, name in _WANTED.items() if payload in heard and name in self._due}
        if wanted:
            self._hastened |= wanted
            self._stopped.wait(_SHORTEST_S)

    def _bear(self, error: StoreUnavailable) -> bool:
        """Wait before the next try; False where there is none."""
        initial_ms, max_ms = self._resilience.db_retry_initial_ms, self._resilience.db_retry_max_ms
        delay = database_delay(initial_ms, max_ms, self._failures, random.random())
        self._failures += 1
        most = self._resilience.db_retry_max_attempts
        if self._longest_delay_s is not None:
            delay = min(delay, self._longest_delay_s)
        elif most and self._failures >= most:
            self._on_death("services", error)
            return False
        log.warning("services: the database is unavailable (%s); again in %.1f s", error, delay)
        self._stopped.wait(delay)
        return True


class _Deaf:
    """Waits without listening to the store."""

    def __init__(self) -> None:
        self._interrupt = Interrupt()

    def wait(self, timeout_s: float) -> set[str]:
        self._interrupt.wait(timeout_s)
        return set()

    def interrupt(self) -> None:
        self._interrupt.set()

    def close(self) -> None:
        self._interrupt.close()
