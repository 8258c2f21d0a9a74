"""Benchmark of what happens every second or two whether there is work or not: heartbeats, and the services' looks."""

from collections.abc import Callable
from functools import partial

from bench.claim import Scale, large, small
from bench.report import Cell, Report
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores
from bench.timing import Samples
from evenflow.job import JobError
from evenflow.settings import Retention
from evenflow.store import control, leases, limits, reads, upkeep

GONE = JobError("WORKER_CRASHED", "gone")
KEPT = Retention()
WARM_UP = 6  # a prepared statement is planned anew each time until then

LOOKS: dict[str, Callable[[Scale], object]] = {
    "heartbeat": lambda scale: leases.beat(scale.engine, scale.claimer.worker),
    "is anything open?": lambda scale: reads.has_open(scale.engine, ["nobody"]),
    "when is the next due?": lambda scale: control.ahead(scale.engine),
    "admit": lambda scale: control.admit(scale.engine),
    "expire": lambda scale: control.expire(scale.engine, KEPT),
    "free expired claims": lambda scale: leases.free_expired_claims(scale.engine),
    "rescue": lambda scale: leases.rescue(scale.engine, GONE, KEPT),
    "sweep keys": lambda scale: limits.sweep(scale.engine),
    "prune history": lambda scale: upkeep.prune(scale.engine),
    "forget idle groups": lambda scale: upkeep.forget_idle_groups(scale.engine),
}


def upkeep_looks(stores: Stores, sizes: Sizes) -> Report:
    """Each look, with nothing to find, in a small and in a large store."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        with small(stores, kind, sizes) as few, large(stores, kind, sizes) as many:
            for scale in (few, many):
                scale.claim(Samples())  # rounds and jobs in flight are as after a start
            for name, look in LOOKS.items():
                in_few, in_many = _compared(partial(look, few), partial(look, many), sizes.upkeep_rounds)
                rows.append((engine, name, in_many / in_few, in_few * 1000, in_many * 1000))
    columns = {"engine": "", "look": "", "large ÷ small": ".2f", "small, ms": ".2f", "large, ms": ".2f"}
    notes = [f"the stores of the claim benchmark; nothing is found; median of {sizes.upkeep_rounds}"]
    return Report("upkeep", "Looks that repeat for ever", columns, rows, notes)


def _compared(first: Callable[[], object], second: Callable[[], object], rounds: int) -> tuple[float, float]:
    """The median seconds of two pieces of work that take turns."""
    samples = Samples(), Samples()
    for number in range(WARM_UP + rounds):
        for work, into in zip((first, second), samples, strict=True):
            (Samples() if number < WARM_UP else into).add(work)
    return samples[0].median_s, samples[1].median_s
