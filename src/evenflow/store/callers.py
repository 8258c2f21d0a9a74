"""Enqueue on a caller's own connection, inside the caller's transaction: the same steps, run by another driver.

Drivers are recognised by the module of the connection's class, so none has to be installed. Nothing here begins,
commits or rolls back a caller's transaction.
"""

import contextlib
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import Any, Protocol, TypeVar

from evenflow.clock import Clock
from evenflow.errors import EnqueueError, SchemaMissing
from evenflow.store.engine import Engine, Last, Parameters, Row, Steps, retried
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine, in_one_trip
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import Statement, Unit, load_units

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


def drive_on(connection: Any, steps: Steps[T], schema: str, clock: Clock) -> T:
    """Run steps on a connection that is called plainly."""
    if is_async(connection):
        raise EnqueueError(
            f"{type(connection).__qualname__} is asynchronous; use: await task.aenqueue(..., connection=…)"
        )
    units = load_units(kind_of(connection), schema)
    try:
        name, parameters = next(steps)
        while True:
            name, parameters = steps.send(run_on(connection, units[name], parameters, clock))
    except StopIteration as end:
        result: T = end.value
        return result


def run_on(connection: Any, unit: Unit, parameters: Parameters, clock: Clock) -> list[Row]:
    """Run one unit on a connection that is called plainly, in whatever transaction it is in."""
    execute, kind = _EXECUTE[_family(connection)], kind_of(connection)
    rows: list[Row] = []
    given = _at_one_moment(kind, parameters, clock)
    with _missing_tables_explained():
        for statement in unit.statements:
            rows += execute(connection, statement, {name: given[name] for name in statement.parameters}) or []
            if rows and unit.is_guarded:
                break
    return rows


async def arun_on(connection: Any, unit: Unit, parameters: Parameters, clock: Clock) -> list[Row]:
    """`run_on` for a connection whose calls are awaited."""
    execute, kind = _AEXECUTE[_family(connection)], kind_of(connection)
    rows: list[Row] = []
    given = _at_one_moment(kind, parameters, clock)
    with _missing_tables_explained():
        for statement in unit.statements:
            bound = {name: given[name] for name in statement.parameters}
            rows += await execute(connection, statement, bound) or []
            if rows and unit.is_guarded:
                break
    return rows


async def adrive_on(connection: Any, steps: Steps[T], schema: str, clock: Clock) -> T:
    """Run steps on a connection whose calls are awaited."""
    if not is_async(connection):
        return drive_on(connection, steps, schema, clock)
    units = load_units(kind_of(connection), schema)
    try:
        name, parameters = next(steps)
        while True:
            name, parameters = steps.send(await arun_on(connection, units[name], parameters, clock))
    except StopIteration as end:
        result: T = end.value
        return result


class Relay(Engine, Protocol):
    """An engine that hands its calls to another one, in its own way."""

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        """`drive_together` on the engine behind it."""


def drive_together(
    engine: AnyEngine | Relay, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0
) -> T:
    """Run steps on a connection of ours, all in one transaction: what they raise undoes what they wrote.

    A lost connection is not borne here as by `drive`: after StoreUnavailable nothing is known about the commit.
    """
    if isinstance(engine, PostgresEngine):
        return retried(lambda: _driven_in_session(engine, make_steps(), deadline_s))
    if not isinstance(engine, SqliteEngine):
        return engine.together(make_steps, deadline_s=deadline_s)
    with engine.exclusive() as connection:
        return drive_on(connection, make_steps(), engine.schema, engine.clock)


def _driven_in_session(engine: PostgresEngine, steps: Steps[T], deadline_s: float) -> T:
    with engine.session(deadline_s) as connection:
        try:
            return _driven(engine, connection, steps)
        except EnqueueError as refused:
            connection.execute("ROLLBACK")
            refusal = refused  # raised outside: a refused job is no reason to give the connection up
    raise refusal


def _driven(engine: PostgresEngine, connection: Any, steps: Steps[T]) -> T:
    """The begin goes out with what is asked first, and the commit with what is asked last."""
    units = load_units("postgres", engine.schema)
    is_begun = is_committed = False
    try:
        asked = next(steps)
        while True:
            unit, given = units[asked[0]], _at_one_moment("postgres", asked[1], engine.clock)
            statements = [(statement, given) for statement in unit.statements]
            begins, commits = [] if is_begun else ["BEGIN"], ["COMMIT"] if isinstance(asked, Last) else []
            with _missing_tables_explained():
                answers = in_one_trip(connection, statements, begins, commits)
            is_begun, is_committed = True, bool(commits)
            asked = steps.send([row for rows in answers for row in rows])
    except StopIteration as end:
        if is_begun and not is_committed:
            connection.execute("COMMIT")
        result: T = end.value
        return result


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


def _at_one_moment(kind: str, parameters: Parameters, clock: Clock) -> Parameters:
    """The parameters with a time, the same for all statements of a unit: some know by it what the one before has done."""
    if parameters.get("now") is not None:
        return parameters
    # On SQLite this host's clock is the database's.
    return {**parameters, "now": clock.wall_us() if kind == "sqlite" else clock.set_us}


def _on_sqlite3(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    cursor = connection.cursor()
    cursor.row_factory = None
    return _fetched(cursor.execute(statement.text, parameters))


def _on_psycopg(connection: Any, statement: Statement, parameters: dict[str, Any]) -> list[Row] | None:
    from psycopg import RawCursor
    from psycopg.rows import tuple_row

    # Not connection.cursor(): the caller's cursor_factory may read parameters in another style.
    with RawCursor(connection, row_factory=tuple_row) as cursor:
        cursor.execute(statement.dollar_bytes, [parameters[name] for name in statement.parameters])
        return cursor.fetchall() if _has_rows(cursor) else None


def _has_rows(cursor: Any) -> bool:
    """Whether a statement gave a table. In a pipeline only fetching tells; what callers run there always gives one."""
    result = cursor.pgresult  # not `description`: making one takes longer than many a statement
    return bool((result is not None and result.nfields) or cursor.connection.pgconn.pipeline_status)


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
    from psycopg import AsyncRawCursor
    from psycopg.rows import tuple_row

    async with AsyncRawCursor(connection, row_factory=tuple_row) as cursor:
        await cursor.execute(statement.dollar_bytes, [parameters[name] for name in statement.parameters])
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
