"""Worker processes for benchmarks: started, waited for, weighed and stopped."""

import contextlib
import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.stores import engine_of
from evenflow.store import leases
from evenflow.store.open import AnyEngine
from tests.processes import wait_until

APP = "bench.noop:app"
ROOT = Path(__file__).resolve().parent.parent
START_TIMEOUT_S = 60.0
STOP_TIMEOUT_S = 30.0
_TICKS_PER_S = os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Crew:
    """The worker processes that serve one database."""

    pids: tuple[int, ...]

    def cpu_s(self) -> float:
        """CPU time that they have used."""
        return sum(_cpu_s(pid) for pid in self.pids)

    def peak_mb(self) -> float:
        """The largest amount of memory that one of them has held."""
        return max(_peak_kb(pid) for pid in self.pids) / 1024


@contextlib.contextmanager
def working(url: str, *, processes: int, concurrency: int) -> Iterator[Crew]:
    """Workers that have started and are idle; stopped gracefully at the end."""
    with contextlib.ExitStack() as stack:
        log = stack.enter_context(tempfile.TemporaryFile("w+"))
        supervisor = stack.enter_context(_process(_command(processes, concurrency), url, log.fileno()))
        engine = stack.enter_context(contextlib.closing(engine_of(url)))
        wait_until(
            lambda: len(_worker_pids(engine)) == processes or supervisor.poll() is not None,
            f"{processes} workers to register", START_TIMEOUT_S,
        )  # fmt: skip
        if supervisor.poll() is not None:
            log.seek(0)
            raise RuntimeError(f"the worker ended at once:\n{log.read()[-2000:]}")
        yield Crew(_worker_pids(engine))


def _command(processes: int, concurrency: int) -> list[str]:
    options = ["--processes", str(processes), "--concurrency", str(concurrency), "--loglevel", "warning"]
    return [sys.executable, "-m", "evenflow", "worker", APP, *options]


@contextlib.contextmanager
def _process(command: list[str], url: str, log: int) -> "Iterator[subprocess.Popen[bytes]]":
    path = os.pathsep.join([str(ROOT), *filter(None, [os.environ.get("PYTHONPATH")])])
    environment = {**os.environ, "EVENFLOW_URL": url, "PYTHONPATH": path}
    process = subprocess.Popen(
        command, env=environment, cwd=ROOT, stdin=subprocess.DEVNULL, stdout=log, stderr=log
    )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()


def _worker_pids(engine: AnyEngine) -> tuple[int, ...]:
    return tuple(worker.pid for worker in leases.workers(engine) if worker.kind == "worker")


def _cpu_s(pid: int) -> float:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / _TICKS_PER_S


def _peak_kb(pid: int) -> int:
    lines = Path(f"/proc/{pid}/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM:"))
