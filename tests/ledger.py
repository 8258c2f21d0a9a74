"""Ledgers that Evenflow's code never touches, and the checker that holds the queue against them.

Producers note what they meant to enqueue and what came of it, bodies note when they begin and end, the harness notes
when processes die. All on one host and one clock, so the entries have one order. Standard library alone.
"""

import collections
import contextlib
import itertools
import os
import select
import threading
import time
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from tests.scratch_directory import start_time

MOST_BYTES = 4096
SYNC_EVERY_S = 0.1
TERMINAL = {"succeeded", "failed", "expired", "cancelled", "skipped", "discarded", "quarantined"}


def now_ns() -> int:
    """The clock of all ledgers: it counts while the machine is suspended, and never steps."""
    return time.clock_gettime_ns(getattr(time, "CLOCK_BOOTTIME", time.CLOCK_MONOTONIC))


class Ledger:
    """A file that many processes append to: one line is one write, so lines never mix."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o644)
        self._synced_at = 0.0

    def note(self, *words: object) -> None:
        line = (" ".join(str(word) for word in words) + "\n").encode()
        if len(line) > MOST_BYTES:
            raise ValueError(
                f"a ledger's line has {len(line)} bytes, more than one write is sure to keep together"
            )
        os.write(self._file, line)
        if time.monotonic() - self._synced_at >= SYNC_EVERY_S:
            os.fsync(self._file)
            self._synced_at = time.monotonic()

    def close(self) -> None:
        os.close(self._file)


class BodyLedger(Ledger):
    """What bodies write, first and last: B or E, run, job, epoch, pid, start of the process, time, queue, key, worker."""

    @contextlib.contextmanager
    def body(self, job: str, *, epoch: int, queue: str = "default", key: str = "-") -> Iterator[None]:
        """Around a body. A run whose process dies has no E; one that raises has."""
        run = uuid.uuid4().hex
        pid = os.getpid()
        rest = (job, epoch, pid, start_time(pid) or 0)
        self.note("B", run, *rest, now_ns(), queue, key)
        try:
            yield
        finally:
            self.note("E", run, *rest, now_ns(), queue, key)


class ProducerLedger(Ledger):
    """What producers write: `intent`, then `ok` (the commit returned), `fail` (certainly not stored) or `info` (unknown)."""

    def enqueue(self, act: Callable[[str], object], *, refusals: tuple[type[Exception], ...]) -> str:
        """Give `act` a fresh name to enqueue under. Errors in `refusals` are certain; any other leaves the outcome open."""
        job = uuid.uuid4().hex
        self.note("intent", job)
        try:
            act(job)
        except refusals:
            self.note("fail", job)
        except Exception as error:
            self.note("info", job, type(error).__name__)
        else:
            self.note("ok", job)
        return job


class DeathLedger(Ledger):
    """When watched processes ended, by their pidfd: no number can be mistaken for a successor's."""

    def __init__(self, path: Path) -> None:
        super().__init__(path)
        self._poll = select.poll()
        self._watched: dict[int, tuple[int, int]] = {}
        self._known: set[tuple[int, int]] = set()
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="death-ledger", daemon=True)
        self._thread.start()

    def watch(self, *pids: int) -> None:
        """Note the end of these processes; those that are watched already, or gone, are left out."""
        for pid in pids:
            started = start_time(pid)
            if started is None or (pid, started) in self._known:
                continue
            with contextlib.suppress(ProcessLookupError):
                descriptor = os.pidfd_open(pid)
                with self._lock:
                    self._known.add((pid, started))
                    self._watched[descriptor] = (pid, started)
                    self._poll.register(descriptor, select.POLLIN)

    def close(self) -> None:
        self._ended.set()
        self._thread.join()
        for descriptor in self._watched:
            os.close(descriptor)
        super().close()

    def _look(self) -> None:
        while not self._ended.is_set():
            for descriptor, _ in self._poll.poll(20):
                pid, started = self._watched[descriptor]
                self.note("D", pid, started, now_ns())
                with self._lock:
                    self._poll.unregister(descriptor)
                    del self._watched[descriptor]
                os.close(descriptor)


@dataclass(frozen=True, slots=True)
class Interval:
    """One run of one body. `ended` is None while nothing tells of its end."""

    job: str
    epoch: int
    pid: int
    queue: str
    key: str
    began: int
    ended: int | None
    has_returned: bool


@dataclass(slots=True)
class Report:
    """What a checker found. Never "no errors seen" without the number of faults behind it."""

    faults: int
    jobs: int
    runs: int
    violations: list[str]
    seed: int | None = None
    recoveries_s: list[float] = field(default_factory=list)

    def __str__(self) -> str:
        lines = [
            f"faults {self.faults}, jobs {self.jobs}, runs {self.runs}, violations {len(self.violations)}"
        ]
        if not self.violations and self.faults:
            lines.append(f"95 % upper bound of the rate of violations: {3 / self.faults:.4f}")
        if self.recoveries_s:
            lines.append(
                "recovery p50 {:.2f} s, p99 {:.2f} s, max {:.2f} s".format(*percentiles(self.recoveries_s))
            )
        if self.seed is not None:
            lines.append(f"seed {self.seed}")
        return "\n".join([*lines, *self.violations[:20]])


