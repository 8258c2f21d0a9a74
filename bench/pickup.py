"""Benchmark of an idle worker: how soon after the call of enqueue the body runs."""

import time
from collections.abc import Callable

from bench import noop
from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores
from bench.timing import percentile
from bench.workers import working
from evenflow import Evenflow, Job

GAP_S = 0.05
WARM_UP = 10
CONCURRENCY = 10


def pickup(stores: Stores, sizes: Sizes) -> Report:
    """One job at a time into an empty queue."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        with (
            stores.database(kind) as url,
            Evenflow(url) as app,
            working(url, processes=1, concurrency=CONCURRENCY),
        ):
            task = noop.declare(app).clock
            _send(task.enqueue, WARM_UP)
            waits, calls = _send(task.enqueue, sizes.pickup_jobs)
        half, most, call = percentile(waits, 50), percentile(waits, 99), percentile(calls, 50)
        rows.append((engine, half / call, most / half, half * 1000, most * 1000, call * 1000))
    columns = {
        "engine": "", "pickup ÷ call": ".2f", "p99 ÷ p50": ".2f", "pickup p50, ms": ".2f", "pickup p99, ms": ".2f",
        "call of enqueue p50, ms": ".2f",
    }  # fmt: skip
    notes = [
        f"{sizes.pickup_jobs} jobs, one every {GAP_S * 1000:.0f} ms; from the start of the call to the start of the body"
    ]
    return Report("pickup", "Pickup by an idle worker", columns, rows, notes)


def _send(enqueue: Callable[[], Job[int]], jobs: int) -> tuple[list[float], list[float]]:
    """Enqueue at a steady pace; the seconds to the start of each body, and those of each call."""
    sent: list[tuple[int, Job[int]]] = []
    calls = []
    next_at = time.monotonic()
    for _ in range(jobs):
        start = time.monotonic_ns()
        job = enqueue()
        calls.append((time.monotonic_ns() - start) / 1e9)
        sent.append((start, job))
        next_at += GAP_S
        time.sleep(max(0.0, next_at - time.monotonic()))
    return [(job.result(timeout=30) - start) / 1e9 for start, job in sent], calls
