"""When a worker claims, and what it asks for. No I/O: what claims have brought is told here."""

import collections
import logging
import math
import random
import time
from collections.abc import Sequence

from evenflow.job import Claimed
from evenflow.store.advance import NOTHING, Advanced, Claim, Reached
from evenflow.worker.lateness import Lateness
from evenflow.worker.serving import Bounds, Serving

log = logging.getLogger("evenflow.worker")

V_EVERY_S = 0.05
LATE_SAID_EVERY_S = 10.0


class Claims:
    """Owns whether the store may have something for us (`is_hungry`), and when it is asked in any case (`poll_at`).

    `batch` is the most of one queue in one claim, 0 for no such bound; `lease_us` is for claims that are held before
    they run. With `defers_v` an idle worker's claim leaves V where it is, since that takes a sixth of it, and the round that
    follows upon it moves V instead: as a rule the one that writes the job's end, else one a moment later, at `v_due_at`, that
    moves V and claims nothing: there may be no free place.
    """

    def __init__(
        self,
        serving: Serving,
        *,
        poll_every_s: float,
        batch: int,
        lease_us: int | None,
        defers_v: bool = False,
    ) -> None:
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
        self._defers_v = defers_v
        self._reached: dict[tuple[str, int], float] = {}
        self._moved_v_at = 0.0
        self._told_at = 0.0
        self._owes_sweep = False
        self.is_hungry = True
        self.poll_at = 0.0
        self.v_due_at = math.inf

    def is_due(self, now: float) -> bool:
        """Whether a claim may bring something, or it is time to look all the same."""
        return self.is_hungry or now >= self.poll_at

    def hear_of_work(self) -> None:
        """Somebody says that there is something. What was sent before may not have seen it, whatever it will bring."""
        self.is_hungry, self._told_at = True, time.monotonic()

    def compose(self, free: int, now: float, *, is_alone: bool = False) -> Claim:
        """What to ask for with so many free places, `is_alone` if without ends; NOTHING where every queue pauses."""
        wants = self._lateness.cut(self._serving.wants(min(free, self._batch or free)), now)
        if not wants:
            self.is_hungry = False
            self.postpone(now)
            return NOTHING
        under_caps = bool(self._serving.capped)
        is_deferred = self._defers_v and is_alone and not under_caps and not self._reached
        moves_v = not is_deferred and now - self._moved_v_at >= V_EVERY_S
        reached = self._behind() if moves_v else []
        claim = Claim(wants, free, self._bounds.current(), self._lease_us, moves_v, under_caps, reached)
        if self._bounds.is_sweep:
            self._sweeps.append(claim)
        # One with bounds may miss a straggler that we were told of. One that only goes along with ends was not to find anything.
        self._owes_sweep = bool(claim.bounds) and (self._owes_sweep or self.is_due(now))
        return claim

    def catch_up(self) -> Claim:
        """What moves V to where claims have come, and asks for nothing."""
        return Claim(reached=self._behind())

    def note(self, claim: Claim, answer: Advanced, asked_at: float, now: float) -> None:
        """What a claim that was sent at `asked_at` has brought."""
        if claim.wants:
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
        if claim.moves_v and (answer.claimed or answer.rounds):
            self._moved_v_at = now
        self._note_reached(claim, answer)
        if not self._reached:
            self.v_due_at = math.inf
        elif not now < self.v_due_at < math.inf:
            self.v_due_at = now + V_EVERY_S

    def _behind(self) -> list[Reached]:
        return [Reached(*band, turn) for band, turn in self._reached.items()]

    def _note_reached(self, claim: Claim, answer: Advanced) -> None:
        """What V has not come to yet. A worker that says no more of it would leave those who come next too far in front."""
        if self._defers_v and not claim.moves_v:
            for band, last in {(job.queue, job.priority): job for job in answer.claimed}.items():
                self._reached[band] = max(last.turn, self._reached.get(band, last.turn))
        for band, v in answer.rounds.items():
            if band in self._reached and self._reached[band] <= v:
                del self._reached[band]

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
