"""Advance: the pump's round trip. Finish these runs, give me more. And the same for claims that wait to be started."""

import operator
import secrets
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evenflow.job import Claimed, End, JudgedEnd
from evenflow.settings import Retention
from evenflow.store.arrays import as_array
from evenflow.store.callers import Relay, drive_together
from evenflow.store.ends import epochs_of, successes, told
from evenflow.store.engine import Engine, Last, Row, Steps, as_json
from evenflow.store.gates import Turned, turned, verdict_unit
from evenflow.store.limits import BATCH, Promoted, promoted, promotion
from evenflow.store.open import AnyEngine
from evenflow.store.step_ends import StepsEnded
from evenflow.store.workflows import Settled, after_settling, end_steps


class Want(msgspec.Struct, frozen=True):
    """How many jobs of a queue a worker can take; `place` orders the queues of one claim."""

    queue: str
    place: int
    top: int


class Flight(msgspec.Struct, frozen=True):
    """Under which number PostgreSQL notes what a claim takes, and whose numbers it may forget: all their jobs have ended."""

    number: int
    landed: Sequence[int] = ()

    @property
    def parameters(self) -> dict[str, Any]:
        return {"flight": self.number, "landed": as_array(self.landed)}


class Bound(msgspec.Struct, frozen=True):
    """Where a claim may begin to look in a band: what lies before was claimed a moment ago."""

    queue: str
    priority: int
    turn: float
    id: int


class Reached(msgspec.Struct, frozen=True):
    """How far claims that did not move V have come in a band."""

    queue: str
    priority: int
    turn: float


class Claim(msgspec.Struct, frozen=True):
    """What a worker asks for. With `lease_us` the jobs are prefetched as `claimed`, else they run at once.

    V is moved to the turns that it took and, by a plain round, to those that were `reached` before, unless it was to stay.

    Capped queues, and all queues of a capped cluster, give nothing unless `under_caps` is set: then the claim takes the
    locks under which caps are counted, for one more statement.
    """

    wants: Sequence[Want] = ()
    top: int = 0
    bounds: Sequence[Bound] = ()
    lease_us: int | None = None
    moves_v: bool = True
    under_caps: bool = False
    reached: Sequence[Reached] = ()


class Advanced(msgspec.Struct, frozen=True):
    """The answer: jobs to run in their order, ends that were refused, ends that somebody waits for, V of the bands that
    it claimed from if it moves V (whatever enters them from now on comes behind that turn), keys that have room, whether
    jobs of shut tasks are in the way, the breakers that the ends have opened or closed, what came of ended steps of
    workflows, the runs that are still to be told of such ends, how many steps have been released and not yet admitted, and
    what came of the keys that were to be passed on.

    `is_rich` says that a plain round (plain.py) has claimed nothing, since there is more to be said of what comes first."""

    claimed: list[Claimed]
    lost: list[tuple[int, int]]
    awaited: list[int]
    rounds: dict[tuple[str, int], float]
    freed: set[str]
    is_obstructed: bool = False
    turned: Sequence[Turned] = ()
    settled: Settled | None = None
    runs: frozenset[int] = frozenset()
    arriving: int = 0
    promoted: Promoted | None = None
    is_rich: bool = False


NOTHING = Claim(moves_v=False)
_PAYLOAD, _IS_PLAIN = 15, 21  # their places in a row of the answer
_names = msgspec.json.Decoder(list[str]).decode
_in_queue = operator.attrgetter("priority", "turn", "id")
KEPT = Retention()
BACK = ("ready", "scheduled", "waiting")


