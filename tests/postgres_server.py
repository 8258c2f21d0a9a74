"""A private PostgreSQL for tests, chaos runs and benchmarks: start, stop, kill and restart it at will.

Uses server programs only (found by `tools.server_binaries`), works as root through an unprivileged account,
listens on a unix socket, and never outlives its owner. Standard library alone, but for making databases.
"""

import atexit
import fcntl
import json
import os
import secrets
import shutil
import socket
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, Self
from urllib.parse import quote, urlsplit

from tests.processes import children, kill_now, plain_environment, wait_until, works_in
from tests.scratch_directory import Account, Scratch, account_able_to_run, start_time
from tools.server_binaries import Binaries, find_postgres, version_text

EMPTY = "template0"
SOCKET_PORT = 5432
START_TIMEOUT_S = 60
LOOPBACK_TRIES = 5

SETTINGS: dict[str, str] = {
    "listen_addresses": "''",
    "max_connections": "200",
    "shared_buffers": "64MB",
    "dynamic_shared_memory_type": "mmap",  # in the data directory: a killed server leaves nothing behind
    "wal_level": "minimal",
    "max_wal_senders": "0",
    "max_wal_size": "512MB",
    "jit": "off",
    "timezone": "'UTC'",
    "log_timezone": "'UTC'",
    "log_line_prefix": "'%m [%p] %d '",
    "log_checkpoints": "off",
    "autovacuum_naptime": "10s",
}
# What the operating system has in its cache survives a kill of the server, and a crash of the machine is no
# part of any test. synchronous_commit stays on: without it a kill would take the last commits along.
UNSAFE_BUT_FAST: dict[str, str] = {"fsync": "off", "full_page_writes": "off"}


class PostgresUnavailable(RuntimeError):
    """No PostgreSQL can be started here; the message says why. Tests fail on it, they never skip."""


class DatabaseHost(Protocol):
    """What tests need from a server, whoever runs it."""

    def url(self, database: str = "postgres") -> str: ...
    def create_database(self, name: str | None = None, *, template: str = EMPTY) -> str: ...
    def drop_database(self, name: str) -> None: ...


@dataclass(frozen=True)
class _Layout:
    """Where a running server lives; stored in the scratch directory for processes that attach to it."""

    data: str
    socket_folder: str
    log: str
    programs: str
    environment: dict[str, str]
    account: tuple[str, int, int]
    loopback_port: int | None
    password: str
    version: str = field(default="")


