"""Every limit that is in use, in one form: caps, bounds, keys, locks, groups and rates, with who holds them."""

from datetime import datetime

import msgspec

from evenflow.clock import from_us
from evenflow.ids import id_text
from evenflow.store import bounds, limits, reads
from evenflow.store.engine import Engine
from evenflow.store.limits import Limiter

HOLDERS_SHOWN = 10
MOST_KEYS = 1000


class LimitRow(msgspec.Struct, frozen=True):
    """One limit: how much of it is used, who holds it, how many jobs wait for it, and when it has room again, if known.

    `kind` is one of `cluster cap`, `queue cap`, `bound`, `group`, `key`, `lock` and `rate`.

    >>> [f"{row.name} {row.used}/{row.limit}" for row in app.limits()]  # doctest: +SKIP
    ['queue:stripe 3/3', 'lock:nightly 1/1']
    """

    name: str
    kind: str
    used: int
    limit: int
    waiting: int
    opens_at: datetime | None = None
    holders: tuple[str, ...] = ()


def limit_rows(
    engine: Engine, prefix: str = "", *, counted: int = limits.EVERYBODY, top: int = MOST_KEYS
) -> list[LimitRow]:
    """The caps of cluster and queues first, then bounds, then what keys, locks, groups and rates are held or waited for;
    all of them, or those whose names begin with `prefix`.

    Jobs that wait for a key are counted up to `counted`; of keys, locks, groups and rates the first `top` are taken."""
    caps = [row for row in (*_cluster(engine), *_queues(engine)) if row.name.startswith(prefix)]
    return [*caps, *_keyed(engine, prefix, counted, top)]


def _cluster(engine: Engine) -> list[LimitRow]:
    cap = reads.cluster_cap(engine)
    if cap is None:
        return []
    used, waiting = sum(reads.in_flight(engine).values()), reads.ready(engine)
    return [LimitRow("cluster", "cluster cap", used, cap, waiting, None, _ids(reads.in_flight_ids(engine)))]


def _queues(engine: Engine) -> list[LimitRow]:
    rows = bounds.uses(engine)
    caps = [
        LimitRow(
            f"queue:{row.name}", "queue cap", row.in_flight, row.max_concurrency, row.ready, None,
            _ids(reads.in_flight_ids(engine, row.name)),
        )
        for row in rows if row.max_concurrency is not None
    ]  # fmt: skip
    return caps + [
        LimitRow(f"ready:{row.name}", "bound", row.ready, row.max_ready, row.waiting)
        for row in rows
        if row.max_ready is not None
    ]


def _keyed(engine: Engine, prefix: str, counted: int, top: int) -> list[LimitRow]:
    rows = limits.limiters(engine, prefix=prefix or None, top=top, counted=counted)
    holders = limits.holders(engine, [row.name for row in rows if row.held], top=HOLDERS_SHOWN)
    return [_row(row, holders.get(row.name, [])) for row in rows]


def _row(row: Limiter, holders: list[int]) -> LimitRow:
    used = row.held + row.spent
    is_full = used >= row.most
    opens_at = from_us(row.free_at) if is_full and row.free_at is not None else None
    return LimitRow(
        row.name, row.name.partition(":")[0], used, row.most, row.waiting, opens_at, _ids(holders)
    )


def _ids(jobs: list[int]) -> tuple[str, ...]:
    return tuple(map(id_text, jobs))
