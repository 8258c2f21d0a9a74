"""Concurrency keys and rates: who holds them, who waits, and giving free places to the next in line.

Capacity is the set of hold rows of a key, counted under the lock of its limiter row; there is no counter that could leak.
"""

from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evenflow.job import Claimed
from evenflow.store.bounds import fill
from evenflow.store.engine import Engine, Row, as_json

BATCH = 500
EVERYBODY = 2**31 - 1


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
    """One job at one key. `phase`: 0 later, 1 waiting, 2 held. `most` is the limit that counts, that of the next job in
    line; `held` is how many jobs hold the key, `before` how many wait for it before this one. Under a rate also the
    starts of the last window, and when the first of them frees its place."""

    limiter: str
    phase: int
    most: int
    held: int
    spent: int
    free_at: int | None
    before: int

    @property
    def has_room(self) -> bool:
        return self.held + self.spent < self.most


class Promoted(msgspec.Struct, frozen=True):
    """What one promotion did and left to do: queues with ready jobs, bounded queues before which jobs wait now, keys to be
    promoted next (a job moved on to one, or more may pass at one), keys whose row has to be made first, rates whose starts
    take long to be counted."""

    queues: set[str] = msgspec.field(default_factory=set)
    bounded: set[str] = msgspec.field(default_factory=set)
    more: set[str] = msgspec.field(default_factory=set)
    missing: set[str] = msgspec.field(default_factory=set)
    crowded: set[str] = msgspec.field(default_factory=set)


class Cursor(msgspec.Struct, frozen=True):
    """Where a sweep goes on: after this held place (its key, since when, by whom), this job's holds, this key."""

    held: tuple[str, int, int] = ("", 0, 0)
    job: int = 0
    name: str = ""


START = Cursor()
_NOWHERE: Row = ("walked", "", 0, 0, 0)


def promote(engine: Engine, limiters: Iterable[str], *, now: int | None = None) -> set[str]:
    """Give the free places of these keys to the jobs that wait for them, by priority and turn; queues with ready jobs.

    A job that has another key to take moves on to it, so the keys that follow are promoted too. Concurrent promotions of
    one key go one after the other; the limit is never exceeded.
    """
    return follow_up(engine, Promoted(more=set(limiters)), now=now)


def follow_up(engine: Engine, done: Promoted, *, now: int | None = None) -> set[str]:
    """What a promotion has left to do, until nothing is left; queues that have ready jobs, by it and by this."""
    queues, bounded, names = set(done.queues), set(done.bounded), _next(engine, done, now)
    while names:
        following: set[str] = set()
        for start in range(0, len(names), BATCH):
            done = promoted(engine.run(*promotion(names[start : start + BATCH], now)))
            queues |= done.queues
            bounded |= done.bounded
            following.update(_next(engine, done, now))
        names = sorted(following)
    return queues | fill(engine, bounded)


def promotion(limiters: Sequence[str], now: int | None = None) -> tuple[str, dict[str, Any]]:
    """The unit that promotes at most `BATCH` keys, for operations that run it in a transaction of theirs."""
    return "promote", {"limiters": as_json(limiters), "top": BATCH, "now": now}


def promoted(rows: Iterable[Row]) -> Promoted:
    """What the unit of `promotion` has answered."""
    done = Promoted()
    homes = {
        "queue": done.queues, "bounded": done.bounded, "limiter": done.more, "missing": done.missing, "crowded": done.crowded,
    }  # fmt: skip
    for kind, name in rows:
        if kind in homes:
            homes[kind].add(name)
    return done


def _next(engine: Engine, done: Promoted, now: int | None) -> list[str]:
    """The keys to be promoted next, after what has to be done for it: rows that are missing, rows that are too many."""
    if done.crowded:
        fold_spent(engine, sorted(done.crowded), now=now)
    if done.missing:
        engine.run("add_limiters", {"limiters": as_json(sorted(done.missing))})
    return sorted(done.more | done.missing)


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

    after, after_at, after_job = cursor.held
    held = walk("sweep_held", after=after, after_at=after_at, after_job=after_job, now=now)
    gone = walk("sweep_gone", after_job=cursor.job)
    named = walk("sweep_names", after=cursor.name, now=now)
    following = Cursor(
        (held[1], held[2], held[3]) if held[4] >= top else START.held,
        gone[3] - 1 if gone[4] >= top else START.job,  # one back: its holds may lie on both sides of the edge
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
    engine: Engine,
    *,
    prefix: str | None = None,
    top: int = 1000,
    counted: int = EVERYBODY,
    now: int | None = None,
) -> list[Limiter]:
    """Every key that is held, waited for or spent; or those whose names begin with `prefix`. Those who wait are counted
    up to `counted`."""
    rows = engine.run("list_limiters", {"prefix": prefix, "top": top, "counted": counted, "now": now})
    return [
        Limiter(name, most, held, waiting, int(spent), free_at)
        for name, most, held, waiting, spent, free_at in rows
    ]


def free_spent(engine: Engine, *, top: int = BATCH, now: int | None = None) -> set[str]:
    """Starts whose window has passed make room for those that wait; queues with ready jobs."""
    return promote(engine, {name for (name,) in engine.run("free_spent", {"top": top, "now": now})}, now=now)


def fold_spent(engine: Engine, limiters: Sequence[str], *, now: int | None = None) -> None:
    """Keep the starts of these rates in fewer rows, so that counting them costs the same however many there were.

    Places come back by at most a five-hundredth of their window later than without it, and never earlier.
    """
    engine.run("fold_spent", {"limiters": as_json(limiters), "now": now})


def take_token(
    engine: Engine, limiter: str, most: int, window_us: int, *, now: int | None = None
) -> tuple[bool, int | None]:
    """Start something under a rate by hand: (True, until when it counts), or (False, when the next may start)."""
    rows = engine.run("take_token", {"limiter": limiter, "most": most, "window_us": window_us, "now": now})
    granted, free_at, is_crowded = rows[-1]
    if is_crowded:
        fold_spent(engine, [limiter], now=now)
    return bool(granted), free_at


def reset_rate(engine: Engine, limiter: str, *, now: int | None = None) -> set[str]:
    """Forget the starts of a rate's last window; queues with ready jobs."""
    engine.run("reset_rate", {"limiter": limiter})
    return promote(engine, [limiter], now=now)


def holds(engine: Engine, job: int, *, top: int = 1000, now: int | None = None) -> list[Hold]:
    """The keys of one job, in the order in which it takes them; those before it in line are counted up to `top`."""
    rows = engine.run("holds_of", {"id": job, "top": top, "now": now})
    return [
        Hold(limiter, phase, most, held, int(spent), free_at, before)
        for limiter, phase, most, held, spent, free_at, before in rows
    ]


def holders(engine: Engine, limiters: Sequence[str], *, top: int = 10) -> dict[str, list[int]]:
    """Some jobs that hold each of these keys, `top` at most."""
    found: dict[str, list[int]] = {}
    for start in range(0, len(limiters), BATCH):
        batch = limiters[start : start + BATCH]
        for limiter, job in engine.run("holders_of", {"limiters": as_json(batch), "top": top}):
            found.setdefault(limiter, []).append(job)
    return found
