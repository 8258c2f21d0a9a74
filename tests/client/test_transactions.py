"""Enqueue inside a caller's transaction: jobs live and die with it, whatever driver or library the caller uses."""

import json
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import asyncpg
import psycopg
import psycopg_pool
import pytest
import sqlalchemy
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio

from evenflow import EnqueueError, Evenflow, JobNotFound, State, Unique
from evenflow.client.task import Task
from evenflow.errors import SchemaMissing
from tests.client.conftest import MakeApp
from tests.client.serving import ROOT, serving
from tests.client.transactions import (
    ASYNC_POSTGRES,
    ASYNC_SQLITE,
    POSTGRES,
    SQLITE,
    AsyncCaller,
    Caller,
    path_of,
    sqlalchemy_url,
    with_asyncpg,
    with_psycopg,
    with_sqlite3,
)

CLIENTS = [("sqlite", name) for name in SQLITE] + [("postgres", name) for name in POSTGRES]
ASYNC_CLIENTS = [("sqlite", name) for name in ASYNC_SQLITE] + [("postgres", name) for name in ASYNC_POSTGRES]
QUICK_S = 30
QUEUES = ["default"]


def echo(value: int) -> int:
    return value


def task_of(app: Evenflow) -> Task[..., int, int]:
    return app.task(name="echo", group=lambda value: "bob")(echo)


def assert_runs(app: Evenflow, id: str, value: int) -> None:
    assert app.job(id).state is State.ARRIVING
    app.run_worker(until_empty=True, queues=QUEUES)
    assert app.job(id).result(timeout=0) == value


@pytest.fixture
def url(request: pytest.FixtureRequest, engine: str) -> str:
    address: str = request.getfixturevalue(f"{engine}_url")
    return address


@pytest.fixture
def app_there(url: str, make_app: MakeApp) -> Evenflow:
    """An app with its tables, and a table of the caller's own beside them."""
    app = make_app(url)
    app.migrate()
    with (with_sqlite3() if url.startswith("sqlite") else with_psycopg())(url) as caller:
        caller.execute("create table orders (number integer)")
        caller.commit()
    return app


@pytest.mark.parametrize(("engine", "client"), CLIENTS)
def test_a_job_lives_and_dies_with_the_caller_s_transaction(
    app_there: Evenflow, url: str, engine: str, client: str
) -> None:
    opened = (SQLITE if engine == "sqlite" else POSTGRES)[client]
    with opened(url) as caller:
        _rolls_back(app_there, caller)
    with opened(url) as caller:
        _commits(app_there, caller)


def _rolls_back(app: Evenflow, caller: Caller) -> None:
    job = task_of(app).enqueue(1, connection=caller.connection)  # the first thing this transaction does
    assert (job.state, job.is_new) == (State.ARRIVING, True)
    with pytest.raises(JobNotFound, match="it was never committed"):
        job.refresh()
    caller.execute("insert into orders values (1)")
    caller.rollback()
    assert list(app.jobs()) == []


def _commits(app: Evenflow, caller: Caller) -> None:
    caller.execute("insert into orders values (2)")
    job = task_of(app).using(priority=-3).enqueue(2, connection=caller.connection)
    caller.commit()
    assert (app.job(job.id).group, app.job(job.id).priority) == ("bob", -3)
    assert_runs(app, job.id, 2)


@pytest.mark.parametrize(("engine", "client"), ASYNC_CLIENTS)
async def test_a_job_lives_and_dies_with_the_caller_s_awaited_transaction(
    app_there: Evenflow, url: str, engine: str, client: str
) -> None:
    opened = (ASYNC_SQLITE if engine == "sqlite" else ASYNC_POSTGRES)[client]
    async with opened(url) as caller:
        await _rolls_back_awaited(app_there, caller)
    async with opened(url) as caller:
        await caller.execute("insert into orders values (2)")
        jobs = await task_of(app_there).aenqueue_many([(2,), (3,)], connection=caller.connection)
        await caller.commit()
    assert [app_there.job(job.id).state for job in jobs] == [State.ARRIVING] * 2
    await app_there.arun_worker(until_empty=True, queues=QUEUES)
    assert [await job.aresult(timeout=0) for job in jobs] == [2, 3]


async def _rolls_back_awaited(app: Evenflow, caller: AsyncCaller) -> None:
    job = await task_of(app).aenqueue(1, connection=caller.connection)
    assert job.state is State.ARRIVING
    await caller.execute("insert into orders values (1)")
    await caller.rollback()
    assert list(app.jobs()) == []


@pytest.mark.process
@pytest.mark.parametrize("engine", ["sqlite", "postgres"])
def test_a_job_lives_and_dies_with_django_s_transaction(url: str) -> None:
    command = [sys.executable, "-W", "error", "-m", "tests.client.django_process", url]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {
        "committed": 1,
        "rolled back": None,
        "outer": 3,
        "inner": None,
        "plain": 5,
    }


