"""Waiting for the ends of jobs: one thread per app watches for all waiters, woken by the store, not by a tight poll."""

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable
from typing import Any

from evenflow.errors import JobNotFound, ResultTimeout, StoreError, StoreUnavailable
from evenflow.ids import id_text
from evenflow.job import JobRecord
from evenflow.settings import Retention
from evenflow.store import control, reads
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Signals, watch_signals

Callback = Callable[[], None]
_LOOK_AGAIN_S = 1.0


class Results:
    """Reads jobs and waits for their ends. Shared by all handles of an app."""

    def __init__(self, engine: AnyEngine, retention: Retention, ready: Callable[[], None]) -> None:
        self._engine = engine
        self._retention = retention
        self._ready = ready
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Callback]] = {}
        self._thread: threading.Thread | None = None
        self._signals: Signals | None = None

    def read(self, job: int) -> JobRecord:
        """The job as it is now, or JobNotFound."""
        self._ready()
        found = reads.find(self._engine, [job])
        if job not in found:
            raise JobNotFound(
                f"no job {id_text(job)}: it was never committed, kept no result, or its retention has passed"
            )
        return found[job]

    def cancel(self, job: int, reason: str) -> bool:
        self._ready()
        return bool(control.withdraw(self._engine, [job], "cancelled", self._retention, why=reason))

    def wait(self, job: int, timeout: float | None) -> JobRecord:
        """The ended job, or ResultTimeout."""
        ended = threading.Event()
        record = self._begin(job, timeout, ended.set)
        if record is None:
            try:
                if not ended.wait(timeout):
                    raise _too_late(job, timeout)
            finally:
                self._forget(job, ended.set)
            record = self.read(job)
        return record

    async def await_end(self, job: int, timeout: float | None) -> JobRecord:
        """`wait` for coroutines: the waiting itself needs no thread."""
        loop = asyncio.get_running_loop()
        ended: asyncio.Future[None] = loop.create_future()

        def finish() -> None:
            if not ended.done():
                ended.set_result(None)

        def callback() -> None:
            loop.call_soon_threadsafe(finish)

        record = await asyncio.to_thread(self._begin, job, timeout, callback)
        if record is None:
            try:
                async with asyncio.timeout(timeout):
                    await ended
            except TimeoutError:
                raise _too_late(job, timeout) from None
            finally:
                self._forget(job, callback)
            record = await asyncio.to_thread(self.read, job)
        return record

    def close(self) -> None:
        with self._lock:
            self._waiting.clear()
            signals = self._signals
        if signals is not None:
            signals.interrupt()

    def _begin(self, job: int, timeout: float | None, callback: Callback) -> JobRecord | None:
        """The job if it has ended already; else None, and the callback will be called."""
        record = self.read(job)
        if record.state.is_end:
            return record
        if timeout is not None and timeout <= 0:
            raise _too_late(job, timeout)
        with self._lock:
            self._waiting.setdefault(job, []).append(callback)
            if self._thread is None:
                self._thread = threading.Thread(target=self._watch, name="evenflow-results", daemon=True)
                self._thread.start()
        if not reads.await_job(self._engine, job):  # ended between the two looks, so nobody would announce it
            self._forget(job, callback)
            return self.read(job)
        return None

    def _forget(self, job: int, callback: Callback) -> None:
        with self._lock:
            callbacks = self._waiting.get(job, [])
            if callback in callbacks:
                callbacks.remove(callback)
            if not callbacks:
                self._waiting.pop(job, None)

    def _watch(self) -> None:
        """Until nobody waits: sleep until the store says that something ended, then ask once for all."""
        with watch_signals(self._engine, "done") as signals:
            self._signals = signals
            while True:
                with self._lock:
                    waiting = list(self._waiting)
                    if not waiting:
                        self._thread = self._signals = None
                        return
                try:
                    ended = reads.ended_among(self._engine, waiting)
                except StoreError as error:
                    if not isinstance(error, StoreUnavailable):
                        ended = set(waiting)  # the waiters meet the error themselves
                    else:
                        ended = set()
                        time.sleep(_LOOK_AGAIN_S)
                if ended:
                    self._announce(ended)
                    continue
                signals.wait(_LOOK_AGAIN_S)

    def _announce(self, ended: set[int]) -> None:
        with self._lock:
            callbacks = [callback for job in ended for callback in self._waiting.pop(job, [])]
        for callback in callbacks:
            with contextlib.suppress(RuntimeError):  # the waiter's loop has been closed meanwhile
                callback()


def _too_late(job: int, timeout: Any) -> ResultTimeout:
    return ResultTimeout(f"job {id_text(job)} has not ended within {timeout:g} s; it goes on")
