"""Schedules: what fires when, and the fire itself, which is one transaction.

Conditions: a slot of a key fires at most once, whoever tries, and however often; its job exists if and only if the fire
is noted. Times come from the caller, who has asked the database's clock.
"""

from collections.abc import Sequence
from typing import Any

import msgspec

from evenflow.ids import IdSource
from evenflow.job import NewJob
from evenflow.schedule import SCHEDULER_SILENT_US, NewSchedule, StoredSchedule
from evenflow.store.callers import drive_together
from evenflow.store.engine import Engine, Row, Steps, as_json
from evenflow.store.enqueue import Enqueued, enqueue_steps
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.open import AnyEngine


class Scheduler(msgspec.Struct, frozen=True):
    """A scheduler that is alive."""

    id: int
    host: str
    pid: int
    seen_at: int


class Fire(msgspec.Struct, frozen=True):
    """What became of one slot. `outcome`: enqueued, duplicate (a unique job was open), overlapped (the last run was),
    failed (its job could not be made), by hand."""

    slot: int
    fired_at: int
    job_id: int | None
    outcome: str


class Planned(msgspec.Struct, frozen=True):
    """A schedule with the slot that comes next."""

    schedule: NewSchedule
    next_run: int


def see(
    engine: Engine, scheduler: int, *, host: str, pid: int, fingerprints: Sequence[str], tasks: Sequence[str],
    now: int | None = None,
) -> None:  # fmt: skip
    """Say that a scheduler is alive, what it declares and which tasks it knows."""
    engine.run(
        "see_scheduler",
        {
            "id": scheduler, "host": host, "pid": pid, "fingerprints": as_json(fingerprints), "tasks": as_json(tasks),
            "now": now,
        },
    )  # fmt: skip


def declare(
    engine: Engine, scheduler: int, planned: Sequence[Planned], *, takes_over: bool, now: int | None = None
) -> list[str]:
    """Store what code declares; the keys that are new or changed. Pauses and past fires stay.

    With `takes_over` the caller's word replaces another version's; without it only where no living scheduler says
    the stored one any more. A key that was added at run time is left alone.
    """
    rows = engine.run(
        "declare_schedules",
        {
            "schedules": _listed(planned), "scheduler": scheduler, "takes_over": takes_over,
            "silent_us": SCHEDULER_SILENT_US, "now": now,
        },
    )  # fmt: skip
    return [key for (key,) in rows]


def add(engine: Engine, planned: Planned, *, now: int | None = None) -> bool:
    """Store a schedule at run time; False where its key is taken."""
    return bool(engine.run("add_schedule", {"schedules": _listed([planned]), "now": now}))


def change(engine: Engine, planned: Planned, before: str, *, now: int | None = None) -> bool:
    """Replace a schedule that was added at run time; False if its fingerprint is not `before` any more.

    Where the pattern is the same, the next slot stays.
    """
    rows = engine.run("change_schedule", {"schedules": _listed([planned]), "before": before, "now": now})
    return bool(rows)


def pause(
    engine: Engine, key: str, *, who: str | None = None, why: str | None = None, now: int | None = None
) -> bool:
    """Fire no more until it is resumed; False if there is no such schedule."""
    return bool(engine.run("pause_schedule", {"key": key, "who": who, "why": why, "now": now}))


def resume(engine: Engine, key: str, next_run: int) -> bool:
    """Fire again from `next_run` on; False if it was not paused."""
    return bool(engine.run("resume_schedule", {"key": key, "next_run": next_run}))


def remove(engine: Engine, key: str, *, now: int | None = None) -> bool:
    """Delete a schedule; False if there is none, or if a living scheduler declares it in code."""
    return bool(engine.run("remove_schedule", {"key": key, "silent_us": SCHEDULER_SILENT_US, "now": now}))


def found(engine: Engine, key: str | None = None, *, now: int | None = None) -> list[StoredSchedule]:
    """All schedules by key, or the one with this key."""
    rows = engine.run("list_schedules", {"key": key, "silent_us": SCHEDULER_SILENT_US, "now": now})
    return [_stored(row) for row in rows]


def due(
    engine: Engine, fingerprints: Sequence[str], tasks: Sequence[str], *, top: int, now: int | None = None
) -> tuple[list[StoredSchedule], int]:
    """The schedules that one can fire, the earliest first, whether due or not; and the time of the database."""
    rows = engine.run(
        "due_schedules",
        {"fingerprints": as_json(fingerprints), "tasks": as_json(tasks), "top": top, "now": now},
    )
    return [_stored(row[:-1]) for row in rows], rows[0][-1] if rows else 0


def fire(
    engine: AnyEngine, schedule: StoredSchedule, jobs: Sequence[tuple[int, NewJob]], next_run: int, *, ids: IdSource,
    sign: Sign | None, now: int,
) -> list[Enqueued] | None:  # fmt: skip
    """Enqueue the jobs of (slot, job) pairs and move the schedule on, in one transaction.

    None if another scheduler was quicker, or the schedule has changed. Slots that fired before are left out. With
    overlap="skip" nothing is enqueued while the last job is open, and of several slots only the last one counts.
    """
    return drive_together(engine, lambda: _fire_steps(schedule, jobs, next_run, ids, sign, now))