def test_on_an_autocommit_connection_the_job_is_there_at_once(app: Evenflow, engine_url: str) -> None:
    app.migrate()
    if engine_url.startswith("sqlite"):
        opened = with_sqlite3(isolation_level=None)
    else:
        opened = with_psycopg(autocommit=True)
    with opened(engine_url) as caller:
        job = task_of(app).enqueue(1, connection=caller.connection)
        assert_runs(app, job.id, 1)


def test_every_way_to_enqueue_takes_a_connection(app: Evenflow, engine_url: str) -> None:
    app.migrate()
    task = task_of(app)
    with (with_sqlite3() if engine_url.startswith("sqlite") else with_psycopg())(engine_url) as caller:
        there = caller.connection
        task.enqueue_many([(1,), (2,)], connection=there)
        app.enqueue_many([task.job(3)], connection=there)
        task.using(connection=there).enqueue(4)
        task.using(connection=there, run_after=3600).enqueue_many([(5,)])
        app.enqueue_many([task.using(connection=there).job(6), task.using(connection=there).job(7)])
        assert list(app.jobs()) == []
        caller.commit()
    assert sorted(job.args[0] for job in app.jobs(state="arriving")) == [1, 2, 3, 4, 5, 6, 7]
    app.run_worker(until_empty=True, queues=QUEUES)
    assert app.stats() == {"default": {"scheduled": 1}}


def test_calls_that_name_different_connections_are_refused(sqlite_app: Evenflow, sqlite_url: str) -> None:
    sqlite_app.migrate()
    task = task_of(sqlite_app)
    with with_sqlite3()(sqlite_url) as caller:
        calls = [task.using(connection=caller.connection).job(1), task.job(2)]
        with pytest.raises(EnqueueError, match="the calls name different connections"):
            sqlite_app.enqueue_many(calls)
    assert list(sqlite_app.jobs()) == []


def test_a_task_may_have_an_argument_called_connection(sqlite_app: Evenflow) -> None:
    @sqlite_app.task(name="dial")
    def dial(connection: str) -> str:
        return connection

    job = dial.enqueue(connection="line 1")
    sqlite_app.run_worker(until_empty=True, queues=QUEUES)
    assert job.result(timeout=0) == "line 1"


async def test_a_plain_connection_may_be_used_by_aenqueue(app: Evenflow, engine_url: str) -> None:
    app.migrate()
    with (with_sqlite3() if engine_url.startswith("sqlite") else with_psycopg())(engine_url) as caller:
        job = await task_of(app).aenqueue(1, connection=caller.connection)
        caller.rollback()
        kept = await task_of(app).aenqueue(2, connection=caller.connection)
        caller.commit()
    assert list(app.jobs()) == [kept]
    assert job != kept


async def test_a_connection_in_pipeline_mode_may_be_used(postgres_app: Evenflow, postgres_url: str) -> None:
    task = task_of(postgres_app)
    with psycopg.connect(postgres_url) as connection, connection.pipeline():
        first = task.enqueue(1, connection=connection)
    async with await psycopg.AsyncConnection.connect(postgres_url) as awaited, awaited.pipeline():
        second = await task.aenqueue(2, connection=awaited)
    assert sorted(job.id for job in postgres_app.jobs()) == [first.id, second.id]


def test_a_unique_key_of_the_open_transaction_is_held(app: Evenflow, engine_url: str) -> None:
    task: Task[..., int, int] = app.task(name="echo", unique=Unique("value"))(echo)
    app.migrate()
    with (with_sqlite3() if engine_url.startswith("sqlite") else with_psycopg())(engine_url) as caller:
        first = task.enqueue(1, connection=caller.connection)
        again = task.enqueue(1, connection=caller.connection)
        assert (again, again.is_new, again.state) == (first, False, State.ARRIVING)
        caller.commit()
    assert list(app.jobs()) == [first]


def test_an_open_transaction_hinders_nobody(postgres_app: Evenflow, postgres_url: str) -> None:
    task = task_of(postgres_app)
    task.enqueue(0)
    ends: list[list[int]] = []

    def work_beside() -> None:
        jobs = [task.enqueue(1), *task.enqueue_many([(2,), (3,)])]
        postgres_app.run_worker(until_empty=True, queues=QUEUES)
        ends.append([job.result(timeout=0) for job in jobs])

    with with_psycopg()(postgres_url) as caller:
        job = task.enqueue(9, connection=caller.connection)
        task.enqueue_many([(8,)] * 50, connection=caller.connection)
        beside = threading.Thread(target=work_beside)
        beside.start()
        beside.join(QUICK_S)
        assert ends == [[1, 2, 3]], "enqueue, claim and finish of the same group went on"
        caller.commit()
    assert_runs(postgres_app, job.id, 9)
    assert postgres_app.stats() == {}


