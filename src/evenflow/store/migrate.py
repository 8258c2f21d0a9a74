"""Migrations: numbered SQL files, up only, one transaction each, safe when many processes start at once."""

import contextlib
import re
import time
from dataclasses import dataclass
from importlib.resources import files
from typing import TYPE_CHECKING

from evenflow.clock import wall_us
from evenflow.errors import SchemaMissing, SchemaNewer, StoreUnavailable
from evenflow.store.engine import Row, retried
from evenflow.store.postgres import PostgresEngine, quoted, translated
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import read_sql, split_statements, with_schema

if TYPE_CHECKING:
    import psycopg

LOCK_KEY = 0x0E7E2F10  # constant: a key made from the URL would be two locks for two spellings
LOCK_WAIT_S = 120.0
LOCK_POLL_S = 0.1
LOCK_TIMEOUT = "2s"
_FILE = re.compile(r"(\d{4})_(\w+)\.sql")
_BOOKS = {
    "sqlite": "create table if not exists evenflow_migration "
    "(version integer primary key, name text not null, applied_at integer not null) strict",
    "postgres": "create table if not exists evenflow.migration "
    "(version integer primary key, name text not null, applied_at bigint not null)",
}


@dataclass(frozen=True, slots=True)
class Migration:
    """One step of the schema."""

    version: int
    name: str
    sql: str


def migrations(kind: str, schema: str = "evenflow") -> list[Migration]:
    """All migrations of an engine, in order."""
    folder = files("evenflow.store").joinpath("sql", kind, "migrations")
    found = [(match, entry.name) for entry in folder.iterdir() if (match := _FILE.fullmatch(entry.name))]
    return [
        Migration(int(match[1]), match[2], read_sql(kind, f"migrations/{name}", schema))
        for match, name in sorted(found, key=lambda pair: pair[1])
    ]


def migration_script(kind: str, schema: str = "evenflow") -> str:
    """Everything as one SQL text, for those who apply it by their own tools."""
    books = with_schema(_BOOKS[kind], schema)
    parts = [f'create schema if not exists "{schema}";', books + ";"] if kind == "postgres" else [books + ";"]
    table = f'"{schema}".migration' if kind == "postgres" else "evenflow_migration"
    for migration in migrations(kind, schema):
        note = f"insert into {table} values ({migration.version}, '{migration.name}', {wall_us()});"
        parts.append(f"-- {migration.version:04d} {migration.name}\n{migration.sql.rstrip()}\n{note}")
    return "begin;\n\n" + "\n\n".join(parts) + "\n\ncommit;\n"


def migrate(engine: SqliteEngine | PostgresEngine) -> list[Migration]:
    """Apply what is missing and return it. Refuses tables of a newer version."""
    if isinstance(engine, SqliteEngine):
        return _migrate_sqlite(engine)
    return _migrate_postgres(engine)


def check_schema(engine: SqliteEngine | PostgresEngine) -> bool:
    """True if the tables are those of this version, False if some migrations are missing; SchemaNewer if ahead."""
    version = _sqlite_version(engine) if isinstance(engine, SqliteEngine) else _postgres_version(engine)
    latest = migrations(engine.kind)[-1].version
    if version > latest:
        raise _newer(version, latest)
    return version == latest


def require_schema(engine: SqliteEngine | PostgresEngine) -> None:
    """SchemaMissing unless the tables are those of this version."""
    if not check_schema(engine):
        raise SchemaMissing("the tables are missing or older than this Evenflow; run: evenflow migrate")


def _migrate_sqlite(engine: SqliteEngine) -> list[Migration]:
    if check_schema(engine):
        return []
    applied = []
    with engine.exclusive() as connection:  # the write lock: one process migrates, the others find it done
        connection.execute(_BOOKS["sqlite"])
        version = connection.execute("select coalesce(max(version), 0) from evenflow_migration").fetchone()[0]
        for migration in _missing("sqlite", "evenflow", version):
            for statement in split_statements(migration.sql):
                connection.execute(statement)
            connection.execute(
                "insert into evenflow_migration values (?, ?, ?)",
                (migration.version, migration.name, wall_us()),
            )
            applied.append(migration)
    return applied


def _migrate_postgres(engine: PostgresEngine) -> list[Migration]:
    if check_schema(engine):
        return []
    applied = []
    ends_at = time.monotonic() + LOCK_WAIT_S
    with contextlib.closing(engine.connect()) as connection:
        while not check_schema(engine):
            if migration := retried(lambda: _apply_next(connection, engine.schema)):
                applied.append(migration)
            elif time.monotonic() > ends_at:
                raise StoreUnavailable(
                    f"another process has been migrating for {LOCK_WAIT_S:g} s; look at it, then try again"
                )
            else:
                time.sleep(LOCK_POLL_S)
    return applied


def _apply_next(connection: "psycopg.Connection[Row]", schema: str) -> Migration | None:
    """The next migration that is missing, in one transaction; None where another process is at it."""
    with translated(), connection.transaction():
        # A lock of the transaction, not of the session: behind a pooler the session belongs to whoever comes next.
        if connection.execute("select pg_try_advisory_xact_lock(%s)", (LOCK_KEY,)).fetchone() != (True,):
            return None
        connection.execute(f"set local lock_timeout = '{LOCK_TIMEOUT}'".encode())
        connection.execute(b"create schema if not exists " + quoted(schema).as_bytes(connection))
        connection.execute(with_schema(_BOOKS["postgres"], schema).encode())
        table = quoted(schema).as_bytes(connection) + b".migration"
        version = connection.execute(b"select coalesce(max(version), 0) from " + table).fetchone()
        missing = _missing("postgres", schema, version[0] if version else 0)
        if not missing:
            return None
        for statement in split_statements(missing[0].sql):
            connection.execute(statement.encode())
        note = (missing[0].version, missing[0].name, wall_us())
        connection.execute(b"insert into " + table + b" values (%s, %s, %s)", note)
        return missing[0]


def _missing(kind: str, schema: str, version: int) -> list[Migration]:
    known = migrations(kind, schema)
    if version > known[-1].version:
        raise _newer(version, known[-1].version)
    return [migration for migration in known if migration.version > version]


def _newer(version: int, latest: int) -> SchemaNewer:
    return SchemaNewer(
        f"the tables are at version {version}, this Evenflow knows {latest}: they were migrated by a newer release; "
        "upgrade evenflow here (tables never go back)"
    )


def _sqlite_version(engine: SqliteEngine) -> int:
    with engine.reading() as connection:
        if not connection.execute("select 1 from sqlite_master where name = 'evenflow_migration'").fetchone():
            return 0
        version: int = connection.execute(
            "select coalesce(max(version), 0) from evenflow_migration"
        ).fetchone()[0]
        return version


def _postgres_version(engine: PostgresEngine) -> int:
    return retried(lambda: _read_postgres_version(engine))


def _read_postgres_version(engine: PostgresEngine) -> int:
    with engine.session() as connection:
        table = f'"{engine.schema}".migration'
        found = connection.execute("select to_regclass(%s)", (table,)).fetchone()
        if found is None or found[0] is None:
            return 0
        row = connection.execute(f"select coalesce(max(version), 0) from {table}".encode()).fetchone()
        return int(row[0]) if row else 0
