"""Fair turns: where a job stands in its queue, written when it is admitted; under `time` it may move later, see `Respacing`.

A turn is virtual time in rounds, a float; both databases do the operations below in the same order, so the
results are the same to the last bit. V is the greatest turn claimed so far in a (queue, priority).
`TurnLine` is the model that the stores are tested against.
"""

import functools
import math
from collections.abc import Iterable, Mapping, Sequence
from fractions import Fraction

import msgspec

from evenflow.checks import LARGEST
from evenflow.queues import Strategy

COST_MEMORY = 50  # runs: a mean of fewer is unsteady, one of more is slow to follow a change
TOLERANCE = (
    1.25  # a group off by this factor, beside two others, leaves Jain's index of their times above 0.95
)
UNIT_DRIFT = 4.0  # the unit matters to newcomers alone, and moving it moves every group
GREATEST_ID = 2**63 - 1


def step_of(weight: float = 1.0, cost: float = 1.0) -> float:
    """How far apart a group's turns lie: a weight of 2 halves it, a cost of 2 doubles it.

    >>> step_of(weight=2), step_of(cost=1.5)
    (0.5, 1.5)
    """
    return cost / weight


def time_cost(group_mean_us: float | None, queue_mean_us: float | None) -> float:
    """What a job costs under `time`: its group's mean run time in units of the queue's mean.

    Relative, so that one round is one average job whether jobs take a millisecond or an hour. 1 before
    anything was measured.

    >>> time_cost(10_000_000, 2_000_000)
    5.0
    """
    if not group_mean_us or not queue_mean_us:
        return 1.0
    return group_mean_us / queue_mean_us


@functools.lru_cache(1024)
def group_cap(most: int, weight: float) -> int:
    """How many jobs of a group may run at once: `most` times its weight, rounded down, and never none.

    Weights are taken as they are written: 100 times 0.29 is 29, which no float says.

    >>> group_cap(2, 3), group_cap(2, 0.75), group_cap(2, 0.1)
    (6, 1, 1)
    """
    return min(max(1, math.floor(most * Fraction(str(weight)))), LARGEST)


def lone_turn(v: float) -> float:
    """The turn of a job without a group, and of one that returns (retry, rescue, promotion, snooze).

    V + 1 and not V: a job that snoozes again and again would stay first for ever, and a stream of groups
    never seen before would starve every backlog.

    >>> lone_turn(7.0)
    8.0
    """
    return v + 1


def grouped_turns(v: float, tail: float | None, step: float, jobs: int) -> tuple[list[float], float]:
    """The turns of a group's next `jobs` jobs, and the group's new tail.

    The first is max(V + 1, tail + step), each other one step later. `tail` is None for a group without a row.

    >>> grouped_turns(v=5.0, tail=9.0, step=1.0, jobs=2)
    ([10.0, 11.0], 11.0)
    """
    span = jobs * step
    new_tail = lone_turn(v) + (jobs - 1) * step
    if tail is not None:
        new_tail = max(tail + span, new_tail)
    base = new_tail - span
    return [base + step * place for place in range(1, jobs + 1)], new_tail


def is_misplaced(placed_step: float, step: float) -> bool:
    """Whether jobs that were placed a step apart have to move, because another step would be right.

    >>> is_misplaced(1.0, 1.2), is_misplaced(1.0, 10.0), is_misplaced(1.0, 0.1)
    (False, True, True)
    """
    return not placed_step / TOLERANCE <= step <= placed_step * TOLERANCE


class Respacing(msgspec.Struct, frozen=True):
    """The way of a group's waiting jobs to another step, in batches, so that none ever passes another of its group.

    Apart: every turn is stretched away from the `anchor`, V at the beginning, the last job first. What the group got
    too cheaply meanwhile is paid for, since the places are those that it would have had from the anchor on.
    Closer: the jobs are placed anew behind the `anchor`, which moves along, the first one first; never behind V, so that
    no place is in the past. (`turn`, `id`) is where the last batch ended.

    >>> Respacing.begun(v=10.0, tail=14.0, placed_step=1.0, step=3.0).stretched(12.0)
    16.0
    """

    step: float
    ratio: float
    anchor: float
    turn: float
    id: int

    @classmethod
    def begun(cls, v: float, tail: float, placed_step: float, step: float) -> "Respacing":
        """What to do about jobs up to `tail` that lie `placed_step` apart."""
        ratio = step / placed_step
        return cls(step, ratio, v, tail if ratio > 1 else v, GREATEST_ID)

    @property
    def stretches(self) -> bool:
        return self.ratio > 1

    def stretched(self, turn: float) -> float:
        """The new turn of a job that moves away from the anchor."""
        return self.anchor + (turn - self.anchor) * self.ratio

    def closed_up(self, turns: Sequence[float]) -> list[float]:
        """The new turns of the next jobs, which move closer together. None moves back in the line."""
        places = (self.anchor + self.step * rank for rank in range(1, len(turns) + 1))
        return [min(turn, place) for turn, place in zip(turns, places, strict=True)]

    def at(self, v: float) -> "Respacing":
        """The same when V has reached `v`: what closes up stays behind it."""
        if self.stretches:
            return self
        turn, id = max((self.turn, self.id), (v, GREATEST_ID))
        return msgspec.structs.replace(self, anchor=max(self.anchor, v), turn=turn, id=id)

    def after(self, turn: float, id: int, placed: float) -> "Respacing":
        """The same after a batch that ended with the job that stood at (turn, id) and stands at `placed` now."""
        anchor = self.anchor if self.stretches else placed
        return msgspec.structs.replace(self, anchor=anchor, turn=turn, id=id)

    def final_tail(self, tail: float) -> float:
        """The group's tail when nothing is left to move."""
        return tail if self.stretches else min(tail, self.anchor)


