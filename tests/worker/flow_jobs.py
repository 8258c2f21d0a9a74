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
BURST = 12
WEIGHTS = {"one": 1, "two": 2, "four": 4}
# Two for each unit of weight: together more than the queue's cap, so that both bind.
GROUP_WEIGHTS = {"group-0": 1.5, "group-2": 0.5}
GROUP_CAPS = {"group-0": 3, "group-1": 2, "group-2": 1}
QUEUES = [
    Queue("capped", max_concurrency=QUEUE_CAP, group_concurrency=2, by_weight=True, weights=GROUP_WEIGHTS),
    Queue("free"),
    Queue("rated"),
    Queue("equal"),
    Queue("weighted", weights=WEIGHTS),
]


@functools.cache
def starts() -> Ledger:
    return Ledger(FOLDER / "starts")


def group_of(job: str) -> str:
    return f"group-{int(job.partition('/')[2]) % len(GROUP_CAPS)}"


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

    def group(job: str, **_: object) -> str:
        return group_of(job)

    app.task(name="limited", queue="capped", concurrency=keyed, group=group)(limited)
    app.task(name="unkeyed", queue="free")(limited)
    app.task(name="rated", queue="rated", rate=rates)(rated)
    spaced = [Rate(RATES[0], burst=BURST), *rates[1:]]
    app.task(name="arated", queue="rated", rate=spaced)(arated)
    app.task(name="equal", queue="equal", group="group")(shared)
    app.task(name="weighted", queue="weighted", group="group")(shared)
    return app


if "LEDGER_FOLDER" in os.environ:
    app = declared(Evenflow(queues=QUEUES))
