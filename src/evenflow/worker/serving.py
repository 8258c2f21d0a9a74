"""Which queues a worker serves, in which order, and where its claims begin. No I/O."""

import collections
import fnmatch
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenflow.errors import ConfigError
from evenflow.job import Claimed
from evenflow.queues import name_mistakes
from evenflow.store.advance import Bound, Want
from evenflow.store.reads import QueueRow
from evenflow.store.signals import queue_mark

BOUND_AGE_S = 0.2  # an enqueue that has read V is committed by then, as a rule
SWEEP_SHARE = 50  # of the time, at most one part in so many goes into sweeps
_GREATEST_ID = 2**63 - 1


@dataclass(frozen=True, slots=True)
class QueueList:
    """The queues a worker was told to serve: exact names, `*`, or `prefix*`.

    >>> QueueList.parse(["mail", "docs-*"]).serves("docs-eu"), QueueList.parse(["mail"]).serves("docs")
    (True, False)
    """

    exact: tuple[str, ...]
    patterns: tuple[str, ...]

    @classmethod
    def parse(cls, names: Sequence[str]) -> "QueueList":
        mistakes = []
        for name in names:
            stem = name.removesuffix("*")
            if name != "*" and (wrong := name_mistakes(stem)):
                mistakes += [f"--queues {name!r}: {wrong[0]}"]
        if not names:
            mistakes = ["--queues: expected at least one queue; leave it out to serve all"]
        if mistakes:
            raise ConfigError(mistakes)
        exact = tuple(dict.fromkeys(name for name in names if not name.endswith("*")))
        return cls(exact, tuple(dict.fromkeys(name for name in names if name.endswith("*"))))

    def serves(self, queue: str) -> bool:
        return queue in self.exact or any(fnmatch.fnmatchcase(queue, pattern) for pattern in self.patterns)

    def __str__(self) -> str:
        return ",".join((*self.exact, *self.patterns))


class Serving:
    """The served queues as the store knows them, by priority; queues of equal priority take turns at the front.

    Of these `capped` are under a cap (all, where the whole cluster has one), `bounded` may be full, and `timed` are fair
    by time; `marks` is what wake-ups for them say.
    """

    def __init__(self, queues: QueueList, *, has_cluster_cap: bool = False) -> None:
        self._queues = queues
        self._has_cluster_cap = has_cluster_cap
        self._bands: list[list[str]] = [list(queues.exact)] if queues.exact else []
        self._turn = 0
        self.capped: set[str] = set()
        self.bounded: set[str] = set()
        self.timed: set[str] = set()
        self.marks: set[str] = set()

    def learn(self, rows: Iterable[QueueRow]) -> None:
        """Take in the names, priorities and limits that the store knows."""
        served = [row for row in rows if self._queues.serves(row.name)]
        self._order(served)
        self.bounded = {row.name for row in served if row.max_ready is not None}
        self.timed = {row.name for row in served if row.fair == "time"}
        if self._has_cluster_cap:
            self.capped = set(self.names)
        else:
            self.capped = {row.name for row in served if row.max_concurrency is not None}
        self.marks = set(map(queue_mark, self.names))

    @property
    def names(self) -> list[str]:
        return [name for band in self._bands for name in band]

    def wants(self, top: int) -> list[Want]:
        """What to ask for: `top` of each queue, in order. Each call moves the front of every band on by one."""
        self._turn += 1
        ordered = [
            name
            for band in self._bands
            for name in (*band[self._turn % len(band) :], *band[: self._turn % len(band)])
        ]
        return [Want(name, place, top) for place, name in enumerate(ordered)]

    def _order(self, served: Iterable[QueueRow]) -> None:
        priorities = dict.fromkeys(self._queues.exact, 50)
        priorities |= {row.name: row.priority for row in served}
        by_priority: dict[int, list[str]] = {}
        for name, priority in sorted(priorities.items()):
            by_priority.setdefault(priority, []).append(name)
        self._bands = [by_priority[priority] for priority in sorted(by_priority)]


class Bounds:
    """Where claims may begin, so that they do not step over the dead entries of what was claimed before.

    A claim takes what comes first, so nothing is left before the last job it took; and nothing will come there, once V
    has reached that turn: whatever enters later lies behind it. Stragglers (commits that came late, claims that were
    undone) are found by claims without bounds: all but always where those are quick, the more seldom the longer they
    take. Where one finds some, the claims go on from there.
    """

    def __init__(self) -> None:
        self._rounds: dict[tuple[str, int], float] = {}
        self._marks: dict[tuple[str, int], collections.deque[tuple[float, float, int]]] = {}
        self._sweep_took_s = 0.0
        self.sweep_at = 0.0
        """When the next claim without bounds is due."""
        self.is_sweep = False
        """Whether the last bounds were left out."""

    def note(
        self,
        claimed: Sequence[Claimed],
        rounds: dict[tuple[str, int], float],
        took_s: float,
        *,
        is_sweep: bool | None = None,
    ) -> None:
        """What a claim has brought, in its order: the last one that asked for the `current` bounds, unless `is_sweep` says
        whether the bounds of an earlier one were left out."""
        now = time.monotonic()
        self._rounds |= rounds
        if self.is_sweep if is_sweep is None else is_sweep:
            self.sweep_at, self._sweep_took_s = now + took_s * SWEEP_SHARE, took_s
            self._turn_back(claimed)
        for band, last in {(job.queue, job.priority): job for job in claimed}.items():
            if band in self._rounds:
                self._mark(band, now, *min((last.turn, last.id), (self._rounds[band], _GREATEST_ID)))

    def current(self) -> list[Bound]:
        now = time.monotonic()
        self.is_sweep = now >= self.sweep_at
        if self.is_sweep:
            # Until its answer tells better: a claim that is composed before that need not be one more.
            self.sweep_at = now + self._sweep_took_s * SWEEP_SHARE
            return []
        for marks in self._marks.values():
            while len(marks) > 1 and marks[1][0] <= now - BOUND_AGE_S:
                marks.popleft()
        return [
            Bound(queue, priority, marks[0][1], marks[0][2])
            for (queue, priority), marks in self._marks.items()
            if marks and marks[0][0] <= now - BOUND_AGE_S
        ]

    def _turn_back(self, claimed: Sequence[Claimed]) -> None:
        for band, first in {(job.queue, job.priority): job for job in reversed(claimed)}.items():
            marks = self._marks.get(band)
            if marks and (first.turn, first.id) < marks[0][1:]:
                marks.clear()

    def _mark(self, band: tuple[str, int], now: float, turn: float, id: int) -> None:
        marks = self._marks.setdefault(band, collections.deque())
        if not marks or (now - marks[-1][0] >= BOUND_AGE_S / 5 and (turn, id) > marks[-1][1:]):
            marks.append((now, turn, id))