def advance(
    engine: AnyEngine | Relay,
    worker: int,
    ends: Iterable[End] = (),
    claim: Claim = NOTHING,
    *,
    keys: Sequence[str] | None = None,
    flight: Flight | None = None,
    retention: Retention = KEPT,
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

    Children of ended steps are told first, so they may be among the claimed. `retention` is for runs that end by it.

    `keys` have room and are passed on before the claim, so whoever gets them may be among the claimed. On SQLite so are those
    that the ends let go of, unless `keys` is None: it saves a transaction, and a second look at the same pages. On PostgreSQL
    the locks of keys are held as shortly as can be, in a transaction of their own; there nobody gives `keys` but tests.

    `flight` is for PostgreSQL, where whoever gives none never has it forgotten while the worker lives.
    """
    ends, flight = list(ends), flight or a_flight()
    if ends and (engine.kind == "sqlite" or any(end.run_id is not None for end in ends)):
        return _in_turn(engine, worker, ends, claim, keys, flight, retention, now, deadline_s)
    verdicts = verdict_unit(ends, worker, now)
    first = [] if verdicts is None else [verdicts]
    if keys:
        first.append(promotion(keys, now))
    units = [*first, *_before(ends, worker, claim, now), _last(worker, ends, claim, flight, now)]
    if len(units) > 1:
        answers = engine.run_all(units, deadline_s=deadline_s)
    else:
        answers = [engine.run(*units[0], deadline_s=deadline_s)]
    changes = [] if verdicts is None else turned(answers[0])
    done = promoted(answers[len(first) - 1]) if keys else None
    return _answer(answers[-1], claim, changes, done)


def a_flight() -> Flight:
    """One with a number that nobody else has, for claims that are not a worker's; also in programs that seed their random numbers."""
    return Flight(secrets.randbits(62))


def lone_unit(
    worker: int, ends: Sequence[End], claim: Claim, flight: Flight
) -> tuple[str, dict[str, Any]] | None:
    """A round that is a single unit, for whoever sends it without waiting; None where it takes more."""
    if any(end.run_id is not None or isinstance(end, JudgedEnd) for end in ends) or _before(
        ends, worker, claim, None
    ):
        return None
    return _last(worker, ends, claim, flight, None)


def answered(rows: Iterable[Row], claim: Claim) -> Advanced:
    """What the rows of a round with a `lone_unit` say."""
    return _answer(rows, claim, [], None)


def with_steps(answer: Advanced, ended: StepsEnded) -> Advanced:
    """The answer of a round with what came of the steps that ended in it."""
    return msgspec.structs.replace(
        answer,
        lost=answer.lost + ended.lost,
        awaited=answer.awaited + ended.awaited,
        freed=answer.freed | ended.freed,
        settled=ended.settled,
        runs=ended.runs,
        arriving=ended.settled.arriving,
    )


def _in_turn(
    engine: AnyEngine | Relay, worker: int, ends: Sequence[End], claim: Claim, keys: Sequence[str] | None,
    flight: Flight, retention: Retention, now: int | None, deadline_s: float,
) -> Advanced:  # fmt: skip
    """The same where one step has to know what the step before has found: children of workflows are told, and on SQLite keys
    are passed on, before the claim."""
    steps = [end for end in ends if end.run_id is not None]
    ended = [end for end in steps if end.state not in BACK]
    parked = [end.id for end in steps if end.state == "waiting"]
    holders = [end for end in ends if not (end.is_plain or end.state in BACK)]

    def together() -> Steps[Advanced]:
        verdicts = verdict_unit(ends, worker, now)
        changes = [] if verdicts is None else turned((yield verdicts))
        settled, noted = (
            (yield from end_steps(ended, worker, retention, now)) if ended else (Settled(), frozenset())
        )
        freed = []
        if engine.kind == "sqlite" and holders:
            freed = yield "let_go", {"epochs": epochs_of(holders), "worker": worker}
        names, left = _to_pass_on(freed, keys)
        done = promoted((yield promotion(names, now))) if names else None
        paused = (yield "paused_steps", {"ids": as_json(parked)}) if parked else []
        others = [_bare(end, paused) for end in ends]
        plainly, rows = list[End](), list[Row]()
        if engine.kind == "sqlite":
            plainly, others = _parted(others)
        if plainly:
            rows += yield "end_successes", successes(plainly, worker) | {"now": now}
        for unit in _before(others, worker, claim, now):  # noqa: UP028 - `yield from` would send rows into a list
            yield unit
        if others or claim.wants or not plainly:
            rows += yield Last(*_last(worker, others, claim, flight, now))
        answer = _answer(rows, claim, changes, done, plainly)
        answer.freed.update(left)
        return msgspec.structs.replace(answer, settled=settled if steps else None, runs=noted)

    answer = drive_together(engine, together, deadline_s=deadline_s)
    if answer.settled is not None:
        after_settling(engine, answer.settled, retention, now)
    return answer


def _parted(ends: Sequence[End]) -> tuple[list[End], list[End]]:
    """Those of which nothing but the row of their job is to be moved, and the others."""
    plainly, others = list[End](), list[End]()
    for end in ends:
        is_plain = end.state == "succeeded" and end.error is None and not end.crashed
        (plainly if is_plain else others).append(end)
    return plainly, others


def _to_pass_on(freed: Iterable[Row], keys: Sequence[str] | None) -> tuple[list[str], list[str]]:
    """Which keys go to the next in line in this transaction, and which are left to whoever asked."""
    names = sorted({*(name for (name,) in freed), *(keys or ())})
    top = 0 if keys is None else BATCH
    return names[:top], names[top:]


def _bare(end: End, paused: Sequence[Row]) -> End:
    """The end of a step's job. Its result has its home in the step; and it waits only where its run is still paused."""
    if end.run_id is None:
        return end
    state = "ready" if end.state == "waiting" and (end.id,) not in paused else end.state
    return msgspec.structs.replace(end, state=state, result=None, run_id=None)


def _last(
    worker: int, ends: Sequence[End], claim: Claim, flight: Flight, now: int | None
) -> tuple[str, dict[str, Any]]:
    asked = {
        "worker": worker,
        "wants": as_json(claim.wants),
        "bounds": as_json(claim.bounds),
        "top": claim.top if claim.wants else 0,
        "claim_state": "running" if claim.lease_us is None else "claimed",
        "lease_us": claim.lease_us,
        "moves_v": claim.moves_v,
        "caps_locked": claim.under_caps,
        "now": now,
        **flight.parameters,
    }
    if not ends:
        return "claim", asked
    asked["ends"] = as_json(ends)
    if any(end.state in BACK for end in ends):
        return "advance", asked
    return "advance_onward" if claim.moves_v else "advance_plainly", asked


def _before(
    ends: Sequence[End], worker: int, claim: Claim, now: int | None
) -> list[tuple[str, dict[str, Any]]]:
    """What has to come before it in the same transaction, as a rule nothing. Verdicts come before this: a breaker's row
    is never waited for by whoever holds a cap, or a run."""
    units: list[tuple[str, dict[str, Any]]] = []
    back = [end.id for end in ends if end.state in BACK]
    if back:
        units.append(("lock_returns", {"ids": as_json(back)}))
    unstarted = [{"id": end.id, "epoch": end.epoch} for end in ends if end.unstarted]
    if unstarted:  # before the caps: their locks are the shortest
        units.append(("refund_starts", {"runs": as_json(unstarted), "worker": worker, "now": now}))
    if claim.under_caps:
        units.append(("lock_caps", {"queues": as_json([want.queue for want in claim.wants])}))
    return units


def _answer(
    rows: Iterable[Row], claim: Claim, changes: Sequence[Turned], done: Promoted | None, plainly: Sequence[End] = ()
) -> Advanced:  # fmt: skip
    claimed, lost, awaited, rounds, freed, shut = [], [], [], {}, set(), False
    for row in rows:
        if row[0] == "claimed":
            claimed.append(claimed_of(row))
        elif row[0] == "lost":
            lost.append((row[1], row[2]))
        elif row[0] == "awaited":
            awaited.append(row[1])
        elif row[0] == "ended":
            waited_for, refused = told(row, plainly)
            awaited += waited_for
            lost += refused
        elif row[0] == "freed":
            freed.update(_names(row[_PAYLOAD]))
        elif row[0] == "shut":
            shut = True
        else:
            rounds[row[3], row[6]] = row[7]
    return Advanced(in_order(claimed, claim), lost, awaited, rounds, freed, shut, changes, promoted=done)


def claimed_of(row: Row) -> Claimed:
    """The job of a row of the kind `claimed`. SQLite's truths are numbers."""
    return Claimed(*(*row[1:_IS_PLAIN], bool(row[_IS_PLAIN])))


def in_order(claimed: list[Claimed], claim: Claim) -> list[Claimed]:
    """Claimed jobs in the order of their claim, in which no database has to return them."""
    if len(claim.wants) == 1:
        claimed.sort(key=_in_queue)
    else:
        place = {want.queue: want.place for want in claim.wants}
        claimed.sort(key=lambda job: (place[job.queue], job.priority, job.turn, job.id))
    return claimed


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
