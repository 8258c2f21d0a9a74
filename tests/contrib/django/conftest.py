"""The project of these tests, set up once in a process, with fresh databases for every test."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.contrib.django import project
from tests.postgres_server import DatabaseHost

project.configure()

from django.core.management import call_command  # noqa: E402
from django.db import connections, router  # noqa: E402
from django.test import override_settings  # noqa: E402

from evenflow import Evenflow  # noqa: E402
from evenflow.contrib.django import links, queue_app  # noqa: E402
from tests.contrib.django.shop import tasks  # noqa: E402

Run = Callable[[], Evenflow]


@pytest.fixture(scope="session")
def sqlite_template(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file with the tables of the project and of Evenflow, to be copied."""
    path = tmp_path_factory.mktemp("django") / "template.db"
    project.point("default", f"sqlite:///{path}")
    _make_tables()
    return path


@pytest.fixture(scope="session")
def postgres_project(postgres_server: DatabaseHost) -> Iterator[str]:
    """A database with those tables; tests empty it, which is quicker than making one for each."""
    name = postgres_server.create_database()
    project.point("default", postgres_server.url(name))
    _make_tables()
    yield postgres_server.url(name)
    connections.close_all()
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_database(sqlite_template: Path, tmp_path: Path) -> Iterator[str]:
    """The database `default` on SQLite, for what has nothing to do with the engine."""
    path = tmp_path / "project.db"
    shutil.copy(sqlite_template, path)
    with _pointed(f"sqlite:///{path}") as url:
        yield url


@pytest.fixture
def postgres_database(postgres_project: str) -> Iterator[str]:
    """The database `default` on PostgreSQL."""
    with _pointed(postgres_project) as url:
        _empty_tables()
        yield url


@pytest.fixture(params=["sqlite", "postgres"])
def database(request: pytest.FixtureRequest) -> str:
    """The database `default` with the tables of the project and of Evenflow, empty; on each engine."""
    address: str = request.getfixturevalue(f"{request.param}_database")
    return address


@contextlib.contextmanager
def _pointed(url: str) -> Iterator[str]:
    project.point("default", url)
    tasks.seen.clear()
    yield url
    _close()


def _make_tables() -> None:
    call_command("migrate", run_syncdb=True, verbosity=0)
    _close()


def _close() -> None:
    for found in links.links():
        found.close()
    connections.close_all()


def _empty_tables() -> None:
    with connections["default"].cursor() as cursor:
        cursor.execute(
            "select format('%I.%I', schemaname, tablename) from pg_tables where schemaname in ('evenflow', 'public') "
            "and tablename not in ('migration', 'django_migrations', 'django_content_type', 'auth_permission') "
            "and tablename not like 'audit%%'"  # append-only
        )
        names = [name for (name,) in cursor.fetchall()]
        cursor.execute(f"truncate {', '.join(names)}")


@pytest.fixture
def run() -> Run:
    """Run the jobs of the backend until none is left that could run now."""

    def run_jobs() -> Evenflow:
        app = queue_app()
        app.run_worker(until_empty=True, concurrency=4, services=True)
        return app

    return run_jobs


@pytest.fixture
def options() -> Iterator[Callable[..., None]]:
    """Change OPTIONS, and other settings of the backend, for the rest of the test."""
    changed: list[Any] = []

    def change(QUEUES: list[str] | None = None, **given: Any) -> None:
        params = {**project.TASKS["default"], "OPTIONS": given}
        if QUEUES is not None:
            params["QUEUES"] = QUEUES
        changed.append(override_settings(TASKS={"default": params}))
        changed[-1].enable()

    yield change
    for each in reversed(changed):
        each.disable()


@pytest.fixture
def route() -> Iterator[Callable[[Any], None]]:
    """Put a database router before Django's own choice, for the rest of the test."""
    before = router.routers

    def put(chosen: Any) -> None:
        router.routers = [chosen]

    yield put
    router.routers = before
