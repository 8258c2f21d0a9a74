"""The PostgreSQL engine: a few psycopg connections, no session state, a deadline on every call.

Works behind a pooler in transaction mode: names are schema-qualified, nothing is set on a session, and prepared
statements are left alone where a pooler is found.
"""

import contextlib
import importlib
import math
import os
import queue
import re
import socket
import time
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evenflow.clock import Clock
from evenflow.errors import DriverMissing, StoreRefused, StoreTooSlow, StoreUnavailable
from evenflow.store.deadlines import Watch, read_seconds
from evenflow.store.engine import Conflict, Parameters, Row, retried
from evenflow.store.statements import Statement, Unit, load_units

if TYPE_CHECKING:
    import psycopg
    import psycopg.sql

    from evenflow.store import libpq
else:
    # Come with the first engine: who has a SQLite file need neither install them nor wait for them.
    psycopg = libpq = None

CONNECT_TIMEOUT_S = 5
POOL_SIZE = 4
# Plans must not change with the statistics of a moment: a table that was empty at the first run must not leave a scan
# of all rows in the plan cache. Every hot statement has its index, so a scan is never the better plan.
# For the same reason a plan is made once and kept: planning the larger ones takes longer than running them.
_PLANNING = (
    "-c enable_seqscan=off -c enable_bitmapscan=off -c enable_mergejoin=off -c jit=off"
    " -c plan_cache_mode=force_generic_plan"
)
# Asked for on every new connection: where it is missing, a pooler has kept our options to itself.
_DIRECT = "evenflow.is_direct"
_KEEPALIVE: dict[str, Any] = {
    "keepalives": 1, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3, "tcp_user_timeout": 10_000,
}  # fmt: skip
# A server that does not end a statement in time itself is left alone this much later.
_GRACE_S = 1.0
_CONFLICTS = {"40001", "40P01", "55P03"}
# "Prepared statement does not exist", "already exists": a pooler that did not show itself gave our session to others.
_STRAYED = {"26000", "42P05"}
# Classes and codes after which the same call may succeed: connection, resources, operator, read-only after a failover.
_TRANSIENT_CLASSES = {"08", "53", "57", "58"}
_TRANSIENT = {"25006", "25P03"}
# What a server says to somebody it will not let in. Such an answer carries no code, so its words have to do; in another
# language than English it counts as "try again".
_UNWELCOME = re.compile(
    r'FATAL: +(?:database ".*" does not exist|role ".*" does not exist|no such database: |no such user: '
    r"|password authentication failed for user |permission denied for database )"
)


