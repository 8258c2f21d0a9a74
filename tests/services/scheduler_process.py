"""A scheduler in a process of its own, as tests start and kill it: `python -m tests.services.scheduler_process URL KEYS SPEED`.

Its clock runs SPEED times as fast as the machine's, the same in all processes, so that many slots come in a few seconds.
With DIES_IN_FIRE set it kills itself inside of a fire's transaction, after the slot is taken and before its job is written.
"""

import contextlib
import os
import signal
import sys
import time
from collections.abc import Iterator, Sequence

from evenflow.job import NewJob
from evenflow.schedule import NewSchedule, StoredSchedule
from evenflow.services.scheduler import Scheduler
from evenflow.settings import parse_url
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.open import open_engine
from tests.store.scene import START


def clock(speed: int) -> int:
    """Microseconds that all processes of this machine agree on."""
    return START + time.clock_gettime_ns(time.CLOCK_MONOTONIC) // 1000 * speed


def schedule(key: str) -> NewSchedule:
    return NewSchedule(key, "note", f'[["{key}"],{{}}]', every_us=1_000_000, catch_up="all", overlap="allow")


class NotingPlan:
    """Schedules by number; the job of each carries its key."""

    task_names: tuple[str, ...] = ()

    def __init__(self, keys: int) -> None:
        self.declared = [schedule(f"key-{number}") for number in range(keys)]

    @property
    def sign(self) -> Sign | None:
        return die if os.environ.get("DIES_IN_FIRE") else None

    @contextlib.contextmanager
    def published(self, jobs: Sequence[NewJob]) -> Iterator[tuple[Sequence[NewJob], list[int]]]:
        yield jobs, []

    def job(self, schedule: StoredSchedule) -> NewJob:
        return NewJob(schedule.task, schedule.payload)


def die(_job: NewJob, _number: int) -> str:
    os.kill(os.getpid(), signal.SIGKILL)
    raise AssertionError("alive after SIGKILL")


def main(url: str, keys: int, speed: int) -> None:
    scheduler = Scheduler(open_engine(parse_url(url)), NotingPlan(keys), clock=lambda: clock(speed))
    while True:
        time.sleep(min(scheduler.step(), 0.01))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
