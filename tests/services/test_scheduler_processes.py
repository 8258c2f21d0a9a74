"""Schedulers in processes of their own: each slot fires once, whoever races, dies or comes back."""

import contextlib
import os
import random
import signal
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenflow.settings import parse_url
from evenflow.store import schedules
from evenflow.store.open import AnyEngine, open_engine, prepare
from tests.processes import wait_until
from tests.services.scheduler_process import NotingPlan
from tests.store.scene import rows_of

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = 4
QUICK, SLOW = (
    5,
    2,
)  # at most a hundred slots are caught up, and on a busy machine a process takes seconds to start
Start = Callable[..., "subprocess.Popen[bytes]"]


@pytest.fixture
def engine(engine_url: str) -> Iterator[AnyEngine]:
    """The tables, in a database that other processes can open; the test runs once on each engine."""
    made = open_engine(parse_url(engine_url))
    prepare(made)
    yield made
    made.close()


@pytest.fixture
def start(engine_url: str, engine: AnyEngine) -> Iterator[Start]:
    """Starts schedulers, and ends all of them."""
    running: list[subprocess.Popen[bytes]] = []

    def begin(speed: int = SLOW, **variables: str) -> "subprocess.Popen[bytes]":
        command = [
            sys.executable,
            "-m",
            "tests.services.scheduler_process",
            engine_url,
            str(KEYS),
            str(speed),
        ]
        running.append(subprocess.Popen(command, cwd=ROOT, env={**os.environ, **variables}))
        return running[-1]

    yield begin
    for process in running:
        process.kill()
        process.wait()


def slots_of(engine: AnyEngine) -> dict[str, list[int]]:
    """Key -> the slots that have fired, in order."""
    found: dict[str, list[int]] = defaultdict(list)
    for row in rows_of(engine, "fire"):
        assert row["outcome"] == "enqueued"
        found[row["key"]].append(row["slot"])
    return {key: sorted(slots) for key, slots in found.items()}


def stop(*processes: "subprocess.Popen[bytes]") -> None:
    for process in processes:
        process.kill()
        process.wait()


def assert_each_slot_fired_once(engine: AnyEngine) -> None:
    """Every second of the schedulers' clock from the first to the last has one job, and no job is without its slot."""
    slots = slots_of(engine)
    expected = {}
    for row in schedules.found(engine):
        # Independent of what is noted: the interval's own arithmetic, from its anchor to the slot before the next one.
        expected[row.key] = list(range(row.anchor + 1_000_000, row.next_run, 1_000_000))
    assert slots == expected
    jobs = rows_of(engine, "job")
    fired = Counter(row["job_id"] for row in rows_of(engine, "fire"))
    assert fired == Counter(job["id"] for job in jobs)
    assert Counter(job["payload"] for job in jobs) == {
        each.payload: len(expected[each.key]) for each in NotingPlan(KEYS).declared
    }


def test_eight_processes_fire_each_slot_once(engine: AnyEngine, start: Start) -> None:
    processes = [start(QUICK) for _ in range(8)]
    wait_until(lambda: len(schedules.fires(engine, "key-0", top=100)) >= 30, "30 slots", 90)
    wait_until(lambda: len(schedulers_of(engine)) == 8, "eight schedulers", 90)
    stop(*processes)
    assert_each_slot_fired_once(engine)


def schedulers_of(engine: AnyEngine) -> list[int]:
    return [row["pid"] for row in rows_of(engine, "scheduler")]


@pytest.mark.either
def test_processes_that_are_killed_again_and_again_lose_and_double_nothing(
    engine: AnyEngine, start: Start
) -> None:
    chance = random.Random(9)
    processes = [start() for _ in range(3)]
    wait_until(lambda: len(rows_of(engine, "fire")) > 0, "the first fire", 60)
    for _ in range(6):
        noted = len(rows_of(engine, "fire"))
        wait_until(lambda noted=noted: len(rows_of(engine, "fire")) > noted + KEYS, "more fires", 60)  # type: ignore[misc]
        time.sleep(chance.random() / 50)  # not a wait: the moment of the kill is by chance
        stop(processes.pop(0))
        processes.append(start())
    stop(*processes)
    assert_each_slot_fired_once(engine)


@pytest.mark.either
def test_a_process_that_dies_inside_a_fire_leaves_nothing_of_it(engine: AnyEngine, start: Start) -> None:
    dying = start(DIES_IN_FIRE="1")
    assert dying.wait(60) == -signal.SIGKILL
    assert rows_of(engine, "job") == []
    with contextlib.suppress(TimeoutError):
        wait_until(lambda: bool(rows_of(engine, "fire")), "nothing", 0.2)
    assert rows_of(engine, "fire") == []
    heir = start()
    wait_until(lambda: len(slots_of(engine)) == KEYS, "the heir's fires", 60)
    stop(heir)
    assert_each_slot_fired_once(engine)