class PostgresEngine:
    """Runs units on a PostgreSQL database, each in one round trip where it is one statement."""

    kind = "postgres"

    def __init__(
        self,
        conninfo: str,
        schema: str = "evenflow",
        *,
        pool_size: int = POOL_SIZE,
        clock: Clock | None = None,
    ) -> None:
        _load_driver()
        self.clock = clock or Clock()
        self._conninfo = conninfo
        self._own_options = _options_of(conninfo)
        self.schema = schema
        self._units = load_units("postgres", schema)
        self._idle: list[libpq.Session] = []
        self._pool_size = pool_size
        self._room = _places(pool_size)
        self._watch = Watch()
        self._has_pooler = False
        self._pid = os.getpid()

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        unit = self._units[name]
        parameters = self._timed(parameters)
        if unit.mode == "read" and (read_s := read_seconds()) is not None:
            deadline_s = min(deadline_s, read_s + _GRACE_S)
        return retried(lambda: self._run_once(unit, parameters, deadline_s))

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        found = [(self._units[name], self._timed(parameters)) for name, parameters in units]
        return retried(lambda: self._run_together(found, deadline_s))

    def lone_statement(self, name: str, parameters: Parameters) -> tuple[Statement, Parameters]:
        """The statement of a unit that has no other, for whoever sends it by another way than `run`."""
        (statement,) = self._units[name].statements
        return statement, self._timed(parameters)

    def connect(self) -> "psycopg.Connection[Row]":
        """A connection of one's own, outside of the pool: for LISTEN, migrations and tools."""
        with translated():
            return self._connect()

    def plain_connection(self) -> "psycopg.Connection[Row]":
        """A connection of one's own for a user's statements: planned as the server likes."""
        with translated():
            return psycopg.connect(
                self._conninfo, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, **_KEEPALIVE
            )

    async def aconnect(self) -> "psycopg.AsyncConnection[Row]":
        """`plain_connection` whose calls are awaited."""
        with translated():
            return await psycopg.AsyncConnection.connect(
                self._conninfo, autocommit=True, connect_timeout=CONNECT_TIMEOUT_S, **_KEEPALIVE
            )

    @property
    def has_pooler(self) -> bool:
        """Whether a pooler showed itself when we connected: nothing may be left on its sessions then."""
        return self._has_pooler

    def within(
        self, deadline_s: float, connection: "psycopg.Connection[Row]"
    ) -> contextlib.AbstractContextManager[None]:
        """For calls on a connection of one's own: it is cut when the time is over, so that the call fails."""
        return self._watch.deadline(deadline_s, lambda: _cut(connection))

    @contextlib.contextmanager
    def session(self, deadline_s: float = 30.0) -> Iterator["psycopg.Connection[Row]"]:
        """A pooled connection for one unit of work; closed instead of given back when it failed."""
        with translated():
            session = self._taken(deadline_s)
            try:
                with self.within(deadline_s, session.connection):
                    yield session.connection
            except BaseException as error:
                self._give_up(session, error)
                raise
            else:
                self._give_back(session)

    def close(self) -> None:
        while self._idle:
            self._idle.pop().connection.close()
        self._watch.close()

    def _timed(self, parameters: Parameters) -> Parameters:
        """Parameters with the time of a clock that was set; as a rule they are left alone, and the server's counts."""
        if self.clock.set_us is None or parameters.get("now", 0) is not None:
            return parameters
        return {**parameters, "now": self.clock.set_us}

    def _run_once(self, unit: Unit, parameters: Parameters, deadline_s: float) -> list[Row]:
        stale = bool(self._idle)
        ends_at = time.monotonic() + deadline_s
        try:
            return self._run_on_session(unit, parameters, deadline_s)
        except StoreTooSlow:
            raise
        except StoreUnavailable:
            # An idle connection may have died with its server long before this call. A read is simply asked again.
            left = ends_at - time.monotonic()
            if not stale or unit.mode != "read" or left <= 0:
                raise
            return self._run_on_session(unit, parameters, left)

    def _run_on_session(self, unit: Unit, parameters: Parameters, deadline_s: float) -> list[Row]:
        if len(unit.statements) > 1 or (unit.mode == "read" and read_seconds() is not None):
            return self._run_together([(unit, parameters)], deadline_s)[0]
        ends_at = time.monotonic() + deadline_s
        session = None
        # Most of what a program and an idle worker ask goes this way: without a block of `session` around it, each layer of
        # which takes its time.
        try:
            session = self._taken(deadline_s)
            rows = session.rows(unit.statements[0], parameters, ends_at)
        except psycopg.Error as error:
            if session is not None:
                self._give_up(session, error)
            raise as_store_error(error) from error
        except BaseException as error:
            if session is not None:
                self._give_up(session, error)
            raise
        self._give_back(session)
        return rows

    def _run_together(self, units: Sequence[tuple[Unit, Parameters]], deadline_s: float) -> list[list[Row]]:
        asked = [(statement, given) for unit, given in units for statement in unit.statements]
        read_s = read_seconds() if all(unit.mode == "read" for unit, _ in units) else None
        with self.session(deadline_s) as connection:
            limit = [] if read_s is None else [_end_statements_after(read_s)]
            answers = iter(in_one_trip(connection, asked, ["BEGIN", *limit], ["COMMIT"]))
        return [[row for _ in unit.statements for row in next(answers)] for unit, _ in units]

    def _taken(self, deadline_s: float) -> "libpq.Session":
        """A session of the pool, to be given back or given up."""
        self._drop_after_fork()
        try:
            self._room.get(timeout=deadline_s)
        except queue.Empty:
            raise StoreUnavailable(f"PostgreSQL: no connection was free within {deadline_s:g} s") from None
        try:
            return self._idle_session() or self._connected(deadline_s)
        except BaseException:
            self._room.put(None)
            raise

    def _give_back(self, session: "libpq.Session") -> None:
        if not session.is_lost:
            session.used_at = time.monotonic()
            self._idle.append(session)
        self._room.put(None)

    def _give_up(self, session: "libpq.Session", error: BaseException) -> None:
        # After an error nothing about the session is known for sure; a new connection costs less than a wrong guess.
        with contextlib.suppress(Exception):
            session.connection.close()
        self._room.put(None)
        if isinstance(error, psycopg.Error) and error.sqlstate in _STRAYED:
            self._has_pooler = True
            while (idle := self._idle_session()) is not None:
                idle.connection.close()

    def _idle_session(self) -> "libpq.Session | None":
        while True:
            try:
                session = self._idle.pop()
            except IndexError:  # none, or another thread took the last one
                return None
            if session.may_be_used:
                return session
            session.connection.close()

    def _connected(self, deadline_s: float) -> "libpq.Session":
        connection = self._connect(deadline_s)
        return libpq.Session(connection, prepares=not self._has_pooler)

    def _connect(self, deadline_s: float = CONNECT_TIMEOUT_S) -> "psycopg.Connection[Row]":
        timeout_s = math.ceil(min(deadline_s, CONNECT_TIMEOUT_S))
        options: dict[str, Any] = {"autocommit": True, "connect_timeout": timeout_s, **_KEEPALIVE}
        options |= {"fallback_application_name": "evenflow", "target_session_attrs": "read-write"}
        if self._has_pooler:
            return psycopg.connect(self._conninfo, prepare_threshold=None, **options)
        try:
            connection = psycopg.connect(
                self._conninfo, options=f"-c {_DIRECT}=on {_PLANNING} {self._own_options}", **options
            )
        except psycopg.OperationalError as refused:
            # PgBouncer refuses start-up options, unless it was told to ignore them.
            if "startup parameter" not in str(refused):
                raise
        else:
            if self._is_direct(connection, timeout_s):
                return connection
            connection.close()
        self._has_pooler = True
        return psycopg.connect(self._conninfo, prepare_threshold=None, **options)

    def _is_direct(self, connection: "psycopg.Connection[Row]", timeout_s: float) -> bool:
        """Whether our options came through. Without this a statement that was prepared on one session may be run on
        another, where its name may stand for somebody else's: it is not always an error."""
        asked = f"select current_setting('{_DIRECT}', true)"
        with self.within(timeout_s, connection):
            return connection.execute(asked.encode(), prepare=False).fetchone() == ("on",)

    def _drop_after_fork(self) -> None:
        if self._pid != os.getpid():
            _abandoned.extend(self._idle)  # closing would end the parent's sessions
            self._idle, self._pid, self._watch = [], os.getpid(), Watch()
            self._room = _places(self._pool_size)


