"""`group_concurrency` of a queue as users declare and run it: at most so many jobs of one group at once."""

import threading
from collections import Counter
from collections.abc import Iterator
from dataclasses import replace

import pytest

from evenflow import Evenflow, Queue
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.processes import wait_until


class Crowd:
    """A body that notes how many of each group run at once, and that is held open until it may end."""

    def __init__(self) -> None:
        self.running: Counter[str] = Counter()
        self.most: Counter[str] = Counter()
        self.may_end = threading.Event()
        self._lock = threading.Lock()

    def __call__(self, tenant: str) -> None:
        self._count(tenant, 1)
        self.may_end.wait(60)
        self._count(tenant, -1)

    def _count(self, tenant: str, change: int) -> None:
        with self._lock:
            for name in (tenant, "all"):
                self.running[name] += change
                self.most[name] = max(self.most[name], self.running[name])


@pytest.fixture
def crowd() -> Iterator[Crowd]:
    crowd = Crowd()
    yield crowd
    crowd.may_end.set()


def declared(app: Evenflow, crowd: Crowd) -> Evenflow:
    @app.task(name="convert", queue="docs", group="tenant")
    def convert(tenant: str) -> None:
        crowd(tenant)

    return app


def grouped(url: str, make_app: MakeApp, crowd: Crowd, most: int) -> Evenflow:
    return declared(make_app(url, queues=[Queue("docs", group_concurrency=most)]), crowd)


def test_no_more_of_a_group_run_at_once_than_its_bound_over_all_workers(
    engine_url: str, make_app: MakeApp, crowd: Crowd
) -> None:
    """S4-40, S4-46"""
    first, second = (grouped(engine_url, make_app, crowd, 3) for _ in range(2))
    jobs = first.tasks["convert"].enqueue_many([("bob",)] * 40)
    with serving(first, concurrency=4), serving(second, concurrency=4):
        wait_until(lambda: crowd.running["bob"] == 3, "three of bob's jobs")
        crowd.may_end.set()
        for job in jobs:
            job.result(timeout=30)
    assert crowd.most["bob"] == 3


def test_a_bound_may_be_large(engine_url: str, make_app: MakeApp, crowd: Crowd) -> None:
    """S4-40"""
    app = grouped(engine_url, make_app, crowd, 2_048)
    jobs = app.tasks["convert"].enqueue_many([("bob",)] * 2_100)
    assert Counter(job.state.value for job in jobs) == {"ready": 2_048, "blocked": 52}


def test_others_find_room_beside_a_group_with_a_backlog(
    engine_url: str, make_app: MakeApp, crowd: Crowd
) -> None:
    """S4-41"""
    app = grouped(engine_url, make_app, crowd, 2)
    app.tasks["convert"].enqueue_many([("bob",)] * 10)
    with serving(app, concurrency=4):
        wait_until(lambda: crowd.running["bob"] == 2, "two of bob's jobs")
        app.tasks["convert"].enqueue("ann")
        wait_until(lambda: crowd.running["ann"] == 1, "ann's job, while bob's are held")
        assert crowd.most["bob"] == 2
        crowd.may_end.set()
        wait_until(lambda: not any(app.stats().values()), "the rest")


def test_the_slots_of_a_worker_and_the_bound_of_a_group_hold_together(
    engine_url: str, make_app: MakeApp, crowd: Crowd
) -> None:
    """S4-42"""
    app = grouped(engine_url, make_app, crowd, 2)
    app.tasks["convert"].enqueue_many([(tenant,) for tenant in ("bob", "ann", "eve") * 10])
    with serving(app, concurrency=3):
        wait_until(lambda: crowd.running["all"] == 3, "three jobs")
        crowd.may_end.set()
        wait_until(lambda: not any(app.stats().values()), "the rest")
    assert crowd.most["all"] == 3
    assert max(crowd.most[tenant] for tenant in ("bob", "ann", "eve")) <= 2


