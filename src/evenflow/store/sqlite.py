"""The SQLite engine: one file, many processes, one writer at a time.

Every writer first takes a blocking `flock` on a sidecar file, then BEGIN IMMEDIATE: waiters are served in turn, no BUSY
storm, and commit and checkpoint of two connections never meet (SQLite before 3.51.3 can corrupt a WAL then).
"""

import contextlib
import fcntl
import os
import sqlite3
import threading
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from evenflow.clock import wall_us
from evenflow.errors import StoreError, StoreRefused, StoreUnavailable
from evenflow.store.engine import Parameters, Row
from evenflow.store.filesystem import refuse_network_filesystem
from evenflow.store.statements import Unit, load_units

MINIMUM_VERSION = (3, 38, 0)
BUSY_TIMEOUT_S = 5.0
_PRAGMAS = (
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "pragma trusted_schema = off",
    "pragma cell_size_check = on",
    "pragma mmap_size = 0",
    "pragma temp_store = memory",
    "pragma journal_size_limit = 67108864",
    "pragma wal_autocheckpoint = 4000",
)
# A write that failed for these may succeed later without anybody's help.
_TRANSIENT = {
    "SQLITE_BUSY",
    "SQLITE_LOCKED",
    "SQLITE_FULL",
    "SQLITE_IOERR",
    "SQLITE_CANTOPEN",
    "SQLITE_PROTOCOL",
}
_OTHERS_WRITE = "; another program keeps a write transaction open: let it commit sooner, then try again"


class SqliteEngine:
    """Runs units on one SQLite file, or in memory for tests (then on one connection)."""

    kind = "sqlite"

    def __init__(self, path: str | None) -> None:
        _require_version()
        # The file itself, for good: two names of it (a link, another working folder) must not become two write locks.
        self.path = None if path is None else os.path.realpath(path)
        self._units = load_units("sqlite")
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._lock_file: int | None = None
        self.watchers: list[Any] = []
        """Those who wait for commits in this process; see `evenflow.store.signals`."""
        _engines.add(self)

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        unit = self._units[name]
        bound = {**parameters, "now": wall_us()} if parameters.get("now") is None else parameters
        with self._lock, translated():
            connection = self._open()
            if unit.mode != "write":
                return _rows(connection, unit, bound)
            with self._writing(connection):
                return _rows(connection, unit, bound)

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        now = wall_us()
        with self._lock, translated():
            connection = self._open()
            with self._writing(connection):
                return [
                    _rows(
                        connection,
                        self._units[name],
                        {**given, "now": now} if given.get("now") is None else given,
                    )
                    for name, given in units
                ]

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for plain reads, for migrations and checks."""
        with self._lock, translated():
            yield self._open()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[sqlite3.Connection]:
        """One write transaction over several reads and writes, for migrations."""
        with self._lock, translated():
            connection = self._open()
            with self._writing(connection):
                yield connection

    def data_version(self) -> int:
        """A number that changes when another connection has committed: the wake-up of SQLite. Reads no page."""
        with self._lock, translated():
            version: int = self._open().execute("pragma data_version").fetchone()[0]
            return version

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                # The last close checkpoints the log, so it is a write like any other.
                with contextlib.suppress(OSError), self._write_lock():
                    self._connection.close()
            if self._lock_file is not None:
                os.close(self._lock_file)
            self._connection = self._lock_file = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            return self._connection
        if self.path is None:
            self._connection = _connect(":memory:")
            return self._connection
        path = Path(self.path)
        _require_writable(path)
        refuse_network_filesystem(path.parent)
        self._lock_file = _open_lock_file(path)
        self._pid = os.getpid()
        self._connection = _connect(str(path))
        try:
            with self._write_lock():
                for pragma in _PRAGMAS:
                    self._connection.execute(pragma)
        except BaseException:
            self.close()
            raise
        return self._connection

    @contextlib.contextmanager
    def _writing(self, connection: sqlite3.Connection) -> Iterator[None]:
        with self._write_lock():
            connection.execute("begin immediate")
            try:
                yield
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    @contextlib.contextmanager
    def _write_lock(self) -> Iterator[None]:
        if self._lock_file is None:
            yield
            return
        _flock(self._lock_file)
        try:
            yield
        finally:
            fcntl.flock(self._lock_file, fcntl.LOCK_UN)

    def _prepare_fork(self) -> None:
        # A connection must not cross a fork: the child would inherit SQLite's own record of locks which it does not hold.
        self._lock.acquire()
        if self.path is not None and self._connection is not None and not self._connection.in_transaction:
            self.close()

    def _go_on_after_fork(self) -> None:
        self._lock.release()

    def _begin_after_fork(self) -> None:
        # What is open here was in use by the very code that forked. It is the parent's: closing it would drop its locks.
        self._lock = threading.RLock()
        _abandoned.append(self._connection)
        self._connection = self._lock_file = None


_engines: "weakref.WeakSet[SqliteEngine]" = weakref.WeakSet()
_forking: list[SqliteEngine] = []
# Handles of a parent process: kept from the garbage collector, which would close them.
_abandoned: list[Any] = []


def _before_fork() -> None:
    _forking[:] = sorted(_engines, key=id)  # one order for all threads that fork
    for engine in _forking:
        engine._prepare_fork()


def _after_fork_in_parent() -> None:
    while _forking:
        _forking.pop()._go_on_after_fork()


def _after_fork_in_child() -> None:
    while _forking:
        _forking.pop()._begin_after_fork()


os.register_at_fork(
    before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child
)


@contextlib.contextmanager
def translated() -> Iterator[None]:
    """SQLite's errors as "try again" or "do not"."""
    try:
        yield
    except sqlite3.Error as error:
        name = getattr(error, "sqlite_errorname", None) or ""
        kind = StoreUnavailable if any(name.startswith(prefix) for prefix in _TRANSIENT) else StoreRefused
        advice = _OTHERS_WRITE if name == "SQLITE_BUSY" else ""
        raise kind(f"SQLite: {error}{f' ({name})' if name else ''}{advice}") from error