def test_two_open_transactions_of_one_group_do_not_wait_for_each_other(
    postgres_app: Evenflow, postgres_url: str
) -> None:
    task, ended = task_of(postgres_app), threading.Event()
    postgres_app.migrate()

    def enqueue_too() -> None:
        with with_psycopg()(postgres_url) as second:
            task.enqueue(2, connection=second.connection)
            second.commit()
        ended.set()

    with with_psycopg()(postgres_url) as first:
        task.enqueue(1, connection=first.connection)
        threading.Thread(target=enqueue_too).start()
        assert ended.wait(QUICK_S)
        first.rollback()
    assert [job.args for job in postgres_app.jobs()] == [(2,)]


def test_a_served_job_runs_soon_after_the_caller_s_commit(app: Evenflow, engine_url: str) -> None:
    task = task_of(app)
    app.migrate()
    with (
        serving(app),
        (with_sqlite3() if engine_url.startswith("sqlite") else with_psycopg())(engine_url) as caller,
    ):
        job = task.enqueue(5, connection=caller.connection)
        caller.commit()
        assert job.result(timeout=QUICK_S) == 5


NOT_CONNECTIONS: dict[str, Callable[[], Any]] = {
    "nothing of a database": object,
    "a text": lambda: "postgresql://localhost/jobs",
    "a number": lambda: 7,
    "a module": lambda: sqlite3,
    "a class": lambda: psycopg.Connection,
    "a psycopg pool": lambda: psycopg_pool.ConnectionPool("", open=False),
    "a SQLAlchemy engine": lambda: sqlalchemy.create_engine("sqlite://"),
    "a SQLAlchemy session factory": lambda: orm.sessionmaker(),
    "a SQLAlchemy statement": lambda: sqlalchemy.text("select 1"),
}


@pytest.mark.parametrize("kind", NOT_CONNECTIONS)
def test_what_is_no_connection_is_refused_by_name(sqlite_app: Evenflow, kind: str) -> None:
    with pytest.raises(
        EnqueueError, match=r"connection: expected a connection of psycopg, psycopg2, asyncpg or"
    ):
        task_of(sqlite_app).enqueue(1, connection=NOT_CONNECTIONS[kind]())
    assert list(sqlite_app.jobs()) == []


def test_a_cursor_of_sqlite3_is_refused(sqlite_app: Evenflow, sqlite_url: str) -> None:
    with with_sqlite3()(sqlite_url) as caller, pytest.raises(EnqueueError, match=r"got sqlite3\.Cursor"):
        task_of(sqlite_app).enqueue(1, connection=caller.connection.cursor())
    assert list(sqlite_app.jobs()) == []


async def test_a_pool_is_refused_because_it_has_no_transaction(
    postgres_app: Evenflow, postgres_url: str
) -> None:
    async with asyncpg.create_pool(postgres_url, min_size=1, max_size=1) as pool:
        with pytest.raises(EnqueueError, match=r"expected a connection of .*, got asyncpg\.pool\.Pool"):
            await task_of(postgres_app).aenqueue(1, connection=pool)
    assert list(postgres_app.jobs()) == []


def test_a_cursor_is_refused(postgres_app: Evenflow, postgres_url: str) -> None:
    with (
        with_psycopg()(postgres_url) as caller,
        caller.connection.cursor() as cursor,
        pytest.raises(EnqueueError, match=r"got psycopg\.Cursor"),
    ):
        task_of(postgres_app).enqueue(1, connection=cursor)
    assert list(postgres_app.jobs()) == []


async def test_an_asynchronous_connection_is_refused_by_enqueue(
    postgres_app: Evenflow, postgres_url: str
) -> None:
    task = task_of(postgres_app)
    engine = sqlalchemy_asyncio.create_async_engine(sqlalchemy_url(postgres_url, "psycopg"))
    session = sqlalchemy_asyncio.AsyncSession(engine)
    scoped = sqlalchemy_asyncio.async_scoped_session(sqlalchemy_asyncio.async_sessionmaker(engine), lambda: 1)
    connection = await psycopg.AsyncConnection.connect(postgres_url)
    async with with_asyncpg(postgres_url) as caller:
        for given in (connection, caller.connection, session, scoped):
            with pytest.raises(
                EnqueueError, match=r"is asynchronous; use: await task\.aenqueue\(\.\.\., connection=…\)"
            ):
                task.enqueue(1, connection=given)
    await connection.close()
    await session.close()
    await engine.dispose()
    assert list(postgres_app.jobs()) == []


