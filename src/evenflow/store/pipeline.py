"""A pipeline: units that are sent to PostgreSQL before the answers to former ones have come.

While its owner works on one answer, the server works on the next question. Each question is a transaction of its own, of one
unit or several, and answers come in the order of the questions. For one thread, on a connection that nobody else uses.
"""

import contextlib
import importlib
import select
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from evenflow.errors import StoreUnavailable
from evenflow.store.engine import Conflict, Parameters, Row
from evenflow.store.postgres import FRESH_S, PostgresEngine, is_alive, translated
from evenflow.store.statements import Statement

if TYPE_CHECKING:
    import psycopg
    from psycopg.pq.abc import PGconn, PGresult

IDLE_S = 10.0


class Pipeline:
    """Asks and answers on one connection, opened with the first question and closed after every error."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._driver: Any = importlib.import_module("psycopg")  # there, since the engine is
        self._connection: psycopg.Connection[Row] | None = None
        self._prepared: dict[Statement, bytes] = {}
        self._asked: deque[Sequence[tuple[str, Parameters]]] = deque()
        self._used_at = 0.0

    @property
    def is_possible(self) -> bool:
        """A pooler may give each transaction to another session, where nothing was prepared."""
        return not self._engine.has_pooler

    @property
    def has_answer(self) -> bool:
        """Whether one is here already: what came along with the answer before it makes no socket readable."""
        return self._connection is not None and bool(self._asked) and not self._connection.pgconn.is_busy()

    @property
    def descriptor(self) -> int:
        """What becomes readable when an answer comes that is not here yet."""
        assert self._connection is not None
        return self._connection.fileno()

    def ask(self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float) -> None:
        """Send units of a single statement each, as one transaction: all are written or none, and each sees what the ones
        before it have written. Their rows are the next `answer` after those of the questions before it."""
        found = [self._engine.lone_statement(name, parameters) for name, parameters in units]
        with self._closing_after_errors():
            connection = self._usable()
            # All are prepared before one is run: what comes behind an error is left out.
            names = [self._prepare(connection.pgconn, statement) for statement, _ in found]
            for name, (statement, values) in zip(names, found, strict=True):
                connection.pgconn.send_query_prepared(
                    name, [_text(values[each]) for each in statement.parameters]
                )
            connection.pgconn.pipeline_sync()  # what stands before it is a transaction
            self._asked.append(units)
            _flush(connection, time.monotonic() + deadline_s)

    def answer(self, *, deadline_s: float) -> list[list[Row]]:
        """The rows of each unit of the oldest question that has no answer yet; waits for them.

        Errors are those of `Engine.run_all`. What was rolled back in favour of another transaction is run again.
        """
        assert self._connection is not None and self._asked
        connection, ends_at = self._connection, time.monotonic() + deadline_s
        with self._closing_after_errors():
            results = self._results(connection, ends_at)
            units = self._asked.popleft()
        self._used_at = time.monotonic()
        try:
            with translated():
                return self._rows(connection, results)
        except Conflict:
            if len(units) > 1:
                return self._engine.run_all(units, deadline_s=deadline_s)
            return [self._engine.run(*units[0], deadline_s=deadline_s)]

    def close_when_idle(self) -> None:
        """Let go of a connection that was not used for a while."""
        if self._connection is not None and not self._asked and time.monotonic() - self._used_at > IDLE_S:
            self.close()

    def close(self) -> None:
        """Let go of the connection; nobody hears the answers that were under way."""
        connection, self._connection = self._connection, None
        self._prepared.clear()
        self._asked.clear()
        if connection is not None:
            connection.close()

    def _usable(self) -> "psycopg.Connection[Row]":
        """The connection. One that died while it was idle is replaced, as the engine's own are."""
        idle_s = time.monotonic() - self._used_at
        if (
            self._connection is not None
            and not self._asked
            and idle_s >= FRESH_S
            and not is_alive(self._connection)
        ):
            self.close()
        if self._connection is None:
            self._connection = self._engine.connect()
            self._connection.pgconn.nonblocking = 1
            self._connection.pgconn.enter_pipeline_mode()
        return self._connection

    def _prepare(self, connection: "PGconn", statement: Statement) -> bytes:
        """The name under which the session knows a statement, from now on if it did not."""
        name = self._prepared.get(statement)
        if name is None:
            name = self._prepared[statement] = f"evenflow_{len(self._prepared)}".encode()
            connection.send_prepare(name, statement.dollar_bytes)
        return name

    def _results(self, connection: "psycopg.Connection[Row]", ends_at: float) -> "list[PGresult]":
        """What came for one question: the answers to preparations, if there were any, then those of its units."""
        results: list[PGresult] = []
        while True:
            while connection.pgconn.is_busy():
                _await(connection, select.POLLIN, ends_at)
                connection.pgconn.consume_input()
            result = connection.pgconn.get_result()
            if result is None:  # stands between two statements, and for ever after the end of the connection
                if connection.pgconn.status == self._driver.pq.ConnStatus.BAD:
                    raise StoreUnavailable("PostgreSQL: the connection was lost before an answer came")
                continue
            if result.status == self._driver.pq.ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)

    def _rows(self, connection: "psycopg.Connection[Row]", results: "list[PGresult]") -> list[list[Row]]:
        for result in results:
            if result.status == self._driver.pq.ExecStatus.FATAL_ERROR:
                raise self._driver.errors.error_from_result(result)  # those after it were left out
        loader = self._driver.adapt.Transformer(connection)
        tables: list[list[Row]] = []
        for result in results:
            if result.status == self._driver.pq.ExecStatus.TUPLES_OK:
                loader.set_pgresult(result)
                tables.append(loader.load_rows(0, result.ntuples, tuple))
        return tables

    @contextlib.contextmanager
    def _closing_after_errors(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except BaseException:
            self.close()
            raise


def _flush(connection: "psycopg.Connection[Row]", ends_at: float) -> None:
    while connection.pgconn.flush():
        # The server may have to get rid of an answer before it reads on.
        if _await(connection, select.POLLIN | select.POLLOUT, ends_at) & select.POLLIN:
            connection.pgconn.consume_input()


def _await(connection: "psycopg.Connection[Row]", events: int, ends_at: float) -> int:
    poll = select.poll()
    poll.register(connection.fileno(), events)
    for _, found in poll.poll(max(0.0, ends_at - time.monotonic()) * 1000):
        return found
    raise StoreUnavailable("PostgreSQL: no answer came in time")


def _text(value: Any) -> bytes | None:
    """A parameter as text; statements say by a cast what it is."""
    if value is None:
        return None
    if isinstance(value, bool):
        return b"t" if value else b"f"
    return str(value).encode()
