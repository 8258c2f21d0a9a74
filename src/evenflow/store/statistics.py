"""Statistics: what ran, per minute, queue and task, and in total. Counted by workers, added up here, forgotten in time.

They are statistics and no accounts: a process that is killed takes what it has counted since its last report with it.
"""

import contextlib
from collections.abc import Collection, Iterable, Mapping, Sequence

import msgspec

from evenflow.errors import StoreError
from evenflow.rules import histogram
from evenflow.settings import Retention
from evenflow.store.engine import Engine, Row, as_json
from evenflow.store.retention import kept_us

MINUTE_US = 60_000_000
TOTALS_KEPT_US = 30 * 86_400_000_000
OTHER = "(other)"
_decode = msgspec.json.Decoder(list[int]).decode


class Statistic(msgspec.Struct):
    """What was counted for one task in one queue. Waits are from when a job was due to its start, runs are of bodies.

    `minute` is when the minute began, in stored time; 0 is the total since the beginning.
    """

    queue: str
    task: str
    minute: int = 0
    started: int = 0
    succeeded: int = 0
    failed: int = 0
    retried: int = 0
    crashed: int = 0
    expired: int = 0
    cancelled: int = 0
    skipped: int = 0
    discarded: int = 0
    quarantined: int = 0
    wait_us: int = 0
    run_us: int = 0
    waits: list[int] = msgspec.field(default_factory=histogram.empty)
    runs: list[int] = msgspec.field(default_factory=histogram.empty)


COUNTS = (
    "started", "succeeded", "failed", "retried", "crashed", "expired", "cancelled", "skipped", "discarded", "quarantined",
)  # fmt: skip


def add(engine: Engine, counted: Collection[Statistic], *, now: int | None = None) -> int | None:
    """Add what was counted to the current minute and to the totals; the store's time, or None where there was nothing."""
    if not counted:
        return None
    found: int = engine.run("add_statistics", {"cells": as_json(list(counted)), "now": now})[0][0]
    return found


def add_ends(
    engine: Engine, ends: Iterable[tuple[str, str, Sequence[str]]], *, now: int | None = None
) -> None:
    """Count ends that no worker has seen: (queue, task, what to count). What has been done stays done where this fails."""
    cells: dict[tuple[str, str], Statistic] = {}
    for queue, task, kinds in ends:
        for kind in kinds:
            cell = cells.setdefault((queue, task), Statistic(queue, task))
            setattr(cell, kind, getattr(cell, kind) + 1)
    with contextlib.suppress(StoreError):
        add(engine, cells.values(), now=now)


def since(
    engine: Engine, minute: int, *, queue: str | None = None, task: str | None = None
) -> list[Statistic]:
    """What was counted in the minutes from this one on, oldest first."""
    rows = engine.run("list_statistics", {"since": max(1, minute), "queue": queue, "task": task})
    return [_statistic(row) for row in rows]


def totals(engine: Engine) -> list[Statistic]:
    """What was counted since the beginning; a task that has not run for a month is forgotten."""
    return [_statistic(row) for row in engine.run("list_totals", {})]


def prune(engine: Engine, retention: Retention, *, top: int = 1000, now: int | None = None) -> int:
    """Delete minutes whose time has passed, and the totals of tasks that are gone, at most `top`."""
    parameters: Mapping[str, int | None] = {
        "keep_us": kept_us(retention, "statistics"),
        "idle_us": TOTALS_KEPT_US,
        "top": top,
        "now": now,
    }
    return len(engine.run("prune_statistics", parameters))


def _statistic(row: Row) -> Statistic:
    minute, queue, task, *numbers, waits, runs = row
    counts = dict(zip((*COUNTS, "wait_us", "run_us"), numbers, strict=True))
    return Statistic(queue, task, minute, **counts, waits=_decode(waits), runs=_decode(runs))
