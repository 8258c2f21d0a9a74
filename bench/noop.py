"""The app that benchmarked workers serve: bodies that do nothing. `EVENFLOW_URL` names its database."""

import time
from collections.abc import Coroutine
from dataclasses import dataclass
from typing import Any

from evenflow import Evenflow, Task
from evenflow.client.app import Client

QUEUE = "default"


@dataclass(frozen=True, slots=True)
class Bodies:
    """The tasks, declared on one app."""

    function: Task[[int], None, None]
    coroutine: Task[[int], Coroutine[Any, Any, None], None]
    clock: Task[[], int, int]
    wall: Task[[], int, int]


def declare(app: Client) -> Bodies:
    """Declare the tasks under the same names wherever they are enqueued or run."""

    @app.task(name="bench.function")
    def function(number: int) -> None: ...

    @app.task(name="bench.coroutine")
    async def coroutine(number: int) -> None: ...

    @app.task(name="bench.clock")
    def clock() -> int:
        return time.monotonic_ns()  # the same clock in every process of a machine

    @app.task(name="bench.wall")
    def wall() -> int:
        return time.time_ns()

    return Bodies(function, coroutine, clock, wall)


app = Evenflow()
declare(app)
