"""Pickup of several queues at the same time: each has an idle worker, and gets its jobs between those of the others.

A machine that others share stands still now and then, for milliseconds to tenths of a second. Measured one after the other,
that decides whose slowest jobs are slower; side by side it meets all alike. Queues on files are measured after those on the
server. One JSON line per queue, as the harness gives them. Started by `bench.peers` with the harness on the path.
"""

import argparse
import contextlib
import fcntl
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.harness_driver import harness, on_databases
from bench.timing import percentile

PICKUP = "d"
GAP_MS = 50
WARM_UP_JOBS = 10  # the harness's clients send them before those that count
SET_UP_WITHIN_S = 120.0
SPARE_S = 60.0
LAST_WITHIN_S = 10.0
STOP_WITHIN_S = 5.0
TOLD_LINES = 20

Answer = dict[str, object]


class Process:
    """A process in a session of its own, so that it is ended with all that it started. What it says goes to files."""

    def __init__(
        self, what: str, command: Sequence[str], environment: Mapping[str, str], folder: Path
    ) -> None:
        self._what, self._is_ended = what, False
        self._output, self._errors = folder / f"{what}.out", folder / f"{what}.err"
        with self._output.open("wb") as output, self._errors.open("wb") as errors:
            self._process = subprocess.Popen(
                command, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=errors, start_new_session=True
            )  # fmt: skip

    def output(self) -> str:
        return self._output.read_text()

    def expect_running(self) -> None:
        code = self._process.poll()
        if code is not None:
            raise self._failure(f"ended with {code}")

    def expect_success(self, within_s: float) -> None:
        try:
            code = self._process.wait(within_s)
        except subprocess.TimeoutExpired:
            raise self._failure("was not done in time") from None
        if code != 0:
            raise self._failure(f"ended with {code}")
        self.end()

    def end(self) -> None:
        """End it and what it started, which may outlive it. Once only: its number may go to a stranger later."""
        if self._is_ended:
            return
        try:
            self._signal(signal.SIGTERM)
        finally:  # an interrupt may come while it is waited for
            self._signal(signal.SIGKILL)
            self._is_ended = True

    def _signal(self, number: int) -> None:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(STOP_WITHIN_S)

    def _failure(self, happened: str) -> RuntimeError:
        lines = self._errors.read_text(errors="replace").strip().splitlines() or ["it said nothing"]
        told = [f"{self._errors.parent.name}: the {self._what} {happened}", *lines[-TOLD_LINES:]]
        print(*told, sep="\n", file=sys.stderr)
        return RuntimeError(f"its {self._what} {happened}: {lines[-1]}")


class Queue:
    """One queue with a database, a worker and a client of its own. Once in trouble, it takes no further step."""

    def __init__(self, run: Any, name: str, folder: Path) -> None:
        self.name = name
        self.trouble: str | None = None
        self._run, self._peer, self._folder = run, run.PEERS[name], folder
        self._database = f"bench_{name.replace('-', '_')}"
        self._record = str(folder / "record.bin")
        self._processes = contextlib.ExitStack()
        self._found: Answer = {}

    def take(self, step: Callable[..., None], *arguments: object) -> None:
        """Take a step. A failure ends its processes and is kept for its answer; the others go on."""
        if self.trouble is not None:
            return
        try:
            step(*arguments)
        except (Exception, SystemExit) as trouble:  # the harness exits where it finds no interpreter
            said = str(getattr(trouble, "stderr", None) or "").strip().splitlines()[-1:]
            self.trouble = " ".join([f"{type(trouble).__name__}: {trouble}", *said])
            self._processes.close()

    def set_up(self) -> None:
        """Install it, and give it what it needs."""
        self._run.install(self._peer)
        Path(self._folder, "sqlite").mkdir(parents=True)
        if self._is_on_server:
            self._drop_database()
            self._run.psql(f'create database "{self._database}"')
        self._started("setup", "setup").expect_success(SET_UP_WITHIN_S)

    def start_worker(self) -> None:
        self._worker = self._started("worker", "worker")

    @property
    def seconds_to_start(self) -> float:
        return float(self._peer.get("ready", 3))

    def start_client(self, jobs: int, gap_ms: float) -> None:
        """Let its client send so many jobs, one every so often."""
        self._worker.expect_running()
        self._client = self._started("client", "latency", jobs, gap_ms)

    def wait_for_client(self, deadline: float) -> None:
        self._client.expect_success(max(0.0, deadline - time.monotonic()))

    def read(self, deadline: float) -> None:
        """Wait for the last jobs; then put together what its client said and its worker recorded."""
        told = _result(self._client.output())
        jobs = len(told["starts"])
        while len(waits := self._waits_ms(told["starts"])) < jobs and time.monotonic() < deadline:
            self._worker.expect_running()
            time.sleep(0.05)
        self._worker.expect_running()
        if not waits:
            raise RuntimeError("no job ran")
        self._found = {
            "n": jobs, "ran": len(waits), "complete": len(waits) == jobs,
            "p50_ms": percentile(waits, 50), "p95_ms": percentile(waits, 95), "p99_ms": percentile(waits, 99),
            "max_ms": max(waits), "enqueue_call_p50_ms": percentile([call / 1e6 for call in told["calls"]], 50),
        }  # fmt: skip

    def answer(self) -> Answer:
        """What was found, or what went wrong."""
        backend, version = self._peer["backend"], self._version()
        head = {"peer": self.name, "measure": PICKUP, "backend": backend, "version": version}
        return head | (self._found if self.trouble is None else {"error": self.trouble})

    def close(self) -> None:
        """End its processes, and remove its database."""
        try:
            self._processes.close()
        finally:
            if self._is_on_server:
                with contextlib.suppress(subprocess.CalledProcessError):  # the harness drops what is left
                    self._drop_database()

    @property
    def _is_on_server(self) -> bool:
        return bool(self._peer["backend"] == "pg")

    def _drop_database(self) -> None:
        self._run.psql(f'drop database if exists "{self._database}" with (force)')

    def _started(self, what: str, *arguments: object) -> Process:
        # Queues on files put them below BENCH_TMP: two variants of one queue must not share a file.
        own = {"BENCH_PG_DB": self._database, "BENCH_TMP": str(self._folder)}
        environment = self._run.environ(self._peer, self._record) | own
        process = Process(what, self._run.command(self._peer, *arguments), environment, self._folder)
        self._processes.callback(process.end)
        return process

    def _waits_ms(self, starts: Sequence[int]) -> list[float]:
        """From the start of each call to the first start of its body; those of warming up have no place among the starts."""
        began: dict[int, int] = {}
        for number, at in self._run.records(self._record):
            began.setdefault(number, at)
        return [(began[number] - at) / 1e6 for number, at in enumerate(starts) if number in began]

    def _version(self) -> str:
        try:
            return str(self._run.version(self._peer))
        except (OSError, subprocess.SubprocessError):  # it could not be installed
            return ""


