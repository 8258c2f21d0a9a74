"""The lock of all writers of a SQLite file."""

import errno
import fcntl
import os
import resource
from pathlib import Path

from evenflow.store.write_lock import WriteLock
from tests.store.crowd import in_fork


def test_it_is_free_for_others_after_a_taking_that_failed_on_a_full_disk(folder: Path) -> None:
    def take() -> str:
        lock = WriteLock(folder / "evenflow.db")
        # As good as a full disk: nothing can be written to any file.
        resource.setrlimit(resource.RLIMIT_FSIZE, (0, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))
        try:
            with lock:
                return "taken"
        except OSError as error:
            other = os.open(folder / "evenflow.db.lock", os.O_RDWR)
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return errno.errorcode[error.errno or 0]

    assert in_fork(take) == "EFBIG"
