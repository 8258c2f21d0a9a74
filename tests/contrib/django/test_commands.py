"""The commands of `manage.py`, in the example project: real processes, a real worker."""

import io
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import CommandError, call_command

from evenflow import Evenflow
from evenflow.contrib.django import queue_app
from tests.contrib.django.project import database
from tests.processes import wait_until

ROOT = Path(__file__).resolve().parents[3]
WITHIN_S = 60.0
SETTINGS = """
from settings import *

DATABASES = {databases!r}
ROOT_URLCONF = "urls"
"""
PREPARE = """
from django.core.management import call_command
call_command("migrate")
call_command("makemigrations", "--check", "--dry-run")
call_command("check")
"""
ORDER = """
from django.test import Client
print(Client().post("/orders/", {"customer": "Ada"}).json()["job"])
"""


class Project:
    """A copy of the example project, on a database of a test's own."""

    def __init__(self, folder: Path, url: str) -> None:
        self.folder = folder / "django"
        shutil.copytree(ROOT / "examples" / "django", self.folder)
        (self.folder / "tested.py").write_text(SETTINGS.format(databases={"default": database(url)}))
        self._environment = os.environ | {
            "DJANGO_SETTINGS_MODULE": "tested",
            "PYTHONPATH": os.pathsep.join([str(ROOT / "src"), str(ROOT)]),
            "EVENFLOW_NOTIFY_POLL_INTERVAL_MS": "1000",
        }
        self._elsewhere = folder

    def started(self, *words: str, **options: Any) -> "subprocess.Popen[str]":
        """`manage.py`, started from another folder, as a service would."""
        return subprocess.Popen(
            [sys.executable, str(self.folder / "manage.py"), *words], cwd=self._elsewhere, env=self._environment, text=True,
            stdin=subprocess.DEVNULL, **options,
        )  # fmt: skip

    def manage(self, *words: str, code: int = 0) -> str:
        process = self.started(*words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        printed, _ = process.communicate(timeout=WITHIN_S)
        assert process.returncode == code, printed
        return printed


@pytest.fixture
def stopped() -> Iterator[list["subprocess.Popen[str]"]]:
    """Processes that do not outlive the test."""
    processes: list[subprocess.Popen[str]] = []
    yield processes
    for process in processes:
        if process.poll() is None:
            process.kill()
        process.wait()


@pytest.mark.process
def test_orders_of_the_example_are_confirmed_by_the_worker_that_manage_py_starts(
    tmp_path: Path, empty_postgres_url: str, stopped: list["subprocess.Popen[str]"]
) -> None:
    example = Project(tmp_path, empty_postgres_url)
    printed = example.manage("shell", "-v0", "-c", PREPARE + ORDER)
    assert "Applying evenflow's own 0001_foundation... OK" in printed
    assert "No changes detected" in printed
    assert "no issues" in printed
    with (tmp_path / "worker.log").open("w") as log:
        stopped.append(
            example.started(
                "evenflow", "--processes", "1", "--queues", "default,mail", stdout=log, stderr=log
            )
        )
    with Evenflow(empty_postgres_url) as app:
        assert (
            app.job(printed.splitlines()[-1]).result(timeout=WITHIN_S) == "Dear Ada, thank you for order 1."
        )
        wait_until(
            lambda: [each.key for each in app.schedules.list()] == ["shop.tasks.forget_unconfirmed"],
            "its schedules",
            WITHIN_S,
        )
    stopped[0].terminate()
    assert stopped[0].wait(WITHIN_S) == 0, (tmp_path / "worker.log").read_text()


@pytest.mark.process
def test_a_worker_starts_anew_after_a_change_and_survives_a_mistake(
    tmp_path: Path, sqlite_url: str, stopped: list["subprocess.Popen[str]"]
) -> None:
    example = Project(tmp_path, sqlite_url)
    example.manage("migrate", "-v0")
    log = tmp_path / "worker.log"
    with log.open("w") as written:
        stopped.append(
            example.started("evenflow", "--autoreload", "--processes", "1", stdout=written, stderr=written)
        )
    app = Evenflow(sqlite_url)
    wait_until(lambda: "with 2 tasks" in log.read_text(), "with 2 tasks", WITHIN_S)
    tasks = example.folder / "shop" / "tasks.py"
    right = tasks.read_text()
    tasks.write_text(right + "\n\nthis is no Python")
    wait_until(
        lambda: "the command has ended: waiting for a change" in log.read_text(),
        "the command has ended: waiting for a change",
        WITHIN_S,
    )
    tasks.write_text(right + "\n\n@task\ndef added() -> int:\n    return 7\n")
    wait_until(lambda: "with 3 tasks" in log.read_text(), "with 3 tasks", WITHIN_S)
    job = app.task(name="shop.tasks.added")(added).enqueue()
    assert job.result(timeout=WITHIN_S) == 7
    app.close()
    stopped[0].terminate()
    assert stopped[0].wait(WITHIN_S) == 0, log.read_text()


def added() -> int:
    raise AssertionError("the worker has its own")


@pytest.mark.usefixtures("sqlite_database")
class TestWithoutProcesses:
    def test_tables_of_their_own_are_made_by_a_command_of_their_own(
        self, tmp_path: Path, options: Callable[..., None]
    ) -> None:
        options(url=f"sqlite:///{tmp_path}/jobs.db")
        assert "create table" in told("evenflow_migrate", "--sql")
        assert not (tmp_path / "jobs.db").exists()
        assert "applied 0001_foundation" in told("evenflow_migrate")
        assert told("evenflow_migrate") == f"sqlite:///{tmp_path}/jobs.db is up to date\n"
        queue_app().close()

    def test_a_check_says_what_was_found(self, capsys: pytest.CaptureFixture[str]) -> None:
        call_command("evenflow_check")
        printed = capsys.readouterr().out
        assert "tests.contrib.django.shop.tasks.report" in printed
        assert "nightly" in printed
        assert printed.endswith("no mistakes\n")

    def test_a_check_of_a_wrong_backend_fails(self, options: Callable[..., None]) -> None:
        options(cluster_wide_cap=0)
        errors = io.StringIO()
        with pytest.raises(CommandError, match="TASKS has mistakes"):
            call_command("evenflow_check", stderr=errors)
        assert "(evenflow.E002) TASKS['default']: cluster_wide_cap" in errors.getvalue()

    def test_a_wrong_option_is_told_as_the_program_tells_it(self) -> None:
        with pytest.raises(
            CommandError, match="Invalid value for '--processes': 'none' is not a valid integer"
        ):
            call_command("evenflow", "--processes", "none")

    def test_a_backend_that_is_not_ours_is_told(self) -> None:
        with pytest.raises(
            ImproperlyConfigured, match=r"TASKS\['mail'\]: expected 'BACKEND'.*aliases with it: 'default'"
        ):
            call_command("evenflow", "--backend", "mail")


def told(*words: str) -> str:
    out = io.StringIO()
    call_command(*words, stdout=out)
    return out.getvalue()
