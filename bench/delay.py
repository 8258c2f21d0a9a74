"""Benchmark of delayed jobs: how late they start on an idle system, and what many at one instant do to others."""

import time
from datetime import UTC, datetime, timedelta

from bench import noop
from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores
from bench.timing import percentile
from bench.workers import working
from evenflow import Evenflow, Job
from evenflow.client.task import AnyTask

GAP_S = 0.05
LEAD_S = 1.0
BURST_LEAD_S = 4.0
CONCURRENCY = 10
WARM_UP = 5
PROBES = "probes"


def delay(stores: Stores, sizes: Sizes) -> Report:
    """Jobs that are due one after the other; then a burst due at once, with probes of another queue beside it."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        with (
            stores.database(kind) as url,
            Evenflow(url) as app,
            working(url, processes=1, concurrency=CONCURRENCY),
        ):
            task = noop.declare(app).wall
            _late(_spread(app, task, WARM_UP))
            late = _late(_spread(app, task, sizes.delay_jobs))
            calm = _probe(task, sizes.delay_jobs)
            due_at = datetime.now(UTC) + timedelta(seconds=BURST_LEAD_S)
            burst = task.using(run_after=due_at).enqueue_many([()] * sizes.burst_jobs)
            time.sleep(max(0.0, (due_at - datetime.now(UTC)).total_seconds()))
            beside = _probe(task, min(sizes.delay_jobs, 20))
            last = max(_late(burst))
        half, most = percentile(late, 50), percentile(late, 99)
        ratio = percentile(beside, 50) / percentile(calm, 50)
        rows.append(
            (engine, ratio, half * 1000, most * 1000, last, percentile(calm, 99) * 1000, max(beside) * 1000)
        )
    columns = {
        "engine": "", "pickup in a burst ÷ calm": ".2f", "late p50, ms": ".2f", "late p99, ms": ".2f",
        "last of the burst, s": ".2f", "calm pickup p99, ms": ".2f", "longest pickup in a burst, ms": ".2f",
    }  # fmt: skip
    notes = [
        f"{sizes.delay_jobs} jobs due {GAP_S * 1000:.0f} ms apart; from the time they were due to the start of the body",
        f"{sizes.burst_jobs} jobs due at one instant; probes are single jobs of another queue, before and during it",
    ]
    return Report("delay", "Delayed jobs", columns, rows, notes)


def _spread(app: Evenflow, task: AnyTask, jobs: int) -> list[Job[int]]:
    start = datetime.now(UTC) + timedelta(seconds=LEAD_S)
    dues = [start + timedelta(seconds=GAP_S * number) for number in range(jobs)]
    return app.enqueue_many([task.using(run_after=due).job() for due in dues])


def _late(jobs: list[Job[int]]) -> list[float]:
    """Seconds from when each was due to the start of its body."""
    return [job.result(timeout=60) / 1e9 - job.run_at.timestamp() for job in jobs]


def _probe(task: AnyTask, jobs: int) -> list[float]:
    """Seconds from the call of enqueue to the start of the body, one job after the other."""
    found = []
    for _ in range(jobs):
        began = time.time_ns()
        ran: int = task.using(queue=PROBES, priority=-1).enqueue().result(timeout=60)
        found.append((ran - began) / 1e9)
    return found
