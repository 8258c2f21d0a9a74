"""The loads behind the proofs of flow control, and what the ledgers say of them afterwards."""

import collections
import random
import signal
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path

from evenflow import Evenflow
from evenflow.store import limits
from tests.ledger import Interval, intervals, most_at_once, now_ns
from tests.processes import wait_until
from tests.scratch_directory import start_time
from tests.worker.command import Books, WorkerCommand, seldom
from tests.worker.flow_jobs import group_of

LOCATOR = "tests.worker.flow_jobs:app"
KEYS, LOCKS = 4, 5


def enqueue_limited(app: Evenflow, jobs: int, seconds: float) -> None:
    """Jobs under a key and a lock in the capped queue, and as many again that only the cluster's cap keeps apart."""
    locked = [app.tasks["limited"].using(single_instance=f"lock-{number}") for number in range(LOCKS)]
    free = app.tasks["unkeyed"]
    app.enqueue_many(
        [
            each
            for n in range(jobs)
            for each in (
                locked[n % LOCKS].job(f"lock-{n % LOCKS}/{n}", f"key-{n % KEYS}", seconds),
                free.job(f"free/{n}", "-", seconds),
            )
        ]
    )


def kill_for(seconds: float, workers: Sequence[WorkerCommand], seed: int) -> dict[tuple[int, int], int]:
    """kill -9 of random worker processes: (pid, start) -> an instant not later than its death."""
    chance = random.Random(seed)
    deaths: dict[tuple[int, int], int] = {}
    ends_at = time.monotonic() + seconds
    while time.monotonic() < ends_at:
        worker = chance.choice(workers)
        if pids := worker.children():
            pid = chance.choice(pids)
            deaths[pid, start_time(pid) or 0] = now_ns()
            worker.send(signal.SIGKILL, pid)
        time.sleep(chance.uniform(0.3, 1.0))
    return deaths


def kill_between(
    count: int, of: int, workers: Sequence[WorkerCommand], ledger: Path, seed: int
) -> dict[tuple[int, int], int]:
    """So many times kill -9 of a random process that serves, spread over the starts of `of` jobs: what `kill_for` returns."""
    chance = random.Random(seed)
    deaths: dict[tuple[int, int], int] = {}

    for number in range(1, count + 1):
        due = of * number // (count + 1)
        wait_until(lambda due=due: begun(ledger) >= due, f"{due} runs to begin", 90)  # type: ignore[misc]
        worker, pid = chance.choice(_serving(workers))
        deaths[pid, start_time(pid) or 0] = now_ns()
        worker.send(signal.SIGKILL, pid)
    return deaths


def _serving(workers: Sequence[WorkerCommand]) -> list[tuple[WorkerCommand, int]]:
    """The processes that live and are in the books; waits for one."""
    found: list[tuple[WorkerCommand, int]] = []

    def are_there() -> bool:
        pids = set(workers[0].books.worker_pids())
        found[:] = [(worker, pid) for worker in workers for pid in worker.children() if pid in pids]
        return bool(found)

    wait_until(seldom(are_there), "a process that serves", 60)
    return found


def begun(ledger: Path) -> int:
    """How many runs have begun; counted without reading each line, for this is asked all the time."""
    return b"\n".join((b"", ledger.read_bytes())).count(b"\nB ") if ledger.exists() else 0


def drained(app: Evenflow, within_s: float) -> None:
    wait_until(seldom(lambda: not any(app.stats().values())), "all jobs to end", within_s)


def greatest_overlaps(ledger: Path, deaths: dict[tuple[int, int], int]) -> dict[str, int]:
    """How many runs were in progress at once, at most: of one process, queue, key and lock, and of all."""
    runs = intervals(ledger, deaths)
    return {
        "worker": _greatest(runs, lambda run: run.pid),
        "queue": most_at_once(run for run in runs if run.queue == "capped"),
        "cluster": most_at_once(runs),
        "key": _greatest([run for run in runs if run.key != "-"], lambda run: run.key),
        "lock": _greatest([run for run in runs if run.key != "-"], lambda run: run.job.partition("/")[0]),
    }


def greatest_overlaps_of_groups(ledger: Path, deaths: dict[tuple[int, int], int]) -> dict[str, int]:
    """How many runs of each group of the capped queue were in progress at once, at most."""
    by: dict[str, list[Interval]] = collections.defaultdict(list)
    for run in intervals(ledger, deaths):
        if run.queue == "capped":
            by[group_of(run.job)].append(run)
    return {group: most_at_once(runs) for group, runs in by.items()}


def left_in_the_books(app: Evenflow, url: str, within_s: float = 30.0) -> dict[str, int]:
    """Rows of limits that nobody needs any more, and jobs that nothing will start. Empty where nothing has leaked; a row
    that a worker has locked just now is looked at again."""
    ends_at = time.monotonic() + within_s
    while (left := _left(app, Books(url))) and time.monotonic() < ends_at:
        time.sleep(0.1)
    return left


def _left(app: Evenflow, books: Books) -> dict[str, int]:
    while limits.forget_idle(app._producer.engine):
        continue
    counts = {
        name: books.rows(f"select count(*) from {{{name}}}")[0][0] for name in ("hold", "limiter", "job")
    }
    return {name: count for name, count in counts.items() if count}


def starts_in(folder: Path) -> list[tuple[int, str]]:
    """When bodies started, in nanoseconds and in their order, and what each said of itself."""
    path = folder / "starts"
    lines = path.read_text().splitlines() if path.exists() else []
    return sorted((int(at), said) for at, _, said in (line.partition(" ") for line in lines))


def most_in_a_window(starts: Iterable[int], window_ns: int) -> int:
    """The greatest number of starts in any window of this length, wherever it begins."""
    inside: collections.deque[int] = collections.deque()
    most = 0
    for at in sorted(starts):
        inside.append(at)
        while inside[0] <= at - window_ns:
            inside.popleft()
        most = max(most, len(inside))
    return most


def jain(counts: Sequence[int]) -> float:
    """1 where all have the same, 1/n where one has everything."""
    return sum(counts) ** 2 / (len(counts) * sum(count * count for count in counts))


def _greatest(runs: Iterable[Interval], of: Callable[[Interval], object]) -> int:
    by: dict[object, list[Interval]] = collections.defaultdict(list)
    for run in runs:
        by[of(run)].append(run)
    return max(map(most_at_once, by.values()), default=0)
