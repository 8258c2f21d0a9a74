"""`evenflow bench`: what Evenflow does on your machine and your database, measured in half a minute.

Works in a file or a schema of its own, which it removes.
"""

import asyncio
import contextlib
import secrets
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import gettempdir
from typing import Any

import click
import msgspec

from evenflow import Evenflow, EvenflowError
from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import Place, takes_place
from evenflow.cli.progress import Show, showing_progress
from evenflow.cli.tables import print_table
from evenflow.settings import Settings
from evenflow.store import reads, upkeep
from evenflow.store.open import open_engine
from evenflow.store.postgres import PostgresEngine

BATCH = 1000
SINGLES = 200
TRIPS = 100
READS = 200
SLOTS = 50
SHOWN_EVERY = 500


class Measure(msgspec.Struct, frozen=True):
    """One measurement: a rate where `unit` is `jobs/s`, a time where it is `ms`, with its 95th percentile."""

    name: str
    value: float
    unit: str
    p95: float | None = None


@click.command()
@click.option(
    "--jobs",
    type=click.IntRange(BATCH, 1_000_000),
    default=10_000,
    show_default=True,
    metavar="N",
    help="Jobs to enqueue and run.",
)
@json_option
@takes_place
def bench(place: Place, jobs: int, as_json: bool) -> None:
    """Measure enqueuing, running and latency on your database.

    A SQLite database is measured with a new file in its folder, PostgreSQL with a new schema; both are removed again.
    Without any address a file in the temporary folder is used. One process, empty jobs: what is measured is Evenflow.
    """
    with _scratch_app(_settings(place)) as app:
        if not as_json:
            click.echo(f"Measuring {jobs:,} jobs on {app.settings.database.masked()}")
        with showing_progress({"run": jobs}) as show:
            found = _measures(app, jobs, show)
    if as_json:
        print_json({"jobs": jobs, "kind": app.settings.database.kind, "measures": found})
        return
    rows = [[each.name, _shown(each.value, each.unit), _shown(each.p95, each.unit)] for each in found]
    print_table(("what", "measured", "p95"), rows, right=("measured", "p95"))


def _settings(place: Place) -> Settings | None:
    try:
        return place.settings()
    except click.UsageError:  # no address at all
        return None


@contextlib.contextmanager
def _scratch_app(settings: Settings | None) -> Iterator[Evenflow]:
    """An app on a database of its own, beside the one named; nothing of it is left."""
    if settings is not None and settings.database.kind == "postgres":
        with _own_schema(settings.database.conninfo) as app:
            yield app
        return
    path = settings.database.path if settings is not None else None
    folder = Path(gettempdir()) if path is None else Path(path).resolve().parent
    if not folder.is_dir():
        raise EvenflowError(f"there is no folder {str(folder)!r} to measure in; correct the address")
    name = f"evenflow-bench-{secrets.token_hex(4)}.db"
    try:
        with Evenflow(f"sqlite:///{folder}/{name}") as app:
            yield app
    finally:
        for left in folder.glob(f"{name}*"):
            left.unlink(missing_ok=True)


@contextlib.contextmanager
def _own_schema(conninfo: str) -> Iterator[Evenflow]:
    schema = f"evenflow_bench_{secrets.token_hex(4)}"
    try:
        with Evenflow(conninfo, schema=schema) as app:
            yield app
    finally:
        engine = PostgresEngine(conninfo, schema)
        upkeep.drop_schema(engine)
        engine.close()


def _measures(app: Evenflow, jobs: int, show: Show) -> list[Measure]:
    done = 0

    @app.task(name="bench.nothing", queue="bench", keep_result=0)
    async def nothing(number: int) -> None:
        nonlocal done
        done += 1
        if done % SHOWN_EVERY == 0:
            show("run", min(done, jobs))

    app.migrate()
    engine = open_engine(app.settings.database, app.settings.schema)
    try:
        found = [_times("read, one", READS, lambda: reads.now_us(engine))]
    finally:
        engine.close()
    found.append(_times("enqueue, one", SINGLES, lambda: nothing.enqueue(1)))
    began = time.perf_counter()
    for first in range(0, jobs, BATCH):
        nothing.enqueue_many([(number,) for number in range(first, min(first + BATCH, jobs))])
    found.append(Measure("enqueue, in batches", jobs / (time.perf_counter() - began), "jobs/s"))
    began = time.perf_counter()
    app.run_worker(concurrency=SLOTS, until_empty=True)
    found.append(Measure("run", (jobs + SINGLES) / (time.perf_counter() - began), "jobs/s"))
    found.append(_of("enqueue to result", asyncio.run(_trips(app, nothing))))
    return found


async def _trips(app: Evenflow, nothing: Any) -> list[float]:
    worker = asyncio.create_task(app.arun_worker(concurrency=SLOTS))
    try:
        await (await nothing.using(keep_result=60).aenqueue(0)).aresult(timeout=30)  # the worker is up
        took = []
        for number in range(TRIPS):
            began = time.perf_counter()
            job = await nothing.using(keep_result=60).aenqueue(number)
            await job.aresult(timeout=30)
            took.append(time.perf_counter() - began)
        return took
    finally:
        worker.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await worker


def _times(name: str, count: int, act: Callable[[], object]) -> Measure:
    act()  # connections and plans are made by the first one
    took = []
    for _ in range(count):
        began = time.perf_counter()
        act()
        took.append(time.perf_counter() - began)
    return _of(name, took)


def _of(name: str, took_s: list[float]) -> Measure:
    return Measure(
        name, statistics.median(took_s) * 1000, "ms", statistics.quantiles(took_s, n=20)[-1] * 1000
    )


def _shown(value: float | None, unit: str) -> str:
    if value is None:
        return ""
    return f"{value:,.0f} {unit}" if unit == "jobs/s" else f"{value:.3f} {unit}"
