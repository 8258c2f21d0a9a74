"""The tally of a worker process: what it counts, that nothing is lost meanwhile, and how many tasks it tells apart."""

import threading

import pytest

from evenflow.job import Claimed, End
from evenflow.worker.tally import MOST_CELLS, Cell, Tally, kinds


def claimed(queue: str = "default", task: str = "add") -> Claimed:
    return Claimed(1, 1, queue, task, None, 0, 0.0, 1, 1, 0, 0, 0, 5_000, None, "[]", None, None, None)


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        (End(1, 1, "failed", error="{}"), ("failed",)),
        (End(1, 1, "scheduled", error="{}"), ("retried",)),
        (End(1, 1, "ready", error="{}"), ("retried",)),
        (End(1, 1, "scheduled", refund=1), ()),
        (End(1, 1, "ready", refund=1, unstarted=1), ()),
        (End(1, 1, "ready", refund=1, crashed=1, error="{}"), ("crashed",)),
        (End(1, 1, "quarantined", crashed=1, error="{}"), ("crashed", "quarantined")),
        (End(1, 1, "cancelled", error="{}"), ("cancelled",)),
    ],
)
def test_an_end_counts_as_what_it_is(end: End, expected: tuple[str, ...]) -> None:
    assert kinds(end) == expected


def test_starts_successes_and_other_ends_are_counted_with_their_times() -> None:
    tally = Tally()
    cell = tally.cell(claimed())
    cell.waits += [2_000, 90_000]
    cell.runs.append(0.02)
    cell.ends.append((End(1, 1, "failed", error="{}"), 0.5))
    cell.ends.append((End(1, 1, "expired"), 0.1))
    (counted,) = tally.counted()
    assert (counted.started, counted.succeeded, counted.failed, counted.expired) == (2, 1, 1, 1)
    assert (counted.wait_us, counted.run_us) == (92_000, 520_000)
    assert sum(counted.waits) == 2
    assert sum(counted.runs) == 2  # a job that expired has not run


def test_what_was_reported_is_not_reported_again() -> None:
    tally = Tally()
    tally.cell(claimed()).runs.append(0.1)
    assert len(tally.counted()) == 1
    assert len(tally.counted()) == 1  # not stored yet
    tally.forget_reported()
    assert tally.counted() == []


def test_tasks_beyond_the_bound_are_counted_together() -> None:
    tally = Tally()
    for number in range(MOST_CELLS + 50):
        tally.cell(claimed(task=f"task{number}")).waits.append(1)
    counted = {(row.queue, row.task): row.started for row in tally.counted()}
    assert len(counted) == MOST_CELLS + 1
    assert counted["(other)", "(other)"] == 50
    assert tally.cell(claimed(task="task0")).counted.task == "task0"


def test_nothing_is_lost_while_others_append() -> None:
    cell, appended, stop = Cell("default", "add"), [0, 0], threading.Event()

    def append(number: int) -> None:
        while not stop.is_set():
            cell.runs.append(0.001)
            appended[number] += 1

    threads = [threading.Thread(target=append, args=(number,)) for number in range(2)]
    for thread in threads:
        thread.start()
    while cell.counted.succeeded < 20_000:
        cell.fold()
    stop.set()
    for thread in threads:
        thread.join()
    cell.fold()
    assert cell.counted.succeeded == sum(appended)
