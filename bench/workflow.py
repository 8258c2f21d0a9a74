"""Benchmark of workflows: steps per second beside plain jobs, and a wide fan-in whose cost per parent stays the same."""

import contextlib
import statistics
from collections.abc import Callable
from dataclasses import dataclass

from bench import noop
from bench.drain import CONCURRENCY, SPAN, drained, wait_until_empty
from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, engine_of, fetch, settle
from bench.workers import working
from evenflow import Evenflow
from evenflow.store.open import AnyEngine

CHAIN = 10
SLOWEST_STEPS_PER_S = 50
OPEN = "select count(*) from evenflow_run where state = 'running'"


@dataclass(frozen=True, slots=True)
class Steps:
    """What the steps of some runs took."""

    steps_per_s: float
    cpu_us_per_step: float


def workflow(stores: Stores, sizes: Sizes) -> Report:
    """Chains of steps, and a fan-in of one and of ten times the width, each beside plain jobs.

    In several turns, of whose ratios the median counts: a machine may be half as fast a minute later.
    """
    narrow, wide = f"fan-in of {sizes.fan_in // 10:,}", f"fan-in of {sizes.fan_in:,}"
    shapes: dict[str, Callable[[str], Steps]] = {
        f"chains of {CHAIN}": lambda kind: chains(stores, kind, sizes.workflow_steps),
        narrow: lambda kind: fan_in(stores, kind, sizes.fan_in // 10),
        wide: lambda kind: fan_in(stores, kind, sizes.fan_in),
    }
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        turns = [
            (
                drained(stores, kind, "coroutine", 1, sizes.workflow_steps).jobs_per_s,
                {shape: measured(kind) for shape, measured in shapes.items()},
            )
            for _ in range(sizes.workflow_rounds)
        ]
        for shape in shapes:
            ratios = sorted(found[shape].steps_per_s / plain for plain, found in turns)
            growth = [found[narrow].steps_per_s / found[wide].steps_per_s for _, found in turns]
            rows.append(
                (engine, shape, statistics.median(ratios), ratios[0], ratios[-1],
                 statistics.median(growth) if shape == wide else None,
                 statistics.median(found[shape].cpu_us_per_step for _, found in turns),
                 statistics.median(found[shape].steps_per_s for _, found in turns))
            )  # fmt: skip
    columns = {
        "engine": "", "runs": "", "rate ÷ plain jobs": ".2f", "least": ".2f", "most": ".2f",
        "cost per step ÷ a tenth of the width": ".2f", "worker CPU per step, µs": ".0f", "steps/s": ",.0f",
    }  # fmt: skip
    notes = [
        f"{sizes.workflow_steps:,} steps in chains; one process with {CONCURRENCY} slots; coroutines that do nothing",
        f"median, least and most of {sizes.workflow_rounds} turns: plain jobs, then each of these",
    ]
    return Report("workflow", "Workflows", columns, rows, notes)


def chains(stores: Stores, kind: str, steps: int) -> Steps:
    """Runs of steps that each wait for the one before: every end releases one step."""
    with stores.database(kind) as url, Evenflow(url) as app:
        task = noop.declare(app).coroutine
        app.pause(noop.QUEUE)
        for number in range(steps // CHAIN):
            made = app.workflow("chain")
            last = made.step(task, number)
            for _ in range(CHAIN - 1):
                last = made.step(task, number, after=[last])
            made.start()
        return _measured(app, url, steps // CHAIN * CHAIN)


def fan_in(stores: Stores, kind: str, width: int) -> Steps:
    """One step that waits for all others."""
    with stores.database(kind) as url, Evenflow(url) as app:
        task = noop.declare(app).coroutine
        app.pause(noop.QUEUE)
        made = app.workflow("fan-in")
        parents = [made.step(task, number, name=f"s{number}") for number in range(width)]
        made.step(task, 0, after=parents, name="last")
        made.start()
        return _measured(app, url, width + 1)


def _measured(app: Evenflow, url: str, steps: int) -> Steps:
    with contextlib.closing(engine_of(url)) as engine:
        settle(engine)
        with working(url, processes=1, concurrency=CONCURRENCY) as crew:
            cpu_s = crew.cpu_s()
            app.resume(noop.QUEUE)
            wait_until_empty(lambda: _is_open(engine), steps * 200 // SLOWEST_STEPS_PER_S)
            cpu_s = crew.cpu_s() - cpu_s
        count, first_start, last_end = fetch(engine, SPAN)[0]
        if count != steps:
            raise AssertionError(f"{count:,} of {steps:,} steps succeeded")
    return Steps(steps / (last_end - first_start) * 1e6, cpu_s / steps * 1e6)


def _is_open(engine: AnyEngine) -> bool:
    return bool(fetch(engine, OPEN)[0][0])
