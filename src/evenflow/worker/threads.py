"""Threads for plain functions: as few as keep the work flowing. A second one starts only when the first is stuck.

Short functions on many threads mostly wait for the interpreter's lock; one thread runs them several times faster.
"""

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Generic, TypeVar

GROW_AFTER_S = 0.002
IDLE_THREAD_S = 30.0

W = TypeVar("W")


class Threads(Generic[W]):
    """Runs pieces of work in order, on at most `most` daemon threads. `on_change` hears how many there are."""

    def __init__(
        self, run: Callable[[W], None], most: int, on_change: Callable[[int], None] = lambda alive: None
    ) -> None:
        self._run = run
        self._most = most
        self._on_change = on_change
        self._work: collections.deque[W] = collections.deque()
        self._lock = threading.Condition()
        self._idle = self._alive = self._busy = 0
        self._step = 1
        self._taken = self._looked_at = 0
        self._is_closed = False

    def submit(self, work: Sequence[W]) -> None:
        """Queue work; where all threads are idle, one begins at once."""
        with self._lock:
            self._work.extend(work)
            if self._busy == 0:
                self._add(1)

    def grow(self) -> float | None:
        """Call every few milliseconds: where work waits and none was taken since the last call, add threads.

        Returns the seconds until the next call, or None while nothing waits.
        """
        if not self._work:
            self._step = 1
            return None
        with self._lock:
            if self._taken == self._looked_at:
                self._add(self._step)
                self._step *= 2
            else:
                self._step = 1
            self._looked_at = self._taken
        return GROW_AFTER_S

    def allow_more(self, count: int) -> None:
        """Raise the number of threads: those that are stuck for good must not use up the slots."""
        with self._lock:
            self._most += count

    def close(self) -> None:
        """Let idle threads end. Busy ones are daemons and end with the process."""
        with self._lock:
            self._is_closed = True
            self._lock.notify_all()

    def _add(self, count: int) -> None:
        woken = min(count, self._idle)
        self._lock.notify(woken)
        for _ in range(min(count - woken, self._most - self._alive)):
            self._count(1)
            threading.Thread(target=self._serve, name="evenflow-slot", daemon=True).start()

    def _serve(self) -> None:
        try:
            while self._await_work():
                try:
                    while self._work:
                        try:
                            work = self._work.popleft()
                        except IndexError:
                            break  # another thread was quicker
                        self._taken += 1
                        self._run(work)
                finally:
                    with self._lock:
                        self._busy -= 1
        finally:
            with self._lock:
                self._count(-1)

    def _count(self, change: int) -> None:
        self._alive += change
        self._on_change(self._alive)

    def _await_work(self) -> bool:
        with self._lock:
            while not self._work and not self._is_closed:
                self._idle += 1
                try:
                    if not self._lock.wait(IDLE_THREAD_S) and not self._work:
                        return False
                finally:
                    self._idle -= 1
            self._busy += not self._is_closed
            return not self._is_closed
