"""Rounds: what a pump asks of the store, and what it hears. Where there is much to do on PostgreSQL, it asks ahead.

A round that is sent while the server is still at the one before is begun without a pause: the server does not wait for the
worker to hear an answer and to start its jobs. Two rounds under way are enough for that, and only plain ones: whatever
takes more than one statement, or has little to say, waits until everything before it was heard.
"""

import time
from collections import deque
from collections.abc import Sequence

import msgspec

from evenflow.job import End
from evenflow.settings import Retention
from evenflow.store.advance import Advanced, Claim, advance, answered, lone_unit
from evenflow.store.pipeline import Pipeline
from evenflow.worker.patience import Impatient

AHEAD = 2
# With fewer ends the server is done before the next round could be sent, and small rounds would only be more rounds.
LEAST_ENDS = 32


class Round(msgspec.Struct, frozen=True):
    """What was asked, and when, by the monotonic clock."""

    ends: Sequence[End]
    claim: Claim
    asked_at: float


class Rounds:
    """Owns the rounds of a worker that are under way, and their ends until the store has answered."""

    def __init__(
        self, store: Impatient, worker: int, retention: Retention, pipeline: Pipeline | None
    ) -> None:
        self._store = store
        self._worker = worker
        self._retention = retention
        self._pipeline = pipeline
        self._under_way: deque[Round] = deque()

    def __len__(self) -> int:
        return len(self._under_way)

    @property
    def places(self) -> int:
        """How many jobs those under way may bring."""
        return sum(each.claim.top for each in self._under_way)

    @property
    def has_room(self) -> bool:
        """Whether another round may be sent."""
        return len(self._under_way) < AHEAD

    def enough(self, running: int) -> int:
        """How many ends make another round worth while, where one is under way and so many bodies run."""
        return max(LEAST_ENDS, running // 2)

    @property
    def is_answered(self) -> bool:
        """Whether the oldest answer is here, or should have come by now."""
        assert self._pipeline is not None
        is_overdue = time.monotonic() >= self._under_way[0].asked_at + self._store.longest_s
        return is_overdue or self._pipeline.has_answer

    @property
    def descriptor(self) -> int:
        """What becomes readable when an answer comes that is not here yet."""
        assert self._pipeline is not None
        return self._pipeline.descriptor

    def ask_ahead(self, ends: Sequence[End], claim: Claim) -> bool:
        """Send a round without waiting for its answer, if it is one for that."""
        if self._pipeline is None or len(ends) < LEAST_ENDS or not self.has_room:
            return False
        unit = lone_unit(self._worker, ends, claim) if self._pipeline.is_possible else None
        if unit is None:
            return False
        asked = Round(ends, claim, time.monotonic())
        self._pipeline.ask(*unit, deadline_s=self._store.longest_s)
        self._under_way.append(asked)
        return True

    def hear(self) -> tuple[Round, Advanced]:
        """The oldest round under way, and its answer; waits for it."""
        assert self._pipeline is not None
        asked = self._under_way[0]
        left_s = asked.asked_at + self._store.longest_s - time.monotonic()
        rows = self._pipeline.answer(deadline_s=max(0.0, left_s))
        self._under_way.popleft()
        return asked, answered(rows, asked.claim)

    def exchange(
        self, ends: Sequence[End], claim: Claim, keys: Sequence[str] | None
    ) -> tuple[Round, Advanced]:
        """Ask and hear, where nothing is under way."""
        asked = Round(ends, claim, time.monotonic())
        answer = advance(self._store, self._worker, ends, claim, keys=keys, retention=self._retention)
        return asked, answer

    def taken_back(self) -> list[End]:
        """The ends of rounds whose answers nobody will hear: they may have been written, or not."""
        ends = [end for asked in self._under_way for end in asked.ends]
        self.close()
        return ends

    def tend(self) -> None:
        """Now and then: a worker that has little to do needs no connection for rounds ahead."""
        if self._pipeline is not None:
            self._pipeline.close_when_idle()

    def close(self) -> None:
        self._under_way.clear()
        if self._pipeline is not None:
            self._pipeline.close()
