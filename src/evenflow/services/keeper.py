"""The thread that runs the services of a supervisor, one step at a time. A service that fails for good ends the worker."""

import logging
import random
import threading
import time
from collections.abc import Callable, Sequence
from typing import Protocol

from evenflow.errors import StoreUnavailable
from evenflow.rules.retry import database_delay
from evenflow.settings import Settings
from evenflow.store.open import AnyEngine
from evenflow.store.signals import ARRIVAL, Signals, watch_signals

log = logging.getLogger("evenflow.services")

_SHORTEST_S = 0.02  # arrivals come in crowds: look at most this often


class Service(Protocol):
    """A house keeper: `step` does a bounded piece of work and says when it wants to be called again."""

    name: str

    def step(self) -> float: ...


class Keeper:
    """Runs services until stopped. Database outages are waited out; any other error is fatal and reported."""

    def __init__(
        self,
        services: Sequence[Service],
        engine: AnyEngine,
        settings: Settings,
        on_death: Callable[[str, BaseException], None],
    ) -> None:
        self._due: dict[str, float] = {service.name: 0.0 for service in services}
        self._services = services
        self._engine = engine
        self._resilience = settings.resilience
        self._on_death = on_death
        self._stopped = threading.Event()
        self._signals: Signals | None = None
        self._thread = threading.Thread(target=self._run, name="evenflow-services", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """End the thread and wait for it."""
        self._stopped.set()
        if self._signals is not None:
            self._signals.interrupt()
        self._thread.join(timeout=10.0)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _run(self) -> None:
        failures = 0
        with watch_signals(self._engine, "wake") as signals:
            self._signals = signals
            while not self._stopped.is_set():
                try:
                    self._step_due()
                    failures = 0
                except StoreUnavailable as error:
                    delay = database_delay(
                        self._resilience.db_retry_initial_ms,
                        self._resilience.db_retry_max_ms,
                        failures,
                        random.random(),
                    )
                    failures += 1
                    log.warning("services: the database is unavailable (%s); again in %.1f s", error, delay)
                    self._stopped.wait(delay)
                except BaseException as error:
                    log.exception("a service died")
                    self._on_death("services", error)
                    return
                else:
                    self._wait(signals)

    def _step_due(self) -> None:
        for service in self._services:
            if time.monotonic() >= self._due[service.name] and not self._stopped.is_set():
                self._due[service.name] = time.monotonic() + service.step()

    def _wait(self, signals: Signals) -> None:
        left = min(self._due.values()) - time.monotonic()
        heard = signals.wait(max(_SHORTEST_S, left))
        if ARRIVAL in heard and "dispatcher" in self._due:
            self._due["dispatcher"] = 0.0
            self._stopped.wait(_SHORTEST_S)