def fire_by_hand(
    engine: AnyEngine, key: str, job: NewJob, *, ids: IdSource, sign: Sign | None, now: int
) -> Enqueued:
    """Enqueue a job of a schedule outside of its slots."""

    def steps() -> Steps[Enqueued]:
        yield "add_fires", {"key": key, "fires": as_json([{"slot": now, "outcome": "by hand"}]), "now": now}
        placed = yield from _enqueued([job], ids, sign, now)
        noted = [{"slot": now, "job_id": placed[0].id, "outcome": "by hand"}]
        yield (
            "note_fires",
            {"key": key, "fires": as_json(noted), "last_run": now, "last_job": placed[0].id, "now": now},
        )
        return placed[0]

    return drive_together(engine, steps)


def fail(
    engine: AnyEngine, schedule: StoredSchedule, slots: Sequence[int], next_run: int, error: str, *, now: int
) -> bool:
    """Pass over slots whose job cannot be made, and note why; False if another scheduler was quicker."""

    def steps() -> Steps[bool]:
        if not (yield "take_slots", _taken(schedule, next_run, now)):
            return False
        fires = [{"slot": slot, "outcome": "failed"} for slot in slots]
        yield "add_fires", {"key": schedule.key, "fires": as_json(fires), "now": now}
        yield "note_schedule_error", {"key": schedule.key, "error": error, "now": now}
        return True

    return drive_together(engine, steps)


def note_error(engine: Engine, key: str, error: str) -> None:
    """Keep what is wrong with a schedule where operators look."""
    engine.run("note_schedule_error", {"key": key, "error": error})


def fires(engine: Engine, key: str, *, top: int = 20) -> list[Fire]:
    """The last slots that fired, newest first."""
    return [Fire(*row) for row in engine.run("list_fires", {"key": key, "top": top})]


def schedulers(engine: Engine, *, now: int | None = None) -> list[Scheduler]:
    """The schedulers that are alive."""
    rows = engine.run("list_schedulers", {"silent_us": SCHEDULER_SILENT_US, "now": now})
    return [Scheduler(*row) for row in rows]


def forget_undeclared(engine: Engine, keep_us: int, *, now: int | None = None) -> list[str]:
    """Delete schedules of code that nobody has declared for so long; their keys."""
    return [key for (key,) in engine.run("forget_schedules", {"keep_us": keep_us, "now": now})]


def prune(engine: Engine, keep_us: int, *, top: int = 1000, now: int | None = None) -> int:
    """Forget old fires, at most `top`."""
    return len(engine.run("prune_fires", {"keep_us": keep_us, "top": top, "now": now}))


def _fire_steps(
    schedule: StoredSchedule, jobs: Sequence[tuple[int, NewJob]], next_run: int, ids: IdSource, sign: Sign | None, now: int
) -> Steps[list[Enqueued] | None]:  # fmt: skip
    taken = yield "take_slots", _taken(schedule, next_run, now)
    if not taken:
        return None
    is_held = schedule.overlap == "skip" and bool(taken[0][0])
    runs = {slot for slot, _ in (jobs[-1:] if schedule.overlap == "skip" else jobs)} if not is_held else set()
    wanted = [{"slot": slot, "outcome": "enqueued" if slot in runs else "overlapped"} for slot, _ in jobs]
    granted: list[Row] = yield "add_fires", {"key": schedule.key, "fires": as_json(wanted), "now": now}
    fresh = {slot for (slot,) in granted} & runs
    slots = [slot for slot, _ in jobs if slot in fresh]
    if not slots:
        return []
    placed = yield from _enqueued([job for slot, job in jobs if slot in fresh], ids, sign, now)
    noted = [
        {"slot": slot, "job_id": each.id, "outcome": "enqueued" if each.is_new else "duplicate"}
        for slot, each in zip(slots, placed, strict=True)
    ]
    yield (
        "note_fires",
        {
            "key": schedule.key, "fires": as_json(noted), "last_run": slots[-1], "last_job": placed[-1].id, "now": now,
        },
    )  # fmt: skip
    return placed


def _enqueued(jobs: Sequence[NewJob], ids: IdSource, sign: Sign | None, now: int) -> Steps[list[Enqueued]]:
    # Jobs with keys arrive and are admitted by the next dispatcher: admission is one road.
    is_limited = any(job.limits or job.unique_for_us is not None for job in jobs)
    return (yield from enqueue_steps(jobs, ids, arriving=is_limited, sign=sign, now=now))


def _taken(schedule: StoredSchedule, next_run: int, now: int) -> dict[str, Any]:
    return {
        "key": schedule.key, "expected": schedule.next_run, "fingerprint": schedule.fingerprint, "next_run": next_run,
        "now": now,
    }  # fmt: skip


def _listed(planned: Sequence[Planned]) -> str:
    return as_json(
        [
            {**msgspec.structs.asdict(each.schedule), "fingerprint": each.schedule.fingerprint, "next_run": each.next_run}
            for each in planned
        ]
    )  # fmt: skip


def _stored(row: Row) -> StoredSchedule:
    columns: list[Any] = [*row]
    columns[-1] = bool(columns[-1])  # SQLite has no truth of its own
    return StoredSchedule(*columns)