def fifo_turn(now: int) -> float:
    """Under `fifo` a job's turn is the time it was admitted, in microseconds; equal times go by id."""
    return float(now)


def advanced(v: float, claimed: Iterable[float]) -> float:
    """V after a claim: the greatest turn ever claimed, so it stays where it is when older turns are claimed.

    >>> advanced(7.0, [3.0, 9.0, 4.0]), advanced(7.0, [])
    (9.0, 7.0)
    """
    return max([v, *claimed])


def is_forgettable(v: float, tail: float, step: float) -> bool:
    """Whether a group's row can go: its next job would get the same turn without it.

    >>> is_forgettable(v=5.0, tail=5.0, step=1.0)
    True
    """
    return tail + step <= lone_turn(v)


class TurnLine:
    """One (queue, priority) in memory: the reference for which jobs a claim returns, in which order.

    >>> line = TurnLine("round-robin")
    >>> line.admit([1, 2, 3], group="bob", now=0)
    >>> line.admit([4], group="alice", now=0)
    >>> line.claim(2)
    [1, 4]
    """

    def __init__(self, strategy: Strategy = "round-robin") -> None:
        self.strategy = strategy
        self.v = 0.0
        self.tails: dict[str, float] = {}
        self.steps: dict[str, float] = {}
        self.groups: dict[int, str] = {}
        self.turns: dict[int, float] = {}

    def admit(self, jobs: Sequence[int], *, group: str | None, now: int, step: float = 1.0) -> None:
        """Give each job its turn. `step` comes from `step_of` and matters for grouped jobs alone. Under `time` a group
        that waits goes on in the step in which it does: only `respace` changes it, for all of its jobs."""
        if not jobs:
            return
        if self.strategy == "fifo":
            self.turns.update(dict.fromkeys(jobs, fifo_turn(now)))
        elif group is None:
            self.turns.update(dict.fromkeys(jobs, lone_turn(self.v)))
        else:
            self.steps[group] = step = self._step(group, step)
            turns, self.tails[group] = grouped_turns(self.v, self.tails.get(group), step, len(jobs))
            self.turns.update(zip(jobs, turns, strict=True))
            self.groups.update(dict.fromkeys(jobs, group))

    def readmit(self, job: int, *, now: int) -> None:
        """A job comes back: it gets a new turn in the current round and leaves its group's tail alone."""
        self.turns[job] = fifo_turn(now) if self.strategy == "fifo" else lone_turn(self.v)
        self.groups.pop(job, None)

    def claim(self, limit: int) -> list[int]:
        """Take the first `limit` jobs by (turn, id) and move V."""
        taken = sorted(self.turns, key=lambda job: (self.turns[job], job))[:limit]
        self.v = advanced(self.v, [self.turns.pop(job) for job in taken])
        return taken

    def begin_respacing(self, group: str, step: float) -> Respacing | None:
        """What to do about a group that waits in another step; new jobs follow it from now on."""
        tail = self.tails.get(group, 0.0)
        if tail <= self.v or not is_misplaced(self.steps[group], step):
            return None
        respacing = Respacing.begun(self.v, tail, self.steps[group], step)
        self.steps[group] = step
        if respacing.stretches:
            self.tails[group] = respacing.stretched(tail)
        return respacing

    def respace(self, group: str, respacing: Respacing, top: int) -> Respacing | None:
        """Move the next `top` jobs; None when all have moved."""
        now = respacing.at(self.v)
        mine = sorted((turn, job) for job, turn in self.turns.items() if self.groups.get(job) == group)
        if now.stretches:
            batch = [place for place in mine if place < (now.turn, now.id) and place[0] > now.anchor][::-1][
                :top
            ]
            turns = [now.stretched(turn) for turn, _ in batch]
        else:
            batch = [place for place in mine if place > (now.turn, now.id)][:top]
            turns = now.closed_up([turn for turn, _ in batch])
        self.turns.update({job: turn for (_, job), turn in zip(batch, turns, strict=True)})
        if batch:
            now = now.after(*batch[-1], turns[-1])
        if len(batch) == top:
            return now
        self.tails[group] = now.final_tail(self.tails[group])
        return None

    def forget_idle_groups(self, steps: Mapping[str, float]) -> None:
        """Drop the rows that no longer matter; no later turn may differ because of it."""
        self.tails = {
            group: tail
            for group, tail in self.tails.items()
            if not is_forgettable(self.v, tail, self._step(group, steps.get(group, 1.0)))
        }

    def _step(self, group: str, step: float) -> float:
        waits = self.strategy == "time" and self.tails.get(group, 0.0) > self.v
        return self.steps[group] if waits else step
