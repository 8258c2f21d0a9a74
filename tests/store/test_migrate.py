"""Migrations: what they make, that they are safe to run by many at once, and what they refuse."""

import sqlite3
from pathlib import Path

import psycopg
import pytest

from evenflow.errors import SchemaMissing, SchemaNewer, StoreRefused, StoreUnavailable
from evenflow.store import migrate as module
from evenflow.store.migrate import check_schema, migrate, migration_script, migrations, require_schema
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from tests.store.crowd import in_processes
from tests.store.scene import Scene, execute, new_job, rows_of, second_engine

KINDS = ["sqlite", "postgres"]


def fresh(url: str) -> AnyEngine:
    """An engine on a database without tables."""
    if url.startswith("sqlite:///"):
        return SqliteEngine(url.removeprefix("sqlite:///"))
    return PostgresEngine(url)


def columns(engine: AnyEngine) -> dict[str, list[tuple[str, bool]]]:
    """Table -> (column, whether it may be null), as the database tells it."""
    found: dict[str, list[tuple[str, bool]]] = {}
    if isinstance(engine, SqliteEngine):
        with engine.reading() as connection:
            rows = connection.execute(
                """select substr(t.name, 10), c.name, not c."notnull" and not c.pk from sqlite_master t
                   cross join pragma_table_info(t.name) c where t.type = 'table' and t.name like 'evenflow_%'"""
            ).fetchall()
    else:
        with engine.session() as session:
            rows = session.execute(
                """select table_name, column_name, is_nullable = 'YES' from information_schema.columns
                   where table_schema = 'evenflow' and table_name <> 'history_default'"""
            ).fetchall()
    for table, column, is_nullable in rows:
        found.setdefault(table, []).append((column, bool(is_nullable)))
    return {table: sorted(names) for table, names in found.items()}


def test_both_engines_have_the_same_migrations() -> None:
    sqlite, postgres = ([(step.version, step.name) for step in migrations(kind)] for kind in KINDS)
    assert sqlite == postgres
    assert [version for version, _ in sqlite] == list(range(1, len(sqlite) + 1))


def test_both_engines_have_the_same_tables_and_columns(
    sqlite_store: SqliteEngine, postgres_store: PostgresEngine
) -> None:
    # What is in flight has an index on SQLite, and rows of its own on PostgreSQL, where a claim must not change an index.
    postgres = columns(postgres_store)
    assert {"flight", "in_flight"} <= postgres.keys()
    del postgres["flight"], postgres["in_flight"]
    postgres["job"] = [column for column in postgres["job"] if column[0] not in ("flight", "stage")]
    assert columns(sqlite_store) == postgres


def test_every_migration_is_applied_once_and_noted(engine_url: str) -> None:
    engine = fresh(engine_url)
    assert not check_schema(engine)
    applied = migrate(engine)
    assert [step.version for step in applied] == [step.version for step in migrations(engine.kind)]
    assert check_schema(engine)
    assert migrate(engine) == []
    noted = [(row["version"], row["name"]) for row in rows_of(engine, "migration")]
    assert noted == [(step.version, step.name) for step in applied]
    engine.close()


def test_tables_that_are_missing_are_asked_for_with_advice(engine_url: str) -> None:
    engine = fresh(engine_url)
    with pytest.raises(SchemaMissing, match="run: evenflow migrate"):
        require_schema(engine)
    migrate(engine)
    require_schema(engine)
    engine.close()


def test_tables_of_a_newer_release_are_refused(store: AnyEngine) -> None:
    execute(store, "insert into evenflow_migration values (999, 'from_the_future', 0)")
    for act in (check_schema, require_schema, migrate):
        with pytest.raises(SchemaNewer, match=r"version 999.*upgrade evenflow here"):
            act(store)
    assert len(rows_of(store, "migration")) == len(migrations(store.kind)) + 1


def test_a_newer_release_is_found_out_even_between_the_check_and_the_lock(store: AnyEngine) -> None:
    execute(store, "delete from evenflow_migration")
    execute(store, "insert into evenflow_migration values (999, 'from_the_future', 0)")
    with pytest.raises(SchemaNewer):
        module._missing(store.kind, "evenflow", 999)


def migrate_now(number: int, url: str) -> int:
    """One of many processes that start together: how many migrations it applied."""
    engine = fresh(url)
    try:
        applied = len(migrate(engine))
        assert check_schema(engine)
        return applied
    finally:
        engine.close()


