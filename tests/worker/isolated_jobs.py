"""Bodies that run in processes of their own. The module holds its app, so that such a process finds it by the module's name."""

import asyncio
import ctypes
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from evenflow import Context, Evenflow, Fail, Retry

LOOK_S = 0.01
started_in: list[int] = []


def pid() -> int:
    return os.getpid()


async def apid() -> int:
    await asyncio.sleep(0)
    return os.getpid()


def crash(how: str) -> None:
    if how == "segv":
        ctypes.string_at(0)
    elif how == "exit":
        os._exit(3)
    os.kill(os.getpid(), signal.SIGKILL)


def end_program(how: str) -> None:
    if how == "exit":
        sys.exit(3)
    raise KeyboardInterrupt


def fork_and_crash(ctx: Context) -> None:
    """Leaves a child behind that holds everything open which this process had open."""
    child = os.fork()
    if child == 0:
        time.sleep(600)
    ctx.progress(1, note=str(child))
    os._exit(3)


async def aend_program() -> None:
    async def end_it() -> None:
        sys.exit(3)

    await asyncio.gather(end_it())


def hold(ctx: Context, folder: str) -> None:
    """Tells its process and that of a child it starts, then runs until a file says otherwise."""
    with subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"]) as child:
        (Path(folder) / f"{ctx.job_id}.pids").write_text(f"{os.getpid()} {child.pid}")
        while not (Path(folder) / "gate").exists():
            time.sleep(LOOK_S)
        child.kill()


def report(ctx: Context, folder: str) -> str:
    ctx.progress(3, 10, note="page")
    while not (Path(folder) / "gate").exists():
        time.sleep(LOOK_S)
    return ctx.job_id


def decline() -> None:
    raise Fail("DECLINED", "not today", data={"why": [1]})


def hooks_seen() -> tuple[int, str]:
    return len(started_in), os.environ.get("SURROUNDED", "no")


def declared(app: Evenflow) -> Evenflow:
    """The same app, with the bodies of this module as isolated tasks."""
    more: dict[str, dict[str, Any]] = {
        "crash_fails": {"on_crash": "fail"},
        "fork_and_crash": {"on_crash": "fail"},
        "hold_briefly": {"timeout": 0.3},
        "hold_twice": {"timeout": 0.3, "retry": Retry(max_attempts=2, backoff=[600], jitter=False)},
    }
    functions: dict[str, Callable[..., Any]] = {
        "crash_fails": crash,
        "hold_briefly": hold,
        "hold_twice": hold,
    }
    for function in (
        pid, apid, crash, fork_and_crash, end_program, aend_program, hold, report, decline, hooks_seen,
    ):  # fmt: skip
        functions[function.__name__] = function
    for name, function in functions.items():
        app.task(name=name, run_in="process", **more.get(name, {}))(function)

    @app.hooks.on_worker_start
    def start() -> None:
        started_in.append(os.getpid())

    @app.hooks.around_run
    def surround(ctx: Context) -> Iterator[None]:
        os.environ["SURROUNDED"] = ctx.task
        yield

    return app


app = declared(Evenflow("sqlite:///:memory:"))
