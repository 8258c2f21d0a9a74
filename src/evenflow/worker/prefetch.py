"""Prefetched jobs: claimed ahead of their slots, and asked for once more before they start.

A claim may run out while its job is held here, and then the job is another worker's. So whatever leaves for a slot has been
told to the store first; what may not start goes back.
"""

import collections
import itertools
from collections.abc import Iterator, Sequence

from evenflow.job import Claimed, End
from evenflow.store.advance import recharge, start
from evenflow.store.engine import Engine
from evenflow.worker.outcome import unstarted
from evenflow.worker.slots import Slots, is_rated


class Prefetched:
    """The jobs that one worker holds (`held`), and those of them that may not start and are to be settled (`refused`)."""

    def __init__(self, store: Engine, worker: int, slots: Slots) -> None:
        self._store = store
        self._worker = worker
        self._slots = slots
        self.held: collections.deque[Claimed] = collections.deque()
        self.refused: list[Claimed] = []

    def __len__(self) -> int:
        return len(self.held) + len(self.refused)

    def __iter__(self) -> Iterator[Claimed]:
        return itertools.chain(self.held, self.refused)

    def hold(self, jobs: Sequence[Claimed]) -> None:
        """Keep these until there is a slot. A job that is claimed again was taken from us before: the former claim is nothing."""
        again = {job.id for job in jobs}
        if any(job.id in again for job in self.held):
            self.held = collections.deque(job for job in self.held if job.id not in again)
        self.held.extend(jobs)

    def startable(self, free: int, *, under_caps: bool) -> Sequence[Claimed]:
        """Take out as many as there are free slots: those that are running now in the store. The others are refused."""
        jobs = list(itertools.islice(self.held, free))
        rated = [job for job in jobs if is_rated(job)]
        charged = recharge(self._store, self._worker, rated) if rated else set()
        able = [job for job in jobs if not is_rated(job) or job.id in charged]
        started = start(self._store, self._worker, able, under_caps=under_caps) if able else set()
        for _ in jobs:  # only now: should the store be away, they are still held
            self.held.popleft()
        self.refused += [job for job in jobs if job.id not in started]
        return [job for job in able if job.id in started]

    def give_back(self) -> list[End]:
        """The ends with which everything that is held is returned."""
        ends = [unstarted(job) for job in self.held]
        self.held.clear()
        return ends

    def settle_refused(self, cancelled: dict[tuple[int, int], str]) -> list[End]:
        """The ends of what may not start: cancelled meanwhile, or to be offered again when it may."""
        refused, self.refused = self.refused, []
        ends = []
        for job in refused:
            why = cancelled.get((job.id, job.epoch))
            ends.append(unstarted(job) if why is None else self._slots.withdrawn(job, why))
        return ends

    def forget(self) -> None:
        """The lease is lost: they are no longer ours."""
        self.held.clear()
        self.refused = []