@pytest.mark.slow
def test_eight_processes_migrate_at_once_and_each_step_is_applied_once(engine_url: str) -> None:
    assert sum(in_processes(8, migrate_now, engine_url)) == len(migrations("sqlite"))


@pytest.mark.pooler
@pytest.mark.slow
def test_eight_processes_migrate_at_once_behind_a_pooler(pgbouncer_url: str) -> None:
    assert sum(in_processes(8, migrate_now, pgbouncer_url)) == len(migrations("postgres"))


@pytest.mark.pooler
def test_migrating_behind_a_pooler_leaves_no_session_state(pgbouncer_url: str) -> None:
    engine = PostgresEngine(pgbouncer_url)
    migrate(engine)
    engine.close()
    clients = [psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) for _ in range(4)]
    try:
        for client in clients:
            client.execute("begin")  # one server connection each: all that the pooler has
        timeouts = {client.execute("show lock_timeout").fetchone() for client in clients}
        locks = (
            clients[0]
            .execute(
                "select count(*) from pg_locks where locktype = 'advisory' and database ="
                " (select oid from pg_database where datname = current_database())"
            )
            .fetchone()
        )
    finally:
        for client in clients:
            client.close()
    assert timeouts == {("0",)}
    assert locks == (0,)


def test_a_migration_that_fails_leaves_nothing(engine_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    engine = fresh(engine_url)
    known = migrations(engine.kind)
    broken = module.Migration(
        known[-1].version + 1, "broken", "create table half_done (a integer);\nselect nonsense;\n"
    )
    with monkeypatch.context() as patch:
        patch.setattr(module, "migrations", lambda *_: [*known, broken])
        with pytest.raises(StoreRefused, match="nonsense"):
            migrate(engine)
    migrate(engine)
    assert check_schema(engine)
    execute(engine, "create table half_done (a integer)")  # its name is still free
    engine.close()


def test_a_lock_that_another_session_holds_is_waited_for_and_then_given_up(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = PostgresEngine(postgres_url)
    monkeypatch.setattr(module, "LOCK_WAIT_S", 0.2)
    with psycopg.connect(postgres_url) as other:
        other.execute("select pg_advisory_xact_lock(%s)", (module.LOCK_KEY,))
        with pytest.raises(StoreUnavailable, match=r"another process has been migrating for 0\.2 s"):
            migrate(engine)
    assert len(migrate(engine)) == len(migrations("postgres"))
    engine.close()


def test_another_schema_holds_everything(postgres_url: str) -> None:
    engine = PostgresEngine(postgres_url, "Task-s")
    migrate(engine)
    scene = Scene(engine)
    scene.enqueue(new_job(group="g"))
    (job,) = scene.claim()
    scene.finish(job)
    assert scene.states() == {job.id: "succeeded"}
    with engine.session() as session:
        schemas = session.execute(
            "select distinct schemaname from pg_tables where schemaname not in ('pg_catalog', 'information_schema')"
        ).fetchall()
        functions = session.execute(
            "select pronamespace::regnamespace::text from pg_proc where proname = 'now_us'"
        ).fetchall()
    assert schemas == [("Task-s",)]
    assert functions == [('"Task-s"',)]
    engine.close()


def test_two_schemas_live_side_by_side(postgres_store: PostgresEngine) -> None:
    other = PostgresEngine(postgres_store._conninfo, "other")
    migrate(other)
    Scene(other).enqueue(new_job())
    assert rows_of(postgres_store, "job") == []
    assert len(rows_of(other, "job")) == 1
    other.close()


@pytest.mark.parametrize("schema", ["evenflow", "tasks"])
def test_the_script_makes_what_migrating_makes_on_postgres(postgres_url: str, schema: str) -> None:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        connection.execute(migration_script("postgres", schema).encode())
    engine = PostgresEngine(postgres_url, schema)
    assert check_schema(engine)
    assert migrate(engine) == []
    Scene(engine).enqueue(new_job())
    engine.close()


def test_the_script_makes_what_migrating_makes_on_sqlite(folder: Path, sqlite_store: SqliteEngine) -> None:
    path = folder / "by-hand.db"
    connection = sqlite3.connect(path, isolation_level=None)
    connection.executescript(migration_script("sqlite"))
    connection.close()
    engine = SqliteEngine(str(path))
    assert check_schema(engine)
    assert migrate(engine) == []
    assert columns(engine) == columns(sqlite_store)
    engine.close()


def test_migrating_while_others_work_waits_for_nobody(store: AnyEngine) -> None:
    scene = Scene(store)
    scene.running()
    other = second_engine(store)
    assert migrate(other) == []
    other.close()
