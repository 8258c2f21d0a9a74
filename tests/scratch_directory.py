"""Scratch directories for the servers that tests start: short of path, private, gone with their owner.

The owner's process id and start time are in the name, so an abandoned directory is told from a live one.
A detached guardian waits for the owner's end, also by SIGKILL. Standard library alone: it runs by itself.
"""

import json
import os
import pwd
import re
import secrets
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

NAME = re.compile(r"evenflow-(?P<kind>[a-z]+)-(?P<pid>\d+)-(?P<start>\d+)-[0-9a-f]+")
ACCOUNTS_FOR_ROOT = ("postgres", "nobody", "daemon")
STOP_TIMEOUT_S = 30.0
MEMORY = Path("/dev/shm")
ENOUGH_MEMORY_BYTES = 2 * 1024**3


@dataclass(frozen=True)
class Account:
    """Who runs a server: ourselves, or an unprivileged account when we are root."""

    name: str
    uid: int
    gid: int

    @property
    def is_self(self) -> bool:
        return self.uid == os.geteuid()

    def run(self, command: Sequence[str], **options: Any) -> subprocess.CompletedProcess[str]:
        """Run a command as this account and return its output as text."""
        how = {"capture_output": True, "text": True, **self.identity(), **options}
        return subprocess.run(command, check=False, **how)

    def identity(self) -> dict[str, Any]:
        """Arguments for subprocess that give up root for good."""
        return {} if self.is_self else {"user": self.uid, "group": self.gid, "extra_groups": []}


class Scratch:
    """One scratch directory: `Scratch.create("pg")`, `register_stop`, `start_guardian`, finally `remove`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    @classmethod
    def create(cls, kind: str, *, owner_pid: int | None = None, in_memory: bool = False) -> "Scratch":
        """Make a directory that lives as long as its owner (this process unless told)."""
        remove_abandoned()
        owner = owner_pid or os.getpid()
        name = f"evenflow-{kind}-{owner}-{start_time(owner) or 0}-{secrets.token_hex(3)}"
        path = (memory_root() if in_memory else short_temporary_root()) / name
        # Root's servers run as another account, which must be able to pass through, but not to look around.
        path.mkdir(mode=0o711 if os.geteuid() == 0 else 0o700)
        return cls(path)

    def make_folder(self, name: str, account: Account) -> Path:
        """A private folder inside for the server's account."""
        folder = self.path / name
        folder.mkdir(mode=0o700)
        if not account.is_self:
            os.chown(folder, account.uid, account.gid)
        return folder

    def register_stop(self, name: str, command: Sequence[str], account: Account) -> None:
        """Say how to stop a server whose owner died; the command runs as the server's own account."""
        order = {"command": list(command), "account": [account.name, account.uid, account.gid]}
        unfinished = self.path / f"stop-{name}.new"
        unfinished.write_text(json.dumps(order))
        unfinished.rename(self.path / f"stop-{name}.json")

    def withdraw_stop(self, name: str) -> None:
        """The server was stopped in the ordinary way."""
        (self.path / f"stop-{name}.json").unlink(missing_ok=True)

    def start_guardian(self) -> None:
        """Start a detached process that stops the servers and cleans up when the owner is gone."""
        if (self.path / "guardian.pid").exists():
            return
        command = [sys.executable, "-I", __file__, str(self.path)]
        subprocess.run(command, check=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL)

    def owner_is_alive(self) -> bool:
        return owner_is_alive(self.path.name)

    def stop_servers(self) -> None:
        """Carry out every registered stop."""
        for order in sorted(self.path.glob("stop-*.json")):
            _carry_out(json.loads(order.read_text()))

    def remove(self) -> None:
        """Delete the directory; the guardian notices and ends."""
        shutil.rmtree(self.path, ignore_errors=True)
        if self.path.exists():  # a dying server may have written one more file meanwhile
            shutil.rmtree(self.path, ignore_errors=True)


