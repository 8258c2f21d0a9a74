"""Notices that a file is written to: inotify, where the system has it. Without it, whoever waits has to look more often."""

import contextlib
import ctypes
import os

_IN_MODIFY = 0x2


class FileWatch:
    """A descriptor that is readable after a write to the file; None where the system offers none, or there is no file.

    A file that is made anew under the same name is another one: `renew` looks whether that has happened.
    """

    def __init__(self, path: str) -> None:
        self._path = path
        self._inode = 0
        self.descriptor: int | None = None
        self.renew()

    def renew(self) -> None:
        """Watch the file that has the name now."""
        try:
            inode = os.stat(self._path).st_ino
        except OSError:
            inode = 0
        if inode == self._inode:
            return
        self.close()
        self._inode = inode
        if inode:
            self.descriptor = _watched(self._path)

    def clear(self) -> None:
        """Forget the writes so far."""
        if self.descriptor is not None:
            with contextlib.suppress(BlockingIOError):
                while len(os.read(self.descriptor, 65536)) == 65536:
                    pass

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor, self._inode = None, 0


def _watched(path: str) -> int | None:
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return None
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:  # the user has as many as the system allows
        return None
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        os.close(descriptor)
        return None
    return descriptor