def test_a_connection_to_the_other_kind_of_database_is_refused(
    sqlite_app: Evenflow, postgres_app: Evenflow, sqlite_url: str, postgres_url: str
) -> None:
    with with_sqlite3()(sqlite_url) as sqlite, with_psycopg()(postgres_url) as postgres:
        with pytest.raises(EnqueueError, match="the jobs live in postgres, this connection is to sqlite"):
            task_of(postgres_app).enqueue(1, connection=sqlite.connection)
        with pytest.raises(EnqueueError, match="the jobs live in sqlite, this connection is to postgres"):
            task_of(sqlite_app).enqueue(1, connection=postgres.connection)
    assert list(sqlite_app.jobs()) == list(postgres_app.jobs()) == []


def test_a_connection_to_a_database_of_a_third_kind_is_refused(
    sqlite_app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    monkeypatch.setattr(engine.dialect, "name", "mysql")
    with (
        orm.Session(engine) as session,
        pytest.raises(EnqueueError, match="one to SQLite or PostgreSQL, got mysql"),
    ):
        task_of(sqlite_app).enqueue(1, connection=session)


def test_a_session_that_is_bound_to_nothing_is_refused(sqlite_app: Evenflow) -> None:
    with orm.Session() as session, pytest.raises(EnqueueError, match=r"pass session\.connection\(\.\.\.\)"):
        task_of(sqlite_app).enqueue(1, connection=session)


def test_a_sqlite_file_without_tables_is_said_before_the_transaction_waits_for_itself(
    sqlite_app: Evenflow, sqlite_url: str
) -> None:
    with with_sqlite3()(sqlite_url) as caller:
        caller.execute("create table orders (number integer)")
        caller.execute("insert into orders values (1)")
        with pytest.raises(SchemaMissing, match=r"no tables of Evenflow.*call app\.migrate\(\) before"):
            task_of(sqlite_app).enqueue(1, connection=caller.connection)
        caller.rollback()
    with orm.Session(sqlalchemy.create_engine(f"sqlite:///{path_of(sqlite_url)}")) as session:
        with pytest.raises(SchemaMissing, match="no tables of Evenflow"):
            task_of(sqlite_app).enqueue(1, connection=session)
        session.get_bind().engine.dispose()


def test_on_postgresql_the_tables_are_made_beside_the_transaction(
    empty_postgres_url: str, make_app: MakeApp
) -> None:
    app = make_app(empty_postgres_url)
    with with_psycopg()(empty_postgres_url) as caller:
        caller.execute("create table orders (number integer)")
        job = task_of(app).enqueue(1, connection=caller.connection)
        caller.commit()
    assert_runs(app, job.id, 1)


@pytest.mark.parametrize("client", ["psycopg", "psycopg2", "sqlalchemy psycopg session"])
def test_a_connection_to_another_database_is_explained(
    postgres_app: Evenflow, empty_postgres_url: str, client: str
) -> None:
    with POSTGRES[client](empty_postgres_url) as caller:
        with pytest.raises(SchemaMissing, match="pass a connection to the app's own database"):
            task_of(postgres_app).enqueue(1, connection=caller.connection)
        caller.rollback()


def test_a_connection_to_tables_of_an_older_release_is_explained(app: Evenflow, engine_url: str) -> None:
    app.migrate()
    is_sqlite = engine_url.startswith("sqlite")
    with (with_sqlite3() if is_sqlite else with_psycopg())(engine_url) as caller:
        table = "evenflow_job" if is_sqlite else "evenflow.job"
        caller.execute(f"alter table {table} rename column limits to not_there_yet")
        caller.commit()
        with pytest.raises(SchemaMissing, match="not this version's"):
            task_of(app).enqueue(1, connection=caller.connection)


async def test_an_awaited_connection_to_another_database_is_explained(
    postgres_app: Evenflow, empty_postgres_url: str
) -> None:
    async with with_asyncpg(empty_postgres_url) as caller:
        with pytest.raises(SchemaMissing, match="pass a connection to the app's own database"):
            await task_of(postgres_app).aenqueue(1, connection=caller.connection)


def test_an_error_of_the_driver_is_not_hidden(postgres_app: Evenflow, postgres_url: str) -> None:
    postgres_app.migrate()
    with with_psycopg()(postgres_url) as caller:
        with pytest.raises(psycopg.Error):
            caller.execute("select broken")
        with pytest.raises(psycopg.errors.InFailedSqlTransaction):
            task_of(postgres_app).enqueue(1, connection=caller.connection)
        caller.rollback()
        job = task_of(postgres_app).enqueue(1, connection=caller.connection)
        caller.commit()
    assert list(postgres_app.jobs()) == [job]
