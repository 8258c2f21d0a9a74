"""The lock of all writers of a SQLite file, in all processes: a `flock` on a file beside it."""

import fcntl
import os
from pathlib import Path

from evenflow.errors import StoreRefused


class WriteLock:
    """Held within a `with` block. Waiting for it is blocking on purpose: the kernel serves waiters in order, where polling
    would starve some.

    A holder that dies frees it; one that is frozen does not, so each taking writes its pid for whoever has to find it.
    """

    def __init__(self, path: Path) -> None:
        self._descriptor = _opened(path)
        self._holder = b"%-10d" % os.getpid()

    def __enter__(self) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        try:
            os.pwrite(self._descriptor, self._holder, 0)
        except BaseException:
            fcntl.flock(
                self._descriptor, fcntl.LOCK_UN
            )  # a full disk must not stop the writers of other processes
            raise

    def __exit__(self, *_: object) -> None:
        fcntl.flock(self._descriptor, fcntl.LOCK_UN)

    def close(self) -> None:
        os.close(self._descriptor)


def _opened(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(f"{path}.lock", flags, 0o600)
    except OSError as error:
        raise StoreRefused(
            f"SQLite: cannot open the lock file '{path}.lock': {error.strerror}; it must be a plain file of ours"
        ) from error
