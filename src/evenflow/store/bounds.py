"""Bounds of queues: at most so many jobs are ready, the others wait outside and are let in as there is room.

Room is counted from rows under the lock of the queue's row; there is no counter that could leak.
"""

from collections.abc import Collection

import msgspec

from evenflow.store.engine import Engine, as_json

BATCH = 1000


class QueueUse(msgspec.Struct, frozen=True):
    """A queue with a cap or a bound: its limits, what is in flight, ready, and waits outside."""

    name: str
    max_concurrency: int | None
    max_ready: int | None
    on_full: str
    in_flight: int
    ready: int
    waiting: int


def fill(engine: Engine, queues: Collection[str], *, top: int = BATCH) -> set[str]:
    """Let jobs that wait before these queues in, at most `top` for each; queues that have got ready jobs."""
    if not queues:
        return set()
    rows = engine.run("fill_queues", fill_parameters(queues, top=top))
    return {name for kind, name, _ in rows if kind == "filled"}


def fill_parameters(queues: Collection[str], *, top: int = BATCH) -> dict[str, object]:
    """The parameters of `fill_queues`, for operations that run it in a transaction of theirs."""
    return {"queues": as_json(sorted(queues)), "top": top}


def fill_all(engine: Engine) -> set[str]:
    """Let jobs in wherever some wait; a look for each queue where none does."""
    return fill(engine, [name for (name,) in engine.run("overflowing", {})])


def uses(engine: Engine, *, top: int = 10_000) -> list[QueueUse]:
    """Every queue with a cap or a bound; jobs that wait are counted up to `top`."""
    return [QueueUse(*row) for row in engine.run("list_bounds", {"top": top})]


def waiting_before(engine: Engine, job: int, *, top: int = 1000) -> int:
    """How many jobs that wait outside of its queue go before this one, counted up to `top`."""
    count: int = engine.run("count_line", {"id": job, "top": top})[0][0]
    return count
