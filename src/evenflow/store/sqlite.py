"""The SQLite engine: one file, many processes, one writer at a time.

Every writer first takes a blocking `flock` on a sidecar file (write_lock.py), then BEGIN IMMEDIATE: waiters are served in
turn, no BUSY storm, and commit and checkpoint of two connections never meet (SQLite before 3.51.3 can corrupt a WAL then).
"""

import contextlib
import os
import sqlite3
import threading
import time
import weakref
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NoReturn

from evenflow.clock import Clock
from evenflow.errors import StoreError, StoreRefused, StoreTooSlow, StoreUnavailable
from evenflow.store.deadlines import read_seconds
from evenflow.store.engine import Parameters, Row
from evenflow.store.file_watch import PlaceWatch
from evenflow.store.filesystem import refuse_network_filesystem, tells_of_changes
from evenflow.store.statements import Unit, load_units
from evenflow.store.write_lock import WriteLock

MINIMUM_VERSION = (3, 38, 0)
BUSY_TIMEOUT_S = 5.0
# The lines of a thousand keys are larger than the two megabytes of SQLite's own: a round would read them anew each time.
_PRAGMAS = (
    "pragma journal_mode = wal",
    "pragma synchronous = full",
    "pragma trusted_schema = off",
    "pragma cell_size_check = on",
    "pragma mmap_size = 0",
    "pragma temp_store = memory",
    "pragma journal_size_limit = 67108864",
    "pragma wal_autocheckpoint = 1000",
    "pragma cache_size = -8000",
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
# Some tens of microseconds of SQLite's machine.
_STEPS_BETWEEN_LOOKS = 10_000
_NOBODY_ELSE = contextlib.nullcontext()
_OTHERS_WRITE = "; another program keeps a write transaction open: let it commit sooner, then try again"


class SqliteEngine:
    """Runs units on one SQLite file, or in memory for tests (then on one connection)."""

    kind = "sqlite"
    schema = "evenflow"

    def __init__(self, path: str | None, *, clock: Clock | None = None) -> None:
        _require_version()
        self.clock = clock or Clock()
        # The file itself, for good: two names of it (a link, another working folder) must not become two write locks.
        self.path = None if path is None else os.path.realpath(path)
        self._units = load_units("sqlite")
        self._lock = threading.RLock()
        self._pid = os.getpid()
        self._connection: sqlite3.Connection | None = None
        self._write_lock: WriteLock | None = None
        self._file: tuple[int, int] | None = None
        self._place: PlaceWatch | None = None
        self.watchers: list[Any] = []
        """Those who wait for commits in this process; see `evenflow.store.signals`."""
        _engines.add(self)

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        unit = self._units[name]
        if unit.mode == "read" and (read_s := read_seconds()) is not None:
            return self._read_within(read_s, unit, parameters)
        with self._lock:
            try:
                connection = self._open()
                if unit.mode != "write":
                    return _rows(connection, unit, parameters, self.clock.wall_us())
                # One statement is a transaction by itself, without a begin and a commit around it.
                with self._alone() if unit.is_one_statement else self._writing(connection):
                    return _rows(connection, unit, parameters, self.clock.wall_us())
            except sqlite3.Error as error:
                raise _translation(error) from error

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        with self._lock, _translated:
            connection = self._open()
            with self._writing(connection):
                now = self.clock.wall_us()
                return [_rows(connection, self._units[name], given, now) for name, given in units]

    def _read_within(self, read_s: float, unit: Unit, parameters: Parameters) -> list[Row]:
        ends_at = time.monotonic() + read_s
        if not self._lock.acquire(timeout=read_s):
            raise StoreTooSlow(f"SQLite: other reads of this process took longer than {read_s:g} s")
        try:
            with _translated:
                connection = self._open()
                connection.set_progress_handler(lambda: time.monotonic() > ends_at, _STEPS_BETWEEN_LOOKS)
                try:
                    return _rows(connection, unit, parameters, self.clock.wall_us())
                finally:
                    connection.set_progress_handler(None, 0)
        finally:
            self._lock.release()

    @contextlib.contextmanager
    def reading(self) -> Iterator[sqlite3.Connection]:
        """The connection for plain reads, for migrations and checks."""
        with self._lock, _translated:
            yield self._open()

    @contextlib.contextmanager
    def exclusive(self) -> Iterator[sqlite3.Connection]:
        """One write transaction over several reads and writes, for migrations."""
        with self._lock, _translated:
            connection = self._open()
            with self._writing(connection):
                yield connection

    def data_version(self) -> int:
        """A number that changes when another connection has committed: the wake-up of SQLite. Reads no page."""
        with self._lock, _translated:
            version: int = self._open().execute("pragma data_version").fetchone()[0]
            return version

    def close(self) -> None:
        with self._lock:
            if self._connection is not None and self._pid == os.getpid():
                # The last close checkpoints the log, so it is a write like any other.
                with contextlib.suppress(OSError), self._alone():
                    self._connection.close()
            if self._write_lock is not None:
                self._write_lock.close()
            if self._place is not None:
                self._place.close()
            self._connection = self._write_lock = self._place = None

    def _open(self) -> sqlite3.Connection:
        if self._connection is not None:
            # A look at the path takes as long as a tenth of an enqueue's CPU: where the system tells of changes, one is enough.
            if self._place is not None and self._place.is_sure():
                return self._connection
            if self._connection.in_transaction or self._is_same_file():
                return self._connection
            self._refuse_other_file()
        if self.path is None:
            self._connection = _connect(":memory:")
            return self._connection
        path = Path(self.path)
        _require_writable(path)
        refuse_network_filesystem(path.parent)
        self._write_lock = WriteLock(path)
        self._pid = os.getpid()
        self._connection = _connect(str(path))
        try:
            with self._alone():
                for pragma in _PRAGMAS:
                    self._connection.execute(pragma)
            self._place = PlaceWatch(self.path) if tells_of_changes(path.parent) else None
            self._file = _identity(self.path)
        except BaseException:
            self.close()
            raise
        return self._connection

    def _is_same_file(self) -> bool:
        if self._place is not None:
            self._place.clear()
        return self.path is None or _identity(self.path) == self._file

    def _refuse_other_file(self) -> NoReturn:
        """What is written to a file that was deleted, or replaced by another one, is read by nobody."""
        self.close()
        raise StoreUnavailable(
            f"SQLite: the file {self.path!r} was deleted or replaced while it was open; the next call opens what is there now"
        )

    @contextlib.contextmanager
    def _writing(self, connection: sqlite3.Connection) -> Iterator[None]:
        with self._alone():
            connection.execute("begin immediate")
            try:
                yield
                connection.execute("commit")
            except BaseException:
                if connection.in_transaction:
                    connection.execute("rollback")
                raise

    def _alone(self) -> contextlib.AbstractContextManager[None]:
        """No other writer of ours, in any process. A database in memory has no other."""
        return _NOBODY_ELSE if self._write_lock is None else self._write_lock

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
        self._connection = self._write_lock = self._place = None


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


class _Translated:
    """Not a generator, as it surrounds most calls."""

    def __enter__(self) -> None: ...

    def __exit__(self, _: object, error: BaseException | None, __: object) -> None:
        if isinstance(error, sqlite3.Error):
            raise _translation(error) from error


_translated = _Translated()


def _translation(error: sqlite3.Error) -> StoreError:
    """SQLite's errors as "try again" or "do not"."""
    name = getattr(error, "sqlite_errorname", None) or ""
    if name == "SQLITE_INTERRUPT":
        return StoreTooSlow(f"SQLite: the read took longer than {read_seconds() or 0:g} s")
    kind = StoreUnavailable if any(name.startswith(prefix) for prefix in _TRANSIENT) else StoreRefused
    advice = _OTHERS_WRITE if name == "SQLITE_BUSY" else ""
    return kind(f"SQLite: {error}{f' ({name})' if name else ''}{advice}")


def _rows(connection: sqlite3.Connection, unit: Unit, parameters: Parameters, now: int) -> list[Row]:
    """What a unit returns. Its time is `now`, unless the caller has set one.

    Writers read the clock under the write lock: one that waited for it must not date its starts before the ends that
    made room for them.
    """
    if parameters.get("now") is None:
        parameters = {**parameters, "now": now}
    if unit.is_counted:
        return [(connection.execute(unit.statements[0].text, parameters).rowcount,)]
    rows: list[Row] = []
    for statement in unit.statements:
        cursor = connection.execute(statement.text, parameters)
        if cursor.description is not None:
            rows += cursor.fetchall()
        if rows and unit.is_guarded:
            break
    return rows


def _connect(path: str) -> sqlite3.Connection:
    return sqlite3.connect(
        path, isolation_level=None, timeout=BUSY_TIMEOUT_S, check_same_thread=False, cached_statements=256
    )


def _identity(path: str) -> tuple[int, int] | None:
    """Which file this is, however it is called; None where there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_dev, found.st_ino


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