def measured(run: Any, names: Sequence[str], jobs: int) -> list[Answer]:
    """All of them at the same time; together they get a job every 50 ms."""
    with _databases_to_ourselves(run), _queues(run, names) as queues:
        for queue in queues:
            queue.take(queue.set_up)
        for queue in queues:
            queue.take(queue.start_worker)
        time.sleep(max(queue.seconds_to_start for queue in queues))
        _send(queues, jobs)
        deadline = time.monotonic() + LAST_WITHIN_S
        for queue in queues:
            queue.take(queue.read, deadline)
        return [queue.answer() for queue in queues]


@contextlib.contextmanager
def _databases_to_ourselves(run: Any) -> Iterator[None]:
    """Whoever measures with the harness drops all of its databases first, and holds this lock meanwhile."""
    with open(run.LOCK, "a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


@contextlib.contextmanager
def _queues(run: Any, names: Sequence[str]) -> Iterator[list[Queue]]:
    files = tempfile.TemporaryDirectory(prefix="side_by_side_", dir=run.TMP, ignore_cleanup_errors=True)
    with files as folder, contextlib.ExitStack() as stack:
        queues = [Queue(run, name, Path(folder, name)) for name in names]
        for queue in queues:
            stack.callback(queue.close)
        yield queues


def _send(queues: Sequence[Queue], jobs: int) -> None:
    """Let every client send its jobs.

    The gap of each is a little longer than that of the one before it: over the run they pass one another once, else one queue
    might get every job just when another is busy with its own.
    """
    gap_ms = GAP_MS * sum(queue.trouble is None for queue in queues)
    for place, queue in enumerate(queues):
        queue.take(queue.start_client, jobs, gap_ms * (1 + place / jobs))
    planned_s = (WARM_UP_JOBS + jobs + len(queues)) * gap_ms / 1000
    deadline = time.monotonic() + 2 * planned_s + SPARE_S
    for queue in queues:
        queue.take(queue.wait_for_client, deadline)


def _result(output: str) -> dict[str, list[int]]:
    """The line of the harness's client that says when it sent each job, and how long each call took."""
    for line in output.splitlines():
        if line.startswith("RESULT "):
            result: dict[str, list[int]] = json.loads(line.removeprefix("RESULT "))
            return result
    raise RuntimeError("its client gave no result")


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--peer", required=True)
    parser.add_argument("--jobs", type=int, default=200)
    asked = parser.parse_args()
    with harness() as run:
        run.start_servers()
        names = on_databases(run.PEERS, asked.peer.split(","))
        for backend in ("pg", "sqlite"):
            if alike := [name for name in names if run.PEERS[name]["backend"] == backend]:
                for answer in measured(run, alike, asked.jobs):
                    print(json.dumps(answer), flush=True)


if __name__ == "__main__":
    main()