def accounts() -> list[Account]:
    """The accounts that may run a server, best first."""
    if os.geteuid() != 0:
        return [Account(str(os.geteuid()), os.geteuid(), os.getegid())]
    known = {entry.pw_name: entry for entry in pwd.getpwall()}
    chosen = [known[name] for name in ACCOUNTS_FOR_ROOT if name in known]
    return [Account(entry.pw_name, entry.pw_uid, entry.pw_gid) for entry in chosen]


def account_able_to_run(command: Sequence[str], environment: dict[str, str]) -> Account | None:
    """The first account that can execute the command, or None."""
    for account in accounts():
        try:
            if account.run(command, env=environment, cwd="/").returncode == 0:
                return account
        except OSError:
            continue
    return None


def remove_abandoned() -> None:
    """Stop and delete what dead owners left behind; only directories that we ourselves made."""
    roots = {short_temporary_root(), MEMORY}
    for path in (found for root in roots for found in root.glob("evenflow-*")):
        try:
            is_ours = path.stat().st_uid == os.geteuid() and not path.is_symlink()
        except OSError:
            continue
        if is_ours and NAME.fullmatch(path.name) and not owner_is_alive(path.name):
            scratch = Scratch(path)
            scratch.stop_servers()
            scratch.remove()


def owner_is_alive(name: str) -> bool:
    """Whether the process in a directory's name still runs: same id and same start time."""
    match = NAME.fullmatch(name)
    return match is not None and start_time(int(match["pid"])) == int(match["start"])


def start_time(pid: int) -> int | None:
    """When a process started, in the kernel's own unit; None when it is gone or a zombie."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except FileNotFoundError:
        return _start_time_without_proc(pid)
    except OSError:
        return None
    return None if fields[0] in "ZX" else int(fields[19])


def short_temporary_root() -> Path:
    """Socket paths are limited to about 107 bytes, so a long TMPDIR will not do."""
    short = Path("/tmp")
    return short if os.access(short, os.W_OK | os.X_OK) else Path(tempfile.gettempdir())


def memory_root() -> Path:
    """A file system in memory if it has room: a new database takes 12 ms there, up to 300 ms on a disk."""
    if not os.access(MEMORY, os.W_OK | os.X_OK):
        return short_temporary_root()
    system = os.statvfs(MEMORY)
    is_large = system.f_bavail * system.f_frsize >= ENOUGH_MEMORY_BYTES
    runs_programs = not system.f_flag & os.ST_NOEXEC
    return MEMORY if is_large and runs_programs else short_temporary_root()


def _start_time_without_proc(pid: int) -> int | None:
    if Path("/proc/self/stat").exists():
        return None
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return None
    except PermissionError:
        return 0
    return 0


def _carry_out(order: dict[str, Any]) -> None:
    account = Account(*order["account"])
    try:
        account.run(order["command"], cwd="/", timeout=STOP_TIMEOUT_S)
    except (OSError, subprocess.TimeoutExpired) as error:
        print(f"could not stop a server: {error}", file=sys.stderr)


def _guard(scratch: Scratch) -> None:
    """Wait until the owner or the directory is gone; if the owner went first, clean up after it."""
    while scratch.path.exists():
        if not scratch.owner_is_alive():
            scratch.stop_servers()
            scratch.remove()
            return
        _wait_for_end(int(scratch.path.name.split("-")[2]), timeout_s=1.0)


def _wait_for_end(pid: int, timeout_s: float) -> None:
    try:
        descriptor = os.pidfd_open(pid)
    except (OSError, AttributeError):
        time.sleep(timeout_s / 4)  # no such call on this system: look again soon
        return
    try:
        select.select([descriptor], [], [], timeout_s)
    finally:
        os.close(descriptor)


def _detach(scratch: Scratch) -> None:
    """Leave the caller's session and its pipes, or `make test | tee` would wait for us."""
    if os.fork():
        os._exit(0)
    os.setsid()
    for number in (signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    nowhere = os.open(os.devnull, os.O_RDWR)
    for stream in (0, 1, 2):
        os.dup2(nowhere, stream)
    os.chdir("/")
    (scratch.path / "guardian.pid").write_text(str(os.getpid()))


if __name__ == "__main__":
    guarded = Scratch(Path(sys.argv[1]))
    _detach(guarded)
    _guard(guarded)
