"""Fairness by time: workers report what runs take, and groups get equal time, also of a backlog from before."""

import time
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass

import pytest

from evenflow import Evenflow, Queue
from tests.ledger import now_ns
from tests.processes import wait_until
from tests.worker.command import Books

# What a body takes in milliseconds, and how many there are: each group has work for longer than the others need.
# Long enough that what a crowded machine adds to each is little beside it.
BODIES = {"quick": (12, 400), "middling": (36, 140), "slow": (120, 44)}


@pytest.mark.either
def test_a_group_with_longer_jobs_gets_fewer_turns_once_its_cost_is_known(engine_url: str) -> None:
    order: list[str] = []
    books = Books(engine_url)
    with Evenflow(engine_url, queues=[Queue("docs", fair="time")]) as app:

        @app.task(name="parse", queue="docs", group="tenant")
        def parse(tenant: str) -> None:
            order.append(tenant)
            time.sleep(0.15 if tenant == "slow" else 0.005)

        def are_known() -> bool:
            """A quick job that stood still with this machine makes its group look dear, until enough others have run."""
            parse.enqueue_many([(tenant,) for tenant in ("slow", "quick") * 10])
            app.run_worker(until_empty=True, concurrency=1)
            costs: dict[str, float] = dict(books.rows("select group_key, cost_us from {group_cost}"))
            return costs["slow"] >= 4 * costs["quick"]

        wait_until(are_known, "the costs to be known, about as they are", 60)
        order.clear()
        parse.enqueue_many([(tenant,) for tenant in ("slow",) * 12 + ("quick",) * 30])
        app.run_worker(until_empty=True, concurrency=1)
    first = Counter(order[:24])
    assert first["quick"] >= 3 * first["slow"], order


@pytest.mark.either
def test_groups_get_equal_time_of_a_backlog_that_came_before_anything_was_known(
    engine_url: str,
) -> None:
    """S4-3"""
    spent = time_spent(run_backlog(engine_url))
    print(jain(spent.values()), spent)
    assert jain(spent.values()) >= 0.95, spent


@pytest.mark.either
def test_weights_divide_the_time_of_such_a_backlog(engine_url: str) -> None:
    spent = time_spent(run_backlog(engine_url, weights={"slow": 2}))
    spent["slow"] /= 2
    print(jain(spent.values()), spent)
    assert jain(spent.values()) >= 0.95, spent


@dataclass(frozen=True, slots=True)
class Body:
    """When one ran, in nanoseconds. Kept in memory: a file that is synced now and then would itself take time of bodies."""

    tenant: str
    began: int
    ended: int


def run_backlog(url: str, weights: dict[str, float] | None = None) -> list[Body]:
    """Enqueue everything, then work: what the bodies noted."""
    runs: list[Body] = []
    # A lease that no load can break: what is taken from a worker runs again, and this is not about that.
    with Evenflow(url, queues=[Queue("docs", fair="time", weights=weights)], lease_ms=120_000) as app:

        @app.task(name="parse", queue="docs", group="tenant", keep_result=0)
        def parse(tenant: str) -> None:
            began = now_ns()
            time.sleep(BODIES[tenant][0] / 1000)
            runs.append(Body(tenant, began, now_ns()))

        for tenant, (_, jobs) in BODIES.items():
            parse.enqueue_many([(tenant,)] * jobs)
        app.run_worker(until_empty=True, concurrency=4)
    assert len(runs) == sum(jobs for _, jobs in BODIES.values())
    return runs


def time_spent(runs: list[Body]) -> dict[str, float]:
    """Nanoseconds in bodies of each group, while all of them had some left."""
    last_begin = {tenant: max(run.began for run in runs if run.tenant == tenant) for tenant in BODIES}
    until = min(last_begin.values())
    return {
        tenant: float(sum(min(run.ended, until) - run.began for run in runs if run.tenant == tenant and run.began < until))
        for tenant in BODIES
    }  # fmt: skip


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 where all shares are equal, 1/n where one has everything."""
    values = list(shares)
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))
