"""The app: the client and its worker under one name. Nothing below imports this."""

import asyncio
import contextlib
import threading
from collections.abc import Callable, Iterable, Iterator

from evenflow.checks import some_seconds, whole
from evenflow.client.app import Client
from evenflow.errors import ConfigError, EvenflowError, LeaseLost
from evenflow.services.dispatcher import Dispatcher
from evenflow.services.keeper import Keeper, Service
from evenflow.services.pruner import Pruner
from evenflow.services.rescuer import Rescuer
from evenflow.services.scheduler import Scheduler
from evenflow.services.spacer import Spacer
from evenflow.store.open import AnyEngine, open_engine
from evenflow.store.signals import settle_wakers
from evenflow.worker.local import LocalWorker
from evenflow.worker.patience import when_available
from evenflow.worker.pump import MOST_SLOTS, PumpOptions, Stop
from evenflow.worker.serving import QueueList


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
        self._await_database(threading.Event())
        with self._local_worker(queues, options, services) as worker:
            worker.run()

    async def arun_worker(
        self, *, queues: Iterable[str] | None = None, concurrency: int = 10, until_empty: bool = False, max_claim_batch: int = 0,
        shutdown_timeout: float = 30.0, services: bool = True,
    ) -> None:  # fmt: skip
        """`run_worker` beside other coroutines, on threads of its own; cancelling it stops the worker gracefully."""
        options = self._pump_options(concurrency, max_claim_batch, shutdown_timeout, until_empty)
        is_cancelled = threading.Event()
        try:
            await asyncio.to_thread(self._await_database, is_cancelled)
        finally:
            is_cancelled.set()
        with self._local_worker(queues, options, services) as worker:
            running = asyncio.ensure_future(asyncio.to_thread(worker.run))
            try:
                await asyncio.shield(running)
            except asyncio.CancelledError:
                worker.stop(Stop.GRACEFUL)
                await running
                raise

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

    @contextlib.contextmanager
    def _local_worker(
        self, queues: Iterable[str] | None, options: PumpOptions, services: bool
    ) -> Iterator[LocalWorker]:
        if isinstance(queues, str):  # one name would be taken for the names of its letters
            raise ConfigError(f"queues: expected a list of names, got {queues!r}; write [{queues!r}]")
        served = QueueList.parse(list(queues) if queues is not None else self.served_queues())
        engine = self._own_engine(pool_size=1)
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
        if self.settings.database.memory:
            return self._producer.engine
        return open_engine(self.settings.database, self.settings.schema, pool_size=pool_size)

    def _keeper(self, engine: AnyEngine, on_death: Callable[[str, BaseException], None]) -> Keeper:
        services: list[Service] = [
            Dispatcher(engine, self.settings.retention, self.settings.concurrency_maintenance_interval_s),
            Scheduler(engine, self.schedules),
            Rescuer(engine, self.settings),
            Pruner(engine),
            Spacer(engine),
        ]
        return Keeper(services, engine, self.settings, on_death)
