"""Fair turns: where a job stands in its queue, written once when it is admitted.

A turn is virtual time in rounds, a float; both databases do the operations below in the same order, so the
results are the same to the last bit. V is the greatest turn claimed so far in a (queue, priority).
`TurnLine` is the model that the stores are tested against.
"""

from collections.abc import Iterable, Mapping, Sequence

from evenflow.queues import Strategy


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
        self.turns: dict[int, float] = {}

    def admit(self, jobs: Sequence[int], *, group: str | None, now: int, step: float = 1.0) -> None:
        """Give each job its turn. `step` comes from `step_of` and matters for grouped jobs alone."""
        if not jobs:
            return
        if self.strategy == "fifo":
            self.turns.update(dict.fromkeys(jobs, fifo_turn(now)))
        elif group is None:
            self.turns.update(dict.fromkeys(jobs, lone_turn(self.v)))
        else:
            turns, self.tails[group] = grouped_turns(self.v, self.tails.get(group), step, len(jobs))
            self.turns.update(zip(jobs, turns, strict=True))

    def readmit(self, job: int, *, now: int) -> None:
        """A job comes back: it gets a new turn in the current round and leaves its group's tail alone."""
        self.turns[job] = fifo_turn(now) if self.strategy == "fifo" else lone_turn(self.v)

    def claim(self, limit: int) -> list[int]:
        """Take the first `limit` jobs by (turn, id) and move V."""
        taken = sorted(self.turns, key=lambda job: (self.turns[job], job))[:limit]
        self.v = advanced(self.v, [self.turns.pop(job) for job in taken])
        return taken

    def forget_idle_groups(self, steps: Mapping[str, float]) -> None:
        """Drop the rows that no longer matter; no later turn may differ because of it."""
        self.tails = {
            group: tail
            for group, tail in self.tails.items()
            if not is_forgettable(self.v, tail, steps.get(group, 1.0))
        }
