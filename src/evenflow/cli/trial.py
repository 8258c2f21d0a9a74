"""The second act of the demo: a cap and a rate in a real `evenflow worker`, and one of its processes killed on the way.

What it reports is read back from the store.
"""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import IO

from evenflow import Evenflow, EvenflowError, Job, State
from evenflow.cli.trial_jobs import API, BANK, SCHEMA, URL, made_app
from evenflow.ids import id_number
from evenflow.job import JobRecord
from evenflow.store import dashboard, leases, reads
from evenflow.store.open import AnyEngine

SIZES = {False: {BANK: 150, API: 60}, True: {BANK: 60, API: 30}}
"""How many jobs of each queue: in a full demo, and in a fast one."""
LOOK_EVERY_S = 0.05
GIVE_UP_S = 60.0
STOP_WITHIN_S = 20.0
_SECOND_US = 1_000_000
Watch = Callable[[str, int], None]


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of it. `most_at_once` is of the capped queue, `most_in_a_second` of the queue under a rate."""

    enqueued: int
    succeeded: int
    most_at_once: int
    most_in_a_second: int
    killed_pid: int
    crashes: int
    took_s: float

    @property
    def lost(self) -> int:
        return self.enqueued - self.succeeded


def run_trial(url: str, schema: str, engine: AnyEngine, sizes: Mapping[str, int], watch: Watch) -> Outcome:
    """Enqueue, start a worker, kill one of its processes in the middle of its work, wait for the end."""
    with made_app(url, schema) as app:
        return _run(app, url, engine, sizes, watch)


def _run(app: Evenflow, url: str, engine: AnyEngine, sizes: Mapping[str, int], watch: Watch) -> Outcome:
    began = time.monotonic()
    for queue in (BANK, API):
        app.discard(queue=queue)  # what an interrupted demo left in a database that is used again
    since = reads.now_us(engine)
    charges = app.tasks["demo.charge"].enqueue_many([(number,) for number in range(sizes[BANK])])
    calls = app.tasks["demo.call"].enqueue_many([(number,) for number in range(sizes[API])])
    with _worker(url, app.settings.schema) as (process, said):
        seen = _Seen(engine, sizes, watch)
        seen.until(lambda: seen.done(BANK) >= sizes[BANK] // 5, process, said)
        killed = _kill_one(engine, since, seen, process, said)
        seen.until(lambda: seen.done(BANK) + seen.done(API) >= sum(sizes.values()), process, said)
    charged, called = _read(engine, charges), _read(engine, calls)
    records = [*charged, *called]
    return Outcome(
        sum(sizes.values()),
        sum(record.state is State.SUCCEEDED for record in records),
        max(seen.most_at_once, most_at_once(charged)),
        most_in_a_second(called),
        killed,
        sum(record.crashes for record in records),
        time.monotonic() - began,
    )


class _Seen:
    """How far the work is, as the store says it: what is not open any more has ended."""

    def __init__(self, engine: AnyEngine, sizes: Mapping[str, int], watch: Watch) -> None:
        self._engine = engine
        self._watch = watch
        self._sizes = sizes
        self._open = dict(sizes)
        self.most_at_once = 0

    def done(self, queue: str) -> int:
        return self._sizes[queue] - self._open[queue]

    def until(
        self, is_reached: Callable[[], bool], process: "subprocess.Popen[bytes]", said: IO[bytes]
    ) -> None:
        ends_at = time.monotonic() + GIVE_UP_S
        while not is_reached():
            if process.poll() is not None or time.monotonic() > ends_at:
                said.seek(0)
                raise EvenflowError(f"the worker of the demo did not do its work: {said.read().decode()}")
            time.sleep(LOOK_EVERY_S)
            self.look()

    def look(self) -> None:
        depths = dashboard.depths(self._engine)
        for queue in (BANK, API):
            self._open[queue] = sum(count.jobs for count in depths.by_queue.get(queue, {}).values())
            self._watch(queue, self.done(queue))
        self.most_at_once = max(self.most_at_once, depths.of(BANK, "claimed", "running").jobs)


def most_at_once(records: Sequence[JobRecord]) -> int:
    """How many of these ran at the same time, at most.

    One that starts at the moment when another ends takes its place.
    """
    moments = [(record.started_at or 0, 1) for record in records] + [
        (record.finished_at or 0, -1) for record in records
    ]
    running = most = 0
    for _, change in sorted(moments):
        running += change
        most = max(most, running)
    return most


def most_in_a_second(records: Sequence[JobRecord]) -> int:
    """How many of these started within one second, at most."""
    starts = sorted(record.started_at or 0 for record in records)
    most = first = 0
    for last, start in enumerate(starts):
        while start - starts[first] >= _SECOND_US:
            first += 1
        most = max(most, last - first + 1)
    return most


def _worker(
    url: str, schema: str
) -> contextlib.AbstractContextManager[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    options = ["--processes", "2", "--concurrency", "6"]
    return working("evenflow.cli.trial_jobs:app", options, {URL: url, SCHEMA: schema})


@contextlib.contextmanager
def working(
    locator: str, options: Sequence[str], variables: Mapping[str, str]
) -> Iterator[tuple["subprocess.Popen[bytes]", IO[bytes]]]:
    """`evenflow worker` and what it says; stopped gracefully, and not left behind."""
    command = [sys.executable, "-m", "evenflow", "worker", locator, *options]
    command += ["--shutdown-timeout", "5", "--loglevel", "error"]
    with (
        tempfile.TemporaryFile() as said,
        subprocess.Popen(
            command, env={**os.environ, **variables}, stdin=subprocess.DEVNULL, stdout=said, stderr=said
        ) as process,
    ):
        try:
            yield process, said
        finally:
            process.terminate()
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(STOP_WITHIN_S)
            process.kill()


def _kill_one(
    engine: AnyEngine, since: int, seen: _Seen, process: "subprocess.Popen[bytes]", said: IO[bytes]
) -> int:
    """Kill the process that runs the most jobs, as the out-of-memory killer would; its pid."""
    victim = 0

    def is_halted() -> bool:
        nonlocal victim
        ours = {
            row.id: row.pid
            for row in leases.workers(engine)
            if row.kind == "worker" and row.started_at >= since
        }
        held = dashboard.in_flight_by_worker(engine)
        busiest = max(ours, key=lambda worker: held.get(worker, 0), default=None)
        if busiest is None or not held.get(busiest):
            return False
        victim = ours[busiest]
        return _halted_at_work(engine, busiest, victim)

    seen.until(is_halted, process, said)
    os.kill(victim, signal.SIGKILL)
    return victim


def _halted_at_work(engine: AnyEngine, worker: int, pid: int) -> bool:
    """Whether a process stands still with jobs in its hands. It may have ended them since we looked; then it goes on."""
    os.kill(pid, signal.SIGSTOP)
    if dashboard.in_flight_by_worker(engine).get(worker):
        return True
    os.kill(pid, signal.SIGCONT)
    return False


def _read(engine: AnyEngine, jobs: "Sequence[Job[object]]") -> list[JobRecord]:
    return list(reads.find(engine, [id_number(job.id) for job in jobs]).values())
