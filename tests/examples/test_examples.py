"""The examples, each in a process of its own."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


def run(url: str, *command: str) -> str:
    done = subprocess.run(
        [sys.executable, *command], cwd=ROOT, env=os.environ | {"DATABASE_URL": url}, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "engine"),
    [("fastapi", "sqlite"), ("fastapi", "postgres"), ("litestar", "sqlite"), ("flask", "postgres")],
)
def test_a_service_enqueues_in_the_request_s_session_and_runs_its_jobs(
    name: str, engine: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    assert run(url, "-m", "tests.examples.shop_process", name) == "fine\n"


@pytest.mark.either
@pytest.mark.slow
def test_an_order_and_its_job_are_stored_together_or_not_at_all(engine_url: str) -> None:
    said = run(engine_url, str(ROOT / "examples" / "sqlalchemy_shop.py"))
    assert said == "shipped a book\norders: [('a book', 'shipped')]\n"


def test_every_example_is_in_the_list() -> None:
    listed = (ROOT / "examples" / "README.md").read_text()
    assert all(f"`{path.name}`" in listed for path in (ROOT / "examples").glob("*.py"))
