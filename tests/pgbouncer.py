"""A private PgBouncer in front of a test server, set up as harshly as production might be.

Transaction pooling, four server connections, each thrown away after five seconds, and no reset query:
whatever a session leaves behind meets the next client. Standard library alone.
"""

import atexit
import os
import subprocess
from collections.abc import Mapping
from pathlib import Path
from typing import Self
from urllib.parse import quote

from tests.processes import plain_environment, wait_until
from tests.scratch_directory import Account, Scratch, account_able_to_run
from tools.server_binaries import Binaries, find_pgbouncer

PORT = 6432
CONFIGURATION = """\
[databases]
* = {target}

[pgbouncer]
listen_addr =
listen_port = {port}
unix_socket_dir = {folder}
logfile = {folder}/log
pidfile = {folder}/pid
auth_type = any
admin_users = postgres
pool_mode = transaction
default_pool_size = {pool_size}
server_lifetime = {server_lifetime_s}
server_reset_query =
server_check_query =
max_client_conn = 500
ignore_startup_parameters = {ignored}
"""


class PgBouncerUnavailable(RuntimeError):
    """There is no PgBouncer here, or no account that may run it; the tests that need it report NOT RUN."""


class PgBouncer:
    """A pooler in front of one server, whose connection values are given as in `{"host": …, "user": …}`.

    >>> with PgBouncer({"host": str(server.socket_folder), "user": "postgres"}) as bouncer:   # doctest: +SKIP
    ...     connect(bouncer.url("postgres"))
    """

    def __init__(
        self,
        target: Mapping[str, str],
        *,
        pool_size: int = 4,
        server_lifetime_s: int = 5,
        ignored: str = "extra_float_digits",
    ) -> None:
        self._target = dict(target)
        self._pool_size = pool_size
        self._server_lifetime_s = server_lifetime_s
        self._ignored = ignored
        self._scratch: Scratch | None = None
        self._process: subprocess.Popen[bytes] | None = None
        self._folder = Path()

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(self, *_: object) -> None:
        self.close()

    def start(self) -> Self:
        """Start it and wait for its socket."""
        self._scratch = Scratch.create("bouncer")
        try:
            binaries, account = _usable_binaries(self._scratch)
            self._launch(self._scratch, binaries, account)
        except BaseException:
            self.close()
            raise
        return self

    def close(self) -> None:
        """Kill it and delete its files; safe to call twice."""
        atexit.unregister(self.close)
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None
        if self._scratch is not None:
            self._scratch.remove()

    def url(self, database: str = "postgres") -> str:
        """Connection address of a database through the pooler; the database `pgbouncer` is its console."""
        return f"postgresql://postgres@/{quote(database)}?host={self._folder}&port={PORT}"

    def log_text(self) -> str:
        """What it logged so far."""
        log = self._folder / "log"
        return log.read_text(errors="replace") if log.exists() else "(no log)"

    def _launch(self, scratch: Scratch, binaries: Binaries, account: Account) -> None:
        self._folder = scratch.make_folder("b", account)
        configuration = self._folder / "pgbouncer.ini"
        configuration.write_text(self._configuration())
        configuration.chmod(0o600)
        os.chown(configuration, account.uid, account.gid)
        pid_file = self._folder / "pid"
        scratch.register_stop("bouncer", ["sh", "-c", f'kill -9 "$(cat {pid_file})"'], account)
        scratch.start_guardian()
        atexit.register(self.close)
        self._process = subprocess.Popen(
            [str(binaries.folder / "pgbouncer"), "-q", str(configuration)],
            cwd=self._folder,
            env=plain_environment(binaries.environment()),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            start_new_session=True,  # a Ctrl-C meant for the tests must not reach it first
            **account.identity(),
        )
        self._wait_for_socket()

    def _configuration(self) -> str:
        return CONFIGURATION.format(
            target=" ".join(f"{name}={_quoted(value)}" for name, value in self._target.items()),
            port=PORT,
            folder=self._folder,
            pool_size=self._pool_size,
            server_lifetime_s=self._server_lifetime_s,
            ignored=self._ignored,
        )

    def _wait_for_socket(self) -> None:
        address = self._folder / f".s.PGSQL.{PORT}"
        wait_until(lambda: address.exists() or not self._is_running(), "PgBouncer's socket")
        if not self._is_running():
            raise PgBouncerUnavailable(f"PgBouncer ended at once:\n{self.log_text()}")

    def _is_running(self) -> bool:
        return self._process is not None and self._process.poll() is None


def _usable_binaries(scratch: Scratch) -> tuple[Binaries, Account]:
    binaries = find_pgbouncer()
    if binaries is None:
        raise PgBouncerUnavailable("no pgbouncer program on this machine and no Debian package to unpack")
    if account := _account_for(binaries):
        return binaries, account
    if binaries.parts:
        binaries = binaries.copied_to(scratch.path / "programs")
        if account := _account_for(binaries):
            return binaries, account
    raise PgBouncerUnavailable(f"no unprivileged account can run {binaries.folder}/pgbouncer")


def _account_for(binaries: Binaries) -> Account | None:
    command = [str(binaries.folder / "pgbouncer"), "--version"]
    return account_able_to_run(command, plain_environment(binaries.environment()))


def _quoted(value: str) -> str:
    return "'" + value.replace("'", "''") + "'"
