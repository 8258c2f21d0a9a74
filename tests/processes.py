"""Processes seen from outside: who is alive, who is whose child, and waiting for what they do.

Standard library alone; reads /proc where there is one.
"""

import os
import signal
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Self

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


class Lag:
    """How late this machine is meanwhile: the longest that a thread overslept. Others may be at work on it."""

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._look, name="lag", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        self._thread.join()

    def _look(self) -> None:
        while not self._ended.is_set():
            started = time.monotonic()
            self._ended.wait(0.005)
            self.longest_s = max(self.longest_s, time.monotonic() - started - 0.005)


def wait_until(condition: Callable[[], bool], what: str, timeout_s: float = 30) -> None:
    """Look every 10 ms until the condition holds; TimeoutError names what did not happen."""
    deadline = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout_s} s for {what}")
        time.sleep(0.01)
