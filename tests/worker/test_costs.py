"""Fairness by time: workers report what runs take, and groups with longer jobs get fewer turns."""

import time
from collections import Counter

from evenflow import Evenflow, Queue


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