class PostgresServer:
    """One private cluster.

    >>> with PostgresServer() as server:                    # doctest: +SKIP
    ...     url = server.url(server.create_database())
    ...     server.kill9()
    ...     server.start()

    `durable=True` keeps fsync on and the data on disk (chaos, benchmarks); `loopback=True` adds a TCP port on
    127.0.0.1 (with a password, `tcp_url`).
    """

    def __init__(
        self,
        *,
        durable: bool = False,
        loopback: bool = False,
        settings: Mapping[str, str] | None = None,
        scratch: Scratch | None = None,
    ) -> None:
        safety = {} if durable else UNSAFE_BUT_FAST
        self._settings = {**SETTINGS, **safety, **(settings or {})}
        self._loopback = loopback
        self._in_memory = not durable
        self._scratch = scratch
        self._layout: _Layout | None = None

    @classmethod
    def shared(cls, directory: Path) -> "PostgresServer":
        """The one server of a scratch directory, started by the first process that asks for it."""
        server = cls(scratch=Scratch(directory))
        with _locked(directory / "lock"):
            if not server._attach():
                server.start()
        return server

    @classmethod
    def close_shared(cls, directory: Path) -> None:
        """Stop the server of `shared`, if anybody started it, and remove the directory."""
        server = cls(scratch=Scratch(directory))
        server._attach()
        server.close()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def directory(self) -> Path:
        """The scratch directory."""
        return self._directory().path

    @property
    def socket_folder(self) -> Path:
        """The `host` of a connection by socket."""
        return Path(self._place().socket_folder)

    @property
    def port(self) -> int:
        """The port of the socket's name, and of TCP with `loopback=True`."""
        return self._place().loopback_port or SOCKET_PORT

    @property
    def version(self) -> str:
        """For example `15.18`."""
        return self._place().version

    def start(self) -> Self:
        """Start the server; the first start makes a new cluster, the next ones find its data."""
        if self._layout is None:
            self._initialise()
        for attempt in range(LOOPBACK_TRIES):
            failure = self._pg_ctl("start", "-w", "-t", str(START_TIMEOUT_S), "-l", self._place().log)
            if failure is None:
                return self
            if not self._port_was_taken() or attempt == LOOPBACK_TRIES - 1:
                break
            self._choose_port()
        raise PostgresUnavailable(f"PostgreSQL did not start: {failure}\n{self.log_tail()}")

    def stop(self, mode: str = "fast") -> None:
        """Stop the server and keep its data; mode is `smart`, `fast` or `immediate`."""
        if self.pid() is not None:
            self._pg_ctl("stop", "-w", "-m", mode)

    def restart(self, mode: str = "fast") -> None:
        """Stop and start."""
        self.stop(mode)
        self.start()

    def kill9(self) -> None:
        """Kill the postmaster and every backend with SIGKILL, and wait until all are gone."""
        postmaster = self.pid()
        if postmaster is None:
            return
        shared_memory = self._shared_memory_id()
        victims = [postmaster, *children(postmaster)]
        for pid in victims:
            kill_now(pid)
        wait_until(lambda: all(start_time(pid) is None for pid in victims), "killed server processes to end")
        # Where nobody reaps orphans a dead postmaster stays a zombie, and a new one would take it for alive.
        (Path(self._place().data) / "postmaster.pid").unlink(missing_ok=True)
        (self.socket_folder / f".s.PGSQL.{self.port}.lock").unlink(missing_ok=True)
        if shutil.which("ipcrm"):  # a new start would remove it as well, but there may be none
            self.run_as_server(["ipcrm", "-m", shared_memory])

    def close(self) -> None:
        """Stop the server and delete everything; safe to call twice."""
        atexit.unregister(self.close)
        if self._layout is not None:
            self.stop("immediate")
            self._layout = None
        if self._scratch is not None:
            self._scratch.remove()

    def pid(self) -> int | None:
        """The postmaster's process id, None when it does not run."""
        try:
            pid = int((Path(self._place().data) / "postmaster.pid").read_text().split("\n", 1)[0])
        except (OSError, ValueError):
            return None
        return pid if works_in(pid, Path(self._place().data)) else None

    def url(self, database: str = "postgres") -> str:
        """Connection address of a database, over the unix socket."""
        return f"postgresql://postgres@/{quote(database)}?host={self._place().socket_folder}&port={self.port}"

    def tcp_url(self, database: str = "postgres") -> str:
        """Connection address over loopback TCP; needs `loopback=True`."""
        place = self._place()
        if place.loopback_port is None:
            raise ValueError("this server listens on its socket only; make it with loopback=True")
        return f"postgresql://postgres:{place.password}@127.0.0.1:{place.loopback_port}/{quote(database)}"

    def create_database(self, name: str | None = None, *, template: str = EMPTY) -> str:
        """Create a database, empty or as the template is, and return its name."""
        # Copying files halves the time of a test's set-up; its checkpoint costs nothing without fsync.
        has_strategies = int(self.version.split(".")[0]) >= 15
        return create_database(self.url(), name, template, "STRATEGY file_copy" if has_strategies else "")

    def drop_database(self, name: str) -> None:
        """Drop a database, whoever is still connected to it."""
        drop_database(self.url(), name)

    def log_tail(self, lines: int = 20) -> str:
        """The last lines of the server's log."""
        try:
            return "\n".join(Path(self._place().log).read_text(errors="replace").splitlines()[-lines:])
        except OSError:
            return "(no server log)"

    def run_as_server(self, command: list[str]) -> str:
        """Run a program (`pg_waldump`, for instance) as the server's account and return its output."""
        place = self._place()
        done = Account(*place.account).run(command, env=plain_environment(place.environment), cwd=place.data)
        if done.returncode != 0:
            raise PostgresUnavailable(
                f"{command[0]} failed as {place.account[0]}: {done.stderr or done.stdout}"
            )
        return done.stdout

    def _initialise(self) -> None:
        binaries, account = _usable_binaries(self._directory())
        scratch = self._directory()
        data, sockets = scratch.make_folder("data", account), scratch.make_folder("s", account)
        self._layout = _Layout(
            data=str(data),
            socket_folder=str(sockets),
            log=str(sockets / "log"),
            programs=str(binaries.folder),
            environment=binaries.environment(),
            account=(account.name, account.uid, account.gid),
            loopback_port=_free_port() if self._loopback else None,
            password=secrets.token_hex(16),
            version=version_text(binaries),
        )
        self._make_cluster(sockets / "password")
        self._write_settings()
        stop = [str(binaries.folder / "pg_ctl"), "-D", str(data), "-w", "-m", "immediate", "stop"]
        scratch.register_stop("postgres", stop, account)
        scratch.start_guardian()
        self._publish()

    def _make_cluster(self, password_file: Path) -> None:
        password_file.write_text(self._place().password)
        os.chown(password_file, *self._place().account[1:])
        place = self._place()
        # Whoever can reach the private socket folder is trusted; TCP is open to every user of the machine.
        options = [
            "-U",
            "postgres",
            "--auth-local=trust",
            "--auth-host=scram-sha-256",
            f"--pwfile={password_file}",
        ]
        options += ["-E", "UTF8", "--locale=C", "--no-sync"]
        self.run_as_server([f"{place.programs}/initdb", "-D", place.data, *options])

    def _write_settings(self) -> None:
        place = self._place()
        network = {"unix_socket_directories": f"'{place.socket_folder}'", "port": str(SOCKET_PORT)}
        if place.loopback_port is not None:
            network |= {"listen_addresses": "'127.0.0.1'", "port": str(place.loopback_port)}
        lines = [f"{name} = {value}" for name, value in {**self._settings, **network}.items()]
        (Path(place.data) / "postgresql.auto.conf").write_text("\n".join(lines) + "\n")

    def _choose_port(self) -> None:
        self._layout = _Layout(**{**vars(self._place()), "loopback_port": _free_port()})
        self._write_settings()
        self._publish()

    def _port_was_taken(self) -> bool:
        return self._loopback and "could not bind" in self.log_tail()

    def _shared_memory_id(self) -> str:
        """The pid file's seventh line holds key and id of the segment that guards the data directory."""
        return (Path(self._place().data) / "postmaster.pid").read_text().split("\n")[6].split()[1]

    def _pg_ctl(self, *arguments: str) -> str | None:
        """Run pg_ctl; None when it worked, else what it said."""
        place = self._place()
        command = [f"{place.programs}/pg_ctl", "-D", place.data, *arguments]
        done = Account(*place.account).run(command, env=plain_environment(place.environment), cwd=place.data)
        return None if done.returncode == 0 else (done.stderr or done.stdout)

    def _publish(self) -> None:
        unfinished = self.directory / "server.new"
        unfinished.write_text(json.dumps(vars(self._place())))
        unfinished.rename(self.directory / "server.json")

    def _attach(self) -> bool:
        try:
            stored: dict[str, Any] = json.loads((self.directory / "server.json").read_text())
        except FileNotFoundError:
            return False
        self._layout = _Layout(**{**stored, "account": tuple(stored["account"])})
        return True

    def _directory(self) -> Scratch:
        if self._scratch is None:
            self._scratch = Scratch.create("pg", in_memory=self._in_memory)
            atexit.register(self.close)  # a directory that was handed in is somebody else's to close
        return self._scratch

    def _place(self) -> _Layout:
        if self._layout is None:
            raise RuntimeError("the server has not been started yet")
        return self._layout


