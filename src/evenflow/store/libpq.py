"""Statements by libpq's own means: sent, awaited and read on a connection of psycopg, without its cursors.

A cursor reads the text of a statement, looks for adapters of its parameters and waits through generators. In a process that was
idle for a moment, with caches as cold as that leaves them, this took longer than a small statement takes the server. Our
statements are few, their parameters are texts and numbers, and they say by casts what these are.
"""

import select
import time
from typing import TYPE_CHECKING, Any

import psycopg
from psycopg.adapt import Transformer
from psycopg.pq import ConnStatus, ExecStatus

from evenflow.errors import StoreUnavailable
from evenflow.store.engine import Parameters, Row
from evenflow.store.statements import Statement

if TYPE_CHECKING:
    from psycopg.pq.abc import PGresult

# What is asked more often than this in one session is prepared there.
UNPREPARED = 4
# A connection that answered so little ago is used without another look at it: a look lets go of the interpreter, and in a
# busy worker the bodies would take it and keep the next round from being sent, while the server has nothing to do.
FRESH_S = 0.1


class Session:
    """A connection, and what the server knows by name on it. For one thread at a time."""

    def __init__(self, connection: "psycopg.Connection[Row]", *, prepares: bool) -> None:
        self.connection = connection
        self.pgconn = connection.pgconn
        self.used_at = time.monotonic()
        # A database without an encoding keeps what it gets.
        self._encoding = connection.info.encoding.replace("ascii", "utf-8")
        self._prepares = prepares
        # By the text that is sent: its hash is known, where a statement would count all of its parts each time.
        self._times: dict[bytes, int] = {}
        self._names: dict[bytes, bytes] = {}
        self._loader = Transformer(connection)
        self._incoming = select.poll()
        self._incoming.register(self.pgconn.socket, select.POLLIN)

    def rows(self, statement: Statement, parameters: Parameters, ends_at: float) -> list[Row]:
        """Run a statement in a transaction of its own; its rows, waited for until then by the monotonic clock."""
        text = statement.dollar_bytes
        name = self._names.get(text) or self._name(text, ends_at)
        if name is None:
            self.pgconn.send_query_params(text, self.values(statement, parameters))
        else:
            self.pgconn.send_query_prepared(name, self.values(statement, parameters))
        return self.table(self._only_result(ends_at))

    def values(self, statement: Statement, parameters: Parameters) -> list[bytes | None]:
        """The parameters of a statement as they are sent."""
        encoding = self._encoding
        return [_text(parameters[name], encoding) for name in statement.parameters]

    @property
    def may_be_used(self) -> bool:
        """Whether it is alive. A server that went away has closed it, and that can be read without asking: after a restart no
        call has to fail, and with four idle connections not four in a row."""
        if time.monotonic() - self.used_at < FRESH_S:
            return True
        try:
            while self._incoming.poll(0):  # a notice is kept for the next call, the end is an error
                self.pgconn.consume_input()
        except (psycopg.Error, OSError):
            return False
        return True

    @property
    def is_lost(self) -> bool:
        return self.pgconn.status == ConnStatus.BAD

    def flush(self, ends_at: float) -> None:
        """Send all that waits to be sent."""
        while self.pgconn.flush():
            both = select.poll()
            both.register(self.pgconn.socket, select.POLLIN | select.POLLOUT)
            # The server may have to get rid of an answer before it reads on.
            if _awaited(both, ends_at) & select.POLLIN:
                self.pgconn.consume_input()

    def await_result(self, ends_at: float) -> None:
        """Until the next result is here, or the connection is lost."""
        while self.pgconn.is_busy():
            _awaited(self._incoming, ends_at)
            self.pgconn.consume_input()

    def table(self, result: "PGresult") -> list[Row]:
        """The rows of a result, none where it has no table."""
        if not result.ntuples:
            return []
        self._loader.set_pgresult(result)
        rows = self._loader.load_rows(0, result.ntuples, tuple)
        self._loader.set_pgresult(None)  # or an idle session keeps its last answer in memory, however large
        return rows

    def _name(self, text: bytes, ends_at: float) -> bytes | None:
        """The name by which the server knows a statement from now on; None where it is asked too seldom for that."""
        times = self._times[text] = self._times.get(text, 0) + 1
        if times <= UNPREPARED or not self._prepares:
            return None
        name = f"evenflow_{len(self._names)}".encode()
        self.pgconn.send_prepare(name, text)
        self._only_result(ends_at)
        self._names[text] = name
        return name

    def _only_result(self, ends_at: float) -> "PGresult":
        """The answer to the one thing that was asked."""
        self.flush(ends_at)
        self.await_result(ends_at)
        result = self.pgconn.get_result()
        if result is None:
            raise StoreUnavailable("PostgreSQL: the connection was lost before an answer came")
        raise_failure(result)
        self.await_result(ends_at)
        # Then none, and from here on the server can be asked again; or why the commit failed, which is told after the rows.
        if (failed := self.pgconn.get_result()) is not None:
            raise_failure(failed)
        return result


def raise_failure(result: "PGresult") -> None:
    """Raise what the server says went wrong, as psycopg names it."""
    if result.status == ExecStatus.FATAL_ERROR:
        raise psycopg.errors.error_from_result(result)


def _text(value: Any, encoding: str) -> bytes | None:
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    text = str(value).encode(encoding)
    if b"\0" in text:  # libpq would take what stands before it
        raise psycopg.DataError("a text with a zero byte (\\0) cannot be stored; leave it out")
    return text


def _awaited(poll: "select.poll", ends_at: float) -> int:
    """What has happened, as soon as something has."""
    for _, found in poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        return found
    raise StoreUnavailable("PostgreSQL: no answer came in time")
