"""A worker inside of a service without an event loop, such as Flask's: `with running_worker(jobs): service.run()`."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

from evenflow import Evenflow
from evenflow.contrib import asgi

START_WITHIN_S = 30.0


@contextlib.contextmanager
def running_worker(app: Evenflow, **options: Any) -> Iterator[None]:
    """A worker on threads of its own beside the block, with the options of `app.run_worker`. It ends its jobs, or gives
    them back, with the block.

    >>> with running_worker(jobs, concurrency=4):                 # doctest: +SKIP
    ...     service.run()
    """
    app.prepare()
    has_started, stop = threading.Event(), asyncio.Event()
    loops: list[asyncio.AbstractEventLoop] = []
    errors: list[BaseException] = []

    async def serve() -> None:
        loops.append(asyncio.get_running_loop())
        async with asgi.running_worker(app, **options):
            has_started.set()
            await stop.wait()

    def run() -> None:
        try:
            asyncio.run(serve())
        except BaseException as error:
            errors.append(error)
        finally:
            has_started.set()

    thread = threading.Thread(target=run, name="evenflow-worker", daemon=True)
    thread.start()
    has_started.wait(START_WITHIN_S)
    if errors:
        raise errors[0]
    try:
        yield
    finally:
        with contextlib.suppress(RuntimeError):  # its loop has ended by itself
            loops[0].call_soon_threadsafe(stop.set)
        thread.join()
        if errors:
            raise errors[0]
