"""Who holds SQLite's write lock for too long. A holder that dies frees it; one that is frozen stops every writer of the host."""

import fcntl
import os
import time
from pathlib import Path

from evenflow.database_url import DatabaseUrl

FROZEN_S = 7.0  # longer than a live holder waits for a foreign writer (the engine's busy timeout)


class WriteLockWatch:
    """Looks at the lock file beside the database; never waits for the lock."""

    def __init__(self, database: DatabaseUrl) -> None:
        is_file = database.kind == "sqlite" and database.path is not None
        self._path = Path(f"{database.path}.lock") if is_file else None
        self._seen: tuple[int, int] | None = None
        self._since = 0.0

    def frozen_holder(self) -> int | None:
        """The process that has held the lock, without a break, for too long; told once in that time."""
        holding = None if self._path is None else _holding(self._path)
        now = time.monotonic()
        if holding is None or holding != self._seen:
            self._seen, self._since = holding, now
            return None
        if now - self._since < FROZEN_S or holding[0] == os.getpid():
            return None
        self._since = now
        return holding[0]


def _holding(path: Path) -> tuple[int, int] | None:
    """(holder, time of its writing its number), or None where the lock is free. Each taking of the lock writes anew."""
    try:
        descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC)
    except OSError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return None
    except BlockingIOError:
        return int(os.pread(descriptor, 32, 0).strip() or b"0"), os.fstat(descriptor).st_mtime_ns
    finally:
        os.close(descriptor)
