"""`evenflow bench`: measures on the database named, in a place of its own, and leaves nothing."""

from pathlib import Path

import msgspec
import psycopg
import pytest

from tests.cli.running import evenflow

NAMES = ["read, one", "enqueue, one", "enqueue, in batches", "run", "enqueue to result"]


@pytest.mark.slow
def test_it_measures_beside_the_file_named_and_removes_what_it_made(folder: Path) -> None:
    done = evenflow("bench", "--jobs", "1000", "--url", f"sqlite:///{folder}/jobs.db")
    assert done.exit_code == 0, done.output
    assert f"Measuring 1,000 jobs on sqlite:///{folder}/evenflow-bench-" in done.stdout
    assert all(name in done.stdout for name in NAMES)
    assert "jobs/s" in done.stdout and " ms" in done.stdout
    assert list(folder.iterdir()) == []


@pytest.mark.slow
def test_on_postgres_it_uses_a_schema_of_its_own_and_drops_it(postgres_url: str) -> None:
    done = evenflow("bench", "--jobs", "1000", "--json", "--url", postgres_url)
    assert done.exit_code == 0, done.output
    found = msgspec.json.decode(done.stdout)
    assert (found["jobs"], found["kind"]) == (1000, "postgres")
    assert [each["name"] for each in found["measures"]] == NAMES
    assert all(each["value"] > 0 for each in found["measures"])
    with psycopg.connect(postgres_url) as connection:
        left = connection.execute(
            "select nspname from pg_namespace where nspname like 'evenflow_bench%'"
        ).fetchall()
    assert left == []


def test_a_folder_that_is_not_there_is_said() -> None:
    done = evenflow("bench", "--url", "sqlite:////nowhere/at/all/jobs.db")
    assert done.exit_code == 1
    assert "there is no folder '/nowhere/at/all'" in done.stderr


def test_too_few_jobs_are_a_wrong_use() -> None:
    assert evenflow("bench", "--jobs", "5").exit_code == 2
