"""Benchmark of claims while somebody else keeps an old snapshot: nothing that was claimed can be cleaned away."""

import contextlib
import sqlite3
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import psycopg

from bench.claimer import Claimer
from bench.report import Cell, Report
from bench.seed import QUEUE, Seeder
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, engine_of, settle
from evenflow.job import Claimed
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
        for refills, way in ((False, "backlog"), (True, "flow")):
            ways = {f"{way}, nobody else": Way(refills), f"{way}, snapshot held": Way(refills, is_held=True)}
            if kind == "postgres" and not refills:
                ways["… without moving bounds"] = Way(refills, is_held=True, keeps_bounds=False)
            found = passages(stores, kind, list(ways.values()), sizes.snapshot_jobs)
            rows += [
                _row(engine, name, quarters, found[0]) for name, quarters in zip(ways, found, strict=True)
            ]
    columns = {
        "engine": "", "way": "", "slowdown by the snapshot": ".2f", "first ÷ last quarter": ".2f",
        "jobs/s, first quarter": ",.0f", "jobs/s, last quarter": ",.0f",
    }  # fmt: skip
    notes = [
        f"{sizes.snapshot_jobs:,} jobs, claimed and finished {BATCH} at a time; slowdown: jobs/s without ÷ with the snapshot",
        f"backlog: all jobs are there before; flow: {REFILL:,} more come whenever they run out (their insert is not timed)",
        "the ways take turns, a quarter each; commits do not wait for the disk",
    ]
    return Report("snapshot", "Claims under a held snapshot", columns, rows, notes)


@dataclass(frozen=True, slots=True)
class Way:
    """How jobs pass: from a backlog or as a flow, with a snapshot held elsewhere or not."""

    refills: bool
    is_held: bool = False
    keeps_bounds: bool = True


def passages(stores: Stores, kind: str, ways: Sequence[Way], jobs: int) -> list[list[float]]:
    """Let jobs pass through a new store for each way; jobs per second in each quarter."""
    with contextlib.ExitStack() as stack:
        under_way = [stack.enter_context(passage(stores, kind, way, jobs)) for way in ways]
        quarters = [[each.finish(jobs // QUARTERS) for each in under_way] for _ in range(QUARTERS)]
    return [list(rates) for rates in zip(*quarters, strict=True)]


@contextlib.contextmanager
def passage(stores: Stores, kind: str, way: Way, jobs: int) -> "Iterator[Passage]":
    """A store of its own, filled unless it is refilled on the way, with the snapshot taken."""
    with (
        stores.database(kind, flushes=False) as url,
        contextlib.closing(engine_of(url)) as engine,
    ):
        seeder = Seeder(engine, GROUPS)
        stored = 0 if way.refills else jobs + QUARTERS * BATCH  # a quarter ends with a whole batch
        seeder.add(stored)
        settle(engine)
        claimer = Claimer(engine, QUEUE, BATCH, keeps_bounds=way.keeps_bounds)
        with held_snapshot(url, engine) if way.is_held else contextlib.nullcontext():
            yield Passage(claimer, seeder, stored, refills=way.refills)


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


class Passage:
    """Jobs on their way through one store."""

    def __init__(self, claimer: Claimer, seeder: Seeder, stored: int, *, refills: bool) -> None:
        self._refills = refills
        self._claimer = claimer
        self._seeder = seeder
        self._stored = stored
        self._claimed: list[Claimed] = []

    def finish(self, jobs: int) -> float:
        """Finish so many jobs and claim as many; jobs per second, without the time that refilling takes."""
        finished, spent = 0, 0.0
        while finished < jobs:
            if self._refills and self._stored < BATCH:
                self._seeder.add(REFILL)
                self._stored += REFILL
            start = time.perf_counter()
            claimed = self._claimer.round(self._claimed)
            spent += time.perf_counter() - start
            finished += len(self._claimed)
            if not claimed and not self._claimed:
                raise AssertionError(f"{self._stored:,} jobs are stored, and none was found")
            self._stored -= len(claimed)
            self._claimed = claimed
        return finished / spent


def _row(engine: str, way: str, quarters: list[float], free: list[float]) -> tuple[Cell, ...]:
    return engine, way, _mean(free) / _mean(quarters), quarters[0] / quarters[-1], quarters[0], quarters[-1]


def _mean(rates: list[float]) -> float:
    """The rate over all quarters, which have the same number of jobs."""
    return len(rates) / sum(1 / rate for rate in rates)