def _places(count: int) -> "queue.SimpleQueue[None]":
    """So many tokens, one for each connection of a pool. Python's own semaphore is made of Python, and ten times as slow."""
    places: queue.SimpleQueue[None] = queue.SimpleQueue()
    for _ in range(count):
        places.put(None)
    return places


def _load_driver() -> None:
    global psycopg, libpq
    try:
        psycopg = importlib.import_module("psycopg")
        importlib.import_module("psycopg.sql")
        libpq = importlib.import_module("evenflow.store.libpq")
    except ImportError:
        raise DriverMissing("PostgreSQL needs psycopg", extra="postgres") from None


# Connections of a parent process: kept from the garbage collector, which would close them.
_abandoned: list[Any] = []


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """psycopg's errors as ours."""
    try:
        yield
    except psycopg.Error as error:
        raise as_store_error(error) from error


def as_store_error(error: "psycopg.Error") -> Exception:
    """What an error of psycopg means: "try again", "do not", or a conflict to run again at once."""
    code = error.sqlstate or ""
    text = f"PostgreSQL: {_first_line(error)}"
    if code in _CONFLICTS or code in _STRAYED or _was_partitioned_meanwhile(error):
        return Conflict(text)
    if isinstance(error, psycopg.errors.QueryCanceled) and read_seconds() is not None:
        return StoreTooSlow(f"{text}; it was given {read_seconds():g} s")
    if not code and _UNWELCOME.search(text):
        return StoreRefused(f"{text}; correct the URL, or create what it names")
    lost = isinstance(error, psycopg.OperationalError | psycopg.InterfaceError) and not code
    if lost or code[:2] in _TRANSIENT_CLASSES or code in _TRANSIENT:
        return StoreUnavailable(f"{text}{_advice(error)}")
    return StoreRefused(f"{text}{f' (SQLSTATE {code})' if code else ''}")


