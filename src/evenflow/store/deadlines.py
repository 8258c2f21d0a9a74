"""Deadlines: how long reads may take for those who will not wait, and a thread that ends calls which nobody will answer."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar

_TICK_S = 0.25
_read_s: ContextVar[float | None] = ContextVar("evenflow_read_s", default=None)


@contextlib.contextmanager
def reads_within(seconds: float) -> Iterator[None]:
    """Within the block, on this thread: each read ends after so many seconds, in the database too; then StoreTooSlow.

    Of whoever reads, by whatever way, so it is told to the engines aside and not through every function in between.
    """
    former = _read_s.set(seconds)
    try:
        yield
    finally:
        _read_s.reset(former)


def read_seconds() -> float | None:
    """How long a read may take here; None where nobody has said."""
    return _read_s.get()


class Watch:
    """Ends overdue calls. Arming costs two dictionary writes; the thread looks a few times a second, and only then runs."""

    def __init__(self) -> None:
        self._calls: dict[object, tuple[float, Callable[[], None]]] = {}
        self._thread: threading.Thread | None = None
        self._stopped = threading.Event()

    @contextlib.contextmanager
    def deadline(self, seconds: float, end: Callable[[], None]) -> Iterator[None]:
        """Within the block: call `end` from another thread once the seconds have passed."""
        if self._thread is None or not self._thread.is_alive():
            self._start()
        call = object()
        self._calls[call] = (time.monotonic() + seconds, end)
        try:
            yield
        finally:
            self._calls.pop(call, None)

    def close(self) -> None:
        self._stopped.set()
        self._thread = None

    def _start(self) -> None:
        self._stopped = threading.Event()
        self._thread = threading.Thread(
            target=self._look, args=(self._stopped,), name="evenflow-deadlines", daemon=True
        )
        self._thread.start()

    def _look(self, stopped: threading.Event) -> None:
        while not stopped.wait(_TICK_S):
            now = time.monotonic()
            for call, (ends_at, end) in list(self._calls.items()):
                if now >= ends_at and self._calls.pop(call, None) is not None:
                    end()
