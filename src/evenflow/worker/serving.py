"""Which queues a worker serves, in which order, and where its claims begin. No I/O."""

import fnmatch
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from evenflow.errors import ConfigError
from evenflow.job import Claimed
from evenflow.queues import name_mistakes
from evenflow.store.advance import Bound, Want
from evenflow.store.reads import QueueRow

BOUND_AGE_S = 1.0
SWEEP_EVERY_S = 5.0


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
    """The served queues as the store knows them, by priority; queues of equal priority take turns at the front."""

    def __init__(self, queues: QueueList) -> None:
        self._queues = queues
        self._bands: list[list[str]] = [list(queues.exact)] if queues.exact else []
        self._turn = 0

    def learn(self, rows: Iterable[QueueRow]) -> None:
        """Take in the names and priorities that the store knows."""
        priorities = dict.fromkeys(self._queues.exact, 50)
        priorities |= {row.name: row.priority for row in rows if self._queues.serves(row.name)}
        by_priority: dict[int, list[str]] = {}
        for name, priority in sorted(priorities.items()):
            by_priority.setdefault(priority, []).append(name)
        self._bands = [by_priority[priority] for priority in sorted(by_priority)]

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


class Bounds:
    """Where claims may begin, so that they do not step over the dead entries of what was claimed before.

    Only a turn that V is known to have reached is a bound: everything that enters later lies behind it. Stragglers
    (commits that came late) are found by a claim without bounds every few seconds.
    """

    def __init__(self) -> None:
        self._marks: dict[tuple[str, int], list[tuple[float, float, int]]] = {}
        self._swept_at = 0.0

    def note(self, claimed: Sequence[Claimed], moved: dict[tuple[str, int], float]) -> None:
        now = time.monotonic()
        for band, turn in moved.items():
            greatest = max(
                (job.id for job in claimed if (job.queue, job.priority) == band and job.turn == turn),
                default=0,
            )
            marks = self._marks.setdefault(band, [])
            marks.append((now, turn, greatest))
            while len(marks) > 1 and marks[1][0] <= now - BOUND_AGE_S:
                marks.pop(0)

    def current(self) -> list[Bound]:
        now = time.monotonic()
        if now - self._swept_at >= SWEEP_EVERY_S:
            self._swept_at = now
            return []
        return [
            Bound(queue, priority, marks[0][1], marks[0][2])
            for (queue, priority), marks in self._marks.items()
            if marks[0][0] <= now - BOUND_AGE_S
        ]
