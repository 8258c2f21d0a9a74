"""What `evenflow top` shows: one look at queues, groups, workers and limits, as tables and as a document."""

from collections.abc import Callable
from typing import Any

import msgspec

from evenflow.cli.tables import Cell
from evenflow.cli.texts import moment, span
from evenflow.client.snapshot import QueueNow, Snapshot, WorkerNow, take_snapshot
from evenflow.store import dashboard, statistics
from evenflow.store.dashboard import Count, GroupRow
from evenflow.store.engine import Engine
from evenflow.store.statistics import MINUTE_US, Statistic

MOST_GROUPS = 100
_SHOWN = ("ready", "running", "scheduled")
Line = list[Cell]


class Pace(msgspec.Struct, frozen=True):
    """What a queue got done in about the last minute, as workers have reported it."""

    succeeded: int = 0
    errors: int = 0
    wait_mean_s: float | None = None


class Look(msgspec.Struct, frozen=True):
    """Everything at one moment."""

    now: Snapshot
    paces: dict[str, Pace]
    groups: dict[str, list[GroupRow]]

    @property
    def slots(self) -> tuple[int, int]:
        """(busy, all) slots of living workers."""
        alive = [worker for worker in self.now.workers if worker.is_alive]
        return sum(each.running or 0 for each in alive), sum(each.concurrency or 0 for each in alive)


class Table(msgspec.Struct, frozen=True):
    """A table by name. `keys` says what each line is about; `by` sorts the lines, by a column's name."""

    name: str
    headers: tuple[str, ...]
    to_right: frozenset[str]
    lines: list[Line]
    keys: list[str]


def look(engine: Engine) -> Look:
    """One look at everything; bounded reads."""
    now = take_snapshot(engine)
    busy = [queue.name for queue in now.queues if any(count.jobs for count in queue.jobs.values())]
    found = {name: dashboard.groups(engine, name, top=MOST_GROUPS) for name in busy}
    return Look(now, paces(engine, now.at), {name: rows for name, rows in found.items() if rows})


def paces(engine: Engine, now: int) -> dict[str, Pace]:
    """The last minute of each queue: this one so far, and of the one before what belongs to the last 60 seconds."""
    this = now - now % MINUTE_US
    share = 1 - (now - this) / MINUTE_US
    by_queue: dict[str, list[tuple[Statistic, float]]] = {}
    for row in statistics.since(engine, this - MINUTE_US):
        by_queue.setdefault(row.queue, []).append((row, 1.0 if row.minute == this else share))
    return {queue: _pace(rows) for queue, rows in by_queue.items()}


def tables(seen: Look) -> list[Table]:
    """The four tables, in their order."""
    return [_queues(seen), _groups(seen), _workers(seen), _limits(seen)]


def sorted_table(table: Table, header: str | None) -> Table:
    """The table sorted by a column: numbers largest first, texts by letter. None leaves it in its own order."""
    if header not in table.headers:
        return table
    place = table.headers.index(header)
    pairs = sorted(
        zip(table.lines, table.keys, strict=True), key=_rank(place), reverse=header in table.to_right
    )
    return msgspec.structs.replace(table, lines=[line for line, _ in pairs], keys=[key for _, key in pairs])


def document(seen: Look) -> dict[str, Any]:
    """The same for machines, with stable keys. A count is a number, and `more` lists the states that stopped counting."""
    return {
        "at": moment(seen.now.at),
        "slots": dict(zip(("busy", "all"), seen.slots, strict=True)),
        "queues": [_queue_document(queue, seen.paces.get(queue.name, Pace())) for queue in seen.now.queues],
        "groups": {name: rows for name, rows in seen.groups.items() if rows},
        "workers": seen.now.workers,
        "limits": seen.now.limits,
        "breakers": seen.now.breakers,
    }


def _queue_document(queue: QueueNow, pace: Pace) -> dict[str, Any]:
    return {
        "name": queue.name,
        "jobs": {state: count.jobs for state, count in sorted(queue.jobs.items())},
        "more": sorted(state for state, count in queue.jobs.items() if count.is_more),
        "oldest_s": queue.oldest_s,
        "succeeded_per_minute": pace.succeeded,
        "errors_per_minute": pace.errors,
        "max_concurrency": queue.max_concurrency,
        "paused": queue.is_paused,
        "paused_by": queue.paused_by,
        "paused_why": queue.paused_why,
    }


def _pace(rows: list[tuple[Statistic, float]]) -> Pace:
    starts = sum(row.started for row, _ in rows)
    wait_us = sum(row.wait_us for row, _ in rows)
    return Pace(
        round(sum(row.succeeded * share for row, share in rows)),
        round(sum((row.failed + row.retried + row.crashed) * share for row, share in rows)),
        wait_us / starts / 1_000_000 if starts else None,
    )


def _queues(seen: Look) -> Table:
    headers = ("queue", *_SHOWN, "other", "oldest", "done/min", "err/min", "cap", "")
    lines = [_queue_line(queue, seen.paces.get(queue.name, Pace())) for queue in seen.now.queues]
    return Table("queues", headers, frozenset(headers[1:9]), lines, [queue.name for queue in seen.now.queues])


