"""Clocks: how long a piece of work took, what it cost this process, and whether the machine was quiet meanwhile."""

import math
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

SPINS = 300_000


@dataclass(slots=True)
class Samples:
    """Repeated measurements of one thing; what counts is the median."""

    seconds: list[float] = field(default_factory=list)
    cpu_seconds: list[float] = field(default_factory=list)

    def add(self, work: Callable[[], object]) -> None:
        """Do the work and note its time, and the CPU time of this process with all its threads."""
        cpu, start = time.process_time(), time.perf_counter()
        work()
        self.seconds.append(time.perf_counter() - start)
        self.cpu_seconds.append(time.process_time() - cpu)

    @property
    def median_s(self) -> float:
        return statistics.median(self.seconds)

    @property
    def median_cpu_s(self) -> float:
        return statistics.median(self.cpu_seconds)


def percentile(values: Sequence[float], percent: float) -> float:
    """The value that `percent` of the values do not exceed.

    >>> percentile([3, 1, 2, 4], 50), percentile([3, 1, 2, 4], 99)
    (2, 4)
    """
    return sorted(values)[max(0, math.ceil(len(values) * percent / 100) - 1)]


def spin_ms() -> float:
    """Milliseconds of a fixed piece of pure Python: what this machine gives a process right now."""
    start = time.perf_counter()
    total = 0
    for number in range(SPINS):
        total += number & 3
    return (time.perf_counter() - start) * 1000
