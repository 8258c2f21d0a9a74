"""Plain rounds: what most rounds of a worker are, in statements of their own size.

Runs that succeeded, of jobs without keys and outside of workflows; and a claim from queues about which there is nothing to say.
Whether that is so is decided by the statement itself: what a worker believes may be old. Lists are told in the form that each
database reads quickest: arrays, or JSON in which little stands within something else.
"""

import operator
from collections.abc import Iterable, Sequence
from typing import Any

from evenflow.job import Claimed, End
from evenflow.store.advance import NOTHING, Advanced, Claim, Flight, Want, a_flight, claimed_of, in_order
from evenflow.store.arrays import as_array
from evenflow.store.ends import successes, told
from evenflow.store.engine import Engine, Row, as_json

_place = operator.attrgetter("place")


def are_plain(ends: Iterable[End]) -> bool:
    """Whether a plain round can write these ends."""
    return all(end.is_plain for end in ends)


def is_plain(claim: Claim, kind: str) -> bool:
    """Whether a plain round on this kind of database can make this claim: it neither prefetches nor, but on SQLite, counts under
    caps, which takes locks elsewhere."""
    return claim.lease_us is None and (kind == "sqlite" or not claim.under_caps)


def advance_plainly(
    engine: Engine, worker: int, ends: Sequence[End], claim: Claim = NOTHING, *, flight: Flight | None = None,
    now: int | None = None,
) -> Advanced:  # fmt: skip
    """`advance` as a plain round. Where the answer `is_rich` the ends are written, and the claim has to be made in full."""
    name, asked = plain_unit(engine.kind, worker, ends, claim, flight or a_flight())
    return plain_answer(engine.run(name, asked | {"now": now}), ends, claim)


def plain_unit(
    kind: str, worker: int, ends: Sequence[End], claim: Claim, flight: Flight
) -> tuple[str, dict[str, Any]]:
    """The one unit of a plain round on this kind of database, for ends that `are_plain` and a claim that is."""
    if ends:
        name = "plain_advance" if claim.moves_v else "plain_advance_still"
    else:
        name = "plain_claim" if claim.moves_v else "plain_claim_still"
    asked = {"worker": worker, "top": claim.top if claim.wants else 0, "now": None}
    wants = sorted(claim.wants, key=_place)
    if kind == "sqlite":
        return name, asked | _in_json(wants, claim) | successes(ends, worker)
    return name, asked | _in_arrays(ends, wants, claim) | flight.parameters


def _in_arrays(ends: Sequence[End], wants: Sequence[Want], claim: Claim) -> dict[str, Any]:
    asked = {
        "want_queues": as_array([want.queue for want in wants]),
        "want_tops": as_array([want.top for want in wants]),
        "bound_queues": as_array([bound.queue for bound in claim.bounds]),
        "bound_priorities": as_array([bound.priority for bound in claim.bounds]),
        "bound_turns": as_array([bound.turn for bound in claim.bounds]),
        "bound_ids": as_array([bound.id for bound in claim.bounds]),
    }
    if claim.moves_v:
        asked["reached_queues"] = as_array([band.queue for band in claim.reached])
        asked["reached_priorities"] = as_array([band.priority for band in claim.reached])
        asked["reached_turns"] = as_array([band.turn for band in claim.reached])
    if ends:
        asked["ids"] = as_array([end.id for end in ends])
        asked["epochs"] = as_array([end.epoch for end in ends])
        asked["keeps"] = as_array([end.keep_us for end in ends])
        asked["results"] = as_array([end.result for end in ends])
    return asked


def _in_json(wants: Sequence[Want], claim: Claim) -> dict[str, Any]:
    bounds: dict[str, list[tuple[int, float, int]]] = {}
    for bound in claim.bounds:
        bounds.setdefault(bound.queue, []).append((bound.priority, bound.turn, bound.id))
    return {
        "wants": as_json([(want.queue, want.top, bounds.get(want.queue, ())) for want in wants]),
        "reached": as_json([(band.queue, band.priority, band.turn) for band in claim.reached]),
        "caps_locked": claim.under_caps,
    }


def plain_answer(rows: Iterable[Row], ends: Sequence[End], claim: Claim) -> Advanced:
    """What the rows of a plain round say."""
    claimed: list[Claimed] = []
    lost: list[tuple[int, int]] = []
    awaited: list[int] = []
    rounds: dict[tuple[str, int], float] = {}
    is_rich = False
    for row in rows:
        if row[0] == "claimed":
            claimed.append(claimed_of(row))
        elif row[0] == "round":
            rounds[row[3], row[6]] = row[7]
        elif row[0] == "rich":
            is_rich = claim is not NOTHING
        else:
            awaited, lost = told(row, ends)
    return Advanced(in_order(claimed, claim), lost, awaited, rounds, set(), is_rich=is_rich)
