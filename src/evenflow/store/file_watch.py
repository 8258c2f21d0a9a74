"""Notices that a file is written to, or is no longer in its place: inotify, where the system has it. Without it, whoever wants
to know has to look more often."""

import contextlib
import ctypes
import os
import select
from pathlib import Path

_IN_MODIFY = 0x2
_IN_ATTRIB = 0x4  # among others, one name less: a file that is open has not ended when it is deleted
_IN_DELETE_SELF = 0x400
_IN_MOVE_SELF = 0x800


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
            _forget_events(self.descriptor)

    def close(self) -> None:
        if self.descriptor is not None:
            os.close(self.descriptor)
        self.descriptor, self._inode = None, 0


class PlaceWatch:
    """Says, without a look at it, that a path still leads to the file that it led to.

    Neither the file nor a folder above it may be renamed, and the file not be deleted or replaced, without an event, which is
    there before the call that did it returns. Where the system tells nothing, nothing is ever sure.
    """

    def __init__(self, path: str) -> None:
        on_file = {path: _IN_ATTRIB | _IN_MOVE_SELF | _IN_DELETE_SELF}
        above = {str(folder): _IN_MOVE_SELF for folder in Path(path).parents if folder.name}
        self._descriptor: int | None = None
        self._descriptor = _watching(on_file | above)
        self._poll = select.poll()
        if self._descriptor is not None:
            self._poll.register(self._descriptor, select.POLLIN)

    def is_sure(self) -> bool:
        """Whether nothing has happened since the last `clear`. Takes a quarter of a look at the file."""
        return self._descriptor is not None and not self._poll.poll(0)

    def clear(self) -> None:
        """Forget what has happened: before a look, as what happens after it has to be told."""
        if self._descriptor is not None:
            _forget_events(self._descriptor)

    def close(self) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
        self._descriptor = None

    def __del__(self) -> None:
        # A user has few of these, and apps are forgotten without being closed.
        self.close()


def _forget_events(descriptor: int) -> None:
    with contextlib.suppress(BlockingIOError):
        while len(os.read(descriptor, 65536)) == 65536:
            pass


def _watched(path: str) -> int | None:
    return _watching({path: _IN_MODIFY})


def _watching(events: dict[str, int]) -> int | None:
    """A descriptor that is readable after one of these events of these files; None where one of them cannot be watched."""
    libc = ctypes.CDLL(None, use_errno=True)
    if not hasattr(libc, "inotify_init1"):
        return None
    descriptor: int = libc.inotify_init1(os.O_NONBLOCK | os.O_CLOEXEC)
    if descriptor < 0:  # the user has as many as the system allows
        return None
    for path, mask in events.items():
        if libc.inotify_add_watch(descriptor, os.fsencode(path), mask) < 0:
            os.close(descriptor)
            return None
    return descriptor
