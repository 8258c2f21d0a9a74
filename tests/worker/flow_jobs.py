"""The app behind the proofs of flow control: one task under every cap at once, one under two rates, one with groups.

Settings come from the environment, as in `tests.worker.jobs`; the bodies write into its ledger.
"""

import functools
import os
import time

from evenflow import Concurrency, Context, Evenflow, Queue, Rate
from tests.ledger import Ledger, now_ns
from tests.worker.jobs import FOLDER, ledger

QUEUE_CAP, KEY_CAP, CLUSTER_CAP, SLOTS = 5, 2, 6, 2
RATES = ("120/s", "300/4s")
WEIGHTS = {"one": 1, "two": 2, "four": 4}
QUEUES = [
    Queue("capped", max_concurrency=QUEUE_CAP),
    Queue("free"),
    Queue("rated"),
    Queue("equal"),
    Queue("weighted", weights=WEIGHTS),
]


@functools.cache
def starts() -> Ledger:
    return Ledger(FOLDER / "starts")


def limited(ctx: Context, job: str, key: str, seconds: float) -> None:
    """Runs under the caps of its worker, its queue and the cluster, a key and a lock."""
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue, key=key):
        time.sleep(seconds)


def rated(number: int) -> None:
    at = now_ns()  # before all else: this is the start that the rate is about
    starts().note(at, number)


async def arated(number: int) -> None:
    rated(number)


def shared(group: str) -> None:
    at = now_ns()
    starts().note(at, group)


def declared(app: Evenflow) -> Evenflow:
    """The same app, with the tasks of this module."""
    rates = [Rate(limit) for limit in RATES]
    keyed = Concurrency(to=KEY_CAP, key="key", duration=3600)
    app.task(name="limited", queue="capped", concurrency=keyed)(limited)
    app.task(name="unkeyed", queue="free")(limited)
    app.task(name="rated", queue="rated", rate=rates)(rated)
    app.task(name="arated", queue="rated", rate=rates)(arated)
    app.task(name="equal", queue="equal", group="group")(shared)
    app.task(name="weighted", queue="weighted", group="group")(shared)
    return app


if "LEDGER_FOLDER" in os.environ:
    app = declared(Evenflow(queues=QUEUES))
