"""Concurrency keys and rates: who holds them, who waits, and giving free places to the next in line.

Capacity is the set of hold rows of a key, counted under the lock of its limiter row; there is no counter that could leak.
"""

from collections.abc import Iterable, Sequence

import msgspec

from evenflow.job import Claimed
from evenflow.store.bounds import fill
from evenflow.store.engine import Engine, Row, as_json

BATCH = 500


class Limiter(msgspec.Struct, frozen=True):
    """A key as the store knows it: its limit, how many jobs hold it and wait for it; under a rate also the starts of
    the last window, and when the first of them frees its place."""

    name: str
    most: int
    held: int
    waiting: int
    spent: int = 0
    free_at: int | None = None


class Hold(msgspec.Struct, frozen=True):
    """One job at one key. `phase`: 0 later, 1 waiting, 2 held; `held` is how many jobs hold the key."""

    limiter: str
    phase: int
    most: int
    held: int


class Cursor(msgspec.Struct, frozen=True):
    """Where a sweep goes on: after this held place, this job's holds, this key."""

    held_at: int = -1
    held_by: int = 0
    job: int = 0
    name: str = ""


START = Cursor()
_NOWHERE: Row = ("walked", "", 0, 0, 0)


def promote(engine: Engine, limiters: Iterable[str], *, now: int | None = None) -> set[str]:
    """Give the free places of these keys to the jobs that wait for them, by priority and turn; queues with ready jobs.

    A job that has another key to take moves on to it, so the keys that follow are promoted too. Concurrent promotions of
    one key go one after the other; the limit is never exceeded.
    """
    queues: set[str] = set()
    bounded: set[str] = set()
    names = sorted(set(limiters))
    while names:
        following: set[str] = set()
        for start in range(0, len(names), BATCH):
            batch = names[start : start + BATCH]
            for kind, name in engine.run("promote", {"limiters": as_json(batch), "top": BATCH, "now": now}):
                if kind == "queue":
                    queues.add(name)
                elif kind == "limiter":
                    following.add(name)
                elif kind == "bounded":
                    bounded.add(name)
        names = sorted(following)
    return queues | fill(engine, bounded)


def release(engine: Engine, ids: Sequence[int], *, now: int | None = None) -> set[str]:
    """Jobs that ended outside of a worker let go of their keys, and the next ones get them; queues with ready jobs."""
    if not ids:
        return set()
    return promote(engine, {name for (name,) in engine.run("release_holds", {"ids": as_json(ids)})}, now=now)


def sweep(
    engine: Engine, cursor: Cursor = START, *, top: int = BATCH, now: int | None = None
) -> tuple[set[str], Cursor]:
    """The net below every road: frees what no job holds any more, takes back places that were kept too long by a job
    that did not start, and promotes every key with room; queues with ready jobs, and where the next sweep goes on.

    Each sweep looks at `top` rows of each kind at most, so it costs the same however many hold or wait.
    """
    found: set[str] = set()

    def walk(unit: str, **parameters: object) -> Row:
        rows = engine.run(unit, {**parameters, "top": top})
        found.update(name for kind, name, *_ in rows if kind == "limiter")
        return next((row for row in rows if row[0] == "walked"), _NOWHERE)

    held = walk("sweep_held", after_at=cursor.held_at, after_job=cursor.held_by, now=now)
    gone = walk("sweep_gone", after_job=cursor.job)
    named = walk("sweep_names", after=cursor.name)
    # One job back: its holds may lie on both sides of the edge.
    held_at, held_by = (held[2], held[3] - 1) if held[4] >= top else (START.held_at, START.held_by)
    following = Cursor(
        held_at,
        held_by,
        gone[3] - 1 if gone[4] >= top else START.job,
        named[1] if named[4] >= top else START.name,
    )
    return promote(engine, found, now=now), following


def take_locks(engine: Engine, worker: int, runs: Sequence[Claimed], *, now: int | None = None) -> set[int]:
    """Before the bodies start: the ids of those runs that have their locks now. The others must not start.

    A job that has its lock already (it was given back, or rescued) keeps it.
    """
    listed = as_json([{"id": run.id, "epoch": run.epoch} for run in runs])
    rows = engine.run("take_locks", {"runs": listed, "worker": worker, "now": now})
    return {job for (job,) in rows if job is not None}


def locks(engine: Engine, jobs: Sequence[int]) -> dict[int, tuple[str, int | None]]:
    """The locks that these jobs take when they start: job -> (name, who has it)."""
    rows = engine.run("locks_of", {"ids": as_json(jobs)})
    return {job: (name, holder) for job, name, holder in rows}


def forget_idle(engine: Engine, *, top: int = BATCH) -> int:
    """Remove limiters that nobody holds or waits for."""
    return len(engine.run("forget_limiters", {"top": top}))


def limiters(
    engine: Engine, *, prefix: str | None = None, top: int = 1000, now: int | None = None
) -> list[Limiter]:
    """Every key that is held, waited for or spent; or those whose names begin with `prefix`."""
    rows = engine.run("list_limiters", {"prefix": prefix, "top": top, "now": now})
    return [
        Limiter(name, most, held, waiting, int(spent), free_at)
        for name, most, held, waiting, spent, free_at in rows
    ]


def free_spent(engine: Engine, *, top: int = BATCH, now: int | None = None) -> set[str]:
    """Starts whose window has passed make room for those that wait; queues with ready jobs."""
    return promote(engine, {name for (name,) in engine.run("free_spent", {"top": top, "now": now})}, now=now)


def next_free(engine: Engine) -> int | None:
    """When the next job that waits for a rate can go, in stored time; None if none waits."""
    rows = engine.run("next_free", {})
    return rows[0][0] if rows else None


def take_token(
    engine: Engine, limiter: str, most: int, window_us: int, *, now: int | None = None
) -> tuple[bool, int | None]:
    """Start something under a rate by hand: (True, until when it counts), or (False, when the next may start)."""
    rows = engine.run("take_token", {"limiter": limiter, "most": most, "window_us": window_us, "now": now})
    granted, free_at = rows[-1]
    return bool(granted), free_at


def reset_rate(engine: Engine, limiter: str, *, now: int | None = None) -> set[str]:
    """Forget the starts of a rate's last window; queues with ready jobs."""
    engine.run("reset_rate", {"limiter": limiter})
    return promote(engine, [limiter], now=now)


def holds(engine: Engine, job: int) -> list[Hold]:
    """The keys of one job, in the order in which it takes them."""
    return [Hold(*row) for row in engine.run("holds_of", {"id": job})]


def holders(engine: Engine, limiters: Sequence[str], *, top: int = 10) -> dict[str, list[int]]:
    """Some jobs that hold each of these keys, `top` at most."""
    found: dict[str, list[int]] = {}
    for start in range(0, len(limiters), BATCH):
        batch = limiters[start : start + BATCH]
        for limiter, job in engine.run("holders_of", {"limiters": as_json(batch), "top": top}):
            found.setdefault(limiter, []).append(job)
    return found
