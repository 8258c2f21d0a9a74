"""Fresh databases for benchmarks: files and a private server that flush to disk as in production. No measuring here."""

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg

from evenflow.settings import parse_url
from evenflow.store.engine import Row
from evenflow.store.open import AnyEngine, open_engine, prepare
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import Statement
from tests.postgres_server import DatabaseHost, ExternalPostgres, PostgresServer
from tests.scratch_directory import Scratch

ENGINES = {"postgres": "PostgreSQL", "sqlite": "SQLite"}
# Room for the largest store in memory, and no checkpoint that falls into one measurement and not into the other.
SERVER_SETTINGS = {"shared_buffers": "512MB", "max_wal_size": "8GB", "checkpoint_timeout": "30min"}


class Stores:
    """Gives out empty databases with Evenflow's tables; each is gone when its block ends."""

    def __init__(self, host: DatabaseHost, disk: Path, memory: Path) -> None:
        self._host = host
        self._disk = disk
        self._memory = memory

    @contextlib.contextmanager
    def database(self, kind: str, *, flushes: bool = True) -> Iterator[str]:
        """The URL of a new database. Without `flushes` a commit does not wait for the disk, so that the disk's time,
        which is the same for little and for much work, does not hide a difference."""
        with self._sqlite(flushes) if kind == "sqlite" else self._postgres(flushes) as url:
            with contextlib.closing(engine_of(url)) as engine:
                prepare(engine)
            yield url

    @contextlib.contextmanager
    def engine(self, kind: str, *, flushes: bool = True) -> Iterator[AnyEngine]:
        """An engine on a new database."""
        with self.database(kind, flushes=flushes) as url, contextlib.closing(engine_of(url)) as engine:
            yield engine

    @contextlib.contextmanager
    def _sqlite(self, flushes: bool) -> Iterator[str]:
        path = (self._disk if flushes else self._memory) / f"{secrets.token_hex(6)}.db"
        try:
            yield f"sqlite:///{path}"
        finally:
            for left in path.parent.glob(f"{path.name}*"):
                left.unlink()

    @contextlib.contextmanager
    def _postgres(self, flushes: bool) -> Iterator[str]:
        name = self._host.create_database()
        if not flushes:
            with psycopg.connect(self._host.url("postgres"), autocommit=True) as connection:
                connection.execute(f'alter database "{name}" set synchronous_commit = off'.encode())
        try:
            yield self._host.url(name)
        finally:
            self._host.drop_database(name)


@contextlib.contextmanager
def private_stores() -> Iterator[Stores]:
    """Databases on a server of our own with fsync on, or on the one that EVENFLOW_TEST_POSTGRES_URL names."""
    with contextlib.ExitStack() as stack:
        disk, memory = Scratch.create("bench"), Scratch.create("bench", in_memory=True)
        stack.callback(disk.remove)
        stack.callback(memory.remove)
        address = os.environ.get("EVENFLOW_TEST_POSTGRES_URL")
        host: DatabaseHost = (
            ExternalPostgres(address)
            if address
            else stack.enter_context(PostgresServer(durable=True, settings=SERVER_SETTINGS))
        )
        yield Stores(host, disk.path, memory.path)


def engine_of(url: str, *, pool_size: int = 4) -> AnyEngine:
    """An engine for a URL."""
    return open_engine(parse_url(url), pool_size=pool_size)


def fetch(engine: AnyEngine, text: str, values: dict[str, Any] | None = None) -> list[Row]:
    """Run SQL behind the operations' back, with `:names`; `evenflow_x` is `evenflow.x` on PostgreSQL."""
    if isinstance(engine, SqliteEngine):
        with engine.exclusive() as file:
            return file.execute(text, values or {}).fetchall()
    statement = Statement(text.replace("evenflow_", "evenflow."))
    with engine.session(600.0) as session:
        # Values go into the text: as parameters they would have no type in a select list.
        cursor = psycopg.ClientCursor(session).execute(statement.pyformat.encode(), values)
        return cursor.fetchall() if cursor.description else []


def settle(engine: AnyEngine) -> None:
    """Leave what a store has that was not filled a moment ago: statistics, clean pages, nothing to flush."""
    if isinstance(engine, SqliteEngine):
        with engine.reading() as file:
            file.execute("pragma wal_checkpoint(truncate)")
        return
    for statement in ("vacuum (analyze)", "checkpoint"):
        fetch(engine, statement)
