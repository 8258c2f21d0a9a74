"""Ends of steps in one trip: what most rounds with steps of workflows have to write on PostgreSQL, in units that nobody has to hear
one by one. Steps that succeeded; what cannot be decided on the way is noted, and told after the commit.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evenflow.job import End
from evenflow.settings import Retention
from evenflow.store.arrays import as_array
from evenflow.store.engine import Row
from evenflow.store.retention import kept_us
from evenflow.store.workflows import Settled

_TOLD = 2  # units whose rows have a kind; behind them come steps that were released
_ids = msgspec.json.Decoder(list[int]).decode


class StepsEnded(msgspec.Struct, frozen=True):
    """What came of ended steps, the runs that are still to be told, and what `Advanced` says of ends. `has_joins` says that some
    had children which wait for more than one parent, or were the last of their runs."""

    settled: Settled
    runs: frozenset[int]
    lost: list[tuple[int, int]]
    awaited: list[int]
    freed: set[str]
    has_joins: bool


def can_be_sent(end: End) -> bool:
    """Whether the end of a step needs no more than these units: no breaker has to hear of it, and nothing is to be kept of errors."""
    return end.state == "succeeded" and type(end) is End


def step_units(
    worker: int, ends: Iterable[End], retention: Retention, *, expects_joins: bool = True
) -> list[tuple[str, dict[str, Any]]]:
    """What writes these ends, in the transaction of the claim that follows: children that enter their queues may be claimed.

    Where no joins are expected those that come are noted, and have to be settled: dearer for them, cheaper for all others."""
    ends = sorted(ends, key=lambda end: end.id)  # locked in this order, as everywhere
    finish = {
        "ids": as_array([end.id for end in ends]),
        "epochs": as_array([end.epoch for end in ends]),
        "keeps": as_array([end.keep_us for end in ends]),
        "results": as_array([end.result for end in ends]),
        "worker": worker,
        "now": None,
    }
    if not expects_joins:
        return [("finish_lone_steps", finish)]
    decide = {"keep_us": kept_us(retention, "succeeded"), "now": None}
    return [("finish_steps", finish), ("decide_held", decide), ("release_steps", {"ids": None, "now": None})]


def steps_ended(answers: Sequence[Iterable[Row]], ends: Sequence[End]) -> StepsEnded:
    """What the rows of `step_units` say."""
    settled = Settled()
    runs: set[int] = set()
    awaited: list[int] = []
    lost: list[tuple[int, int]] = []
    freed: set[str] = set()
    released: list[tuple[int, str | None]] = []
    is_held = False
    for kind, id, _, text in (row for rows in answers[:_TOLD] for row in rows):
        match kind:
            case "lone":
                released.append((id, text))
            case "over":
                settled.ended.append(id)
            case "held":
                is_held = True
            case "noted":
                runs.add(id)
            case "awaited":
                awaited.append(id)
            case "freed":
                freed.add(text)
            case "ended":
                written = set(_ids(text)) if text is not None else set()
                lost = [(end.id, end.epoch) for end in ends if end.id not in written]
    settled.note_released(released)
    for joined in answers[_TOLD:]:
        settled.note_released((id, queue) for id, queue in joined)
    return StepsEnded(settled, frozenset(runs), lost, awaited, freed, is_held or bool(runs))
