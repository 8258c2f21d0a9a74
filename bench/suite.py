"""The list of benchmarks, and how one is run: with a look at the machine before and after."""

import os
from collections.abc import Callable
from dataclasses import replace

from bench.claim import claim
from bench.delay import delay
from bench.drain import drain
from bench.enqueue import bulk, single
from bench.flow import flow
from bench.pickup import pickup
from bench.report import Report
from bench.sizes import Sizes
from bench.snapshot import snapshot
from bench.stores import Stores
from bench.timing import spin_ms
from bench.upkeep import upkeep_looks
from bench.web import web
from bench.workflow import workflow

BENCHMARKS: dict[str, Callable[[Stores, Sizes], Report]] = {
    "bulk": bulk,
    "single": single,
    "claim": claim,
    "upkeep": upkeep_looks,
    "snapshot": snapshot,
    "drain": drain,
    "flow": flow,
    "pickup": pickup,
    "delay": delay,
    "workflow": workflow,
    "web": web,
}
DISTURBED = 1.25


def measured(name: str, stores: Stores, sizes: Sizes) -> Report:
    """Run one benchmark. Says in the report whether the machine was quiet: ratios of a noisy run mean little."""
    before = spin_ms()
    report = BENCHMARKS[name](stores, sizes)
    after = spin_ms()
    noise = max(before, after) / min(before, after)
    note = f"the machine: load {os.getloadavg()[0]:.1f} at the end, speed after ÷ before {before / after:.2f}"
    if noise > DISTURBED:
        note += "; DISTURBED, run it again"
    return replace(report, notes=[*report.notes, note])