def _rows(connection: sqlite3.Connection, unit: Unit, parameters: Parameters) -> list[Row]:
    rows: list[Row] = []
    for statement in unit.statements:
        cursor = connection.execute(statement.text, {name: parameters[name] for name in statement.parameters})
        if cursor.description is not None:
            rows += cursor.fetchall()
    return rows


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False, cached_statements=256
    )


def _flock(descriptor: int) -> None:
    # Blocking on purpose: the kernel serves waiters in order, where polling would starve some. A holder that dies frees
    # it; one that is frozen does not, so it leaves its pid for whoever has to find it.
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    os.pwrite(descriptor, b"%-10d" % os.getpid(), 0)


def _open_lock_file(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | getattr(os, "O_NOFOLLOW", 0)
    try:
        return os.open(f"{path}.lock", flags, 0o600)
    except OSError as error:
        raise StoreRefused(
            f"SQLite: cannot open the lock file '{path}.lock': {error.strerror}; it must be a plain file of ours"
        ) from error


def _require_writable(path: Path) -> None:
    folder = path.parent
    if not os.path.isdir(folder):  # which asks without raising
        raise StoreRefused(
            f"SQLite: the folder {str(folder)!r} does not exist; create it, or correct the path"
        )
    if os.path.isdir(path):
        raise StoreRefused(f"SQLite: {str(path)!r} is a folder; give the path of a file")
    if not os.access(folder, os.W_OK):  # also where the file exists: log and lock lie beside it
        raise StoreRefused(
            f"SQLite: the folder {str(folder)!r} is read-only; choose a place that can be written"
        )
    if not os.path.lexists(path):
        try:
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
        except OSError as error:
            raise StoreRefused(
                f"SQLite: the file {str(path)!r} cannot be made: {error.strerror}; choose another place"
            ) from error
    elif not os.access(path, os.W_OK):
        raise StoreRefused(
            f"SQLite: the file {str(path)!r} is read-only; change its permissions, or choose another file"
        )


def _require_version() -> None:
    if sqlite3.sqlite_version_info < MINIMUM_VERSION:
        wanted = ".".join(map(str, MINIMUM_VERSION))
        raise StoreError(
            f"expected SQLite {wanted} or newer, got {sqlite3.sqlite_version}; use a newer Python build, or PostgreSQL"
        )
