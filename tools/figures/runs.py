"""The runs behind the charts: real apps, real workers, and what was seen of them, in seconds since the beginning.

Times are noted by the bodies themselves, on the machine's monotonic clock.
"""

import asyncio
import itertools
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal, TypeVar

from evenflow import Evenflow, Queue, Rate
from tools.figures import capped_app

Fair = Literal["fifo", "round-robin"]
DEADLINE_S = 60.0
T = TypeVar("T")


@dataclass
class Seen:
    """What a run has shown: who started when, and who came when."""

    fair: str
    starts: list[tuple[float, str]] = field(default_factory=list)
    arrivals: dict[str, float] = field(default_factory=dict)


def race(folder: Path, fair: Fair, files: int = 10_000, before: int = 500, work_s: float = 0.001) -> Seen:
    """Bob enqueues his files; when the first ones are done, Alice comes with one page."""
    folder.mkdir(exist_ok=True)
    return asyncio.run(_shared(folder, fair, [("Bob", files, 0), ("Alice", 1, before)], work_s))


def tenants(folder: Path, fair: Fair, scale: int = 100, work_s: float = 0.001) -> Seen:
    """Four tenants come one after the other, each with a backlog; Dan has the weight 2."""
    coming = [("Ann", 36, 0), ("Bob", 16, 8), ("Cem", 10, 20), ("Dan", 12, 32)]
    sized = [(name, jobs * scale, after * scale) for name, jobs, after in coming]
    return asyncio.run(_shared(folder, fair, sized, work_s, weights={"Dan": 2}))


async def _shared(
    folder: Path, fair: Fair, coming: Sequence[tuple[str, int, int]], work_s: float, weights: dict[str, float] | None = None
) -> Seen:  # fmt: skip
    """Tenants share a queue: (who, how many jobs, after how many starts in all)."""
    queue = Queue("pages", fair=fair, weights=weights or {})
    app = Evenflow(f"sqlite:///{folder}/{fair}.db", queues=[queue])
    seen = Seen(fair)
    began = time.monotonic()

    async def serve(tenant: str) -> None:
        seen.starts.append((time.monotonic() - began, tenant))
        await asyncio.sleep(work_s)

    task = app.task(name="serve", queue="pages", group="tenant")(serve)
    total = sum(jobs for _, jobs, _ in coming)
    first, jobs, _ = coming[0]
    await task.aenqueue_many([(first,)] * jobs)
    began = time.monotonic()
    seen.arrivals[first] = 0.0
    worker = asyncio.create_task(app.arun_worker(concurrency=10))
    for name, jobs, after in coming[1:]:
        await _until(lambda after=after: len(seen.starts) >= after)  # type: ignore[misc]
        seen.arrivals[name] = time.monotonic() - began
        await task.aenqueue_many([(name,)] * jobs)
    await _until(lambda: len(seen.starts) >= total)
    worker.cancel()
    await asyncio.wait([worker])
    app.close()
    return seen


async def _until(is_reached: Callable[[], bool]) -> None:
    async with asyncio.timeout(DEADLINE_S):
        while not is_reached():  # noqa: ASYNC110 - the bodies write into a list, which has no event
            await asyncio.sleep(0.005)


@dataclass
class Spans:
    """When bodies ran, over all processes; what the cap was; when a process was killed, and how many bodies with it."""

    runs: list[tuple[float, float]]
    caps: list[tuple[float, int]]
    killed_at: float
    killed: int
    processes: int
    slots: int

    def running(self) -> list[tuple[float, int]]:
        """(moment, how many bodies run from then on)."""
        steps = sorted([(start, 1) for start, _ in self.runs] + [(end, -1) for _, end in self.runs])
        counts = itertools.accumulate(step for _, step in steps)
        return [(moment, count) for (moment, _), count in zip(steps, counts, strict=True)]

    def cap_at(self, moment: float) -> int:
        return [cap for since, cap in self.caps if since <= moment][-1]