def percentiles(values: Iterable[float]) -> tuple[float, float, float]:
    """p50, p99 and the greatest."""
    ordered = sorted(values)
    return ordered[len(ordered) // 2], ordered[min(len(ordered) - 1, int(len(ordered) * 0.99))], ordered[-1]


class Checker:
    """Holds ledgers against the books: job name -> the states in which the store has it, read by SQL of the test's own."""

    def __init__(self, producers: Path, bodies: Path, deaths: Path | None = None) -> None:
        self.outcomes = _outcomes(producers)
        self.runs = intervals(bodies, _deaths(deaths) if deaths is not None else {})

    def check(
        self, books: Mapping[str, list[str]], *, caps: Mapping[str, int] | None = None, faults: int = 0, seed: int | None = None
    ) -> Report:  # fmt: skip
        """After healing and draining. `caps` is key or queue -> how many may run at once."""
        violations = [*self._lost(books), *self._unmeant(books), *self._doubled(books), *self._epochs()]
        for name, cap in (caps or {}).items():
            most = most_at_once(run for run in self.runs if name in (run.queue, run.key))
            if most > cap:
                violations.append(f"{name}: {most} ran at once, the cap is {cap}")
        return Report(faults, len(books), len(self.runs), violations, seed)

    def recoveries_s(self) -> list[float]:
        """For each run that ended with its process: seconds until its job ran again."""
        found = []
        for dead in self.runs:
            if dead.has_returned or dead.ended is None:
                continue
            later = [run.began for run in self.runs if run.job == dead.job and run.epoch > dead.epoch]
            if later:
                found.append(max(0, min(later) - dead.ended) / 1e9)
        return found

    def _lost(self, books: Mapping[str, list[str]]) -> Iterator[str]:
        returned = {run.job for run in self.runs if run.has_returned}
        for job, outcome in self.outcomes.items():
            if outcome == "ok" and job not in books:
                yield f"{job}: accepted and lost"
        for job, states in books.items():
            if not set(states) <= TERMINAL:
                yield f"{job}: has not ended, it is {states}"
            elif states == ["succeeded"] and job not in returned:
                yield f"{job}: succeeded without a run that returned"

    def _unmeant(self, books: Mapping[str, list[str]]) -> Iterator[str]:
        for job in {*books, *(run.job for run in self.runs)}:
            outcome = self.outcomes.get(job)
            if outcome is None:
                yield f"{job}: nobody meant to enqueue it"
            elif outcome == "fail":
                yield f"{job}: refused at enqueue and stored nevertheless"

    def _doubled(self, books: Mapping[str, list[str]]) -> Iterator[str]:
        for job, states in books.items():
            if len(states) != 1:
                yield f"{job}: {len(states)} entries in the books: {states}"

    def _epochs(self) -> Iterator[str]:
        """Each claim runs at most once, and a later run has a greater epoch."""
        of_job: dict[str, list[Interval]] = collections.defaultdict(list)
        for run in sorted(self.runs, key=lambda run: run.began):
            of_job[run.job].append(run)
        for job, runs in of_job.items():
            epochs = [run.epoch for run in runs]
            if any(later <= earlier for earlier, later in itertools.pairwise(epochs)):
                yield f"{job}: epochs of its runs are {epochs}"


def most_at_once(runs: Iterable[Interval]) -> int:
    """The greatest overlap; a run whose end is unknown never ends, a freeze does not end one."""
    edges = []
    for run in runs:
        edges.append((run.began, 1))
        if run.ended is not None:
            edges.append((run.ended, -1))
    most = current = 0
    for _, change in sorted(edges):
        current += change
        most = max(most, current)
    return most


def _lines(path: Path) -> Iterator[list[str]]:
    if path.exists():
        for line in path.read_text().splitlines():
            yield line.split(" ")


def _outcomes(path: Path) -> dict[str, str]:
    """Job -> the last word on it; an intent without one is unknown, as its producer may have been killed."""
    found: dict[str, str] = {}
    for kind, job, *_ in _lines(path):
        found[job] = "info" if kind == "intent" else kind
    return found


def _deaths(path: Path) -> dict[tuple[int, int], int]:
    return {(int(pid), int(started)): int(at) for _, pid, started, at in _lines(path)}


def intervals(path: Path, deaths: Mapping[tuple[int, int], int] | None = None) -> list[Interval]:
    """The runs that bodies noted; one without an end of its own ends with its process, if its death is known."""
    begun: dict[str, list[str]] = {}
    ended: dict[str, int] = {}
    for kind, run, *rest in _lines(path):
        if kind == "B":
            begun[run] = rest
        else:
            ended[run] = int(rest[4])
    found = []
    for run, (job, epoch, pid, started, began, queue, key) in begun.items():
        end = ended.get(run, (deaths or {}).get((int(pid), int(started))))
        found.append(Interval(job, int(epoch), int(pid), queue, key, int(began), end, run in ended))
    return found
