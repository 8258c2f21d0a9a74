"""Benchmark of flow control: what caps, keys, fair groups and rates add to a drain that none of them slows by design."""

import contextlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from bench import noop
from bench.drain import CHUNK, CONCURRENCY, SPAN, wait_until_empty
from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, engine_of, fetch, settle
from bench.workers import working
from evenflow import Concurrency, Evenflow, Queue, Rate
from evenflow.queues import Strategy

KEYS = 1_000
ANY_LEFT = "select 1 from evenflow_job limit 1"


def _key(number: int) -> str:
    return f"key-{number % KEYS}"


@dataclass(frozen=True, slots=True)
class Flow:
    """One rule on the drained queue; what it is compared with, and how much it may cost."""

    name: str
    against: str
    budget: float
    fair: Strategy = "round-robin"
    cap: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


PLAIN, FIFO = "no rule", "fifo"
FLOWS: Sequence[Flow] = (
    Flow(PLAIN, PLAIN, 0.0),
    Flow("queue cap", PLAIN, 0.30, cap=CONCURRENCY),
    Flow("1,000 keys", PLAIN, 0.40, options={"concurrency": Concurrency(to=5, key=_key)}),
    Flow("rate that never binds", PLAIN, 0.20, options={"rate": Rate("1000000/s")}),
    Flow(FIFO, FIFO, 0.0, fair="fifo"),
    Flow("1,000 groups, round-robin", FIFO, 0.15, options={"group": _key}),
)


def flow(stores: Stores, sizes: Sizes) -> Report:
    """Drain the same queue under each rule, one after the other, and compare with the drain without it."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        rates = {each.name: drained_under(stores, kind, each, sizes.flow_jobs) for each in FLOWS}
        for each in FLOWS:
            cost = rates[each.against] / rates[each.name] - 1
            budget = f"{each.budget:.0%}" if each.budget else "–"
            rows.append((engine, each.name, each.against, cost, budget, rates[each.name]))
    columns = {
        "engine": "",
        "rule": "",
        "against": "",
        "cost": "+.0%",
        "budget": "",
        "jobs/s": ",.0f",
    }
    notes = [
        f"{sizes.flow_jobs:,} jobs through one process of {CONCURRENCY} slots; cost is more time per job"
    ]
    return Report("flow", "Flow control", columns, rows, notes)


def drained_under(stores: Stores, kind: str, under: Flow, jobs: int) -> float:
    """Jobs per second of a drain under one rule, from the first claim to the last stored end."""
    queue = Queue(noop.QUEUE, fair=under.fair, max_concurrency=under.cap)
    with (
        stores.database(kind) as url,
        Evenflow(url, queues=[queue]) as app,
        contextlib.closing(engine_of(url)) as engine,
    ):

        @app.task(name="bench.function", **under.options)
        def function(number: int) -> None: ...

        app.pause(noop.QUEUE)
        for first in range(0, jobs, CHUNK):
            function.enqueue_many([(number,) for number in range(first, min(jobs, first + CHUNK))])
        settle(engine)
        with working(url, processes=1, concurrency=CONCURRENCY):
            app.resume(noop.QUEUE)
            wait_until_empty(lambda: bool(fetch(engine, ANY_LEFT)), jobs)
        count, first_start, last_end = fetch(engine, SPAN)[0]
        if count != jobs:
            raise AssertionError(f"{count:,} of {jobs:,} jobs succeeded")
    return jobs / float(last_end - first_start) * 1e6
