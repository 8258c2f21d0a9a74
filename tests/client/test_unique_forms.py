"""Unique jobs as users declare them: replace, debounce and throttle."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from evenflow import ConfigError, DuplicateJob, EnqueueError, Evenflow, Unique
from tests.client.conftest import MakeApp


@pytest.fixture
def app(engine_url: str, make_app: MakeApp) -> Evenflow:
    return make_app(engine_url)


def sync(app: Evenflow, unique: Unique, **options: Any) -> Any:
    def body(tenant: str, page: int = 0) -> int:
        return page

    return app.task(**{"name": "sync", "unique": unique, **options})(body)


def test_replace_gives_the_waiting_job_the_new_arguments(app: Evenflow) -> None:
    task = sync(app, Unique("tenant", on_conflict="replace"))
    first = task.enqueue("bob", 1)
    other = task.enqueue("ann", 5)
    again = task.enqueue("bob", 2)
    assert (again.id, again.is_new, again.args) == (first.id, False, ("bob", 2))
    app.run_worker(until_empty=True)
    assert (first.result(timeout=30), other.result(timeout=30)) == (2, 5)


def test_replace_works_with_signed_jobs(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url, signing_keys={"one": "x" * 40})
    task = sync(app, Unique("tenant", on_conflict="replace"))
    first = task.enqueue("bob", 1)
    task.enqueue("bob", 2)
    app.run_worker(until_empty=True)
    assert first.result(timeout=30) == 2


def test_debounce_delays_the_job_and_takes_the_last_arguments(app: Evenflow) -> None:
    task = sync(app, Unique("tenant", debounce=0.3, max_wait=60))
    jobs = [task.enqueue("bob", page) for page in range(5)]
    assert len({job.id for job in jobs}) == 1
    assert jobs[-1].state == "scheduled"
    assert jobs[-1].run_at > jobs[0].run_at
    assert jobs[-1].run_at > jobs[0].created_at
    app.retry(jobs[0].id)  # due at once
    app.run_worker(until_empty=True)
    assert jobs[0].result(timeout=30) == 4


def test_throttle_lets_one_job_through_in_its_time(app: Evenflow) -> None:
    task = sync(app, Unique("tenant", ttl="1 hour"))
    first = task.enqueue("bob", 1)
    app.run_worker(until_empty=True)
    again = task.enqueue("bob", 2)
    assert (again.id, again.is_new, again.state) == (first.id, False, "succeeded")
    assert task.enqueue("ann", 3).is_new


def test_throttle_can_raise(app: Evenflow) -> None:
    task = sync(app, Unique("tenant", ttl="1 hour", on_conflict="error"))
    first = task.enqueue("bob", 1)
    app.run_worker(until_empty=True)
    with pytest.raises(DuplicateJob) as refused:
        task.enqueue("bob", 2)
    assert refused.value.job_id == first.id


def test_a_call_without_a_key_is_never_held_back(app: Evenflow) -> None:
    task = sync(app, Unique(lambda tenant: None, ttl="1 hour"))
    assert all(task.enqueue("bob").is_new for _ in range(2))


def test_a_job_that_replaces_is_refused_inside_a_caller_s_transaction(tmp_path: Path) -> None:
    with Evenflow(f"sqlite:///{tmp_path}/jobs.db") as app:
        app.prepare()
        task = sync(app, Unique("tenant", on_conflict="replace"))
        connection = sqlite3.connect(tmp_path / "jobs.db")
        with pytest.raises(EnqueueError, match="enqueue it after the commit, without connection="):
            task.enqueue("bob", connection=connection)
        connection.close()


@pytest.mark.parametrize(
    ("options", "mistakes"),
    [
        ({"max_wait": 5}, ["Unique: max_wait bounds a debounce; give debounce= too, or leave it out"]),
        ({"debounce": 0}, ["Unique: expected debounce above 0, got 0"]),
        ({"ttl": "soon"}, None),
        (
            {"debounce": 5, "max_wait": 4, "ttl": 1, "on_conflict": "error"},
            [
                "Unique: debounce replaces the job that is there; leave on_conflict='error' out",
                "Unique: expected debounce or ttl, got both; give the task one of them",
                "Unique: expected a max_wait of at least debounce=5, got 4",
            ],
        ),
    ],
)
def test_mistakes_are_told_together(options: dict[str, Any], mistakes: list[str] | None) -> None:
    with pytest.raises(ConfigError) as refused:
        Unique("tenant", **options)
    if mistakes is not None:
        assert refused.value.mistakes == mistakes
