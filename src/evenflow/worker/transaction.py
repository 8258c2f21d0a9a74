"""The transaction of a run: what a body does on its connection, and the end of its job, in one commit.

The end is fenced like every other: where the job has another owner by now, everything is rolled back. On SQLite nobody else
can write meanwhile, so such bodies have to be short.
"""

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

from evenflow.errors import EvenflowError, LeaseLost
from evenflow.ids import id_text
from evenflow.job import Claimed, End
from evenflow.settings import Retention
from evenflow.store.advance import Advanced, advance
from evenflow.store.borrowed import AwaitedEngine, borrowed_engine
from evenflow.store.callers import Relay
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine

MakeTransaction = Callable[[Claimed, bool], "RunTransaction"]


class RunTransaction:
    """Begun by `with ctx.transaction()` (or `async with`), ended by the worker when the body has returned, or raised."""

    def __init__(
        self, engine: AnyEngine, retention: Retention, worker: int, job: Claimed, is_async: bool
    ) -> None:
        self._engine = engine
        self._retention = retention
        self._worker = worker
        self._job = job
        self._is_async = is_async
        self._stack: contextlib.ExitStack | None = None
        self._thread: ThreadPoolExecutor | None = None
        self._connection: Any = None

    def __enter__(self) -> Any:
        self._require(is_async=False)
        self._begin()
        return self._connection

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is not None:
            self.roll_back()

    async def __aenter__(self) -> Any:
        self._require(is_async=True)
        # One thread for its whole life: what locks a SQLite database has to be let go by the thread that took it, and
        # the loop must not wait for another body that holds it.
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="evenflow-transaction")
        if isinstance(self._engine, PostgresEngine):
            self._connection = await self._engine.aconnect()
            await self._connection.execute("begin")
        else:
            await self._on_thread(self._begin)
        return self._connection

    async def __aexit__(self, kind: type[BaseException] | None, error: BaseException | None, _: Any) -> None:
        if error is not None:
            await self.aroll_back()

    def finish(self, end: End) -> Advanced | None:
        """Write the end of a body that has returned, and commit: the store's answer. Where the body did not succeed, or asked
        for no connection, nothing is written, and the end goes its usual way."""
        if self._connection is None or end.state != "succeeded":
            self.roll_back()
            return None
        try:
            self._require_open()
            engine = borrowed_engine(self._connection, self._engine.schema, self._engine.clock)
            answer = self._ended(engine, end)
            self._commit()
        except BaseException:
            self.roll_back()
            raise
        return answer

    async def afinish(self, end: End) -> Advanced | None:
        """`finish` for coroutines."""
        try:
            if self._connection is None or end.state != "succeeded":
                return None
            if not isinstance(self._engine, PostgresEngine):
                answer: Advanced | None = await self._on_thread(lambda: self.finish(end))
                return answer
            self._require_open()
            loop = asyncio.get_running_loop()
            engine = AwaitedEngine(self._connection, self._engine.schema, self._engine.clock, loop)
            answer = await self._on_thread(lambda: self._ended(engine, end))
            await self._connection.execute("commit")
            return answer
        finally:
            await self.aroll_back()  # what is committed stays; all else goes

    def roll_back(self) -> None:
        """Undo what the body has done on its connection. Does nothing when that was done before."""
        stack, self._stack, self._connection = self._stack, None, None
        if stack is not None:
            with contextlib.suppress(_Undone):
                stack.__exit__(_Undone, _Undone(), None)

    async def aroll_back(self) -> None:
        """`roll_back` for coroutines."""
        if self._thread is None:
            return
        if isinstance(self._engine, PostgresEngine):
            await self._close()  # a session that ends undoes its transaction
        else:
            await self._on_thread(self.roll_back)
            await self._close()

    def _begin(self) -> None:
        if self._connection is not None:
            raise EvenflowError("ctx.transaction(): one per run; go on with the connection that it has given")
        stack = contextlib.ExitStack()
        connection: Any
        if isinstance(self._engine, PostgresEngine):
            connection = stack.enter_context(contextlib.closing(self._engine.plain_connection()))
            connection.execute("begin")
        elif self._engine.path is None:  # in memory: there is one connection
            connection = stack.enter_context(self._engine.exclusive())
        else:
            own = stack.enter_context(
                contextlib.closing(SqliteEngine(self._engine.path, clock=self._engine.clock))
            )
            connection = stack.enter_context(own.exclusive())
        self._stack, self._connection = stack, connection

    def _ended(self, engine: AnyEngine | Relay, end: End) -> Advanced:
        answer = advance(engine, self._worker, [end], retention=self._retention)
        if answer.lost:
            raise LeaseLost(
                f"job {id_text(self._job.id)}: another attempt owns it, so its transaction is rolled back"
            )
        return answer

    def _commit(self) -> None:
        stack, self._stack = self._stack, None
        assert stack is not None
        if isinstance(self._engine, PostgresEngine):
            try:
                self._connection.execute("commit")
            finally:
                stack.close()
        else:
            stack.close()  # the end of the exclusive block is the commit
        self._connection = None

    async def _close(self) -> None:
        connection, self._connection = self._connection, None
        if isinstance(self._engine, PostgresEngine) and connection is not None:
            await connection.close()
        if self._thread is not None:
            self._thread.shutdown(wait=False)
            self._thread = None

    async def _on_thread(self, act: Callable[[], Any]) -> Any:
        return await asyncio.get_running_loop().run_in_executor(self._thread, act)

    def _require(self, *, is_async: bool) -> None:
        if is_async != self._is_async:
            form = "async with" if self._is_async else "with"
            raise TypeError(f"ctx.transaction(): write `{form} ctx.transaction() as connection` in this body")

    def _require_open(self) -> None:
        """The body must not have committed: its effects would be there without the end of its job."""
        is_open = (
            self._connection.info.transaction_status == 2  # INTRANS of libpq
            if isinstance(self._engine, PostgresEngine)
            else self._connection.in_transaction
        )
        if not is_open:
            raise EvenflowError(
                "ctx.transaction(): the body has ended its transaction; leave commit and rollback to the worker"
            )


class _Undone(Exception):
    """Ends a block of a database so that it rolls back."""
