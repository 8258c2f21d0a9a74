"""`evenflow migrate`: applied once, and the same from the script as from the command."""

import re
import secrets
import shutil
import sqlite3
import subprocess
from pathlib import Path

import psycopg
import pytest

from evenflow import Evenflow
from evenflow.store.migrate import migrations
from evenflow.store.roles import ROLES
from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow
from tests.postgres_server import DatabaseHost
from tests.psql import run_psql

NAMES = {
    kind: [f"{each.version:04d}_{each.name}" for each in migrations(kind)] for kind in ("sqlite", "postgres")
}
UNREACHABLE = "postgresql://bob:secret@127.0.0.1:1/jobs"


def test_what_is_applied_is_named_and_then_nothing_is_left(empty_url: str) -> None:
    first, second = evenflow("migrate", "--url", empty_url), evenflow("migrate", "--url", empty_url)
    assert (first.exit_code, second.exit_code) == (0, 0)
    *applied, end = first.stdout.splitlines()
    assert applied == [f"applied {name}" for name in NAMES["sqlite" if "sqlite" in empty_url else "postgres"]]
    assert end.endswith(" is up to date")
    assert second.stdout == f"{end}\n"


def test_the_script_for_sqlite_makes_the_tables_that_the_command_makes(folder: Path) -> None:
    script = evenflow("migrate", "--sql", "--url", "sqlite:///by-hand.db").stdout
    assert list(folder.iterdir()) == []
    apply_on_sqlite(script, folder / "by-hand.db")
    evenflow("migrate", "--url", "sqlite:///by-us.db")
    assert sqlite_schema(folder / "by-hand.db") == sqlite_schema(folder / "by-us.db")
    assert_works("sqlite:///by-hand.db")


def test_the_script_for_postgres_makes_the_tables_that_the_command_makes(
    empty_postgres_url: str, postgres_server: DatabaseHost
) -> None:
    script = evenflow("migrate", "--sql", "--url", UNREACHABLE).stdout
    run_psql(empty_postgres_url, script=script)
    other = postgres_server.create_database()
    try:
        evenflow("migrate", "--url", postgres_server.url(other))
        assert postgres_schema(empty_postgres_url) == postgres_schema(postgres_server.url(other))
    finally:
        postgres_server.drop_database(other)
    assert_works(empty_postgres_url)


def test_the_script_is_for_the_schema_of_the_app(write_app: WriteApp, empty_postgres_url: str) -> None:
    module = write_app(f"from evenflow import Evenflow\napp = Evenflow({UNREACHABLE!r}, schema='tasks')\n")
    run_psql(empty_postgres_url, script=evenflow("migrate", "--sql", "--app", module).stdout)
    with psycopg.connect(empty_postgres_url) as connection:
        found = connection.execute(
            "select distinct table_schema from information_schema.tables where table_name = 'job'"
        ).fetchall()
    assert found == [("tasks",)]


@pytest.mark.parametrize("flags", [[], ["--sql"]])
def test_the_password_is_never_printed(flags: list[str]) -> None:
    assert "secret" not in evenflow("migrate", *flags, "--url", UNREACHABLE).output


def assert_works(url: str) -> None:
    """The tables are taken for up to date, and jobs run on them."""
    again = evenflow("migrate", "--url", url)
    assert "applied" not in again.stdout
    with Evenflow(url) as app:
        job = app.task(name="double")(lambda number: number * 2).enqueue(21)
        app.run_worker(until_empty=True)
        assert job.result(timeout=10) == 42


def apply_on_sqlite(script: str, path: Path) -> None:
    if program := shutil.which("sqlite3"):
        subprocess.run([program, "-bail", str(path)], input=script, text=True, check=True)
        return
    with sqlite3.connect(path) as connection:
        connection.executescript(script)


def sqlite_schema(path: Path) -> list[tuple[str, ...]]:
    with sqlite3.connect(path) as connection:
        rows = connection.execute(
            "select type, name, tbl_name, sql from sqlite_master order by 1, 2"
        ).fetchall()
        versions = connection.execute("select version, name from evenflow_migration order by 1").fetchall()
    connection.close()
    return [(kind, name, table, without_remarks(sql or "")) for kind, name, table, sql in rows] + versions


def without_remarks(sql: str) -> str:
    return re.sub(r"\s+", " ", re.sub(r"--.*", "", sql)).strip()


def postgres_schema(url: str) -> dict[str, list[tuple[object, ...]]]:
    """Everything in our schema but the partitions of single days, which the workers make."""
    days = r"history\_20%"
    questions = {
        "columns": "select table_name, column_name, data_type, is_nullable, column_default from information_schema.columns "
        "where table_schema = 'evenflow' and table_name not like %(days)s order by table_name, ordinal_position",
        "indexes": "select tablename, indexname, indexdef from pg_indexes "
        "where schemaname = 'evenflow' and tablename not like %(days)s order by 1, 2",
        "constraints": "select c.relname, k.conname, pg_get_constraintdef(k.oid) from pg_constraint k "
        "join pg_class c on c.oid = k.conrelid join pg_namespace n on n.oid = c.relnamespace "
        "where n.nspname = 'evenflow' and c.relname not like %(days)s order by 1, 2",
        "functions": "select p.proname, pg_get_functiondef(p.oid) from pg_proc p "
        "join pg_namespace n on n.oid = p.pronamespace where n.nspname = 'evenflow' and %(days)s <> '' order by 1, 2",
        "sequences": "select sequencename, data_type::text, increment_by, cycle from pg_sequences "
        "where schemaname = 'evenflow' and %(days)s <> '' order by 1",
        "versions": "select version, name from evenflow.migration where %(days)s <> '' order by 1",
    }
    with psycopg.connect(url) as connection:
        found = {
            name: connection.execute(question.encode(), {"days": days}).fetchall()
            for name, question in questions.items()
        }
    assert found["columns"]
    assert found["functions"]
    return found


def test_roles_are_printed_or_made_and_refused_on_sqlite(postgres_url: str) -> None:
    refused = evenflow("migrate", "--roles", "--url", "sqlite:///jobs.db")
    assert refused.exit_code == 1 and "expected a PostgreSQL database, got SQLite" in refused.stderr
    printed = evenflow("migrate", "--roles", "--sql", "--url", UNREACHABLE, "--role-prefix", "shop_").stdout
    assert 'create role "shop_worker" nologin' in printed and "create table" not in printed
    prefix = f"test_{secrets.token_hex(4)}_"
    try:
        made = evenflow("migrate", "--roles", "--url", postgres_url, "--role-prefix", prefix)
        assert made.exit_code == 0 and f"role {prefix}producer has its rights" in made.stdout
    finally:
        with psycopg.connect(postgres_url, autocommit=True) as connection:
            for role in ROLES:
                connection.execute(f"drop owned by {prefix}{role}".encode())
                connection.execute(f"drop role {prefix}{role}".encode())


def test_tasks_are_published_and_withdrawn(write_app: WriteApp, postgres_url: str) -> None:
    module = write_app(f"""
from evenflow import Evenflow, Unique
app = Evenflow({postgres_url!r})
@app.task(name="plain")
def plain(): ...
@app.task(name="once", unique=Unique())
def once(): ...
""")
    said = evenflow("publish", module).stdout
    assert said.splitlines() == [
        "published plain",
        "published once, but it will be refused: it is declared unique, which is worked out in Python",
    ]
    assert evenflow("publish", module, "--task", "plain", "--remove").stdout == "withdrawn plain\n"
    unknown = evenflow("publish", module, "--task", "other")
    assert unknown.exit_code == 1 and "has no such task" in unknown.stderr
