"""Stores with their tables in place, one per engine: SQLite, PostgreSQL, and PostgreSQL behind a pooler.

A migrated template makes each of them cheap. The pooler's leg carries the mark `pooler`.
"""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from evenflow.store.migrate import migrate, require_schema
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from tests.fresh_databases import FreshDatabases
from tests.pgbouncer import PgBouncer
from tests.postgres_server import DatabaseHost
from tests.scratch_directory import Scratch
from tests.store.scene import Scene

ENGINES = ["sqlite", "postgres", pytest.param("pgbouncer", marks=pytest.mark.pooler)]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder in memory where there is one: what a disk's flush costs is no part of these tests."""
    scratch = Scratch.create("store", in_memory=True)
    yield scratch.path
    scratch.remove()


@pytest.fixture(scope="session")
def postgres_template(postgres_server: DatabaseHost) -> Iterator[str]:
    """A migrated database of this process, without partitions: these tests make their own."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    migrate(engine)
    engine.close()
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_url(empty_postgres_url: str) -> str:
    """Address of a PostgreSQL database in which nothing is yet."""
    return empty_postgres_url


@pytest.fixture(scope="session")
def fresh_databases(postgres_server: DatabaseHost, postgres_template: str) -> Iterator[FreshDatabases]:
    """Databases like the template of this folder, for one test after the other."""
    databases = FreshDatabases(postgres_server, postgres_template, bears_idle=True)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def pooled_databases(postgres_server: DatabaseHost, postgres_template: str) -> Iterator[FreshDatabases]:
    """The same for tests behind the pooler, whose sessions stay with a database."""
    databases = FreshDatabases(postgres_server, postgres_template, bears_idle=True)
    yield databases
    databases.close()


@pytest.fixture(scope="session")
def kept_engines() -> Iterator[dict[str, PostgresEngine]]:
    """Engines that go from test to test with their databases: their sessions have planned the large statements."""
    engines: dict[str, PostgresEngine] = {}
    yield engines
    for engine in engines.values():
        engine.close()


@pytest.fixture
def postgres_database(fresh_databases: FreshDatabases) -> Iterator[str]:
    """The name of a migrated, empty database."""
    name = fresh_databases.take()
    yield name
    fresh_databases.give_back(name)


@pytest.fixture(scope="session")
def sqlite_template() -> Iterator[Path]:
    """A folder with a migrated SQLite file, which others are copied from."""
    scratch = Scratch.create("store", in_memory=True)
    engine = SqliteEngine(str(scratch.path / "evenflow.db"))
    migrate(engine)
    engine.close()
    yield scratch.path
    scratch.remove()


@pytest.fixture
def sqlite_store(folder: Path, sqlite_template: Path) -> Iterator[SqliteEngine]:
    """A migrated SQLite file."""
    for file in sqlite_template.glob("evenflow.db*"):  # the lock too
        shutil.copy(file, folder)
    engine = SqliteEngine(str(folder / "evenflow.db"))
    require_schema(engine)  # connects
    yield engine
    engine.close()


@pytest.fixture
def postgres_store(
    postgres_server: DatabaseHost, fresh_databases: FreshDatabases, kept_engines: dict[str, PostgresEngine]
) -> Iterator[PostgresEngine]:
    """A migrated PostgreSQL database."""
    with _lent(fresh_databases, kept_engines, postgres_server.url) as engine:
        yield engine


@pytest.fixture
def pgbouncer_store(
    pgbouncer: PgBouncer, pooled_databases: FreshDatabases, kept_engines: dict[str, PostgresEngine]
) -> Iterator[PostgresEngine]:
    """A migrated PostgreSQL database behind a pooler in transaction mode."""
    with _lent(pooled_databases, kept_engines, pgbouncer.url) as engine:
        yield engine


@contextlib.contextmanager
def _lent(
    databases: FreshDatabases, engines: dict[str, PostgresEngine], url: Callable[[str], str]
) -> Iterator[PostgresEngine]:
    name = databases.take()
    engine = engines.pop(name, None) or PostgresEngine(url(name))
    engine.clock.set_us = None
    yield engine
    if databases.give_back(name):
        engines[name] = engine
    else:
        engine.close()


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest) -> AnyEngine:
    """A migrated, empty store; the test runs once on each engine."""
    engine: AnyEngine = request.getfixturevalue(f"{request.param}_store")
    return engine


@pytest.fixture
def sqlite_scene(sqlite_store: SqliteEngine) -> Scene:
    """The same on SQLite alone, for what only its rounds do."""
    return Scene(sqlite_store)


@pytest.fixture
def scene(store: AnyEngine) -> Scene:
    """The store with a clock that stands still; the test runs once on each engine."""
    return Scene(store)
