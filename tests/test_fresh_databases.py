"""A database that a test has left with rows alone is like new for the next one; any other is dropped."""

from collections.abc import Iterator

import psycopg
import pytest

from evenflow.ids import NUMBER_BITS
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import counts
from tests.fresh_databases import FreshDatabases
from tests.postgres_server import DatabaseHost
from tests.store.scene import Scene, new_job

AUDITED = "insert into evenflow.audit (at, who, role, address, act, target, detail) values (1, '', '', '', '', '', '')"


@pytest.fixture
def databases(postgres_server: DatabaseHost, postgres_template: str) -> Iterator[FreshDatabases]:
    made = FreshDatabases(postgres_server, postgres_template)
    yield made
    made.close()


def first_block(engine: PostgresEngine) -> int:
    """Which of the sequence's blocks the ids of a new job come from."""
    return Scene(engine).enqueue(new_job())[0] & ((1 << NUMBER_BITS) - 1)


def run(server: DatabaseHost, name: str, statement: str) -> None:
    with psycopg.connect(server.url(name), autocommit=True) as session:
        session.execute(statement.encode())


def test_rows_are_deleted_and_ids_begin_anew(
    databases: FreshDatabases, postgres_server: DatabaseHost
) -> None:
    name = databases.take()
    engine = PostgresEngine(postgres_server.url(name))
    before = first_block(engine)
    engine.close()
    run(postgres_server, name, AUDITED)
    assert databases.give_back(name)
    assert databases.take() == name
    engine = PostgresEngine(postgres_server.url(name))
    assert counts(engine) == {}
    assert first_block(engine) == before
    engine.close()
    databases.give_back(name)


@pytest.mark.parametrize(
    "change",
    [
        "create table evenflow.more (id integer)",
        "alter table evenflow.job add column more text",
        "alter table evenflow.job rename column limits to more",
        "alter table evenflow.job alter column group_key set not null",
        "create or replace function evenflow.now_us() returns bigint language sql as 'select cast(1 as bigint)'",
        "grant select on evenflow.job to public",
        "create schema more",
        "delete from evenflow.migration",
        "insert into evenflow.band values ('red', 1); analyze evenflow.band",
        "create index more on evenflow.job (task)",
    ],
)
def test_any_other_change_costs_the_database(
    change: str, databases: FreshDatabases, postgres_server: DatabaseHost
) -> None:
    name = databases.take()
    run(postgres_server, name, change)
    assert not databases.give_back(name)
    other = databases.take()
    assert other != name
    databases.give_back(other)


def test_a_session_that_is_left_open_costs_the_database(
    databases: FreshDatabases, postgres_server: DatabaseHost
) -> None:
    name = databases.take()
    with psycopg.connect(postgres_server.url(name)) as session:
        session.execute("select 1")
        assert not databases.give_back(name)
        with pytest.raises(psycopg.OperationalError):
            session.execute("select 1")