class ExternalPostgres:
    """A server that somebody else runs, named by EVENFLOW_TEST_POSTGRES_URL; tests make databases in it."""

    def __init__(self, address: str) -> None:
        self._address = address

    def url(self, database: str | None = None) -> str:
        """The same address with another database in it."""
        parts = urlsplit(self._address)
        path = parts.path if database is None else "/" + quote(database)
        # Not urlunsplit: it drops the slashes before an empty host, which libpq needs to see.
        return f"{parts.scheme}://{parts.netloc}{path}{'?' if parts.query else ''}{parts.query}"

    def create_database(self, name: str | None = None, *, template: str = EMPTY) -> str:
        return create_database(self._address, name, template)

    def drop_database(self, name: str) -> None:
        drop_database(self._address, name)


def create_database(admin_url: str, name: str | None = None, template: str = EMPTY, options: str = "") -> str:
    """Create a database through an administrator's address and return its name."""
    chosen = name or f"evenflow_test_{os.getpid()}_{secrets.token_hex(4)}"
    _execute(admin_url, f'CREATE DATABASE "{chosen}" TEMPLATE "{template}" {options}')
    return chosen


def drop_database(admin_url: str, name: str) -> None:
    """Drop a database and disconnect whoever uses it."""
    _execute(admin_url, f'DROP DATABASE IF EXISTS "{name}" WITH (FORCE)')


def _execute(url: str, statement: str) -> None:
    import psycopg  # here, so that starting a server needs nothing but the standard library

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(statement.encode())


def _usable_binaries(scratch: Scratch) -> tuple[Binaries, Account]:
    """Programs and an account that can run them, copied out of a private folder when they must be."""
    binaries = find_postgres()
    if binaries is None:
        raise PostgresUnavailable(
            "no PostgreSQL server programs; `make test` fetches them, or install a server"
        )
    if account := _account_for(binaries):
        return binaries, account
    if binaries.parts:
        binaries = binaries.copied_to(scratch.path / "programs")
        if account := _account_for(binaries):
            return binaries, account
    raise PostgresUnavailable(
        f"PostgreSQL refuses to run as root, and none of the accounts postgres, nobody and daemon can run "
        f"{binaries.folder}/postgres. Run as an ordinary user, or set EVENFLOW_TEST_POSTGRES_URL."
    )


def _account_for(binaries: Binaries) -> Account | None:
    command = [str(binaries.folder / "postgres"), "--version"]
    return account_able_to_run(command, plain_environment(binaries.environment()))


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
