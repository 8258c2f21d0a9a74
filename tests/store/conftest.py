"""Stores with their tables in place, one per engine: SQLite, PostgreSQL, and PostgreSQL behind a pooler.

A migrated template makes each of them cheap. The pooler's leg carries the mark `pooler`.
"""

import os
import secrets
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from evenflow.store.migrate import migrate
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
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
    """A migrated database of this process, which others are copied from."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    migrate(engine)
    engine.close()
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def postgres_database(postgres_server: DatabaseHost, postgres_template: str) -> Iterator[str]:
    """The name of a migrated, empty database."""
    name = f"evenflow_store_{os.getpid()}_{secrets.token_hex(4)}"
    with psycopg.connect(postgres_server.url("postgres"), autocommit=True) as connection:
        connection.execute(f'create database "{name}" template "{postgres_template}"'.encode())
    yield name
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_store(folder: Path) -> Iterator[SqliteEngine]:
    """A migrated SQLite file."""
    engine = SqliteEngine(str(folder / "evenflow.db"))
    migrate(engine)
    yield engine
    engine.close()


@pytest.fixture
def postgres_store(postgres_server: DatabaseHost, postgres_database: str) -> Iterator[PostgresEngine]:
    """A migrated PostgreSQL database."""
    engine = PostgresEngine(postgres_server.url(postgres_database))
    yield engine
    engine.close()


@pytest.fixture
def pgbouncer_store(pgbouncer: PgBouncer, postgres_database: str) -> Iterator[PostgresEngine]:
    """A migrated PostgreSQL database behind a pooler in transaction mode."""
    engine = PostgresEngine(pgbouncer.url(postgres_database))
    yield engine
    engine.close()


@pytest.fixture(params=ENGINES)
def store(request: pytest.FixtureRequest) -> AnyEngine:
    """A migrated, empty store; the test runs once on each engine."""
    engine: AnyEngine = request.getfixturevalue(f"{request.param}_store")
    return engine


@pytest.fixture
def scene(store: AnyEngine) -> Scene:
    """The store with a clock that stands still; the test runs once on each engine."""
    return Scene(store)
