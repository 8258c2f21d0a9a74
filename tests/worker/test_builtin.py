"""Tasks that every worker knows."""

from evenflow import Evenflow
from evenflow.cli.seed import declare_seed


def test_a_worker_runs_seeded_jobs_of_which_its_app_knows_nothing(sqlite_url: str) -> None:
    with Evenflow(sqlite_url) as producer, Evenflow(sqlite_url) as consumer:
        job = declare_seed(producer).enqueue(0.0)
        assert "evenflow.seed" not in consumer.tasks
        consumer.run_worker(until_empty=True)
        assert job.result(timeout=0) is None
