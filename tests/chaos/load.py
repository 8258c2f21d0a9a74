"""A load that goes on while faults are injected, and the final count: every job that was accepted ended exactly once."""

import random
import threading
from pathlib import Path
from typing import Any

import psycopg

from evenflow import EnqueueError, Evenflow
from tests.ledger import Checker, DeathLedger, ProducerLedger, Report
from tests.processes import wait_until
from tests.worker.command import Books, seldom
from tests.worker.jobs import declared


class Load:
    """Jobs of `tests.worker.jobs`, enqueued one by one or by a thread, each noted in the producers' ledger."""

    def __init__(
        self, app: Evenflow, folder: Path, *, task: str = "work", arguments: tuple[Any, ...] = (0.01,)
    ) -> None:
        self.app = declared(app)
        self.folder = folder
        self.deaths = DeathLedger(folder / "deaths")
        self._task = self.app.tasks[task]
        self._arguments = arguments
        self._ledger = ProducerLedger(folder / "producers")
        self._stopped = threading.Event()
        self._thread: threading.Thread | None = None
        self.enqueued = 0

    def enqueue(self, count: int = 1, arguments: tuple[Any, ...] | None = None) -> None:
        """Enqueue now; errors are noted, not raised: an unreachable database is part of the story."""
        given = self._arguments if arguments is None else arguments
        for _ in range(count):
            self._ledger.enqueue(lambda job: self._task.enqueue(job, *given), refusals=(EnqueueError,))
            self.enqueued += 1

    def start(self, *, pause_s: float = 0.02) -> None:
        """Enqueue from a thread until `stop`: enough to keep workers busy, not more than they can do on a crowded machine."""

        def produce() -> None:
            while not self._stopped.wait(pause_s):
                self.enqueue()

        self._thread = threading.Thread(target=produce, name="load", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        self._stopped.set()
        if self._thread is not None:
            self._thread.join(60)

    def runs(self) -> int:
        """How many bodies have ended so far."""
        path = self.folder / "bodies"
        return b"\n".join((b"", path.read_bytes())).count(b"\nE ") if path.exists() else 0

    def flows(self, more: int = 20, within_s: float = 60.0) -> None:
        """Wait until so many more bodies have ended."""
        before = self.runs()
        wait_until(lambda: self.runs() >= before + more, f"{more} more runs", within_s)

    def drained(self, books: Books, within_s: float = 120.0) -> None:
        """Stop enqueueing and wait until nothing is open any more."""
        self.stop()

        def is_empty() -> bool:
            try:
                return books.rows("select count(*) from {job}") == [(0,)]
            except psycopg.OperationalError:
                return False

        wait_until(seldom(is_empty), "every job to end", within_s)

    def report(self, books: Books, *, faults: int, seed: int | None = None) -> Report:
        """What the ledgers say about the books."""
        self.deaths.close()
        checker = Checker(self.folder / "producers", self.folder / "bodies", self.folder / "deaths")
        report = checker.check(books.entries(), faults=faults, seed=seed)
        report.recoveries_s = checker.recoveries_s()
        return report


def seeded(seed: int | None = None) -> tuple[int, random.Random]:
    """A seed that a report can name, and chance that follows from it."""
    chosen = random.SystemRandom().randrange(2**32) if seed is None else seed
    return chosen, random.Random(chosen)
