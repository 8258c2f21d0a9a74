"""Workers for tests: one on threads of this process while a block lasts, or one in a process of its own."""

import asyncio
import contextlib
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from evenflow import Evenflow

ROOT = Path(__file__).resolve().parent.parent.parent
STOP_WITHIN_S = 60


@contextlib.contextmanager
def serving(app: Evenflow, **options: Any) -> Iterator[None]:
    """A worker of this app, for as long as the block lasts; stopped gracefully, and what ended it is raised."""
    loop = asyncio.new_event_loop()
    worker = loop.create_task(app.arun_worker(**options))
    thread = threading.Thread(target=_run, args=(loop, worker), name="serving")
    thread.start()
    try:
        yield
    finally:
        loop.call_soon_threadsafe(worker.cancel)
        thread.join(STOP_WITHIN_S)
        loop.close()
    if not worker.cancelled():
        worker.result()


def _run(loop: asyncio.AbstractEventLoop, worker: "asyncio.Task[None]") -> None:
    asyncio.set_event_loop(loop)
    loop.run_until_complete(asyncio.wait([worker]))
    loop.run_until_complete(loop.shutdown_default_executor())


@contextlib.contextmanager
def worker_process(url: str, **options: Any) -> Iterator[subprocess.Popen[str]]:
    """A worker of `tests.client.worker_process` in a process of its own, up and registered."""
    given = [f"{name}={value}" for name, value in options.items()]
    command = [sys.executable, "-m", "tests.client.worker_process", url, *given]
    with subprocess.Popen(command, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            assert process.stdout.readline() == "serving\n"
            yield process
        finally:
            _end(process)


def _end(process: "subprocess.Popen[str]") -> None:
    process.terminate()
    try:
        process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        raise
