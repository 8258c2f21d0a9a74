"""Rounds: what a pump asks of the store, and what it hears. Where there is much to do on PostgreSQL, it asks ahead.

A round that is sent while the server is still at the one before is begun without a pause: the server does not wait for the
worker to hear an answer and to start its jobs. Two rounds under way are enough for that, and only those that go out as a whole:
whatever needs an answer on its way, or has little to say, waits until everything before it was heard.

A round is asked in the plain form that most rounds can have, as long as the store does not say that there is more to it.
"""

import time
from collections import deque
from collections.abc import Collection, Sequence
from typing import Any

import msgspec

from evenflow.job import End
from evenflow.settings import Retention
from evenflow.store.advance import Advanced, Claim, Flight, advance, answered, lone_unit, with_steps
from evenflow.store.engine import Row
from evenflow.store.pipeline import Pipeline
from evenflow.store.plain import advance_plainly, are_plain, is_plain, plain_answer, plain_unit
from evenflow.store.step_ends import can_be_sent, step_units, steps_ended
from evenflow.worker.flights import Flights
from evenflow.worker.patience import Impatient

AHEAD = 2
# With fewer ends the server is done before the next round could be sent, and small rounds would only be more rounds.
LEAST_ENDS = 32
# So long after a round that was sent ahead a pump is taken to be busy: one that claims as many goes ahead too, however few have ended.
BUSY_S = 0.05
# Where a plain round has found that there is more to it, claims are made in full for so long.
RICH_S = 1.0
# Where a step has ended that others do not wait for alone, more such are expected for so long.
JOINS_S = 1.0


