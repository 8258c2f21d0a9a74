"""Benchmark of claims while somebody else keeps an old snapshot: nothing that was claimed can be cleaned away."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator

import psycopg

from bench.claimer import Claimer
from bench.report import Cell, Report
from bench.seed import QUEUE, Seeder
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, engine_of
from evenflow.settings import parse_url
from evenflow.store.open import AnyEngine
from evenflow.store.sqlite import SqliteEngine

BATCH = 100
REFILL = 1_000
GROUPS = 100
QUARTERS = 4


def snapshot(stores: Stores, sizes: Sizes) -> Report:
    """The same jobs pass through a store that nobody else uses, and through one whose past is held."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        for way, refills in (("backlog", False), ("flow", True)):
            free = passage(stores, kind, sizes.snapshot_jobs, refills=refills)
            held = passage(stores, kind, sizes.snapshot_jobs, refills=refills, is_held=True)
            rows += [_row(engine, f"{way}, nobody else", free, free), _row(engine, f"{way}, snapshot held", held, free)]
        if kind == "postgres":
            held = passage(stores, kind, sizes.snapshot_jobs, is_held=True, keeps_bounds=False)
            rows.append(_row(engine, "… without moving bounds", held, None))
    columns = {
        "engine": "", "way": "", "slowdown by the snapshot": ".2f", "first ÷ last quarter": ".2f",
        "jobs/s, first quarter": ",.0f", "jobs/s, last quarter": ",.0f",
    }  # fmt: skip
    notes = [
        f"{sizes.snapshot_jobs:,} jobs, claimed and finished {BATCH} at a time; slowdown: jobs/s without ÷ with the snapshot",
        f"backlog: all jobs are there before; flow: {REFILL:,} more come whenever they run out (their insert is not timed)",
    ]
    return Report("snapshot", "Claims under a held snapshot", columns, rows, notes)


def passage(
    stores: Stores, kind: str, jobs: int, *, refills: bool = False, is_held: bool = False, keeps_bounds: bool = True
) -> list[float]:
    """Let jobs pass through a new store; jobs per second in each quarter."""
    with stores.database(kind) as url, contextlib.closing(engine_of(url)) as engine:
        seeder = Seeder(engine, GROUPS)
        if not refills:
            seeder.add(jobs)
        seeder.settle()
        claimer = Claimer(engine, QUEUE, BATCH, keeps_bounds=keeps_bounds)
        with held_snapshot(url, engine) if is_held else contextlib.nullcontext():
            return [_quarter(claimer, seeder if refills else None, jobs // QUARTERS) for _ in range(QUARTERS)]


@contextlib.contextmanager
def held_snapshot(url: str, engine: AnyEngine) -> Iterator[None]:
    """A transaction elsewhere that has read once and does nothing more."""
    if isinstance(engine, SqliteEngine):
        with contextlib.closing(sqlite3.connect(str(parse_url(url).path), isolation_level=None)) as file:
            file.execute("begin")
            file.execute("select count(*) from evenflow_band").fetchone()
            yield
        return
    with psycopg.connect(url) as connection:
        connection.isolation_level = psycopg.IsolationLevel.REPEATABLE_READ
        connection.execute("select count(*) from evenflow.band")
        yield
        connection.rollback()


def _quarter(claimer: Claimer, seeder: Seeder | None, jobs: int) -> float:
    """Claim and finish so many jobs; returns jobs per second of claiming."""
    spent, done = 0.0, 0
    claimed = []
    while done < jobs or claimed:
        if seeder is not None and done % REFILL == 0 and done < jobs:
            seeder.add(min(REFILL, jobs - done))
        start = time.perf_counter()
        claimed = claimer.round(claimed)
        spent += time.perf_counter() - start
        done += len(claimed)
        if not claimed and done < jobs:
            raise AssertionError(f"only {done:,} of {jobs:,} jobs were found")
    return done / spent


def _row(engine: str, way: str, quarters: list[float], free: list[float] | None) -> tuple[Cell, ...]:
    slowdown = None if free is None else _mean(free) / _mean(quarters)
    return engine, way, slowdown, quarters[0] / quarters[-1], quarters[0], quarters[-1]


def _mean(rates: list[float]) -> float:
    """The rate over all quarters, which have the same number of jobs."""
    return len(rates) / sum(1 / rate for rate in rates)