def _was_partitioned_meanwhile(error: "psycopg.Error") -> bool:
    """Whether a row was on its way to the default partition while one for its day was attached. A constraint of ours that is
    broken would have a name."""
    return error.sqlstate == "23514" and error.diag.constraint_name is None


def _end_statements_after(seconds: float) -> str:
    """By the server, for this transaction alone: a pooler may give the session to somebody else after it."""
    return f"set local statement_timeout = {math.ceil(seconds * 1000)}"


def in_one_trip(
    connection: "psycopg.Connection[Row]", asked: Sequence[tuple[Statement, Parameters]], before: Sequence[str],
    after: Sequence[str],
) -> list[list[Row]]:  # fmt: skip
    """The rows of statements that go out together with commands before and after them, and are answered together: while
    the bodies of a worker hold the interpreter, an answer that says nothing is waited for as long as one that does."""
    if len(before) + len(asked) + len(after) == 1 or not psycopg.Pipeline.is_supported():
        return _one_by_one(connection, asked, before, after)
    try:
        with connection.pipeline():
            for command in before:
                connection.execute(command.encode(), prepare=False)
            cursors = [_sent(connection, statement, parameters) for statement, parameters in asked]
            for command in after:
                connection.execute(command.encode(), prepare=False)
    except psycopg.errors.PipelineAborted as aborted:
        raise _reason_of(aborted) from None
    return [_fetched(cursor) for cursor in cursors]


def _one_by_one(
    connection: "psycopg.Connection[Row]", asked: Sequence[tuple[Statement, Parameters]], before: Sequence[str],
    after: Sequence[str],
) -> list[list[Row]]:  # fmt: skip
    for command in before:
        connection.execute(command.encode())
    rows = [_fetched(_sent(connection, statement, parameters)) for statement, parameters in asked]
    for command in after:
        connection.execute(command.encode())
    return rows


def _sent(
    connection: "psycopg.Connection[Row]", statement: Statement, parameters: Parameters
) -> "psycopg.RawCursor[Row]":
    # With numbered parameters: psycopg reads a text with named ones again each time, if it is a long one.
    cursor = psycopg.RawCursor(connection)
    return cursor.execute(statement.dollar_bytes, [parameters[name] for name in statement.parameters])


def _fetched(cursor: "psycopg.RawCursor[Row]") -> list[Row]:
    return cursor.fetchall() if cursor.pgresult is not None and cursor.pgresult.nfields else []


def _reason_of(aborted: "psycopg.Error") -> BaseException:
    """What ended a pipeline: psycopg may say of the later commands that they were left out, and of the first one why."""
    reason: BaseException | None = aborted
    while isinstance(reason, psycopg.errors.PipelineAborted):
        reason = reason.__context__
    return reason or aborted


def _options_of(conninfo: str) -> str:
    """What the address, or the environment, says about sessions: it stands after ours, so it counts."""
    try:
        given = psycopg.conninfo.conninfo_to_dict(conninfo).get("options")
    except psycopg.Error:  # said better when connecting
        return ""
    return str(given or os.environ.get("PGOPTIONS", ""))


def quoted(schema: str) -> "psycopg.sql.Identifier":
    """A schema name as an identifier."""
    return psycopg.sql.Identifier(schema)


def _first_line(error: Exception) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _advice(error: Exception) -> str:
    text = str(error)
    if (
        "Connection refused" in text
        or "No such file or directory" in text
        or "could not translate host name" in text
    ):
        return "; is the server running, and is the URL right?"
    return ""


def _cut(connection: "psycopg.Connection[Row]") -> None:
    """End a blocked call from outside: its socket is shut down under it, so it fails as a lost connection."""
    with contextlib.suppress(Exception), socket.socket(fileno=os.dup(connection.fileno())) as twin:
        twin.shutdown(socket.SHUT_RDWR)
