"""One look at everything: depths, ages, limits, breakers and workers at a moment, for metrics and the terminal view.

Every read is bounded, whatever the backlog: counts stop at `COUNTED`.
"""

from typing import Any

import msgspec

from evenflow.client.breakers import BreakerStatus, status_of
from evenflow.client.limit_rows import LimitRow, limit_rows
from evenflow.ids import id_text
from evenflow.store import dashboard, gates, leases, reads
from evenflow.store.dashboard import Count
from evenflow.store.engine import Engine

COUNTED = dashboard.MOST_COUNTED


class QueueNow(msgspec.Struct, frozen=True):
    """A queue at a moment. A count with `is_more` stands for at least so many; `oldest_s` is how long its oldest ready job
    has been waiting, None where none is ready."""

    name: str
    priority: int
    max_concurrency: int | None
    max_ready: int | None
    is_paused: bool
    paused_by: str | None
    paused_why: str | None
    jobs: dict[str, Count]
    oldest_s: float | None

    def count(self, *states: str) -> Count:
        """How many jobs are in one of these states."""
        found = [self.jobs[state] for state in states if state in self.jobs]
        return Count(sum(each.jobs for each in found), any(each.is_more for each in found))


class WorkerNow(msgspec.Struct, frozen=True):
    """A process of the books at a moment: `silent_s` is how long ago its last heartbeat was."""

    id: str
    parent: str | None
    kind: str
    host: str
    pid: int
    age_s: float
    silent_s: float
    is_alive: bool
    running: int | None
    held: int | None
    concurrency: int | None
    queues: list[str]
    circuit: str | None


class Snapshot(msgspec.Struct, frozen=True):
    """The state of an installation at one moment; `at` is the store's time."""

    at: int
    queues: list[QueueNow]
    workers: list[WorkerNow]
    limits: list[LimitRow]
    breakers: list[BreakerStatus]


def take_snapshot(engine: Engine) -> Snapshot:
    """Look at everything once. Reads only, so it may come from anywhere and as often as somebody looks."""
    now = reads.now_us(engine)
    return Snapshot(
        now,
        _queues(engine, now),
        [_worker(row, now) for row in leases.workers(engine)],
        limit_rows(engine, counted=COUNTED),
        [status_of(row) for row in gates.breakers(engine, counted=COUNTED)],
    )


def _queues(engine: Engine, now: int) -> list[QueueNow]:
    depths = dashboard.depths(engine).by_queue
    oldest = dashboard.oldest_ready(engine)
    rows = {row.name: row for row in reads.queues(engine)}
    for name in depths.keys() - rows.keys():
        rows[name] = reads.QueueRow(name, 50, "round-robin", None, None, "overflow", None, None, None)
    return [
        QueueNow(
            name, row.priority, row.max_concurrency, row.max_ready, row.paused_at is not None, row.paused_by,
            row.paused_why, depths.get(name, {}), max(0, now - oldest[name]) / 1_000_000 if name in oldest else None,
        )
        for name, row in sorted(rows.items())
    ]  # fmt: skip


def _worker(row: leases.Worker, now: int) -> WorkerNow:
    about: dict[str, Any] = msgspec.json.decode(row.about)
    return WorkerNow(
        id_text(row.id),
        None if row.parent is None else id_text(row.parent),
        row.kind,
        row.host,
        row.pid,
        max(0, now - row.started_at) / 1_000_000,
        max(0, now - row.beat_at) / 1_000_000,
        now - row.beat_at <= row.lease_us,
        about.get("running"),
        about.get("held"),
        about.get("concurrency"),
        about.get("queues") or [],
        about.get("circuit"),
    )
