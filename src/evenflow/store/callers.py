"""Enqueue on a caller's own connection, inside the caller's transaction: the same steps, run by another driver.

Drivers are recognised by the module of the connection's class, so none has to be installed. Nothing here begins,
commits or rolls back: the transaction is the caller's.
"""

from collections.abc import Awaitable, Callable
from typing import Any, TypeVar

from evenflow.clock import wall_us
from evenflow.errors import DriverMissing, EnqueueError
from evenflow.store.engine import Row, Steps
from evenflow.store.statements import Statement, load_units

T = TypeVar("T")
Execute = Callable[[Any, Statement, dict[str, Any]], list[Row] | None]
AsyncExecute = Callable[[Any, Statement, dict[str, Any]], Awaitable[list[Row] | None]]

SUPPORTED = "psycopg, psycopg2, asyncpg, sqlite3, a SQLAlchemy Connection or Session (also async), or a Django connection"


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
        and any(base.__name__.startswith("Async") for base in type(connection).__mro__)
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
            for statement in units[name].statements:
                rows += await execute(connection, statement, _bound(kind, statement, parameters)) or []
            name, parameters = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


def _family(connection: Any) -> str:
    for base in type(connection).__mro__:
        root = base.__module__.partition(".")[0]
        if root in _EXECUTE:
            return root
    raise EnqueueError(
        f"connection: expected {SUPPORTED}, got {type(connection).__module__}.{type(connection).__qualname__}"
    )


def _sqlalchemy_kind(connection: Any) -> str:
    bind = connection.get_bind() if hasattr(connection, "get_bind") else connection
    return _named_kind(bind.dialect.name)


def _named_kind(name: str) -> str:
    kinds = {"sqlite": "sqlite", "postgresql": "postgres"}
    if name not in kinds:
        raise EnqueueError(
            f"connection: expected one to SQLite or PostgreSQL, got {name}; enqueue without connection= after the commit"
        )
    return kinds[name]


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
    from psycopg.rows import tuple_row

    with connection.cursor(row_factory=tuple_row) as cursor:
        return _fetched(cursor.execute(statement.pyformat, parameters))


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
    from psycopg.rows import tuple_row

    async with connection.cursor(row_factory=tuple_row) as cursor:
        await cursor.execute(statement.pyformat, parameters)
        return await cursor.fetchall() if cursor.description else None


async def _aon_asyncpg(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    rows = await connection.fetch(statement.dollar, *[parameters[name] for name in statement.parameters])
    return [tuple(row) for row in rows]


async def _aon_sqlalchemy(
    connection: Any, statement: Statement, parameters: dict[str, Any]
) -> list[Row] | None:
    result = await connection.execute(_sqlalchemy_text(statement), parameters)
    return [tuple(row) for row in result] if result.returns_rows else None


def _sqlalchemy_text(statement: Statement) -> Any:
    try:
        from sqlalchemy import text
    except ImportError as missing:
        raise DriverMissing("SQLAlchemy is not installed", extra="sqlalchemy") from missing
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
