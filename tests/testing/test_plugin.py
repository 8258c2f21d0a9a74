"""The pytest plugin, in a pytest of its own, as a project sees it that has Evenflow installed."""

import subprocess
import sys
from importlib.resources import files
from pathlib import Path

import pytest

TASKS = """
from evenflow import Evenflow
app = Evenflow("sqlite:////nowhere/jobs.db")

@app.task
def add(a: int, b: int) -> int:
    return a + b
"""
TESTS = """
import pytest
from tasks import add

def test_manual(evenflow_testing):
    job = add.enqueue(1, 2)
    evenflow_testing.assert_enqueued(add, {"a": 1})
    assert evenflow_testing.drain()["succeeded"] == 1
    assert job.result(timeout=0) == 3

def test_each_test_begins_empty(evenflow_testing):
    evenflow_testing.refute_enqueued()

@pytest.mark.evenflow(mode="inline")
def test_inline(evenflow_testing):
    assert add.enqueue(1, 2).result(timeout=0) == 3

@pytest.mark.evenflow(mode="sideways")
def test_wrong_mode(evenflow_testing):
    pass
"""


def run_pytest(folder: Path, *options: str) -> str:
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-p", "evenflow_pytest", *options]
    done = subprocess.run(command, cwd=folder, capture_output=True, text=True, timeout=60, check=False)
    return done.stdout + done.stderr


def test_fixtures_are_there_by_themselves_and_the_mark_is_known(tmp_path: Path) -> None:
    (tmp_path / "tasks.py").write_text(TASKS)
    (tmp_path / "test_tasks.py").write_text(TESTS)
    (tmp_path / "pytest.ini").write_text("[pytest]\nevenflow_app = tasks:app\npythonpath = .\n")
    said = run_pytest(tmp_path, "--strict-markers", "-q")
    assert "3 passed, 1 error" in said, said
    assert 'mode: expected "manual" or "inline", got \'sideways\'' in said


def test_an_app_that_is_not_named_is_asked_for(tmp_path: Path) -> None:
    (tmp_path / "test_it.py").write_text("def test_it(evenflow_testing): ...\n")
    said = run_pytest(tmp_path, "-q")
    assert "evenflow_app: expected MODULE:APP, got ''" in said and "define a fixture evenflow_app" in said


def test_the_plugin_imports_nothing_of_evenflow() -> None:
    code = "import sys, evenflow_pytest; print([name for name in sys.modules if name.split('.')[0] == 'evenflow'])"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "[]"


def test_the_plugin_is_an_entry_point_of_the_package() -> None:
    import tomllib

    root = Path(str(files("evenflow_pytest"))).parent.parent
    project = tomllib.loads((root / "pyproject.toml").read_text())
    assert project["project"]["entry-points"]["pytest11"] == {"evenflow_pytest": "evenflow_pytest"}
    assert "src/evenflow_pytest" in project["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]


@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_django_test_case_takes_its_jobs_along_when_it_rolls_back(
    engine: str, request: pytest.FixtureRequest
) -> None:
    url = request.getfixturevalue(f"{engine}_url")
    command = [sys.executable, "-m", "tests.testing.django_process", engine, url]
    done = subprocess.run(command, capture_output=True, text=True, timeout=90, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "OK" in done.stderr and "left: 0" in done.stdout, done.stdout + done.stderr
