"""Benchmark of flow control: what caps, keys, fair groups and rates add to a drain that none of them slows by design."""

import contextlib
import statistics
from collections.abc import Mapping
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


@dataclass(frozen=True, slots=True, eq=False)
class Flow:
    """One rule on the drained queue, and how much of the rate it may cost."""

    name: str
    budget: float
    fair: Strategy = "round-robin"
    cap: int | None = None
    options: Mapping[str, Any] = field(default_factory=dict)


PLAIN, FIFO = Flow("no rule", 0.0), Flow("fifo", 0.0, fair="fifo")
FLOWS: dict[Flow, Flow] = {
    Flow("queue cap", 0.30, cap=CONCURRENCY): PLAIN,
    Flow("1,000 keys", 0.40, options={"concurrency": Concurrency(to=5, key=_key)}): PLAIN,
    Flow("rate that never binds", 0.20, options={"rate": Rate("1000000/s")}): PLAIN,
    Flow("1,000 groups, round-robin", 0.15, options={"group": _key}): FIFO,
}
"""Each rule, and what its drain is compared with."""


def flow(stores: Stores, sizes: Sizes) -> Report:
    """Drain the same queue under each rule and, just before, without it.

    In several pairs, of whose ratios the median counts: a machine may be half as fast a minute later.
    """
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        for rule, without in FLOWS.items():
            pairs = [
                tuple(drained_under(stores, kind, each, sizes.flow_jobs) for each in (without, rule))
                for _ in range(sizes.flow_rounds)
            ]
            costs = sorted(1 - ruled / free for free, ruled in pairs)
            rate = statistics.median(ruled for _, ruled in pairs)
            rows.append(
                (engine, rule.name, without.name, statistics.median(costs), costs[0], costs[-1],
                 f"{rule.budget:.0%}", rate)
            )  # fmt: skip
    columns = {
        "engine": "", "rule": "", "against": "", "cost": "+.0%", "least": "+.0%", "most": "+.0%", "budget": "",
        "jobs/s": ",.0f",
    }  # fmt: skip
    notes = [
        f"{sizes.flow_jobs:,} jobs through one process of {CONCURRENCY} slots; cost is the part of the rate that the rule takes",
        f"median, least and most of {sizes.flow_rounds} pairs of drains, one after the other",
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
