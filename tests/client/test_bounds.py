"""Bounded queues as users declare them: what overflows, what is rejected, and what `why` and `limits` say of it."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evenflow import Concurrency, ConfigError, Evenflow, Queue, QueueFull
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.processes import wait_until


@pytest.fixture
def app(engine_url: str, make_app: MakeApp) -> Evenflow:
    return make_app(
        engine_url,
        queues=[
            Queue("default"),
            Queue("narrow", max_ready=3),
            Queue("strict", max_ready=3, on_full="reject"),
        ],
    )


def echo(app: Evenflow, queue: str = "narrow", **options: Any) -> Any:
    def body(value: int) -> int:
        return value

    return app.task(**{"name": f"echo-{queue}", "queue": queue, **options})(body)


def states(app: Evenflow, jobs: list[Any]) -> list[str]:
    return [app.job(job.id).state.value for job in jobs]


def test_what_is_beyond_the_bound_overflows_and_runs_by_itself(app: Evenflow) -> None:
    jobs = echo(app).enqueue_many([(number,) for number in range(10)])
    assert [job.state for job in jobs] == ["ready"] * 3 + ["overflow"] * 7
    app.run_worker(until_empty=True, concurrency=4)
    assert [job.result(timeout=30) for job in jobs] == list(range(10))


def test_a_backlog_many_times_the_bound_drains_without_waiting_for_a_sweep(app: Evenflow) -> None:
    task = echo(app)
    task.enqueue_many([(number,) for number in range(300)])
    with serving(app, concurrency=8):
        last = task.enqueue(300)
        assert last.result(timeout=30) == 300
        wait_until(lambda: not any(app.stats().values()), "the rest")


def test_why_and_limits_tell_of_the_bound(app: Evenflow) -> None:
    jobs = echo(app).enqueue_many([(number,) for number in range(6)])
    reason, _ = app.why(jobs[5].id)
    assert reason.rule == "overflow"
    assert reason.text == "queue 'narrow' is at its bound: 3/3 ready, 2 wait before it"
    (row,) = app.limits("ready:narrow")
    assert (row.kind, row.used, row.limit, row.waiting) == ("bound", 3, 3, 3)


def test_the_bound_can_be_changed_lifted_and_given_back_at_run_time(app: Evenflow) -> None:
    jobs = echo(app).enqueue_many([(number,) for number in range(8)])
    app.set_limit("narrow", max_ready=5)
    assert states(app, jobs).count("ready") == 5
    assert app.limits("ready:narrow")[0].limit == 5
    app.set_limit("narrow", max_ready=None)
    assert states(app, jobs) == ["ready"] * 8
    app.reset_limit("narrow")
    assert app.limits("ready:narrow")[0].limit == 3


def test_one_limit_of_a_queue_is_set_without_the_other(app: Evenflow) -> None:
    app.set_limit("narrow", max_concurrency=7)
    app.set_limit("narrow", max_ready=9)
    row = next(row for row in app.queues() if row.name == "narrow")
    assert (row.max_concurrency, row.max_ready) == (7, 9)


@pytest.mark.parametrize(
    ("limits", "mistake"),
    [
        ({}, "queue 'narrow': expected max_concurrency= or max_ready=, got neither"),
        ({"max_ready": 0}, "queue 'narrow': max_ready: expected a whole number of 1 or more, got 0"),
    ],
)
def test_a_limit_that_makes_no_sense_is_refused(app: Evenflow, limits: Any, mistake: str) -> None:
    with pytest.raises(ConfigError) as refused:
        app.set_limit("narrow", **limits)
    assert refused.value.mistakes == [mistake]


def test_a_queue_bounded_at_run_time_alone_is_filled_by_its_workers(app: Evenflow) -> None:
    app.set_limit("default", max_ready=2)
    jobs = echo(app, "default").enqueue_many([(number,) for number in range(20)])
    app.run_worker(until_empty=True)
    assert [job.result(timeout=30) for job in jobs] == list(range(20))


def test_a_full_queue_rejects_all_of_a_batch(app: Evenflow) -> None:
    task = echo(app, "strict")
    task.enqueue_many([(1,), (2,)])
    with pytest.raises(QueueFull) as full:
        task.enqueue_many([(3,), (4,)])
    assert (full.value.queue, full.value.limit, full.value.count) == ("strict", 3, 2)
    assert app.stats() == {"strict": {"ready": 2}}
    assert task.enqueue(3).state == "ready"
    with pytest.raises(QueueFull):
        task.enqueue(4)


def test_jobs_with_keys_are_rejected_as_well(app: Evenflow) -> None:
    task = echo(app, "strict", concurrency=Concurrency(to=9))
    task.enqueue_many([(1,), (2,), (3,)])
    with pytest.raises(QueueFull):
        task.enqueue(4)
    assert sum(app.stats()["strict"].values()) == 3


def test_a_rejecting_queue_takes_jobs_again_after_work(app: Evenflow) -> None:
    task = echo(app, "strict")
    task.enqueue_many([(1,), (2,), (3,)])
    app.run_worker(until_empty=True)
    assert task.enqueue(4).state == "ready"


def test_a_caller_s_transaction_is_not_rejected_but_its_jobs_wait(tmp_path: Path) -> None:
    with Evenflow(
        f"sqlite:///{tmp_path}/jobs.db", queues=[Queue("strict", max_ready=1, on_full="reject")]
    ) as app:
        task = echo(app, "strict")
        task.enqueue(1)
        connection = sqlite3.connect(tmp_path / "jobs.db")
        job = task.enqueue(2, connection=connection)
        connection.commit()
        connection.close()
        app.run_worker(until_empty=True)
        assert job.result(timeout=30) == 2
