"""Enqueue on a caller's own connection, inside the caller's transaction: the same steps, run by another driver.

Drivers are recognised by the module of the connection's class, so none has to be installed. Nothing here begins,
commits or rolls back a caller's transaction.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, TypeVar

from evenflow.clock import wall_us
from evenflow.errors import EnqueueError, SchemaMissing
from evenflow.store.engine import Row, Steps, retried
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.statements import Statement, load_units

T = TypeVar("T")
Execute = Callable[[Any, Statement, dict[str, Any]], list[Row] | None]
AsyncExecute = Callable[[Any, Statement, dict[str, Any]], Awaitable[list[Row] | None]]

SUPPORTED = (
    "a connection of psycopg, psycopg2, asyncpg or sqlite3, a SQLAlchemy Connection or Session (also async), "
    "or a Django connection"
)
# What a connection has and its neighbours (cursors, pools, engines) have not: on those, the transaction would be another.
_MARK_OF_A_CONNECTION = {
    "sqlite3": "cursor",
    "psycopg": "cursor",
    "psycopg2": "cursor",
    "asyncpg": "transaction",
    "sqlalchemy": "execute",
    "django": "vendor",
}
_UNDEFINED = {"42P01", "3F000", "42703"}  # table, schema, column
_UNDEFINED_IN_SQLITE = re.compile(r"no such table: evenflow_|table evenflow_\w+ has no column ")


def kind_of(connection: Any) -> str:
    """Which database a caller's connection speaks to: "sqlite" or "postgres"; EnqueueError if it is no connection."""
    match _family(connection):
        case "sqlite3":
            return "sqlite"
        case "psycopg" | "psycopg2" | "asyncpg":
            return "postgres"
        case "sqlalchemy":
            return _sqlalchemy_kind(connection)
        case _:
            return _named_kind(connection.vendor)


def is_async(connection: Any) -> bool:
    """Whether its calls have to be awaited."""
    family = _family(connection)
    return family == "asyncpg" or (
        family in ("psycopg", "sqlalchemy")
        and any(base.__name__.lower().startswith("async") for base in type(connection).__mro__)
    )


def drive_on(connection: Any, steps: Steps[T], schema: str) -> T:
    """Run steps on a connection that is called plainly."""
    if is_async(connection):
        raise EnqueueError(
            f"{type(connection).__qualname__} is asynchronous; use: await task.aenqueue(..., connection=…)"
        )
    execute = _EXECUTE[_family(connection)]
    kind = kind_of(connection)
    units = load_units(kind, schema)
    try:
        name, parameters = next(steps)
        while True:
            rows: list[Row] = []
            with _missing_tables_explained():
                for statement in units[name].statements:
                    rows += execute(connection, statement, _bound(kind, statement, parameters)) or []
            name, parameters = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


async def adrive_on(connection: Any, steps: Steps[T], schema: str) -> T:
    """Run steps on a connection whose calls are awaited."""
    if not is_async(connection):
        return drive_on(connection, steps, schema)
    execute = _AEXECUTE[_family(connection)]
    kind = kind_of(connection)
    units = load_units(kind, schema)
    try:
        name, parameters = next(steps)
        while True:
            rows: list[Row] = []
            with _missing_tables_explained():
                for statement in units[name].statements:
                    rows += await execute(connection, statement, _bound(kind, statement, parameters)) or []
            name, parameters = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


