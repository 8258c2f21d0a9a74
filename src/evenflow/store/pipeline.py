"""A pipeline: units that are sent to PostgreSQL before the answers to former ones have come.

While its owner works on one answer, the server works on the next question. Each question is a transaction of its own, of one
unit or several, and answers come in the order of the questions. For one thread, on a connection that nobody else uses.
"""

import contextlib
import importlib
import time
from collections import deque
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from evenflow.errors import StoreUnavailable
from evenflow.store.engine import Conflict, Parameters, Row
from evenflow.store.postgres import PostgresEngine, translated
from evenflow.store.statements import Statement

if TYPE_CHECKING:
    from psycopg.pq.abc import PGconn, PGresult

    from evenflow.store import libpq

IDLE_S = 10.0


class Pipeline:
    """Asks and answers on one connection, opened with the first question and closed after every error."""

    def __init__(self, engine: PostgresEngine) -> None:
        self._engine = engine
        self._libpq = importlib.import_module(
            "evenflow.store.libpq"
        )  # its driver is there, since the engine is
        self._session: libpq.Session | None = None
        self._prepared: dict[bytes, bytes] = {}
        self._asked: deque[Sequence[tuple[str, Parameters]]] = deque()

    @property
    def is_possible(self) -> bool:
        """A pooler may give each transaction to another session, where nothing was prepared."""
        return not self._engine.has_pooler

    @property
    def has_answer(self) -> bool:
        """Whether one is here already: what came along with the answer before it makes no socket readable."""
        return self._session is not None and bool(self._asked) and not self._session.pgconn.is_busy()

    @property
    def descriptor(self) -> int:
        """What becomes readable when an answer comes that is not here yet."""
        assert self._session is not None
        return self._session.pgconn.socket

    def ask(self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float) -> None:
        """Send units of a single statement each, as one transaction: all are written or none, and each sees what the ones
        before it have written. Their rows are the next `answer` after those of the questions before it."""
        found = [self._engine.lone_statement(name, parameters) for name, parameters in units]
        with self._closing_after_errors():
            session = self._usable()
            # All are prepared before one is run: what comes behind an error is left out.
            names = [self._prepare(session.pgconn, statement) for statement, _ in found]
            for name, (statement, given) in zip(names, found, strict=True):
                session.pgconn.send_query_prepared(name, session.values(statement, given))
            session.pgconn.pipeline_sync()  # what stands before it is a transaction
            self._asked.append(units)
            session.flush(time.monotonic() + deadline_s)

    def answer(self, *, deadline_s: float) -> list[list[Row]]:
        """The rows of each unit of the oldest question that has no answer yet; waits for them.

        Errors are those of `Engine.run_all`. What was rolled back in favour of another transaction is run again.
        """
        assert self._session is not None and self._asked
        session, ends_at = self._session, time.monotonic() + deadline_s
        with self._closing_after_errors():
            results = self._results(session, ends_at)
            units = self._asked.popleft()
        session.used_at = time.monotonic()
        try:
            with translated():
                return self._rows(session, results)
        except Conflict:
            if len(units) > 1:
                return self._engine.run_all(units, deadline_s=deadline_s)
            return [self._engine.run(*units[0], deadline_s=deadline_s)]

    def close_when_idle(self) -> None:
        """Let go of a connection that was not used for a while."""
        if (
            self._session is not None
            and not self._asked
            and time.monotonic() - self._session.used_at > IDLE_S
        ):
            self.close()

    def close(self) -> None:
        """Let go of the connection; nobody hears the answers that were under way."""
        session, self._session = self._session, None
        self._prepared.clear()
        self._asked.clear()
        if session is not None:
            session.connection.close()

    def _usable(self) -> "libpq.Session":
        """The session. One that died while it was idle is replaced, as the engine's own are."""
        if self._session is not None and not self._asked and not self._session.may_be_used:
            self.close()
        if self._session is None:
            self._session = self._libpq.Session(self._engine.connect(), prepares=True)
            self._session.pgconn.enter_pipeline_mode()
        return self._session

    def _prepare(self, connection: "PGconn", statement: Statement) -> bytes:
        """The name under which the session knows a statement, from now on if it did not."""
        text = statement.dollar_bytes
        name = self._prepared.get(text)
        if name is None:
            name = self._prepared[text] = f"evenflow_{len(self._prepared)}".encode()
            connection.send_prepare(name, text)
        return name

    def _results(self, session: "libpq.Session", ends_at: float) -> "list[PGresult]":
        """What came for one question: the answers to preparations, if there were any, then those of its units."""
        results: list[PGresult] = []
        while True:
            session.await_result(ends_at)
            result = session.pgconn.get_result()
            if result is None:  # stands between two statements, and for ever after the end of the connection
                if session.is_lost:
                    raise StoreUnavailable("PostgreSQL: the connection was lost before an answer came")
                continue
            if result.status == self._libpq.ExecStatus.PIPELINE_SYNC:
                return results
            results.append(result)

    def _rows(self, session: "libpq.Session", results: "list[PGresult]") -> list[list[Row]]:
        for result in results:
            self._libpq.raise_failure(result)  # those after it were left out
        tables = [result for result in results if result.status == self._libpq.ExecStatus.TUPLES_OK]
        return [session.table(result) for result in tables]

    @contextlib.contextmanager
    def _closing_after_errors(self) -> Iterator[None]:
        try:
            with translated():
                yield
        except BaseException:
            self.close()
            raise
