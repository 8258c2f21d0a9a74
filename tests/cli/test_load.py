"""`evenflow load`: the queue is filled as asked for, and real workers empty it as they were told to."""

from typing import Any

import msgspec
import pytest

from evenflow import Evenflow
from evenflow.cli import load as load_module
from evenflow.cli import load_jobs
from evenflow.worker.builtin import SEED_TASK
from tests.cli.running import evenflow
from tests.worker.command import Books


@pytest.mark.process
@pytest.mark.either
def test_a_queue_is_filled_and_emptied_by_real_workers(engine_url: str) -> None:
    """S4-45"""
    options = ["--count", "30", "--batch-size", "20", "--groups", "3", "--queue", "try", "--strategy", "fifo"]
    options += ["--workers", "2", "--concurrency", "4", "--poll-interval", "1", "--delay", "0.01"]
    done = evenflow("load", *options, "--url", engine_url, "--json")
    assert done.exit_code == 0, done.output
    said = msgspec.json.decode(done.stdout)
    assert said.pop("seconds") > 0
    assert said == {"ran": 30, "queue": "try", "strategy": "fifo", "workers": 2}
    with Evenflow(engine_url) as app:
        jobs = list(app.jobs(queue="try", task=SEED_TASK))
    assert [job.state for job in jobs] == ["succeeded"] * 30
    assert {job.group for job in jobs} == {"group-0", "group-1", "group-2"}
    assert all((job.finished_at - job.started_at).total_seconds() >= 0.01 for job in jobs)  # type: ignore[operator]
    books = Books(engine_url)
    assert books.rows("select fair from {queue} where name = 'try'") == [("fifo",)]


def test_the_workers_are_told_what_was_asked_for(sqlite_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """S4-45"""
    told: list[Any] = []

    def refuse(*given: Any) -> Any:
        told.extend(given)
        raise RuntimeError("no workers in this test")

    monkeypatch.setattr(load_module, "working", refuse)
    options = ["--workers", "3", "--concurrency", "2", "--poll-interval", "2.5", "--strategy", "time"]
    assert evenflow("load", "--count", "1", "--url", sqlite_url, *options).exit_code == 1
    locator, words, variables = told
    assert locator == "evenflow.cli.load_jobs:app"
    assert words == ["--processes", "3", "--concurrency", "2", "--queues", "load"]
    for name, value in variables.items():
        monkeypatch.setenv(name, value)
    app = load_jobs.made_app(None, variables["LOAD_QUEUE"], variables["LOAD_STRATEGY"])
    assert app.settings.resilience.notify_poll_interval_ms == 2_500
    assert [(queue.name, queue.fair) for queue in app.settings.queues] == [("load", "time")]
    assert app.settings.database.masked() == sqlite_url


@pytest.mark.parametrize(
    "options",
    [
        ["--workers", "0"],
        ["--strategy", "luck"],
        ["--poll-interval", "0.1"],
        ["--delay", "-1"],
        ["--count", "-1"],
    ],
)
def test_numbers_out_of_range_are_a_wrong_use(options: list[str]) -> None:
    assert evenflow("load", "--url", "sqlite:///a.db", *options).exit_code == 2


def test_a_database_in_memory_cannot_be_shared_by_processes() -> None:
    done = evenflow("load", "--url", "sqlite:///:memory:")
    assert done.exit_code == 1
    assert "a database in memory belongs to one process" in done.stderr
