"""Fairness by time: workers report what runs take, and groups get equal time, also of a backlog from before."""

import time
from collections import Counter
from collections.abc import Iterable
from pathlib import Path

import pytest

from evenflow import Context, Evenflow, Queue
from tests.ledger import BodyLedger, Interval, intervals

# What a body takes in milliseconds, and how many there are: each group has work for longer than the others need.
BODIES = {"quick": (6, 800), "middling": (18, 280), "slow": (60, 88)}


@pytest.mark.either
def test_a_group_with_longer_jobs_gets_fewer_turns_once_its_cost_is_known(engine_url: str) -> None:
    order: list[str] = []
    with Evenflow(engine_url, queues=[Queue("docs", fair="time")]) as app:

        @app.task(name="parse", queue="docs", group="tenant")
        def parse(tenant: str) -> None:
            order.append(tenant)
            time.sleep(0.05 if tenant == "slow" else 0.005)

        parse.enqueue_many([(tenant,) for tenant in ("slow", "quick") * 10])
        app.run_worker(until_empty=True, concurrency=1)
        order.clear()
        parse.enqueue_many([(tenant,) for tenant in ("slow", "quick") * 30])
        app.run_worker(until_empty=True, concurrency=1)
    first = Counter(order[:24])
    assert first["quick"] >= 3 * first["slow"], order


@pytest.mark.either
def test_groups_get_equal_time_of_a_backlog_that_came_before_anything_was_known(
    engine_url: str, tmp_path: Path
) -> None:
    """S4-3"""
    spent = time_spent(run_backlog(engine_url, tmp_path / "bodies"))
    assert jain(spent.values()) >= 0.95, spent


@pytest.mark.either
def test_weights_divide_the_time_of_such_a_backlog(engine_url: str, tmp_path: Path) -> None:
    spent = time_spent(run_backlog(engine_url, tmp_path / "bodies", weights={"slow": 2}))
    spent["slow"] /= 2
    assert jain(spent.values()) >= 0.95, spent


def run_backlog(url: str, path: Path, weights: dict[str, float] | None = None) -> list[Interval]:
    """Enqueue everything, then work: what the bodies noted."""
    ledger = BodyLedger(path)
    with Evenflow(url, queues=[Queue("docs", fair="time", weights=weights)]) as app:

        @app.task(name="parse", queue="docs", group="tenant", keep_result=0)
        def parse(ctx: Context, tenant: str) -> None:
            with ledger.body(ctx.job_id, epoch=ctx.attempt, key=tenant):
                time.sleep(BODIES[tenant][0] / 1000)

        for tenant, (_, jobs) in BODIES.items():
            parse.enqueue_many([(tenant,)] * jobs)
        app.run_worker(until_empty=True, concurrency=4)
    ledger.close()
    runs = intervals(path)
    assert len(runs) == sum(jobs for _, jobs in BODIES.values())
    return runs


def time_spent(runs: list[Interval]) -> dict[str, float]:
    """Nanoseconds in bodies of each group, while all of them had some left."""
    last_begin = {tenant: max(run.began for run in runs if run.key == tenant) for tenant in BODIES}
    until = min(last_begin.values())
    return {
        tenant: float(sum(min(run.ended or until, until) - run.began for run in runs if run.key == tenant and run.began < until))
        for tenant in BODIES
    }  # fmt: skip


def jain(shares: Iterable[float]) -> float:
    """Jain's index of fairness: 1 where all shares are equal, 1/n where one has everything."""
    values = list(shares)
    return sum(values) ** 2 / (len(values) * sum(value**2 for value in values))
