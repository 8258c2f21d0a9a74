"""What has run, for people and charts: minutes in a row, and sums per task. Made from what workers have reported."""

from collections.abc import Iterable
from datetime import datetime
from typing import Any

import msgspec

from evenflow.checks import whole
from evenflow.clock import from_us
from evenflow.errors import ConfigError
from evenflow.rules import histogram
from evenflow.store import reads, statistics
from evenflow.store.engine import Engine
from evenflow.store.statistics import COUNTS, MINUTE_US, Statistic

MOST_MINUTES = 7 * 24 * 60


class Ran(msgspec.Struct, frozen=True, kw_only=True):
    """How much has run, and how it went. Waits are from when jobs were due to their start; runs are of bodies, in seconds.

    `started` counts attempts; `failed`, `expired`, `cancelled`, `skipped`, `discarded` and `quarantined` count jobs
    that ended so, `retried` attempts that failed and are tried again, `crashed` attempts whose process died.
    Quantiles are estimated from the buckets of `evenflow.rules.histogram`; None where nothing ran.
    """

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
    wait_mean: float | None = None
    wait_p50: float | None = None
    wait_p95: float | None = None
    run_mean: float | None = None
    run_p50: float | None = None
    run_p95: float | None = None

    @property
    def ended(self) -> int:
        """Jobs that came to an end, whatever it was."""
        others = (self.expired, self.cancelled, self.skipped, self.discarded, self.quarantined)
        return self.succeeded + self.failed + sum(others)

    @property
    def errors(self) -> int:
        """Attempts that went wrong: failed for good, tried again, or crashed."""
        return self.failed + self.retried + self.crashed


class MinuteRow(Ran, frozen=True, kw_only=True):
    """One minute; `at` is when it began."""

    at: datetime


class TaskRow(Ran, frozen=True, kw_only=True):
    """One task in one queue."""

    queue: str
    task: str


def minute_rows(engine: Engine, minutes: int, queue: str | None, task: str | None) -> list[MinuteRow]:
    """The last `minutes` minutes, oldest first, the current one last; empty ones too."""
    first = _first_minute(engine, minutes)
    by_minute: dict[int, list[Statistic]] = {first + n * MINUTE_US: [] for n in range(minutes)}
    for row in statistics.since(engine, first, queue=queue, task=task):
        by_minute.setdefault(row.minute, []).append(row)
    return [MinuteRow(at=from_us(minute), **_fields(rows)) for minute, rows in sorted(by_minute.items())]


def task_rows(engine: Engine, minutes: int | None) -> list[TaskRow]:
    """Each task in each queue: what was counted in the last `minutes` minutes, or since the beginning."""
    rows = (
        statistics.totals(engine)
        if minutes is None
        else statistics.since(engine, _first_minute(engine, minutes))
    )
    by_task: dict[tuple[str, str], list[Statistic]] = {}
    for row in rows:
        by_task.setdefault((row.queue, row.task), []).append(row)
    return [
        TaskRow(queue=queue, task=task, **_fields(found)) for (queue, task), found in sorted(by_task.items())
    ]


def _first_minute(engine: Engine, minutes: int) -> int:
    if wrong := whole("minutes", minutes, 1, MOST_MINUTES):
        raise ConfigError(wrong)
    now = reads.now_us(engine)
    return now - now % MINUTE_US - (minutes - 1) * MINUTE_US


def _fields(rows: Iterable[Statistic]) -> dict[str, Any]:
    found: dict[str, Any] = dict.fromkeys(COUNTS, 0)
    wait_us = run_us = 0
    waits, runs = histogram.empty(), histogram.empty()
    for row in rows:
        for name in COUNTS:
            found[name] = found[name] + getattr(row, name)
        waits, runs = histogram.added(waits, row.waits), histogram.added(runs, row.runs)
        wait_us, run_us = wait_us + row.wait_us, run_us + row.run_us
    return found | _spread("wait", wait_us, waits) | _spread("run", run_us, runs)


def _spread(name: str, sum_us: int, counts: list[int]) -> dict[str, float | None]:
    values = sum(counts)
    return {
        f"{name}_mean": sum_us / values / 1_000_000 if values else None,
        f"{name}_p50": histogram.quantile(counts, 0.5),
        f"{name}_p95": histogram.quantile(counts, 0.95),
    }