def _queue_line(queue: QueueNow, pace: Pace) -> Line:
    others = queue.count(*(state for state in queue.jobs if state not in _SHOWN))
    cap = "" if queue.max_concurrency is None else str(queue.max_concurrency)
    is_full = queue.max_concurrency is not None and queue.count("running").jobs >= queue.max_concurrency
    return [
        Cell(queue.name), *(Cell(_number(queue.count(state))) for state in _SHOWN), Cell(_number(others)),
        Cell("" if queue.oldest_s is None else span(queue.oldest_s * 1_000_000)), Cell(f"{pace.succeeded:,}"),
        Cell(f"{pace.errors:,}", "red" if pace.errors else None), Cell(cap, "yellow" if is_full else None),
        Cell("paused" if queue.is_paused else "", "yellow"),
    ]  # fmt: skip


def _groups(seen: Look) -> Table:
    headers = ("queue", "group", "running", "waiting", "next turns", "gets", "fair share", "weight")
    lines, keys = [], []
    for queue, rows in sorted(seen.groups.items()):
        turns, weights = (
            sum(row.next_turns for row in rows),
            sum(row.weight for row in rows if row.next_turns),
        )
        for row in rows:
            gets = row.next_turns / turns if turns else 0.0
            fair = row.weight / weights if row.next_turns and weights else 0.0
            lines.append(
                [
                    Cell(queue), Cell(row.group), Cell(f"{row.in_flight:,}"), Cell(f"{row.waiting:,}"),
                    Cell(f"{row.next_turns:,}"), Cell(f"{gets:.0%}"), Cell(f"{fair:.0%}"), Cell(f"{row.weight:g}"),
                ]
            )  # fmt: skip
            keys.append(f"{queue}/{row.group}")
    return Table("groups", headers, frozenset(headers[2:]), lines, keys)


def _workers(seen: Look) -> Table:
    headers = ("worker", "kind", "host", "pid", "busy", "of", "up", "heartbeat", "")
    alive = sorted(seen.now.workers, key=lambda row: (row.parent or row.id, row.parent is not None, row.id))
    return Table(
        "workers",
        headers,
        frozenset({"pid", "busy", "of"}),
        [_worker_line(row) for row in alive],
        [row.id for row in alive],
    )


def _worker_line(row: WorkerNow) -> Line:
    state = Cell("silent", "red") if not row.is_alive else Cell("")
    if row.is_alive and row.circuit not in (None, "closed"):
        state = Cell(f"database {row.circuit}", "red")
    return [
        Cell(row.id), Cell(row.kind), Cell(row.host), Cell(str(row.pid)),
        Cell("" if row.running is None else str(row.running)),
        Cell("" if row.concurrency is None else str(row.concurrency)),
        Cell(span(row.age_s * 1_000_000)), Cell(f"{span(row.silent_s * 1_000_000)} ago"), state,
    ]  # fmt: skip


def _limits(seen: Look) -> Table:
    headers = ("limit", "kind", "used", "of", "waiting", "")
    lines: list[Line] = [
        [
            Cell(row.name), Cell("breaker", None), Cell(f"{row.failures:,}"), Cell(f"{row.failure_threshold:,}"),
            Cell(f"{row.waiting:,}"), Cell(row.state, "green" if row.state == "closed" else "red"),
        ]
        for row in seen.now.breakers
    ]  # fmt: skip
    keys = [f"breaker {row.name}" for row in seen.now.breakers]
    for limit in seen.now.limits:
        is_full = limit.used >= limit.limit
        opens = "" if limit.opens_at is None else f"opens {limit.opens_at:%H:%M:%S} UTC"
        lines.append(
            [
                Cell(limit.name), Cell(limit.kind), Cell(f"{limit.used:,}", "yellow" if is_full else None),
                Cell(f"{limit.limit:,}"), Cell(f"{limit.waiting:,}"), Cell(opens or ("full" if is_full else ""), "yellow"),
            ]
        )  # fmt: skip
        keys.append(f"{limit.kind} {limit.name}")
    return Table("limits", headers, frozenset({"used", "of", "waiting"}), lines, keys)


def _number(count: Count) -> str:
    return f"{count.jobs:,}{'+' if count.is_more else ''}"


def _rank(place: int) -> Callable[[tuple[Line, str]], tuple[float, str]]:
    def rank(pair: tuple[Line, str]) -> tuple[float, str]:
        text = pair[0][place].text
        return _size(text), text

    return rank


_SPANS = {"ms": 0.001, "s": 1.0, "min": 60.0, "h": 3600.0, "d": 86_400.0}


def _size(text: str) -> float:
    """A number, a share or a span of time as it is shown, as a number; 0 for any other text."""
    words = text.replace(",", "").rstrip("+%").removesuffix(" ago").split()
    if len(words) in (2, 4) and words[1] in _SPANS:
        return sum(float(words[at]) * _SPANS[words[at + 1]] for at in range(0, len(words), 2))
    return float(words[0]) if len(words) == 1 and words[0].replace(".", "", 1).isdecimal() else 0.0
