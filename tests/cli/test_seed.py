"""`evenflow seed`: as many jobs as asked for, where they were asked for, and they run."""

import pytest

from evenflow import Evenflow
from evenflow.cli.seed import declare_seed
from evenflow.worker.builtin import SEED_TASK
from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow


def test_the_queue_is_filled_in_batches_over_groups(engine_url: str) -> None:
    done = evenflow(
        "seed", "--count", "25", "--batch-size", "10", "--groups", "3", "--queue", "load", "--url", engine_url
    )
    assert done.exit_code == 0, done.output
    assert done.stdout.startswith("enqueued 25 jobs in queue 'load' among 3 groups in ")
    with Evenflow(engine_url) as app:
        jobs = list(app.jobs(queue="load", task=SEED_TASK))
        groups = [job.group for job in jobs]
        assert {group: groups.count(group) for group in groups} == {"group-0": 9, "group-1": 8, "group-2": 8}
        declare_seed(app)
        app.run_worker(until_empty=True)
        assert {job.refresh().state for job in jobs} == {"succeeded"}


def test_without_groups_the_jobs_have_none(sqlite_url: str) -> None:
    evenflow("seed", "--count", "3", "--url", sqlite_url)
    with Evenflow(sqlite_url) as app:
        assert [(job.group, job.queue) for job in app.jobs()] == [(None, "default")] * 3


def test_the_delay_is_how_long_a_job_takes(sqlite_url: str) -> None:
    evenflow("seed", "--count", "1", "--delay", "0.05", "--url", sqlite_url)
    with Evenflow(sqlite_url) as app:
        declare_seed(app)
        app.run_worker(until_empty=True)
        (job,) = app.jobs()
        assert job.finished_at is not None and job.started_at is not None
        assert (job.finished_at - job.started_at).total_seconds() >= 0.05


def test_an_app_refuses_a_queue_that_it_has_not_declared(write_app: WriteApp) -> None:
    module = write_app(
        "from evenflow import Evenflow, Queue\napp = Evenflow('sqlite:///a.db', queues=[Queue('mail')])\n"
    )
    done = evenflow("seed", "--count", "1", "--app", module)
    assert done.exit_code == 1
    assert "Error: queue 'default' is not declared" in done.stderr
    assert evenflow("seed", "--count", "1", "--queue", "mail", "--app", module).exit_code == 0


@pytest.mark.parametrize(
    "options", [["--count", "0"], ["--batch-size", "0"], ["--groups", "-1"], ["--delay", "-1"]]
)
def test_numbers_out_of_range_are_a_wrong_use(options: list[str]) -> None:
    assert evenflow("seed", "--url", "sqlite:///a.db", *options).exit_code == 2
