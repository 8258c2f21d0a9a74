"""An engine on one connection of a caller, inside of the caller's transaction: what is done here is committed, or rolled
back, by whoever owns the connection. For tests that roll everything back."""

import asyncio
import contextlib
import itertools
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, TypeVar, cast

from evenflow.clock import Clock
from evenflow.errors import EnqueueError
from evenflow.store.callers import arun_on, drive_on, is_async, kind_of, run_on
from evenflow.store.engine import Parameters, Row, Steps, drive
from evenflow.store.migrate import migration_script
from evenflow.store.open import AnyEngine
from evenflow.store.statements import Statement, Unit, load_units, split_statements

T = TypeVar("T")
_TABLES_ARE_THERE = {
    "sqlite": "select exists (select 1 from sqlite_master where name = 'evenflow_migration')",
    "postgres": "select to_regclass('\"{schema}\".migration') is not null",
}


class BorrowedEngine:
    """Runs units on a connection that it neither opened nor closes. Nobody else sees its work, so nobody is woken."""

    path = None

    def __init__(self, connection: Any, schema: str = "evenflow", *, clock: Clock | None = None) -> None:
        if is_async(connection):
            raise EnqueueError(
                f"connection: expected one that is called plainly, got {type(connection).__qualname__}, which is awaited"
            )
        self.kind = kind_of(connection)
        self.schema = schema
        self.clock = clock or Clock()
        self.watchers: list[Any] = []
        self._connection = connection
        self._units = load_units(self.kind, schema)
        self._lock = threading.RLock()
        self._points = itertools.count(1)

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        unit = self._units[name]
        # Several statements are one act: what was written before an error goes with it.
        with self._lock if unit.is_one_statement else self.exclusive():
            return run_on(self._connection, unit, parameters, self.clock)

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        with self.exclusive():
            return [self.run(name, parameters) for name, parameters in units]

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[Any]:
        """The connection, for a block whose error undoes what the block did, and nothing else of the transaction."""
        with self._lock:
            point = f"evenflow_{next(self._points)}"
            self._execute(f"savepoint {point}")
            try:
                yield self._connection
            except BaseException:
                self._execute(f"rollback to savepoint {point}")
                raise
            self._execute(f"release savepoint {point}")

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        """Run steps as one: what they raise undoes what they wrote."""
        with self.exclusive() as connection:
            return drive_on(connection, make_steps(), self.schema, self.clock)

    def data_version(self) -> int:
        """Nothing is heard here of what others commit."""
        return 0

    def close(self) -> None:
        """Nothing: the connection is not ours."""

    def _execute(self, text: str) -> None:
        run_on(self._connection, _unit(text), {}, self.clock)


class AwaitedEngine:
    """The same on a connection whose calls are awaited on an event loop; used from other threads than the loop's."""

    kind = "postgres"

    def __init__(self, connection: Any, schema: str, clock: Clock, loop: asyncio.AbstractEventLoop) -> None:
        self._connection = connection
        self._units = load_units(self.kind, schema)
        self._clock = clock
        self._loop = loop

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        running = arun_on(self._connection, self._units[name], parameters, self._clock)
        return asyncio.run_coroutine_threadsafe(running, self._loop).result()

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        return [self.run(name, parameters) for name, parameters in units]

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        """Run steps one after the other: what they raise is for the owner of the transaction to undo."""
        return drive(self, make_steps())

    def close(self) -> None:
        """Nothing: the connection is not ours."""


def borrowed_engine(connection: Any, schema: str, clock: Clock) -> AnyEngine:
    """A BorrowedEngine for whoever takes an engine. It has what those of SQLite have, beyond running units."""
    return cast(AnyEngine, BorrowedEngine(connection, schema, clock=clock))


def make_tables(connection: Any, schema: str = "evenflow") -> bool:
    """Create the tables in the transaction of a caller's connection, where they are not there; whether it did."""
    kind, clock = kind_of(connection), Clock()
    look = _TABLES_ARE_THERE[kind].format(schema=schema)
    if run_on(connection, _unit(look), {}, clock)[0][0]:
        return False
    for text in split_statements(migration_script(kind, schema)):
        if text not in ("begin", "commit"):  # of the script; the transaction is the caller's
            run_on(connection, _unit(text), {}, clock)
    return True


def _unit(text: str) -> Unit:
    return Unit("", "write", (), (Statement(text),))
