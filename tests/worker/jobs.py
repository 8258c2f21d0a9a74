"""The app that worker processes run in these tests. Its bodies write into the ledger and wait for files, never for time.

Settings come from the environment: `EVENFLOW_*` for the app, `LEDGER_FOLDER` for the ledger and the files waited for.
The tests themselves use the same tasks through `declared`, on an app of their own.
"""

import asyncio
import ctypes
import functools
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from evenflow import Context, Evenflow, Queue, Retry
from tests.ledger import BodyLedger

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))
LOOK_S = 0.01
TIMEOUT_S = 3.0  # long enough for a body to begin within it, whatever else runs on this machine
_eaten: list[bytes] = []
_sleepers: "dict[str, asyncio.Task[None]]" = {}


@functools.cache
def ledger() -> BodyLedger:
    return BodyLedger(FOLDER / "bodies")


def note(ctx: Context, job: str) -> str:
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        return job


async def anote(ctx: Context, job: str) -> str:
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        await asyncio.sleep(0)
        return job


def work(ctx: Context, job: str, seconds: float) -> str:
    """Takes its time, as real work does."""
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        time.sleep(seconds)
        return job


def hold(ctx: Context, job: str, gate: str = "gate") -> int:
    """Runs until the gate is opened; the process it ran in."""
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        while not (FOLDER / gate).exists():
            time.sleep(LOOK_S)
        return os.getpid()


async def ahold(ctx: Context, job: str, gate: str = "gate") -> int:
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        while not (FOLDER / gate).exists():
            await asyncio.sleep(LOOK_S)
        return os.getpid()


async def asleep_together(ctx: Context, job: str, gate: str = "gate") -> str:
    """Sleeps until the gate is opened, as a coroutine that waits for a slow service does; one looks for all of them."""
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        if gate not in _sleepers:
            _sleepers[gate] = asyncio.create_task(_opened(gate))
        await asyncio.shield(_sleepers[gate])
        return job


async def _opened(gate: str) -> None:
    while not (FOLDER / gate).exists():
        await asyncio.sleep(LOOK_S)


async def block(ctx: Context, job: str) -> int:
    """Blocks the event loop itself."""
    return hold(ctx, job, "never")


def isolated(ctx: Context, job: str, gate: str = "gate") -> int:
    (FOLDER / f"{job}.pid").write_text(str(os.getpid()))
    return hold(ctx, job, gate)


def poison(ctx: Context, job: str, how: str) -> None:
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        if how == "segv":
            ctypes.string_at(0)
        elif how == "exit":
            os._exit(3)
        else:
            os.kill(os.getpid(), signal.SIGKILL)


def fails(ctx: Context, job: str) -> None:
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        raise ValueError(f"{job} fails at attempt {ctx.attempt}")


def eat(ctx: Context, job: str, megabytes: int) -> int:
    """Grows the process for good."""
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        _eaten.append(b"x" * (megabytes * 1024**2))
        return os.getpid()


def orphan(ctx: Context, job: str) -> None:
    """Starts a process that starts another and leaves: a child of nobody, which soon ends."""
    with ledger().body(job, epoch=ctx.fence, queue=ctx.queue):
        grandchild = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', 'pass'])"
        subprocess.run([sys.executable, "-c", grandchild], check=True)


def declared(app: Evenflow) -> Evenflow:
    """The same app, with the tasks of this module, each under its short name."""
    twice = Retry(max_attempts=2, base=0.05, jitter=False)
    options: dict[str, tuple[Any, dict[str, Any]]] = {
        "note": (note, {}),
        "anote": (anote, {}),
        "work": (work, {}),
        "hold": (hold, {}),
        "ahold": (ahold, {}),
        "asleep_together": (asleep_together, {}),
        "hold_or_fail": (hold, {"on_crash": "fail"}),
        "isolated": (isolated, {"run_in": "process"}),
        "stubborn": (hold, {"timeout": TIMEOUT_S}),
        "block": (block, {"timeout": TIMEOUT_S}),
        "block_for_ever": (block, {}),
        "poison": (poison, {}),
        "fails": (fails, {"retry": twice}),
        "eat": (eat, {}),
        "orphan": (orphan, {}),
    }
    for name, (function, given) in options.items():
        app.task(name=name, **given)(function)
    return app


def open_gate(folder: Path, name: str = "gate") -> None:
    """Let the bodies that wait for this file go on."""
    (folder / name).touch()


if "LEDGER_FOLDER" in os.environ:
    queues = [Queue(name) for name in os.environ.get("DECLARED_QUEUES", "").split(",") if name]
    app = declared(Evenflow(queues=queues))
