"""Advance: the pump's round trip. Finish these runs, give me more. And the same for claims that wait to be started."""

from collections.abc import Iterable, Sequence

import msgspec

from evenflow.job import Claimed, End
from evenflow.store.engine import Engine, Parameters, Row, as_json
from evenflow.store.gates import Turned, turned, verdict_unit


class Want(msgspec.Struct, frozen=True):
    """How many jobs of a queue a worker can take; `place` orders the queues of one claim."""

    queue: str
    place: int
    top: int


class Bound(msgspec.Struct, frozen=True):
    """Where a claim may begin to look in a band: what lies before was claimed a moment ago."""

    queue: str
    priority: int
    turn: float
    id: int


class Claim(msgspec.Struct, frozen=True):
    """What a worker asks for. With `lease_us` the jobs are prefetched as `claimed`, else they run at once.

    Capped queues, and all queues of a capped cluster, give nothing unless `under_caps` is set: then the claim takes the
    locks under which caps are counted, for one more statement.
    """

    wants: Sequence[Want] = ()
    top: int = 0
    bounds: Sequence[Bound] = ()
    lease_us: int | None = None
    moves_v: bool = True
    under_caps: bool = False


class Advanced(msgspec.Struct, frozen=True):
    """The answer: jobs to run in their order, ends that were refused, ends that somebody waits for, V of the bands that
    it claimed from if it moves V (whatever enters them from now on comes behind that turn), keys that have room, whether
    jobs of shut tasks are in the way, the breakers that the ends have opened or closed, and the runs of workflows whose
    steps have ended."""

    claimed: list[Claimed]
    lost: list[tuple[int, int]]
    awaited: list[int]
    rounds: dict[tuple[str, int], float]
    freed: set[str]
    is_obstructed: bool = False
    turned: Sequence[Turned] = ()
    runs: frozenset[int] = frozenset()


NOTHING = Claim()


def advance(
    engine: Engine,
    worker: int,
    ends: Iterable[End] = (),
    claim: Claim = NOTHING,
    *,
    now: int | None = None,
    deadline_s: float = 30.0,
) -> Advanced:
    """Write the ends and claim, in one transaction.

    An end counts only if its (id, epoch) is in flight at this worker; the others are returned as lost and change
    nothing. A claim takes at most `top` jobs, at most `Want.top` of each queue, in the order of place, priority, turn
    and id; never one that is paused, expired or locked by somebody else; never more than the caps of the queues and of
    the cluster leave room for, counting what is in flight (only what runs, where the claim prefetches). Each claimed
    job has its epoch and attempt raised by one.

    Jobs whose task is shut are not claimed but told, to be set aside; a shut queue gives nothing; a breaker's probe passes. What the
    ends say to breakers counts if the ends do. What is given back `unstarted` is ready again, with its keys,
    and not charged to its rates.
    """
    ends = list(ends)
    parameters = {
        "worker": worker,
        "ends": as_json(ends),
        "wants": as_json(claim.wants),
        "bounds": as_json(claim.bounds),
        "top": claim.top if claim.wants else 0,
        "claim_state": "running" if claim.lease_us is None else "claimed",
        "lease_us": claim.lease_us,
        "moves_v": claim.moves_v,
        "caps_locked": claim.under_caps,
        "now": now,
    }
    before, verdicts = _before(ends, worker, claim, now)
    if before:
        answers = engine.run_all([*before, ("advance", parameters)], deadline_s=deadline_s)
    else:
        answers = [engine.run("advance", parameters, deadline_s=deadline_s)]
    return _answer(answers[-1], claim, turned(answers[0]) if verdicts else [])


def _before(
    ends: Sequence[End], worker: int, claim: Claim, now: int | None
) -> tuple[list[tuple[str, Parameters]], bool]:
    """What has to come first in the same transaction, as a rule nothing; and whether it begins with verdicts."""
    units: list[tuple[str, Parameters]] = []
    verdicts = verdict_unit(ends, worker, now)
    if verdicts is not None:  # first: a breaker's row is never waited for by whoever holds a cap
        units.append(verdicts)
    unstarted = [{"id": end.id, "epoch": end.epoch} for end in ends if end.unstarted]
    if unstarted:  # before the caps too: their locks are the shortest
        units.append(("refund_starts", {"runs": as_json(unstarted), "worker": worker, "now": now}))
    if claim.under_caps:
        units.append(("lock_caps", {"queues": as_json([want.queue for want in claim.wants])}))
    return units, verdicts is not None


def _answer(rows: Iterable[Row], claim: Claim, changes: Sequence[Turned]) -> Advanced:
    claimed, lost, awaited, rounds, freed, shut, runs = [], [], [], {}, set(), False, set()
    for row in rows:
        if row[0] == "claimed":
            claimed.append(Claimed(*row[1:]))
        elif row[0] == "lost":
            lost.append((row[1], row[2]))
        elif row[0] == "awaited":
            awaited.append(row[1])
        elif row[0] == "freed":
            freed.add(row[3])
        elif row[0] == "step":
            runs.add(row[1])
        elif row[0] == "shut":
            shut = True
        else:
            rounds[row[3], row[6]] = row[7]
    place = {want.queue: want.place for want in claim.wants}
    claimed.sort(key=lambda job: (place[job.queue], job.priority, job.turn, job.id))
    return Advanced(claimed, lost, awaited, rounds, freed, shut, changes, frozenset(runs))


def start(
    engine: Engine, worker: int, jobs: Sequence[Claimed], *, under_caps: bool = False, now: int | None = None
) -> set[int]:
    """claimed -> running for those whose lease lives and that may run now; returns their ids. The others must not run.

    Jobs of capped queues start only `under_caps`, and only as far as the cap has room for running jobs.
    """
    starts = as_json([{"id": job.id, "epoch": job.epoch} for job in jobs])
    parameters = {"worker": worker, "starts": starts, "caps_locked": under_caps, "now": now}
    if not under_caps:
        return {job for (job,) in engine.run("start_claimed", parameters)}
    locks = ("lock_caps", {"queues": as_json(sorted({job.queue for job in jobs}))})
    return {job for (job,) in engine.run_all([locks, ("start_claimed", parameters)])[1]}


def recharge(engine: Engine, worker: int, jobs: Sequence[Claimed], *, now: int | None = None) -> set[int]:
    """Prefetched jobs under rates are about to start: their windows count from now on instead of from their claim. The
    ids of those that were charged anew; the others have waited for longer than their window, and must not start."""
    runs = as_json([{"id": job.id, "epoch": job.epoch} for job in jobs])
    rows = engine.run("recharge_starts", {"runs": runs, "worker": worker, "now": now})
    return {job for (job,) in rows if job is not None}
