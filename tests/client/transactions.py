"""Callers' connections of every kind, as tests use them: something to pass, and how its transaction ends."""

import contextlib
import sqlite3
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from dataclasses import dataclass
from typing import Any

import asyncpg
import psycopg
import psycopg2
import psycopg2.extras
import sqlalchemy
from psycopg.rows import dict_row
from sqlalchemy import orm
from sqlalchemy.ext import asyncio as sqlalchemy_asyncio


@dataclass
class Caller:
    """A transaction of a caller's own."""

    connection: Any
    commit: Callable[[], Any]
    rollback: Callable[[], Any]
    execute: Callable[[str], Any]


@dataclass
class AsyncCaller:
    """The same, awaited."""

    connection: Any
    commit: Callable[[], Awaitable[Any]]
    rollback: Callable[[], Awaitable[Any]]
    execute: Callable[[str], Awaitable[Any]]


Open = Callable[[str], contextlib.AbstractContextManager[Caller]]
AsyncOpen = Callable[[str], contextlib.AbstractAsyncContextManager[AsyncCaller]]


def path_of(url: str) -> str:
    return url.removeprefix("sqlite:///")


def with_sqlite3(**options: Any) -> Open:
    @contextlib.contextmanager
    def opened(url: str) -> Iterator[Caller]:
        with contextlib.closing(sqlite3.connect(path_of(url), **options)) as connection:
            yield Caller(connection, connection.commit, connection.rollback, connection.execute)

    return opened


@contextlib.contextmanager
def with_sqlite3_rows(url: str) -> Iterator[Caller]:
    with with_sqlite3()(url) as caller:
        caller.connection.row_factory = sqlite3.Row
        yield caller


@contextlib.contextmanager
def with_sqlite3_begin(url: str) -> Iterator[Caller]:
    with with_sqlite3(isolation_level=None)(url) as caller:
        caller.connection.execute("begin")
        yield caller


def with_psycopg(**options: Any) -> Open:
    @contextlib.contextmanager
    def opened(url: str) -> Iterator[Caller]:
        with contextlib.closing(psycopg.connect(url, **options)) as connection:
            yield Caller(
                connection,
                connection.commit,
                connection.rollback,
                lambda text: connection.execute(text.encode()),
            )

    return opened


def with_psycopg2(**options: Any) -> Open:
    @contextlib.contextmanager
    def opened(url: str) -> Iterator[Caller]:
        with contextlib.closing(psycopg2.connect(url, **options)) as connection:
            yield Caller(
                connection,
                connection.commit,
                connection.rollback,
                lambda text: connection.cursor().execute(text),
            )

    return opened


def sqlalchemy_url(url: str, driver: str) -> str:
    scheme, _, rest = url.partition("://")
    return f"{scheme}+{driver}://{rest}"


def with_sqlalchemy(driver: str, kind: str) -> Open:
    @contextlib.contextmanager
    def opened(url: str) -> Iterator[Caller]:
        engine = sqlalchemy.create_engine(sqlalchemy_url(url, driver))
        factory: Any = {"connection": engine.connect, "session": lambda: orm.Session(engine)}.get(kind)
        used = orm.scoped_session(orm.sessionmaker(engine)) if factory is None else factory()
        try:
            yield Caller(used, used.commit, used.rollback, lambda text: used.execute(sqlalchemy.text(text)))
        finally:
            used.close()
            engine.dispose()

    return opened


@contextlib.asynccontextmanager
async def with_async_psycopg(url: str) -> AsyncIterator[AsyncCaller]:
    connection = await psycopg.AsyncConnection.connect(url, row_factory=dict_row)
    try:
        yield AsyncCaller(
            connection, connection.commit, connection.rollback, lambda text: connection.execute(text.encode())
        )
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def with_asyncpg(url: str) -> AsyncIterator[AsyncCaller]:
    connection = await asyncpg.connect(url)
    transaction = connection.transaction()
    await transaction.start()
    try:
        yield AsyncCaller(connection, transaction.commit, transaction.rollback, connection.execute)
    finally:
        await connection.close()


@contextlib.asynccontextmanager
async def with_asyncpg_pool(url: str) -> AsyncIterator[AsyncCaller]:
    async with asyncpg.create_pool(url, min_size=1, max_size=1) as pool, pool.acquire() as connection:
        transaction = connection.transaction()
        await transaction.start()
        yield AsyncCaller(connection, transaction.commit, transaction.rollback, connection.execute)


def with_async_sqlalchemy(driver: str, kind: str) -> AsyncOpen:
    @contextlib.asynccontextmanager
    async def opened(url: str) -> AsyncIterator[AsyncCaller]:
        engine = sqlalchemy_asyncio.create_async_engine(sqlalchemy_url(url, driver))
        used: Any = (
            await engine.connect() if kind == "connection" else sqlalchemy_asyncio.AsyncSession(engine)
        )
        try:
            yield AsyncCaller(
                used, used.commit, used.rollback, lambda text: used.execute(sqlalchemy.text(text))
            )
        finally:
            await used.close()
            await engine.dispose()

    return opened


SQLITE: dict[str, Open] = {
    "sqlite3": with_sqlite3(),
    "sqlite3 immediate": with_sqlite3(isolation_level="IMMEDIATE"),
    "sqlite3 Row": with_sqlite3_rows,
    "sqlite3 begin": with_sqlite3_begin,
    "sqlalchemy connection": with_sqlalchemy("pysqlite", "connection"),
    "sqlalchemy session": with_sqlalchemy("pysqlite", "session"),
    "sqlalchemy scoped session": with_sqlalchemy("pysqlite", "scoped session"),
}
if sys.version_info >= (3, 12):
    SQLITE["sqlite3 autocommit=False"] = with_sqlite3(autocommit=False)

POSTGRES: dict[str, Open] = {
    "psycopg": with_psycopg(),
    "psycopg dict_row": with_psycopg(row_factory=dict_row),
    "psycopg client cursor": with_psycopg(cursor_factory=psycopg.ClientCursor),
    "psycopg raw cursor": with_psycopg(cursor_factory=psycopg.RawCursor),
    "psycopg2": with_psycopg2(),
    "psycopg2 dict cursor": with_psycopg2(cursor_factory=psycopg2.extras.RealDictCursor),
    "sqlalchemy psycopg connection": with_sqlalchemy("psycopg", "connection"),
    "sqlalchemy psycopg session": with_sqlalchemy("psycopg", "session"),
    "sqlalchemy psycopg2 session": with_sqlalchemy("psycopg2", "session"),
}

ASYNC_SQLITE: dict[str, AsyncOpen] = {
    "sqlalchemy aiosqlite connection": with_async_sqlalchemy("aiosqlite", "connection"),
    "sqlalchemy aiosqlite session": with_async_sqlalchemy("aiosqlite", "session"),
}

ASYNC_POSTGRES: dict[str, AsyncOpen] = {
    "psycopg": with_async_psycopg,
    "asyncpg": with_asyncpg,
    "asyncpg pool": with_asyncpg_pool,
    "sqlalchemy psycopg connection": with_async_sqlalchemy("psycopg", "connection"),
    "sqlalchemy psycopg session": with_async_sqlalchemy("psycopg", "session"),
    "sqlalchemy asyncpg connection": with_async_sqlalchemy("asyncpg", "connection"),
    "sqlalchemy asyncpg session": with_async_sqlalchemy("asyncpg", "session"),
}