def drive_together(engine: AnyEngine, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
    """Run steps on a connection of ours, all in one transaction: what they raise undoes what they wrote.

    A lost connection is not borne here as by `drive`: after StoreUnavailable nothing is known about the commit.
    """
    if isinstance(engine, PostgresEngine):
        return retried(lambda: _driven_in_session(engine, make_steps(), deadline_s))
    with engine.exclusive() as connection:
        return drive_on(connection, make_steps(), "evenflow")


def _driven_in_session(engine: PostgresEngine, steps: Steps[T], deadline_s: float) -> T:
    with engine.session(deadline_s) as connection:
        try:
            with connection.transaction():
                return drive_on(connection, steps, engine.schema)
        except EnqueueError as refused:
            refusal = refused  # raised outside: a refused job is no reason to give the connection up
    raise refusal


def _family(connection: Any) -> str:
    for base in type(connection).__mro__:
        root = base.__module__.partition(".")[0]
        if root in _EXECUTE and hasattr(connection, _MARK_OF_A_CONNECTION[root]):
            return root
    raise EnqueueError(
        f"connection: expected {SUPPORTED}, got {type(connection).__module__}.{type(connection).__qualname__}"
    )


def _sqlalchemy_kind(connection: Any) -> str:
    try:
        bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    except Exception as unbound:
        raise EnqueueError(
            f"connection: this session is bound to no database of its own ({unbound}); pass session.connection(...)"
        ) from unbound
    return _named_kind(bind.dialect.name)


def _named_kind(name: str) -> str:
    kinds = {"sqlite": "sqlite", "postgresql": "postgres"}
    if name not in kinds:
        raise EnqueueError(
            f"connection: expected one to SQLite or PostgreSQL, got {name}; enqueue without connection= after the commit"
        )
    return kinds[name]


@contextlib.contextmanager
def _missing_tables_explained() -> Iterator[None]:
    try:
        yield
    except Exception as error:
        if not _is_undefined(error):
            raise
        raise SchemaMissing(
            "connection: its database has no tables of Evenflow, or not this version's; call app.migrate() before the "
            "transaction begins, and pass a connection to the app's own database"
        ) from error


def _is_undefined(error: BaseException | None) -> bool:
    """Whether a driver says that a table is not there; SQLAlchemy and Django wrap what the driver said."""
    while error is not None:
        code = getattr(error, "sqlstate", None) or getattr(error, "pgcode", None)
        if code in _UNDEFINED or _UNDEFINED_IN_SQLITE.search(str(error)):
            return True
        error = getattr(error, "orig", None) or error.__cause__
    return False


def _bound(kind: str, statement: Statement, parameters: dict[str, Any]) -> dict[str, Any]:
    bound = {name: parameters[name] for name in statement.parameters}
    if kind == "sqlite" and bound.get("now", 0) is None:
        bound["now"] = wall_us()  # this host's clock is the database's
    return bound


def _on_sqlite3(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    cursor = connection.cursor()
    cursor.row_factory = None
    return _fetched(cursor.execute(statement.text, parameters))


def _on_psycopg(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    from psycopg import Cursor
    from psycopg.rows import tuple_row

    # Not connection.cursor(): the caller's cursor_factory may read parameters in another style.
    with Cursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement.pyformat.encode(), parameters)
        return cursor.fetchall() if _has_rows(cursor) else None


def _has_rows(cursor: Any) -> bool:
    """Whether a statement gave a table. In a pipeline only fetching tells; what callers run there always gives one."""
    return bool(cursor.description or cursor.connection.pgconn.pipeline_status)


def _on_psycopg2(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    from psycopg2.extensions import cursor as plain_cursor

    with connection.cursor(cursor_factory=plain_cursor) as cursor:
        cursor.execute(statement.pyformat, parameters)
        return _fetched(cursor)


def _on_django(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    with connection.cursor() as cursor:
        cursor.execute(statement.pyformat, parameters)
        return _fetched(cursor)


def _on_sqlalchemy(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    result = connection.execute(_sqlalchemy_text(statement), parameters)
    return [tuple(row) for row in result] if result.returns_rows else None


def _refused(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    raise EnqueueError("an asyncpg connection is asynchronous; use: await task.aenqueue(..., connection=…)")


async def _aon_psycopg(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    from psycopg import AsyncCursor
    from psycopg.rows import tuple_row

    async with AsyncCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.pyformat.encode(), parameters)
        return await cursor.fetchall() if _has_rows(cursor) else None


async def _aon_asyncpg(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    rows = await connection.fetch(statement.dollar, *[parameters[name] for name in statement.parameters])
    return [tuple(row) for row in rows]


async def _aon_sqlalchemy(
    connection: Any, statement: Statement, parameters: dict[str, Any]
) -> list[Row] | None:
    result = await connection.execute(_sqlalchemy_text(statement), parameters)
    return [tuple(row) for row in result] if result.returns_rows else None


def _sqlalchemy_text(statement: Statement) -> Any:
    from sqlalchemy import text

    return text(statement.text)


def _fetched(cursor: Any) -> list[Row] | None:
    return [tuple(row) for row in cursor.fetchall()] if cursor.description else None


_EXECUTE: dict[str, Execute] = {
    "sqlite3": _on_sqlite3,
    "psycopg": _on_psycopg,
    "psycopg2": _on_psycopg2,
    "asyncpg": _refused,
    "sqlalchemy": _on_sqlalchemy,
    "django": _on_django,
}
_AEXECUTE: dict[str, AsyncExecute] = {
    "psycopg": _aon_psycopg,
    "asyncpg": _aon_asyncpg,
    "sqlalchemy": _aon_sqlalchemy,
}
