"""Leases: who is alive, and what becomes of jobs whose owner is not."""

from collections.abc import Sequence

import msgspec

from evenflow.job import MAX_CRASHES, JobError
from evenflow.settings import Retention
from evenflow.store import statistics
from evenflow.store.bounds import fill
from evenflow.store.engine import Engine, Row, as_json
from evenflow.store.limits import release
from evenflow.store.retention import kept_us

BATCH = 500
STRAYS_LOOKED_FOR = 10_000


class Worker(msgspec.Struct, frozen=True):
    """One process of the books. `beat` counts heartbeats; `about` is JSON that the process says of itself."""

    id: int
    parent: int | None
    kind: str
    host: str
    pid: int
    started_at: int
    beat: int
    beat_at: int
    lease_us: int
    about: str


class Beat(msgspec.Struct, frozen=True):
    """The answer to a heartbeat: whether we are still in the books, whether other workers are, and which of our jobs somebody
    wants cancelled."""

    is_alive: bool
    has_company: bool
    cancelled: dict[tuple[int, int], str]


class Rescued(msgspec.Struct, frozen=True):
    """What became of one orphan: its new state, in its queue."""

    id: int
    state: str
    queue: str


def register(
    engine: Engine, worker: int, *, kind: str, host: str, pid: int, lease_us: int, parent: int | None = None,
    about: str = "{}", now: int | None = None,
) -> None:  # fmt: skip
    """Enter a process into the books, with its first heartbeat."""
    engine.run(
        "register_worker",
        {
            "id": worker,
            "parent": parent,
            "kind": kind,
            "host": host,
            "pid": pid,
            "lease_us": lease_us,
            "about": about,
            "now": now,
        },
    )


def beat(
    engine: Engine, worker: int, *, claim_lease_us: int | None = None, about: str | None = None, now: int | None = None,
    deadline_s: float = 3.0,
) -> Beat:  # fmt: skip
    """Renew a lease. A worker that is no longer in the books must stop: others may run its jobs already."""
    rows = engine.run(
        "beat",
        {"worker": worker, "lease_us": claim_lease_us, "about": about, "now": now},
        deadline_s=deadline_s,
    )
    about_us = {why for _, epoch, why in rows if not epoch}  # a job in flight has one
    cancelled = {(number, epoch): why for number, epoch, why in rows if epoch}
    return Beat("alive" in about_us, "company" in about_us, cancelled)


def workers(engine: Engine) -> list[Worker]:
    """Everybody in the books."""
    return [Worker(*row) for row in engine.run("list_workers", {})]


def in_flight(engine: Engine, worker: int) -> set[tuple[int, int]]:
    """(id, epoch) of everything that the store has in flight at this worker, known to it or not."""
    return {(job, epoch) for job, epoch in engine.run("list_in_flight", {"worker": worker})}


def bury(engine: Engine, dead: dict[int, int | None]) -> list[int]:
    """Take dead workers from the books: id -> the beat at which they stood still, or None with proof of death.

    A worker that has beaten since is left alone. Returns who was removed.
    """
    listed = [{"id": worker, "beat": -1 if last is None else last} for worker, last in dead.items()]
    return [worker for (worker,) in engine.run("bury_workers", {"workers": as_json(listed)})]


def rescue(
    engine: Engine,
    error: JobError,
    retention: Retention,
    *,
    top: int = BATCH,
    max_crashes: int = MAX_CRASHES,
    now: int | None = None,
) -> list[Rescued]:
    """Take jobs from owners that are no longer in the books, at most `top`; call again while it returns that many. By id.

    A running job counts a crash and gets its attempt back: it is ready again, or `failed` where its task says so, or
    `quarantined` at `max_crashes`, or `cancelled` where that was asked for. A prefetched one simply goes back.
    """
    rows = engine.run(
        "rescue",
        {
            "error": as_json(error), "top": top, "max_crashes": max_crashes, "now": now,
            "keep_failed_us": kept_us(retention, "failed"), "keep_quarantined_us": kept_us(retention, "quarantined"),
            "keep_cancelled_us": kept_us(retention, "cancelled"),
        },
    )  # fmt: skip
    rescued = sorted((Rescued(*row[:3]) for row in rows), key=lambda job: job.id)
    release(engine, [job.id for job in rescued if job.state != "ready"], now=now)
    fill(engine, {job.queue for job in rescued if job.state == "ready"})
    _count(engine, rows, now)
    return rescued


def note_strays(engine: Engine, after: int, *, top: int = STRAYS_LOOKED_FOR) -> tuple[int, int]:
    """Look at the next `top` live jobs for some that are in flight without a flight, which rescue and caps would not find: they get
    one. Where the next look begins, and how many there were. On SQLite there is nothing to be looked for."""
    if engine.kind != "postgres":
        return 0, 0
    ((last, strays),) = engine.run("note_strays", {"after": after, "top": top})
    return last or 0, strays


def _count(engine: Engine, rows: Sequence[Row], now: int | None) -> None:
    ends = []
    for _, state, queue, task, crashed in rows:
        kinds = (["crashed"] if crashed else []) + ([] if state == "ready" else [state])
        ends.append((queue, task, kinds))
    statistics.add_ends(engine, ends, now=now)


def free_expired_claims(engine: Engine, *, top: int = BATCH, now: int | None = None) -> list[int]:
    """Prefetched jobs whose claim ran out are ready again; their holder cannot start them any more."""
    rows = engine.run("free_expired_claims", {"top": top, "now": now})
    fill(engine, {queue for _, queue in rows})
    return [job for job, _ in rows]


def save_progress(engine: Engine, worker: int, progress: list[tuple[int, int, str]]) -> None:
    """Store what running jobs report: (id, epoch, JSON). A report of a lost lease changes nothing."""
    listed = [{"id": job, "epoch": epoch, "progress": text} for job, epoch, text in progress]
    engine.run("save_progress", {"worker": worker, "progress": as_json(listed)})
