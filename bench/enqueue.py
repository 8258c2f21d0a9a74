"""Benchmarks of enqueueing, in bulk and one by one, against the barest insert that could store the same jobs.

Every variant has a database of its own and the variants take turns, so that a slow moment of the machine, or a table
that has grown, is shared by all.
"""

import contextlib
import gc
import itertools
import sqlite3
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial

import msgspec
import psycopg

from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores
from bench.timing import Samples
from evenflow import Evenflow
from evenflow.clock import wall_us
from evenflow.settings import parse_url

GROUPS = (10, 1000)
TASK = "bench.store"
_encode = msgspec.json.Encoder().encode

FLOOR = {
    "postgres": """
        insert into evenflow.job (id, queue, task, priority, max_attempts, created_at, run_at, payload, state, turn)
        select b.id, b.queue, b.task, 0, 1, b.now, b.now, b.payload, 'ready', 1
        from jsonb_to_recordset(cast(%s as jsonb)) as b (id bigint, queue text, task text, now bigint, payload text)""",
    "sqlite": """
        insert into evenflow_job (id, queue, task, priority, max_attempts, created_at, run_at, payload, state, turn)
        select value ->> 'id', value ->> 'queue', value ->> 'task', 0, 1, value ->> 'now', value ->> 'now',
          value ->> 'payload', 'ready', 1
        from json_each(?)""",
}

Store = Callable[[int], object]
"""Stores so many jobs."""


@dataclass(slots=True)
class Variant:
    """One way to store jobs, and its measurements."""

    name: str
    store: Store
    samples: Samples = field(default_factory=Samples)


def bulk(stores: Stores, sizes: Sizes) -> Report:
    """Many small jobs in one call: plain, and spread over fair groups."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        with contextlib.ExitStack() as stack:
            floor = Variant("floor: one INSERT of JSON", stack.enter_context(bare_insert(stores, kind)))
            plain = Variant("enqueue_many", stack.enter_context(enqueue_many(stores, kind, None)))
            grouped = [
                Variant(f"… in {count:,} groups", stack.enter_context(enqueue_many(stores, kind, count)))
                for count in GROUPS
            ]
            take_turns([floor, plain, *grouped], sizes.bulk_jobs, sizes.bulk_rounds)
        for variant in (floor, plain, *grouped):
            time_s, cpu_s = variant.samples.median_s, variant.samples.median_cpu_s
            cost = (time_s / plain.samples.median_s - 1) * 100 if variant in grouped else None
            rows.append(
                (engine, variant.name, time_s / floor.samples.median_s, cost, cpu_s / sizes.bulk_jobs * 1e6,
                 sizes.bulk_jobs / time_s)
            )  # fmt: skip
    columns = {
        "engine": "", "way": "", "time ÷ floor": ".2f", "cost of groups, %": "+.0f", "client CPU per job, µs": ".1f",
        "jobs/s": ",.0f",
    }  # fmt: skip
    notes = [f"{sizes.bulk_jobs:,} jobs per call, median of {sizes.bulk_rounds} calls"]
    return Report("bulk", "Bulk enqueue", columns, rows, notes)


def single(stores: Stores, sizes: Sizes) -> Report:
    """One job per call, each durable before the call returns."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        with (
            bare_insert(stores, kind) as insert,
            enqueue_many(stores, kind, None, one_by_one=True) as enqueue,
        ):
            floor = Variant("floor: INSERT of one row", partial(_repeat, insert))
            own = Variant("enqueue", enqueue)
            take_turns([floor, own], sizes.single_jobs, sizes.single_rounds)
        for variant in (floor, own):
            time_s, cpu_s = variant.samples.median_s, variant.samples.median_cpu_s
            rows.append(
                (engine, variant.name, time_s / floor.samples.median_s, cpu_s / sizes.single_jobs * 1e6,
                 sizes.single_jobs / time_s)
            )  # fmt: skip
    columns = {
        "engine": "", "way": "", "time ÷ floor": ".2f", "client CPU per job, µs": ".0f", "jobs/s": ",.0f",
    }  # fmt: skip
    notes = [f"median of {sizes.single_rounds} rounds of {sizes.single_jobs} calls; every commit is flushed"]
    return Report("single", "Enqueue one by one", columns, rows, notes)


def _repeat(insert: Store, jobs: int) -> None:
    for _ in range(jobs):
        insert(1)


def take_turns(variants: list[Variant], jobs: int, rounds: int) -> None:
    """Measure all variants round by round. The first round warms up and does not count."""
    for variant in variants:
        variant.store(jobs)
    for _ in range(rounds):
        for variant in variants:
            gc.collect()  # or one that is due, of everything here, always falls into the same variant's time
            variant.samples.add(partial(variant.store, jobs))


@contextlib.contextmanager
def enqueue_many(
    stores: Stores, kind: str, groups: int | None, *, one_by_one: bool = False
) -> Iterator[Store]:
    """The public face, in a database of its own."""
    with stores.database(kind) as url, Evenflow(url) as app:

        @app.task(name=TASK, group="tenant" if groups else None)
        def noop(tenant: str, number: int) -> None: ...

        calls = [(f"tenant-{number % (groups or 1)}", number) for number in range(100_000)]

        def in_bulk(jobs: int) -> None:
            noop.enqueue_many(calls[:jobs])

        def singly(jobs: int) -> None:
            for call in calls[:jobs]:
                noop.enqueue(*call)

        yield singly if one_by_one else in_bulk


@contextlib.contextmanager
def bare_insert(stores: Stores, kind: str) -> Iterator[Store]:
    """The floor: the same rows into the same table, from texts that are ready, with no question asked."""
    ids = itertools.count(1 << 58)
    now = wall_us()
    with stores.database(kind) as url, _connected(kind, url) as execute:

        def store(jobs: int) -> None:
            batch = [
                {
                    "id": next(ids),
                    "queue": "default",
                    "task": TASK,
                    "now": now,
                    "payload": f'["tenant-0",{number}]',
                }
                for number in range(jobs)
            ]
            execute(_encode(batch).decode())

        yield store


@contextlib.contextmanager
def _connected(kind: str, url: str) -> Iterator[Callable[[str], object]]:
    if kind == "postgres":
        with psycopg.connect(url, autocommit=True) as server:
            yield lambda batch: server.execute(FLOOR["postgres"], (batch,))
        return
    with contextlib.closing(sqlite3.connect(str(parse_url(url).path), isolation_level=None)) as file:
        file.execute("pragma synchronous = full")
        yield lambda batch: file.execute(FLOOR["sqlite"], (batch,))