class Round(msgspec.Struct, frozen=True):
    """What was asked, in which form, and when, by the monotonic clock."""

    ends: Sequence[End]
    claim: Claim
    asked_at: float
    is_plain: bool
    flight: Flight
    steps: Sequence[End] = ()
    others: Sequence[End] = ()

    @property
    def may_return(self) -> bool:
        """Whether jobs may go back by its ends. Plain ones have succeeded; steps are apart from them."""
        return not self.is_plain or bool(self.steps)


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
        self._is_readable = False
        self._rich_until = 0.0
        self._joins_until = 0.0
        self._busy_until = 0.0
        self._flights = Flights()
        self.has_company = False
        """Whether other workers give the server something to do."""

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

    def enough(self, here: int) -> int:
        """How many ends make another round worth while, where so many jobs run here or have ended. A round costs the server as
        much as 25 jobs in it, so while it is at one, most of them: with fewer there would soon be three groups of jobs instead
        of two. Once that one is answered few will do, since the server waits for us. With nothing under way a lone worker sends
        half of them, and the server is at these while the others end; where there are more workers it is at theirs."""
        if self._under_way:
            return LEAST_ENDS if self.is_answered else max(LEAST_ENDS, here * 3 // 4)
        return max(LEAST_ENDS, here if self.has_company else here // 2)

    def is_small(self, free: int, running: int) -> bool:
        """Whether a round that claims so many would be the smaller part of what this pump is about to say."""
        return not self._under_way and self._is_busy and free < LEAST_ENDS < running

    @property
    def _is_busy(self) -> bool:
        return time.monotonic() < self._busy_until

    @property
    def is_overdue(self) -> bool:
        """Whether the oldest answer should have come by now: to hear it fails, or hears it at last."""
        return time.monotonic() >= self._under_way[0].asked_at + self._store.longest_s

    @property
    def is_answered(self) -> bool:
        """Whether the oldest answer is here, or has begun to come."""
        return self._is_readable or (self._pipeline is not None and self._pipeline.has_answer)

    def note_readable(self) -> None:
        """The `descriptor` can be read."""
        self._is_readable = True

    @property
    def descriptor(self) -> int:
        """What becomes readable when an answer comes that is not here yet."""
        assert self._pipeline is not None
        return self._pipeline.descriptor

    def ask_ahead(self, ends: Sequence[End], claim: Claim) -> bool:
        """Send a round without waiting for its answer, if it is one for that."""
        if self._pipeline is None or not self.has_room or not self._pipeline.is_possible:
            return False
        if len(ends) < LEAST_ENDS and not (self._is_busy and claim.top >= LEAST_ENDS):
            return False
        asked = self._composed(ends, claim)
        units = self._units(asked, expects_joins=asked.asked_at < self._joins_until)
        if units is None:
            self._flights.give_back(asked.flight.landed)
            return False
        try:
            self._pipeline.ask(units, deadline_s=self._store.longest_s)
        except BaseException:
            self._flights.give_back(asked.flight.landed)
            raise
        self._under_way.append(asked)
        self._busy_until = asked.asked_at + BUSY_S
        return True

    def hear(self) -> tuple[Round, Advanced]:
        """The oldest round under way, and its answer; waits for it."""
        assert self._pipeline is not None
        self._is_readable = False
        asked = self._under_way[0]
        left_s = asked.asked_at + self._store.longest_s - time.monotonic()
        answers = self._pipeline.answer(deadline_s=max(0.0, left_s))
        self._under_way.popleft()
        return asked, self._read(asked, answers)

    def exchange(
        self, ends: Sequence[End], claim: Claim, keys: Sequence[str] | None
    ) -> tuple[Round, Advanced]:
        """Ask and hear, where nothing is under way."""
        asked = self._composed(ends, claim)
        try:
            return asked, self._asked(asked, keys)
        except BaseException:
            self._flights.give_back(asked.flight.landed)
            raise

    def _asked(self, asked: Round, keys: Sequence[str] | None) -> Advanced:
        # One by one it is the trip that counts: what a join costs more in it is less than another one.
        if asked.steps and (units := self._units(asked, expects_joins=True)) is not None:
            return self._read(asked, self._store.run_all(units))
        if asked.is_plain and not (asked.steps or keys):
            return self._heeded(
                advance_plainly(self._store, self._worker, asked.ends, asked.claim, flight=asked.flight)
            )
        return advance(
            self._store, self._worker, asked.ends, asked.claim, keys=keys, flight=asked.flight, retention=self._retention
        )  # fmt: skip

    def _composed(self, ends: Sequence[End], claim: Claim) -> Round:
        now = time.monotonic()
        steps = [end for end in ends if end.run_id is not None]
        others = [end for end in ends if end.run_id is None] if steps else ends
        can_be_plain = is_plain(claim, self._store.kind) and are_plain(others)
        plain = can_be_plain and (not claim.wants or now >= self._rich_until)
        flight = Flight(self._flights.next(), self._flights.take_landed())
        return Round(ends, claim, now, plain, flight, steps, others)

    def _units(self, asked: Round, *, expects_joins: bool) -> list[tuple[str, dict[str, Any]]] | None:
        """A round that goes out as a whole, ends of steps before everything else; None where it takes more."""
        if not self.has_flights or not all(map(can_be_sent, asked.steps)):
            return None
        last = self._last(asked)
        if last is None:
            return None
        if not asked.steps:
            return [last]
        return [*step_units(self._worker, asked.steps, self._retention, expects_joins=expects_joins), last]

    def _last(self, asked: Round) -> tuple[str, dict[str, Any]] | None:
        if asked.is_plain:
            return plain_unit(self._store.kind, self._worker, asked.others, asked.claim, asked.flight)
        return lone_unit(self._worker, asked.others, asked.claim, asked.flight)

    def _read(self, asked: Round, answers: Sequence[list[Row]]) -> Advanced:
        *first, rows = answers
        if asked.is_plain:
            answer = self._heeded(plain_answer(rows, asked.others, asked.claim))
        else:
            answer = answered(rows, asked.claim)
        if not asked.steps:
            return answer
        ended = steps_ended(first, asked.steps)
        if ended.has_joins:
            self._joins_until = time.monotonic() + JOINS_S
        return with_steps(answer, ended)

    def note(self, asked: Round, answer: Advanced) -> None:
        """What was heard of a round, once its jobs are on their way: which flights have begun and landed by it."""
        if self.has_flights:
            # What was refused may be in flight here by a later claim; if not, the next heartbeat finds that it is not.
            ends = (
                [end for end in asked.ends if (end.id, end.epoch) not in answer.lost]
                if answer.lost
                else asked.ends
            )
            self._flights.forget([end.id for end in ends])
            self._flights.note(asked.flight.number, [job.id for job in answer.claimed])

    def _heeded(self, answer: Advanced) -> Advanced:
        if answer.is_rich:
            self._rich_until = time.monotonic() + RICH_S
        return answer

    def taken_back(self) -> list[End]:
        """The ends of rounds whose answers nobody will hear: they may have been written, or not."""
        ends = [end for asked in self._under_way for end in asked.ends]
        for asked in self._under_way:
            self._flights.give_back(asked.flight.landed)
        self.close()
        return ends

    @property
    def has_flights(self) -> bool:
        """Whether the store finds by flights what is in flight, as PostgreSQL does."""
        return self._store.kind == "postgres"

    def keep(self, known: Collection[int]) -> None:
        """Nothing but these jobs is in flight here; to be said when no round is under way."""
        self._flights.keep(known)

    def tend(self) -> None:
        """Now and then: a worker that has little to do needs no connection for rounds ahead."""
        if self._pipeline is not None:
            self._pipeline.close_when_idle()

    def close(self) -> None:
        self._under_way.clear()
        self._is_readable = False
        if self._pipeline is not None:
            self._pipeline.close()
