"""Waiting for the ends of jobs: one thread per app watches for all waiters, woken by the store, not by a tight poll."""

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from evenflow.errors import JobNotFound, ResultTimeout, StoreError, StoreUnavailable
from evenflow.ids import id_text
from evenflow.job import JobRecord, State
from evenflow.settings import Retention
from evenflow.store import control, logs, reads
from evenflow.store.logs import LogLine
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Signals, Waker, watch_signals

log = logging.getLogger("evenflow.client")

Callback = Callable[[], None]
T = TypeVar("T")
LOOK_AGAIN_S = 1.0
_CLOSE_WITHIN_S = 5.0


class Results:
    """Reads jobs and waits for their ends. Shared by all handles of an app."""

    def __init__(
        self, engine: AnyEngine, retention: Retention, waker: Waker, ready: Callable[[], None]
    ) -> None:
        self._engine = engine
        self._retention = retention
        self._waker = waker
        self._ready = ready
        self._lock = threading.Lock()
        self._waiting: dict[int, list[Callback]] = {}
        self._thread: threading.Thread | None = None
        self._is_watching = False
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

    def logs(self, job: int) -> list[LogLine]:
        self._ready()
        return logs.of(self._engine, job)

    def cancel(self, job: int, reason: str) -> bool:
        self._ready()
        done = control.cancel(self._engine, [job], self._retention, reason)
        if "ended" in done.values():
            self._waker.announce_ends()
        return bool(done)

    def wait(self, job: int, timeout: float | None) -> JobRecord:
        """The ended job, or ResultTimeout."""
        seen = self._first_look(job, timeout)
        if seen.state.is_end:
            return seen
        ends_at = None if timeout is None else time.monotonic() + timeout
        told = threading.Event()
        with self._awaiting(job, told.set):
            record = self._ask(seen)
            while record is None:
                if not told.wait(None if ends_at is None else ends_at - time.monotonic()):
                    raise _too_late(job, timeout)
                told.clear()
                record = self._ended(job)
                self._keep_watching()
        return record

    async def await_end(self, job: int, timeout: float | None) -> JobRecord:
        """`wait` for coroutines: the waiting itself needs no thread."""
        seen = await asyncio.to_thread(self._first_look, job, timeout)
        if seen.state.is_end:
            return seen
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                with self._awaiting(job, lambda: _tell(loop, told)):
                    record = await asyncio.to_thread(self._ask, seen)
                    while record is None:
                        await told.wait()
                        told.clear()
                        record = await asyncio.to_thread(self._ended, job)
                        self._keep_watching()
        except TimeoutError:
            raise _too_late(job, timeout) from None
        return record

    def wait_until(self, number: int, look: Callable[[], T | None], timeout: float | None, what: str) -> T:
        """What `look` finds, as soon as it finds something; looked for whenever anything has ended, and every second."""
        found = look()
        if found is not None:
            return found
        ends_at = None if timeout is None else time.monotonic() + timeout
        told = threading.Event()
        with self._awaiting(number, told.set):
            while (found := look()) is None:
                if not told.wait(None if ends_at is None else max(0.0, ends_at - time.monotonic())):
                    raise _too_late(what, timeout)
                told.clear()
                self._keep_watching()
        return found

    async def await_until(
        self, number: int, look: Callable[[], T | None], timeout: float | None, what: str
    ) -> T:
        """`wait_until` for coroutines."""
        found = await asyncio.to_thread(look)
        if found is not None:
            return found
        loop = asyncio.get_running_loop()
        told = asyncio.Event()
        try:
            async with asyncio.timeout(timeout):
                with self._awaiting(number, lambda: _tell(loop, told)):
                    while (found := await asyncio.to_thread(look)) is None:
                        await told.wait()
                        told.clear()
                        self._keep_watching()
        except TimeoutError:
            raise _too_late(what, timeout) from None
        return found

    def close(self) -> None:
        """End the watching thread. Waits that are under way go on, on connections that are opened again."""
        thread, signals = self._thread, self._signals
        if signals is not None:
            signals.interrupt()
        if thread is not None and not self._waiting:
            thread.join(_CLOSE_WITHIN_S)

    def _first_look(self, job: int, timeout: float | None) -> JobRecord:
        record = self.read(job)
        if not record.state.is_end and timeout is not None and timeout <= 0:
            raise _too_late(job, timeout)
        return record

    def _ask(self, seen: JobRecord) -> JobRecord | None:
        """Have the end announced; the job itself if it ended meanwhile, so that nobody would."""
        while not reads.await_job(self._engine, seen.id):
            record = self._ended(seen.id)
            if record is not None:
                return record
        if seen.state is State.READY:
            # A claim that came at the same moment stepped over the row that we had locked, and would not look again.
            self._waker.wake(seen.queue)
        return None

    def _ended(self, job: int) -> JobRecord | None:
        record = self.read(job)
        return record if record.state.is_end else None

    @contextlib.contextmanager
    def _awaiting(self, job: int, callback: Callback) -> Iterator[None]:
        """While the block lasts, the callback is called when the job may have ended."""
        with self._lock:
            self._waiting.setdefault(job, []).append(callback)
        self._keep_watching()
        try:
            yield
        finally:
            with self._lock:
                self._waiting[job].remove(callback)
                if not self._waiting[job]:
                    del self._waiting[job]

    def _keep_watching(self) -> None:
        with self._lock:
            is_alive = self._thread is not None and self._thread.is_alive()  # a fork leaves the thread behind
            if self._waiting and not (self._is_watching and is_alive):
                self._is_watching = True
                self._thread = threading.Thread(target=self._watch, name="evenflow-results", daemon=True)
                self._thread.start()

    def _watch(self) -> None:
        try:
            self._watch_until_idle()
        except Exception:
            # Out of descriptors, perhaps: those who wait look by themselves, and try a new thread.
            log.exception("waiting for results failed; again in %g s", LOOK_AGAIN_S)
            time.sleep(LOOK_AGAIN_S)
            with self._lock:
                self._is_watching = False
                waiting = set(self._waiting)
            self._tell(waiting)

    def _watch_until_idle(self) -> None:
        """While somebody waits: sleep until the store says that something ended, then ask once for all."""
        with watch_signals(self._engine, "done") as self._signals:
            while True:
                with self._lock:
                    waiting = list(self._waiting)
                    if not waiting:
                        self._is_watching = False
                        return
                self._tell(self._look(waiting))
                self._signals.wait(LOOK_AGAIN_S)

    def _look(self, waiting: list[int]) -> set[int]:
        try:
            return reads.ended_among(self._engine, waiting)
        except StoreUnavailable:
            return set()
        except StoreError:
            return set(waiting)  # the waiters meet the error themselves

    def _tell(self, ended: set[int]) -> None:
        with self._lock:
            callbacks = [callback for job in ended for callback in self._waiting.get(job, ())]
        for callback in callbacks:
            callback()


def _tell(loop: asyncio.AbstractEventLoop, told: asyncio.Event) -> None:
    with contextlib.suppress(RuntimeError):  # the waiter's loop has been closed meanwhile
        loop.call_soon_threadsafe(told.set)


def _too_late(what: int | str, timeout: Any) -> ResultTimeout:
    named = f"job {id_text(what)}" if isinstance(what, int) else what
    return ResultTimeout(f"{named} has not ended within {timeout:g} s; it goes on")
