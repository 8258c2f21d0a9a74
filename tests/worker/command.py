"""`evenflow worker` as tests run it: started, watched, signalled, and never left behind. And the books, read by SQL alone."""

import contextlib
import os
import re
import signal
import sqlite3
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any, Self

import psycopg

from evenflow.database_url import parse_url
from tests.processes import children, kill_now, wait_until
from tests.scratch_directory import start_time

ROOT = Path(__file__).resolve().parent.parent.parent
READY_WITHIN_S = 90.0
ENDED_WITHIN_S = 90.0
# Beats and polls are quick enough for tests. The lease is long: on a machine that runs other tests beside, a healthy process may
# stand still for seconds, and one that loses its lease over it is rightly taken for dead.
QUICK = {
    "EVENFLOW_HEARTBEAT_MS": "500",
    "EVENFLOW_LEASE_MS": "20000",
    "EVENFLOW_NOTIFY_POLL_INTERVAL_MS": "1000",
}
# For tests in which a lease has to run out: as short as such a machine allows.
SHORT_LEASE_S = 6.0
SHORT_LEASE = {"EVENFLOW_LEASE_MS": str(int(SHORT_LEASE_S * 1000))}
LOOK_EVERY_S = 0.1


class WorkerCommand:
    """One `evenflow worker` with its processes. Keyword arguments are environment variables."""

    def __init__(
        self, url: str, folder: Path, *options: str, locator: str = "tests.worker.jobs:app", **settings: Any
    ) -> None:
        self._command = [sys.executable, "-m", "evenflow", "worker", locator, *options]
        self._environment = os.environ | QUICK | {"EVENFLOW_URL": url, "LEDGER_FOLDER": str(folder)}
        self._environment.pop("PYTHONDONTWRITEBYTECODE", None)  # every process would compile everything anew
        if (
            "PYTHONPATH" in settings and "PYTHONPATH" in os.environ
        ):  # the same sources as ours, wherever they are
            settings["PYTHONPATH"] = os.pathsep.join([str(settings["PYTHONPATH"]), os.environ["PYTHONPATH"]])
        self._environment |= {name: str(value) for name, value in settings.items()}
        self.books = Books(url)
        self._log = folder / f"worker-{len(list(folder.glob('worker-*.log')))}.log"
        self._seen: set[tuple[int, int]] = set()

    def __enter__(self) -> Self:
        self._before = self.books.worker_pids()
        with self._log.open("wb") as log:
            self._process = subprocess.Popen(
                self._command,
                cwd=ROOT,
                env=self._environment,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
            )
        return self

    def __exit__(self, *_: object) -> None:
        self._note_children()
        if self._process.poll() is None:
            self._process.kill()
        self._process.wait()
        for pid, started in self._seen:
            if start_time(pid) == started:
                kill_now(pid)

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def log(self) -> str:
        return self._log.read_text(errors="replace")

    def is_running(self) -> bool:
        return self._process.poll() is None

    def children(self) -> list[int]:
        """The worker processes that live now."""
        self._note_children()
        return [pid for pid in children(self.pid) if start_time(pid) is not None]

    def ready(self, processes: int = 1) -> Self:
        """Wait until so many worker processes are in the books."""

        def are_registered() -> bool:
            if self._process.poll() is not None:
                raise AssertionError(f"evenflow worker ended with {self._process.returncode}:\n{self.log}")
            return len(set(self.books.worker_pids()) & set(self.children())) >= processes

        try:
            wait_until(seldom(are_registered), f"{processes} worker processes", READY_WITHIN_S)
        except TimeoutError as error:
            raise AssertionError(f"{error}:\n{self.log}") from None
        return self

    def send(self, number: signal.Signals, pid: int | None = None) -> None:
        self._note_children()
        os.kill(self.pid if pid is None else pid, number)

    def ended(self, within_s: float = ENDED_WITHIN_S) -> int:
        """Wait for the end of the command: its exit code."""
        self._note_children()
        try:
            return self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise AssertionError(f"evenflow worker has not ended within {within_s} s:\n{self.log}") from None

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        """Signal and wait for the end: the exit code."""
        self.send(number)
        return self.ended()

    def left_behind(self) -> list[int]:
        """Processes of this command that live though it has ended, zombies not counted."""
        return [pid for pid, started in self._seen if start_time(pid) == started]

    def said(self, text: str, within_s: float = 60.0) -> None:
        """Wait until the log matches."""
        try:
            wait_until(lambda: re.search(text, self.log) is not None, "the log", within_s)
        except TimeoutError:
            raise AssertionError(f"{text!r} was not said within {within_s} s:\n{self.log}") from None

    def _note_children(self) -> None:
        for pid in _tree(self.pid):
            if (started := start_time(pid)) is not None:
                self._seen.add((pid, started))


def seldom(condition: Callable[[], bool], every_s: float = LOOK_EVERY_S) -> Callable[[], bool]:
    """For `wait_until`: a question that is dear, asked ten times a second. A look at the books is a session of its own, and
    those who wait for others must not take the processor from them."""
    asked_at = float("-inf")

    def ask() -> bool:
        nonlocal asked_at
        if time.monotonic() - asked_at < every_s:
            return False
        found = condition()
        asked_at = time.monotonic()
        return found

    return ask


class Books:
    """The tables, read and written by statements of the tests' own: what the queue says of itself proves nothing."""

    def __init__(self, url: str) -> None:
        self._database = parse_url(url)

    def rows(self, statement: str) -> list[tuple[Any, ...]]:
        """What a statement returns; tables are named `{job}`, `{history}`, `{worker}`."""
        if self._database.kind == "sqlite":
            connection = sqlite3.connect(f"file:{self._database.path}?mode=rw", uri=True, timeout=10.0)
            with contextlib.closing(connection):
                found = connection.execute(_named(statement, "evenflow_")).fetchall()
                connection.commit()
                return found
        with psycopg.connect(self._database.conninfo, autocommit=True) as session:
            cursor = session.execute(_named(statement, "evenflow.").encode())
            return cursor.fetchall() if cursor.description else []

    def states(self) -> Counter[str]:
        """How many jobs are in each state, live and ended."""
        both = "select state from {job} union all select state from {history}"
        return Counter(dict(self.rows(f"select state, count(*) from ({both}) s group by state")))

    def entries(self) -> dict[str, list[str]]:
        """Job name, its first argument -> its states in all tables; one each where the books are right."""
        found: dict[str, list[str]] = {}
        for payload, state in self.rows(
            "select payload, state from {job} union all select payload, state from {history}"
        ):
            found.setdefault(_first_argument(payload), []).append(state)
        return found

    def worker_pids(self) -> list[int]:
        """Processes that are registered as workers, whoever started them; none where there are no tables yet."""
        try:
            return [pid for (pid,) in self.rows("select pid from {worker} where kind = 'worker'")]
        except (psycopg.Error, sqlite3.Error):
            return []

    def column(self, name: str, table: str = "history") -> list[Any]:
        """A column of all jobs, by id."""
        return [value for (value,) in self.rows(f"select {name} from {{{table}}} order by id")]


def _named(statement: str, prefix: str) -> str:
    return re.sub(r"\{(\w+)\}", rf"{prefix}\1", statement)


def _first_argument(payload: str) -> str:
    found = re.search(r'"([^"]+)"', payload)
    assert found is not None, payload
    return found[1]


def _tree(root: int) -> list[int]:
    below = children(root)
    return [*below, *(pid for child in below for pid in _tree(child))]
