"""A worker inside of a web service: `FastAPI(lifespan=lifespan(jobs))`. For Starlette, FastAPI, Litestar and their kin.

For small services. The worker shares the process, so a body that kills it takes the service along; its jobs are rescued.
"""

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any

from evenflow import ConfigError, Evenflow

log = logging.getLogger("evenflow.worker")

Lifespan = Callable[..., AbstractAsyncContextManager[Any]]


def lifespan(
    app: Evenflow, *, worker: bool = True, queues: Iterable[str] | None = None, concurrency: int = 10,
    shutdown_timeout: float = 10.0, inside: Callable[[Any], AbstractAsyncContextManager[Any]] | None = None,
) -> Lifespan:  # fmt: skip
    """What a service does for its app while it lives: tables at the start, a worker meanwhile, connections closed at the end.

    With `worker=False` the service only enqueues. `inside` is a lifespan of your own, which the worker outlives; the state
    that it yields is the service's.

    >>> service = FastAPI(lifespan=lifespan(jobs, concurrency=4))          # doctest: +SKIP
    """

    @contextlib.asynccontextmanager
    async def live(service: Any = None) -> AsyncIterator[Any]:
        await asyncio.to_thread(app.prepare)
        async with contextlib.AsyncExitStack() as stack:
            stack.push_async_callback(asyncio.to_thread, app.close)
            if worker:
                options = {"queues": queues, "concurrency": concurrency, "shutdown_timeout": shutdown_timeout}
                await stack.enter_async_context(running_worker(app, **options))
            yield None if inside is None else await stack.enter_async_context(inside(service))

    return live


@contextlib.asynccontextmanager
async def running_worker(app: Evenflow, **options: Any) -> AsyncIterator[None]:
    """A worker beside the block, with the options of `app.arun_worker`. It ends its jobs, or gives them back, with the
    block; a worker that died meanwhile is logged at once and raised at the end."""
    running = asyncio.create_task(app.arun_worker(**options), name="evenflow-worker")
    await asyncio.sleep(0)  # its first step checks the options: a service without its worker should not start
    if running.done():
        running.result()
    running.add_done_callback(_tell)
    try:
        yield
    finally:
        running.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await running


def mounted(site: Any, path: str) -> Callable[[Any, Any, Any], Awaitable[None]]:
    """The dashboard under a path of a framework that takes the path away and does not say so, as Litestar does.

    >>> asgi("/dashboard", is_mount=True, copy_scope=True)(mounted(jobs.web(), "/dashboard"))       # doctest: +SKIP
    """
    if not path.startswith("/") or path.endswith("/"):
        raise ConfigError(f"path: expected one such as '/dashboard', got {path!r}")

    async def serve(scope: Any, receive: Any, send: Any) -> None:
        root = f"{scope.get('root_path', '').rstrip('/')}{path}"
        inner = scope["path"].rstrip("/") or "/"
        await site({**scope, "root_path": root, "path": f"{root}{inner}"}, receive, send)

    return serve


def _tell(running: "asyncio.Task[None]") -> None:
    if not running.cancelled() and (error := running.exception()) is not None:
        log.error("the worker of this service has died: nothing is run here any more", exc_info=error)
