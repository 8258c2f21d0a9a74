"""Benchmark of whole workers: no-op jobs through one and two processes, as functions and as coroutines."""

import contextlib
import time
from dataclasses import dataclass
from typing import Any

from bench import noop
from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, engine_of, fetch, settle
from bench.workers import working
from evenflow import Evenflow
from evenflow.store import reads

CONCURRENCY = 200
CHUNK = 10_000
SLOWEST_JOBS_PER_S = 200
SPAN = "select count(*), min(started_at), max(finished_at) from evenflow_history where state = 'succeeded'"


@dataclass(frozen=True, slots=True)
class Drain:
    """What one drain took."""

    jobs_per_s: float
    cpu_us_per_job: float
    peak_mb: float


def drain(stores: Stores, sizes: Sizes) -> Report:
    """Empty a full queue. From the first claim to the last stored end, by the clock of the store."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        alone: dict[str, Drain] = {}
        for processes in sizes.drain_processes:
            for body in ("function", "coroutine"):
                found = drained(stores, kind, body, processes, sizes.drain_jobs)
                one = alone.setdefault(body, found)
                rows.append(
                    (engine, body, str(processes), found.jobs_per_s / one.jobs_per_s,
                     one.jobs_per_s / alone["function"].jobs_per_s if found is one else None,
                     found.cpu_us_per_job, found.peak_mb, found.jobs_per_s)
                )  # fmt: skip
    columns = {
        "engine": "", "body": "", "processes": "", "rate ÷ one process": ".2f", "rate ÷ function": ".2f",
        "worker CPU per job, µs": ".0f", "peak memory of a process, MB": ".0f", "jobs/s": ",.0f",
    }  # fmt: skip
    notes = [
        f"{sizes.drain_jobs:,} jobs, {CONCURRENCY} slots per process; every end is stored with its result"
    ]
    return Report("drain", "Drain", columns, rows, notes)


def drained(stores: Stores, kind: str, body: str, processes: int, jobs: int) -> Drain:
    """Fill a paused queue, let the workers start, then open it."""
    with (
        stores.database(kind) as url,
        Evenflow(url) as app,
        contextlib.closing(engine_of(url)) as engine,
    ):
        task: Any = getattr(noop.declare(app), body)
        app.pause(noop.QUEUE)
        for first in range(0, jobs, CHUNK):
            task.enqueue_many([(number,) for number in range(first, min(jobs, first + CHUNK))])
        settle(engine)
        with working(url, processes=processes, concurrency=CONCURRENCY) as crew:
            cpu_s = crew.cpu_s()
            app.resume(noop.QUEUE)
            wait_until_empty(lambda: reads.has_open(engine, [noop.QUEUE]), jobs)
            cpu_s, peak_mb = crew.cpu_s() - cpu_s, crew.peak_mb()
        count, first_start, last_end = fetch(engine, SPAN)[0]
        if count != jobs:
            raise AssertionError(f"{count:,} of {jobs:,} jobs succeeded")
    return Drain(jobs / (last_end - first_start) * 1e6, cpu_s / jobs * 1e6, peak_mb)


def wait_until_empty(is_open: Any, jobs: int) -> None:
    """Look ten times a second: often enough to stop in time, too seldom to disturb."""
    ends_at = time.monotonic() + 30 + jobs / SLOWEST_JOBS_PER_S
    while is_open():
        if time.monotonic() > ends_at:
            raise TimeoutError(f"{jobs:,} jobs were not done in time")
        time.sleep(0.1)