WEIGHED = Queue("docs", group_concurrency=2, by_weight=True, weights={"gold": 2.5, "trial": 0.4})


def test_by_weight_each_group_has_a_bound_of_its_own(
    engine_url: str, make_app: MakeApp, crowd: Crowd
) -> None:
    """Five of gold, two of those without a weight, one of trial: not less, not more, over two workers."""
    first, second = (declared(make_app(engine_url, queues=[WEIGHED]), crowd) for _ in range(2))
    jobs = first.tasks["convert"].enqueue_many([(tenant,) for tenant in ("gold", "tin", "trial") * 9])
    assert Counter(job.group for job in jobs if job.state == "ready") == {"gold": 5, "tin": 2, "trial": 1}
    with serving(first, concurrency=8), serving(second, concurrency=8):
        wait_until(lambda: crowd.running["all"] == 8, "every group to be at its bound")
        used = {row.name: (row.used, row.limit, row.waiting) for row in first.limits()}
        last = next(job for job in jobs if job.group == "trial" and job.refresh().state == "blocked")
        (reason,) = first.why(last.id)
        crowd.may_end.set()
        for job in jobs:
            job.result(timeout=30)
    assert {tenant: crowd.most[tenant] for tenant in ("gold", "tin", "trial")} == {
        "gold": 5,
        "tin": 2,
        "trial": 1,
    }
    assert used == {"group:docs:gold": (5, 5, 4), "group:docs:tin": (2, 2, 7), "group:docs:trial": (1, 1, 8)}
    assert (reason.rule, reason.text) == ("group", "group 'trial' is at its cap in queue 'docs': 1/1 held")
    assert len(reason.holders) == 1


def test_after_a_change_of_weights_the_bound_of_the_next_in_line_counts(
    engine_url: str, make_app: MakeApp, crowd: Crowd
) -> None:
    crowd.may_end.set()
    before = declared(make_app(engine_url, queues=[WEIGHED]), crowd)
    before.tasks["convert"].enqueue_many([("gold",)] * 6)
    after = declared(make_app(engine_url, queues=[replace(WEIGHED, weights={"gold": 4})]), crowd)
    behind = after.tasks["convert"].enqueue_many([("gold",)] * 9)
    assert {job.state.value for job in behind} == {
        "blocked"
    }  # the sixth of before is next, and five are held
    after.run_worker(until_empty=True, concurrency=1)
    jobs = after.tasks["convert"].enqueue_many([("gold",)] * 9)
    assert Counter(job.state.value for job in jobs) == {"ready": 8, "blocked": 1}


def test_workers_that_claim_at_once_all_get_jobs_of_bounded_groups(
    engine_url: str, make_app: MakeApp, crowd: Crowd
) -> None:
    """S4-16"""
    apps = [grouped(engine_url, make_app, crowd, 1) for _ in range(3)]
    apps[0].tasks["convert"].enqueue_many([(f"tenant-{number}",) for number in range(12)])
    with serving(apps[0], concurrency=2), serving(apps[1], concurrency=2), serving(apps[2], concurrency=2):
        wait_until(lambda: crowd.running["all"] == 6, "both slots of all three workers to be full")
        crowd.may_end.set()
        wait_until(lambda: not any(apps[0].stats().values()), "the rest")


@pytest.mark.parametrize("fair", ["fifo", "time"])
def test_a_bound_goes_with_every_strategy(
    engine_url: str, make_app: MakeApp, crowd: Crowd, fair: str
) -> None:
    """S4-46"""
    queue = Queue("docs", group_concurrency=1, fair=fair)  # type: ignore[arg-type]
    app = declared(make_app(engine_url, queues=[queue]), crowd)
    app.tasks["convert"].enqueue_many([("bob",), ("bob",), ("ann",)])
    crowd.may_end.set()
    app.run_worker(until_empty=True, concurrency=4)
    assert crowd.most["bob"] == crowd.most["ann"] == 1
    assert not any(app.stats().values())
