"""Flights: the claims of a worker that have jobs in flight, as PostgreSQL finds them. No I/O.

A claim notes all that it takes in one row, under a number that the worker gives it. When the last job of a flight has ended, and the
store has said so, the worker says with its next round that the flight has landed, and the row goes.
"""

import collections
import itertools
from collections.abc import Collection, Iterable

NOWHERE = 0  # no flight has this number


class Flights:
    """Owns the numbers of a worker's flights, and which of them are still needed."""

    def __init__(self) -> None:
        self._numbers = itertools.count(1)
        self._of: dict[int, int] = {}
        self._left: dict[int, int] = {}
        self._landed: list[int] = []

    def next(self) -> int:
        """The number of the next flight."""
        return next(self._numbers)

    def note(self, number: int, jobs: Iterable[int]) -> None:
        """A claim of this number has taken these jobs."""
        taken = dict.fromkeys(jobs, number)
        if not taken:
            return
        if not self._of.keys().isdisjoint(taken):
            self.forget(taken)  # some were taken from us, and came back
        self._of |= taken
        self._left[number] = len(taken)

    def forget(self, jobs: Iterable[int]) -> None:
        """These jobs are no longer in flight here, by what the store has said."""
        take = self._of.pop
        for number, count in collections.Counter([take(job, NOWHERE) for job in jobs]).items():
            if number == NOWHERE:
                continue
            self._left[number] -= count
            if not self._left[number]:
                del self._left[number]
                self._landed.append(number)

    def keep(self, known: Collection[int]) -> None:
        """Nothing but these jobs can be in flight here: others were ended, or taken from us, by other ways than our rounds."""
        self.forget([job for job in self._of if job not in known])

    def take_landed(self) -> list[int]:
        """The flights that the store may forget, for the round that tells it."""
        landed, self._landed = self._landed, []
        return landed

    def give_back(self, landed: Iterable[int]) -> None:
        """The round that was to tell of these may not have been carried out."""
        self._landed += landed
