"""Many short runs under few locks while worker processes are killed: the load behind the proof that none overlap."""

import collections
import random
import signal
from dataclasses import dataclass
from pathlib import Path

from evenflow import Evenflow
from tests.ledger import intervals, most_at_once, now_ns
from tests.processes import wait_until
from tests.scratch_directory import start_time
from tests.worker.command import WorkerCommand
from tests.worker.flow import begun, drained

BATCH = 2_000


@dataclass(frozen=True, slots=True)
class Crowd:
    """How many runs, under how many locks, and how often a worker process is killed meanwhile."""

    runs: int
    locks: int
    kills: int
    within_s: float


def enqueue(app: Evenflow, crowd: Crowd) -> None:
    note = app.tasks["note"]
    by_lock = [note.using(single_instance=f"lock-{number}") for number in range(crowd.locks)]
    for begin in range(0, crowd.runs, BATCH):
        numbers = range(begin, min(begin + BATCH, crowd.runs))
        app.enqueue_many([by_lock[n % crowd.locks].job(f"lock-{n % crowd.locks}/{n}") for n in numbers])


def run_and_kill(app: Evenflow, workers: list[WorkerCommand], ledger: Path, crowd: Crowd) -> dict[str, int]:
    """Run everything, killing a random process now and then; lock -> how many of its runs were ever in progress at once."""
    chance = random.Random(7)
    deaths: dict[tuple[int, int], int] = {}
    for kill in range(1, crowd.kills + 1):
        due = crowd.runs * kill // (crowd.kills + 1)
        wait_until(lambda due=due: begun(ledger) >= due, f"{due} runs", crowd.within_s)  # type: ignore[misc]
        worker = chance.choice(workers)
        if children := worker.children():
            pid = chance.choice(children)
            deaths[pid, start_time(pid) or 0] = now_ns()  # not later than its death: nothing is excused
            worker.send(signal.SIGKILL, pid)
    drained(app, crowd.within_s)
    by_lock = collections.defaultdict(list)
    for run in intervals(ledger, deaths):
        by_lock[run.job.partition("/")[0]].append(run)
    assert len({run.job for runs in by_lock.values() for run in runs if run.has_returned}) == crowd.runs
    return {lock: most_at_once(runs) for lock, runs in by_lock.items()}
