"""How long worker processes wait for the database: at their start, and for each single call."""

import random
import time
from collections.abc import Callable, Sequence
from typing import TypeVar

from evenflow.errors import StoreUnavailable
from evenflow.settings import Resilience, Settings
from evenflow.store.callers import Relay, drive_together
from evenflow.store.engine import Parameters, Row, Steps
from evenflow.store.open import AnyEngine
from evenflow.worker.outage import check_patience, delay_after

SHORTEST_CALL_S = 1.0

T = TypeVar("T")


class Impatient:
    """An engine whose calls end well within a lease: a worker that waits longer for an answer has lost its jobs."""

    def __init__(self, engine: AnyEngine | Relay, settings: Settings) -> None:
        self._engine = engine
        self.longest_s = max(SHORTEST_CALL_S, settings.lease_ms / 2000)
        self.kind = engine.kind

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        return self._engine.run(name, parameters, deadline_s=min(deadline_s, self.longest_s))

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        return self._engine.run_all(units, deadline_s=min(deadline_s, self.longest_s))

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        return drive_together(self._engine, make_steps, deadline_s=min(deadline_s, self.longest_s))

    def close(self) -> None:
        self._engine.close()


def when_available(
    act: Callable[[], T], resilience: Resilience, wait: Callable[[float], object] = time.sleep
) -> T:
    """Do something that needs the database, as soon as it can be done; WorkerGaveUp where patience ends.

    `wait` sleeps for so many seconds and may raise to end the waiting.
    """
    failures = 0
    while True:
        try:
            return act()
        except StoreUnavailable as error:
            failures += 1
            check_patience(resilience, failures, error)
            delay = delay_after(resilience, failures, error, random.random())
        wait(delay)
