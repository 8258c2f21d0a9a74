"""Processes seen from outside: who is alive, who is whose child, and waiting for what they do.

Standard library alone; reads /proc where there is one.
"""

import os
import signal
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.scratch_directory import start_time


def plain_environment(extra: Mapping[str, str]) -> dict[str, str]:
    """A plain environment: the caller's PGDATA, PGPORT and locale must not reach the server."""
    return {"PATH": os.environ.get("PATH", os.defpath), "LC_ALL": "C", "TZ": "UTC", **extra}


def works_in(pid: int, folder: Path) -> bool:
    """Whether the process is this server: a stale pid file may name a stranger."""
    if start_time(pid) is None:
        return False
    try:
        return Path(f"/proc/{pid}/cwd").readlink() == folder
    except FileNotFoundError:
        return not Path("/proc/self").exists()
    except OSError:
        return False


def children(parent: int) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        try:
            fields = entry.read_text().rpartition(")")[2].split()
        except OSError:
            continue
        if int(fields[1]) == parent:
            found.append(int(entry.parent.name))
    return found


def kill_now(pid: int) -> None:
    try:
        os.kill(pid, signal.SIGKILL)
    except ProcessLookupError:
        return


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Look every 10 ms until the condition holds; TimeoutError names what did not happen."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.01)