def capped(folder: Path, jobs: int = 150, cap: int = 4, later: int = 7) -> Spans:
    """Two worker processes with ten slots each, a queue with a cap: one process is killed, then the cap is raised."""
    processes, slots = 2, 10
    url, notes = f"sqlite:///{folder}/capped.db", folder / "notes"
    environment = {**os.environ, "EVENFLOW_URL": url, "FIGURE_NOTES": str(notes)}
    app = capped_app.declared(url)
    task = app.tasks["call"]
    lengths = random.Random(7)
    app.set_limit("calls", max_concurrency=cap)
    task.enqueue_many([(lengths.uniform(0.05, 0.2),) for _ in range(jobs)])
    command = [
        sys.executable,
        "-m",
        "evenflow",
        "worker",
        "tools.figures.capped_app:app",
        "--loglevel",
        "ERROR",
    ]
    with subprocess.Popen(
        [*command, "--processes", str(processes), "--concurrency", str(slots)], env=environment
    ) as worker:
        try:
            victim = _wait_for(lambda: _halted_at_work(notes) if _ended(notes) >= jobs // 3 else None)
            os.kill(victim, signal.SIGKILL)
            killed_at = time.monotonic()
            _wait_for(lambda: _ended(notes) >= jobs * 2 // 3)
            raised_at = time.monotonic()
            app.set_limit("calls", max_concurrency=later)
            _wait_for(lambda: _ended(notes) >= jobs)
        finally:
            worker.terminate()
    app.close()
    return _spans(notes, killed_at, victim, [(0.0, cap), (raised_at, later)], processes, slots)


def _notes(notes: Path) -> list[tuple[str, int, str, float]]:
    """(start or end, process, run, moment)."""
    lines = notes.read_text().splitlines() if notes.exists() else []
    return [(what, int(pid), run, float(moment)) for what, pid, run, moment in map(str.split, lines)]


def _ended(notes: Path) -> int:
    return sum(what == "end" for what, _, _, _ in _notes(notes))


def _busiest(notes: Path) -> int | None:
    """The process that runs most bodies at this moment, if any does."""
    open_runs: dict[str, int] = {}
    for what, pid, run, _ in _notes(notes):
        if what == "start":
            open_runs[run] = pid
        else:
            del open_runs[run]
    pids = list(open_runs.values())
    return max(pids, key=pids.count, default=None)


def _halted_at_work(notes: Path) -> int | None:
    """The busiest process, standing still. It may have ended its bodies since we looked; then it goes on."""
    busiest = _busiest(notes)
    if busiest is None:
        return None
    os.kill(busiest, signal.SIGSTOP)
    if _busiest(notes) == busiest:
        return busiest
    os.kill(busiest, signal.SIGCONT)
    return None


def _spans(
    notes: Path, killed_at: float, victim: int, caps: list[tuple[float, int]], processes: int, slots: int
) -> Spans:
    found = _notes(notes)
    began = min(moment for _, _, _, moment in found)
    ends = {run: moment for what, _, run, moment in found if what == "end"}
    starts = [(run, pid, moment) for what, pid, run, moment in found if what == "start"]
    dead = [run for run, pid, _ in starts if pid == victim and run not in ends]
    runs = [(moment - began, (killed_at if run in dead else ends[run]) - began) for run, _, moment in starts]
    shifted = [(max(0.0, since - began), cap) for since, cap in caps]
    return Spans(runs, shifted, killed_at - began, len(dead), processes, slots)


def _wait_for(look: Callable[[], T | None]) -> T:
    """What a look finds, as soon as it finds something."""
    ends_at = time.monotonic() + DEADLINE_S
    while not (found := look()):
        if time.monotonic() > ends_at:
            raise TimeoutError("the run behind the picture did not come to its end")
        time.sleep(0.01)
    return found


@dataclass
class Rated:
    """When jobs under a rate began."""

    burst: int | None
    most: int
    window_s: float
    starts: list[float]

    def in_window(self) -> list[tuple[float, int]]:
        """(moment, how many began in the window that ends then), at every start and whenever one leaves the window."""
        moments = sorted([*self.starts, *[start + self.window_s for start in self.starts]])
        return [
            (moment, sum(moment - self.window_s < start <= moment for start in self.starts))
            for moment in moments
        ]


def rated(folder: Path, burst: int | None, most: int = 20, windows: int = 4) -> Rated:
    """More jobs than a rate lets pass at once."""
    queue = Queue("mail", rate=Rate(f"{most}/second", burst=burst))
    app = Evenflow(f"sqlite:///{folder}/rated-{burst}.db", queues=[queue])
    starts: list[float] = []

    def send() -> None:
        starts.append(time.monotonic())

    task = app.task(name="send", queue="mail")(send)
    task.enqueue_many([()] * (most * windows))

    async def work() -> None:
        worker = asyncio.create_task(app.arun_worker(concurrency=10))
        await _until(lambda: len(starts) >= most * windows)
        worker.cancel()
        await asyncio.wait([worker])

    asyncio.run(work())
    app.close()
    began = min(starts)
    return Rated(burst, most, 1.0, sorted(start - began for start in starts))
