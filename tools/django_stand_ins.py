"""Django's own tests of its tasks framework, run inside of a process: their backends stand for ours.

Started by `tools.django_suite`. The tests name `ImmediateBackend` and `DummyBackend`; here these are Evenflow's backend, once
with a worker that runs each job at once, once without. On a Django without `django.tasks` the backport goes by its name.
"""

import argparse
import contextlib
import importlib
import json
import logging
import sqlite3
import sys
import unittest
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

import django
from django.conf import settings

PARTS = (
    "base",
    "exceptions",
    "signals",
    "checks",
    "backends",
    "backends.base",
    "backends.dummy",
    "backends.immediate",
)
BACKPORT = "django_tasks"
BUILT_IN = "django.tasks"


def main() -> None:
    """Run the tests in a folder; the outcome of each is printed as JSON."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folder", type=Path, help="where the package `tasks` with the tests is")
    parser.add_argument("database", help="an address of SQLite or PostgreSQL")
    parser.add_argument("--stock", action="store_true", help="with Django's own backends, to compare")
    given = parser.parse_args()
    _configure(given.database)
    sys.path.insert(0, str(given.folder))
    if not given.stock:
        _put_in_place()
    print(json.dumps(_outcomes()))


def _configure(database: str) -> None:
    settings.configure(
        DATABASES={"default": _database(database)}, INSTALLED_APPS=["evenflow.contrib.django"], USE_TZ=True,
        LOGGING_CONFIG=None, SECRET_KEY="only for tests", DEFAULT_AUTO_FIELD="django.db.models.BigAutoField",
        TASKS={"default": {"BACKEND": "django.tasks.backends.immediate.ImmediateBackend", "QUEUES": []}},
    )  # fmt: skip
    if importlib.util.find_spec(BUILT_IN) is None:
        _name_backport()
    django.setup()


def _database(url: str) -> dict[str, Any]:
    if url.startswith("sqlite"):
        path = url.removeprefix("sqlite:///")
        return {
            "ENGINE": "django.db.backends.sqlite3",
            "NAME": path,
            "OPTIONS": {"transaction_mode": "IMMEDIATE"},
        }
    parts = urlsplit(url)
    host = parse_qs(parts.query).get("host", [parts.hostname or ""])[0]
    return {
        "ENGINE": "django.db.backends.postgresql", "NAME": parts.path[1:], "HOST": unquote(host),
        "USER": parts.username or "", "PASSWORD": parts.password or "", "PORT": str(parts.port or ""),
    }  # fmt: skip


def _name_backport() -> None:
    """Let `import django.tasks` find the backport, under the names that the built-in one uses."""
    importlib.import_module("evenflow.contrib.django.compat")  # which looks for the real one
    root: Any = importlib.import_module(BACKPORT)
    sys.modules[BUILT_IN] = root
    django.tasks = root
    for part in PARTS:
        sys.modules[f"{BUILT_IN}.{part}"] = importlib.import_module(f"{BACKPORT}.{part}")
    exceptions: Any = sys.modules[f"{BUILT_IN}.exceptions"]
    exceptions.InvalidTask = exceptions.InvalidTaskError
    exceptions.InvalidTaskBackend = exceptions.InvalidTaskBackendError
    signals: Any = sys.modules[f"{BUILT_IN}.signals"]
    signals.logger = logging.getLogger(BUILT_IN)


def _put_in_place() -> None:
    from evenflow.contrib.django import EvenflowBackend
    from evenflow.contrib.django.tables import make_tables
    from evenflow.store import reads
    from evenflow.store.borrowed import BorrowedEngine

    make_tables("default")

    class ImmediateBackend(EvenflowBackend):
        """Ours, with a worker that is called after each enqueue, as the tests expect it of the immediate one."""

        def enqueue(self, task: Any, args: Any, kwargs: Any) -> Any:
            result = super().enqueue(task, args, kwargs)
            if not self.link.connection().in_atomic_block:  # else no worker can see it
                self.link.app.run_worker(until_empty=True, concurrency=1, services=False)
            result.refresh()
            return result

    class DummyBackend(EvenflowBackend):
        """Ours, with the two names by which the tests look into the dummy."""

        @property
        def results(self) -> list[Any]:
            app, connection = self.link.app, self.link.connection()
            if not connection.in_atomic_block:
                return [self.get_result(job.id) for job in app.jobs()]
            rows = reads.page(BorrowedEngine(connection, app.settings.schema), reads.Filter())
            return [self.get_result(reads_id) for reads_id in map(_text, rows)]

        def clear(self) -> None:
            self.link.app.prepare()
            _forget_jobs(self.link.app)

    immediate = importlib.import_module(f"{BUILT_IN}.backends.immediate")
    dummy = importlib.import_module(f"{BUILT_IN}.backends.dummy")
    immediate.ImmediateBackend = ImmediateBackend  # type: ignore[attr-defined]
    dummy.DummyBackend = DummyBackend  # type: ignore[attr-defined]


def _text(row: Any) -> str:
    from evenflow.ids import id_text

    return id_text(row.id)


def _forget_jobs(app: Any) -> None:
    """Every job, from the tables themselves: no part of Evenflow deletes what it was not told to."""
    database = app.settings.database
    if database.kind == "sqlite":
        with contextlib.closing(sqlite3.connect(database.path, timeout=20)) as connection, connection:
            connection.execute("delete from evenflow_job")
            connection.execute("delete from evenflow_history")
        return
    import psycopg

    with psycopg.connect(database.conninfo) as server:
        server.execute("truncate evenflow.job, evenflow.history")


class _Noted(unittest.TestResult):
    """Keeps the outcome of each test, and the last line of what went wrong."""

    def __init__(self) -> None:
        super().__init__()
        self.outcomes: dict[str, str] = {}

    def stopTest(self, test: unittest.TestCase) -> None:
        super().stopTest(test)
        self.outcomes.setdefault(_name(test), "ok")

    def addError(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, err)

    def addFailure(self, test: unittest.TestCase, err: Any) -> None:
        self._note(test, err)

    def addSubTest(self, test: unittest.TestCase, subtest: unittest.TestCase, err: Any) -> None:
        if err is not None:
            self._note(test, err)

    def _note(self, test: unittest.TestCase, err: Any) -> None:
        self.outcomes[_name(test)] = f"{err[0].__name__}: {str(err[1])[:200]}"


def _name(test: unittest.TestCase) -> str:
    return ".".join(test.id().split(".")[-3:])


def _outcomes() -> dict[str, str]:
    found = _Noted()
    unittest.defaultTestLoader.discover(str(Path(sys.path[0]) / "tasks"), top_level_dir=sys.path[0]).run(
        found
    )
    return found.outcomes


if __name__ == "__main__":
    main()
