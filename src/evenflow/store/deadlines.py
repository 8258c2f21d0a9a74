"""Client-side deadlines: a thread that ends calls which the network or the server will never answer."""

import contextlib
import threading
import time
from collections.abc import Callable, Iterator

_TICK_S = 0.25


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
