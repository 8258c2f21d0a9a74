"""When a worker claims, and what it asks for. No I/O: what claims have brought is told here."""

import collections
import logging
import random
import time
from collections.abc import Sequence

from evenflow.job import Claimed
from evenflow.store.advance import NOTHING, Advanced, Claim
from evenflow.worker.lateness import Lateness
from evenflow.worker.serving import Bounds, Serving

log = logging.getLogger("evenflow.worker")

V_EVERY_S = 0.05
LATE_SAID_EVERY_S = 10.0


class Claims:
    """Owns whether the store may have something for us (`is_hungry`), and when it is asked in any case (`poll_at`).

    `batch` is the most of one queue in one claim, 0 for no such bound; `lease_us` is for claims that are held before
    they run.
    """

    def __init__(self, serving: Serving, *, poll_every_s: float, batch: int, lease_us: int | None) -> None:
        self._serving = serving
        self._poll_every_s = poll_every_s
        self._batch = batch
        self._lease_us = lease_us
        self._bounds = Bounds()
        # As many as may be under way: another claim may have been composed before the answer to one came.
        self._sweeps: collections.deque[Claim] = collections.deque(maxlen=2)
        self._lateness = Lateness()
        self._went_back = 0
        self._late_said_at = float("-inf")
        self._moved_v_at = 0.0
        self._told_at = 0.0
        self._owes_sweep = False
        self.is_hungry = True
        self.poll_at = 0.0

    def is_due(self, now: float) -> bool:
        """Whether a claim may bring something, or it is time to look all the same."""
        return self.is_hungry or now >= self.poll_at

    def hear_of_work(self) -> None:
        """Somebody says that there is something. What was sent before may not have seen it, whatever it will bring."""
        self.is_hungry, self._told_at = True, time.monotonic()

    def compose(self, free: int, now: float) -> Claim:
        """What to ask for with so many free places; NOTHING where every queue pauses."""
        wants = self._lateness.cut(self._serving.wants(min(free, self._batch or free)), now)
        if not wants:
            self.is_hungry = False
            self.postpone(now)
            return NOTHING
        moves_v = now - self._moved_v_at >= V_EVERY_S
        under_caps = bool(self._serving.capped)
        claim = Claim(wants, free, self._bounds.current(), self._lease_us, moves_v, under_caps)
        if self._bounds.is_sweep:
            self._sweeps.append(claim)
        # One with bounds may miss a straggler that we were told of. One that only goes along with ends was not to find anything.
        self._owes_sweep = bool(claim.bounds) and (self._owes_sweep or self.is_due(now))
        return claim

    def note(self, claim: Claim, answer: Advanced, asked_at: float, now: float) -> None:
        """What a claim that was sent at `asked_at` has brought."""
        self.is_hungry = (
            may_leave_more(claim, answer.claimed)
            or bool(answer.freed)
            or answer.is_obstructed
            or answer.is_rich
            or self._told_at > asked_at
        )
        self.postpone(now)
        is_sweep = any(claim is each for each in self._sweeps)
        self._bounds.note(answer.claimed, answer.rounds, time.monotonic() - asked_at, is_sweep=is_sweep)
        if self._owes_sweep and not self.is_hungry:
            self.poll_at = min(self.poll_at, self._bounds.sweep_at)
        if claim.moves_v and answer.claimed:
            self._moved_v_at = now

    def note_late(self, queues: Sequence[str], most: int, now: float) -> None:
        """Jobs of these queues went back, too late for their rates; `most` is what may be claimed of a queue at best."""
        self._went_back += len(queues)
        if now >= self._late_said_at + LATE_SAID_EVERY_S:
            log.info(
                "%d jobs went back: this process was too busy to start them in time for their rates",
                self._went_back,
            )
            self._late_said_at, self._went_back = now, 0
        self._lateness.note(queues, most, now)

    def postpone(self, now: float) -> None:
        """Poll after the interval, give or take a tenth; sooner where a queue that was left out may be claimed from."""
        self.poll_at = now + self._poll_every_s * random.uniform(0.9, 1.1)
        resumes_at = self._lateness.resumes_at(now)
        if resumes_at is not None:
            self.poll_at = min(self.poll_at, resumes_at)


def may_leave_more(claim: Claim, claimed: Sequence[Claimed]) -> bool:
    """Whether a claim that got this much may have left jobs behind: it, or one of its queues, was full."""
    if len(claimed) >= claim.top:
        return True
    taken = collections.Counter(job.queue for job in claimed)
    return any(taken[want.queue] >= want.top for want in claim.wants)
