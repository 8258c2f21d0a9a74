"""The app: the client and its worker under one name. Nothing below imports this."""

import asyncio
import contextlib
import importlib
import threading
from collections.abc import Awaitable, Callable, Iterable, Iterator
from typing import Any, Unpack

from evenflow.checks import some_seconds, whole
from evenflow.client.app import Client
from evenflow.errors import ConfigError, EvenflowError, LeaseLost
from evenflow.services.keeper import Keeper
from evenflow.services.staff import all_services
from evenflow.settings import Options
from evenflow.store.open import AnyEngine, open_engine
from evenflow.store.signals import settle_wakers
from evenflow.worker.local import LocalWorker
from evenflow.worker.options import MOST_SLOTS, PumpOptions
from evenflow.worker.patience import when_available
from evenflow.worker.serving import QueueList
from evenflow.worker.stopping import Stop


class Evenflow(Client):
    """A task queue in a database: `Evenflow("sqlite:///jobs.db")` or `Evenflow("postgresql://…")`.

    Without a URL it is `EVENFLOW_URL`, else `sqlite:///evenflow.db`. Nothing is opened before the first use.

    >>> app = Evenflow("sqlite:///:memory:")
    >>> @app.task
    ... def add(a: int, b: int) -> int:
    ...     return a + b
    >>> job = add.enqueue(1, 2)
    >>> app.run_worker(until_empty=True)
    >>> job.result(timeout=10)
    3
    """

    def __init__(self, url: str | None = None, **options: Unpack[Options]) -> None:
        super().__init__(url, **options)
        self._site_engines: list[AnyEngine] = []

    def run_worker(
        self, *, queues: Iterable[str] | None = None, concurrency: int = 10, until_empty: bool = False, max_claim_batch: int = 0,
        shutdown_timeout: float = 30.0, services: bool = True,
    ) -> None:  # fmt: skip
        """Run jobs in this process until stopped (Ctrl-C, TERM), or until nothing is left that could run now.

        Uses the same pump as `evenflow worker`. For tests, notebooks and small services; it has no supervisor, so a
        body that kills the process takes the worker with it (its jobs are rescued by the next one). A database that
        is away is waited for, as `Resilience` says.
        """
        options = self._pump_options(concurrency, max_claim_batch, shutdown_timeout, until_empty)
        served = self._served(queues)
        self._await_database(threading.Event())
        with self._local_worker(served, options, services) as worker:
            worker.run()

    async def arun_worker(
        self, *, queues: Iterable[str] | None = None, concurrency: int = 10, until_empty: bool = False, max_claim_batch: int = 0,
        shutdown_timeout: float = 30.0, services: bool = True,
    ) -> None:  # fmt: skip
        """`run_worker` beside other coroutines, on threads of its own; cancelling it stops the worker gracefully, and
        cancelling it once more at once."""
        options = self._pump_options(concurrency, max_claim_batch, shutdown_timeout, until_empty)
        served = self._served(queues)
        is_cancelled = threading.Event()
        try:
            await asyncio.to_thread(self._await_database, is_cancelled)
        finally:
            is_cancelled.set()
        with self._local_worker(served, options, services) as worker:
            running = asyncio.ensure_future(asyncio.to_thread(worker.run))
            how = Stop.NO
            # Also when it is cancelled meanwhile: its thread cannot be left to itself.
            while not running.done():
                try:
                    await asyncio.shield(running)
                except asyncio.CancelledError:
                    how = Stop.GRACEFUL if how is Stop.NO else Stop.AT_ONCE
                    worker.stop(how)
            running.result()
            if how is not Stop.NO:
                raise asyncio.CancelledError

    def _await_database(self, is_cancelled: threading.Event) -> None:
        def wait(delay_s: float) -> None:
            if is_cancelled.wait(delay_s):
                raise EvenflowError("cancelled while the database was away")

        when_available(self._producer.make_ready, self.settings.resilience, wait)

    def _pump_options(
        self, concurrency: int, max_claim_batch: int, shutdown_timeout: float, until_empty: bool
    ) -> PumpOptions:
        mistakes = [
            *whole("concurrency", concurrency, 1, MOST_SLOTS),
            *whole("max_claim_batch", max_claim_batch, 0, MOST_SLOTS),
            *some_seconds("shutdown_timeout", shutdown_timeout),
        ]
        if mistakes:
            raise ConfigError(mistakes)
        return PumpOptions(
            concurrency,
            max_claim_batch,
            shutdown_timeout,
            until_empty,
            prefetch=self.settings.prefetch_buffer,
        )

    def _served(self, queues: Iterable[str] | None) -> QueueList:
        if isinstance(queues, str):  # one name would be taken for the names of its letters
            raise ConfigError(f"queues: expected a list of names, got {queues!r}; write [{queues!r}]")
        return QueueList.parse(list(queues) if queues is not None else self.served_queues())

    @contextlib.contextmanager
    def _local_worker(self, served: QueueList, options: PumpOptions, services: bool) -> Iterator[LocalWorker]:
        engine = self._own_engine(pool_size=2)
        services_engine = self._own_engine(pool_size=2) if services else None
        died: list[BaseException] = []
        worker = LocalWorker(
            self.tasks,
            self.settings,
            engine,
            served,
            options,
            announce=self._producer.waker.announce_ends,
            hooks=self.hooks,
            conditions=self.conditions,
            journal=self.journal,
        )

        def on_death(_: str, error: BaseException) -> None:
            died.append(error)
            worker.stop(Stop.GRACEFUL)

        keeper = self._keeper(services_engine, on_death) if services_engine is not None else None
        if keeper is not None:
            keeper.start()
        try:
            yield worker
        finally:
            if keeper is not None:
                keeper.stop()
            for used in (engine, services_engine):
                if used is not None and used is not self._producer.engine:
                    settle_wakers(used)
                    used.close()
        if died:
            raise EvenflowError("a service of this worker died") from died[0]
        if worker.has_lost_lease:
            raise LeaseLost("another process has declared this worker dead: its jobs are run by others")

    def web(
        self, *, auth: Any = None, hosts: Iterable[str] = (), redact: Iterable[str] | None = None, enqueue: bool = False,
        secret: str | None = None, writes_per_minute: int | None = 600,
    ) -> Callable[..., Awaitable[None]]:  # fmt: skip
        """The dashboard and its JSON API as an ASGI application, to be mounted under any path. Needs the extra `web`.

        `auth` is a list of `evenflow.web.Basic` and `Token`, or a function from a request to a `Principal` or None.
        Without it only this machine is answered. `hosts` are the names under which the site is reached, `redact` parts
        of names whose values nobody sees. With `enqueue` programs may make jobs over HTTP. Several processes that serve
        one site need the same `secret`: logins are signed with it, and without it with a key of each process's own.
        Each login and token may change things `writes_per_minute` times; None is no limit.

        >>> asgi = app.web(auth=[Basic("ann", "a long secret", "operator")], hosts=["jobs.example.com"])  # doctest: +SKIP
        """
        # Named, not imported: the edge stands above the app, and its packages are an extra.
        edge = importlib.import_module("evenflow.web.asgi")
        options: dict[str, Any] = {} if redact is None else {"redact": redact}
        options["writes_per_minute"] = writes_per_minute
        # An engine of its own: its looks never stand before an enqueue of the same process.
        engine = self._own_engine(pool_size=4)
        self._site_engines.append(engine)
        site: Callable[..., Awaitable[None]] = edge.make_site(
            self, engine, auth=auth, hosts=hosts, enqueue=enqueue, secret=secret, **options
        )
        return site

    def close(self) -> None:
        """Give connections back, those of the dashboard too. The app can be used again afterwards."""
        for engine in self._site_engines:
            engine.close()
        super().close()

    def served_queues(self) -> list[str]:
        """What a worker of this app serves where it is not told: all declared queues, or `*` in open mode."""
        match self.settings.queue_mode:
            case "open":
                return ["*"]
            case "default":
                return ["default"]
            case _:
                return [queue.name for queue in self.settings.queues]

    def _own_engine(self, pool_size: int) -> AnyEngine:
        # A database in memory has one connection, which everybody shares.
        if self._producer.is_shared:
            return self._producer.engine
        return open_engine(
            self.settings.database, self.settings.schema, pool_size=pool_size, clock=self._producer.clock
        )

    def _keeper(self, engine: AnyEngine, on_death: Callable[[str, BaseException], None]) -> Keeper:
        services = all_services(engine, self.settings, self.schedules)
        return Keeper(services, engine, self.settings, on_death)
