"""The producer: from bound calls to durable jobs, on our own connection or inside a caller's transaction."""

import asyncio
import threading
from collections.abc import Callable, Sequence
from typing import Any

from evenflow.client.handle import Job, Placed
from evenflow.client.journal import StoredJournal
from evenflow.client.results import Results
from evenflow.client.run import Desk, Run
from evenflow.client.step import Condition
from evenflow.client.task import AnyTask, Call
from evenflow.clock import wall_us
from evenflow.errors import ConfigError, EnqueueError
from evenflow.ids import EPOCH_MS, NUMBER_BITS, IdSource, id_text
from evenflow.job import Claimed, NewJob, State
from evenflow.settings import Settings
from evenflow.signing import KeyRing
from evenflow.store import control, reads
from evenflow.store.callers import adrive_on, drive_on, drive_together, kind_of
from evenflow.store.engine import Steps, drive
from evenflow.store.enqueue import Enqueued, Sign, enqueue_steps
from evenflow.store.open import AnyEngine, open_engine, prepare
from evenflow.store.signals import ARRIVAL, Waker, channel, queue_mark, settle_wakers
from evenflow.store.workflows import NewRun, start_steps


class Producer:
    """What all tasks of an app share to enqueue: settings, engine, ids, wake-ups."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: dict[str, AnyTask] = {}
        self.engine: AnyEngine = open_engine(settings.database, settings.schema)
        self.keys = KeyRing.build(settings.signing_keys) if settings.signing_keys else None
        self.ids = IdSource()
        self.waker = Waker(self.engine)
        self.results = Results(self.engine, settings.retention, self.waker, self.make_tables)
        self.conditions: dict[str, Callable[..., Any]] = {}
        self.desk = Desk(self.engine, settings.retention, self.waker, self.results, self.make_tables)
        self._ready_lock = threading.RLock()
        self._has_tables = self._is_ready = False

    def declared(self, name: str) -> AnyTask | None:
        return self.tasks.get(name)

    def make_tables(self) -> None:
        """Before the first read: tables up to date. Where they are, nothing is written, so nobody is waited for."""
        if self._has_tables:
            return
        with self._ready_lock:
            if not self._has_tables:
                prepare(self.engine)
                self._has_tables = True

    def make_ready(self) -> None:
        """Before the first write: tables up to date, declared queues known to the store. Once per app."""
        if self._is_ready:
            return
        with self._ready_lock:
            if not self._is_ready:
                self.make_tables()
                control.declare_cluster(self.engine, self.settings.cluster_wide_cap)
                for queue in self.settings.queues:
                    control.declare_queue(self.engine, queue)
                self._is_ready = True

    def enqueue(self, calls: Sequence[Call[Any]], connection: Any = None) -> list[Job[Any]]:
        """Store calls: all or none."""
        if not calls:
            return []
        connection = self._connection_of(calls, connection)
        if connection is None:
            return self._enqueue_here(calls)
        self._check_kind(connection)
        if self._can_make_ready_beside():
            self.make_ready()
        placed = drive_on(connection, self._arriving(calls), self.settings.schema)
        return self.handles(calls, placed, is_arriving=True)

    async def aenqueue(self, calls: Sequence[Call[Any]], connection: Any = None) -> list[Job[Any]]:
        """`enqueue`, awaited."""
        if not calls:
            return []
        connection = self._connection_of(calls, connection)
        if connection is None:
            return await asyncio.to_thread(self._enqueue_here, calls)
        self._check_kind(connection)
        if self._can_make_ready_beside():
            await asyncio.to_thread(self.make_ready)
        placed = await adrive_on(connection, self._arriving(calls), self.settings.schema)
        if all(place.is_new for place in placed):
            return self.handles(calls, placed, is_arriving=True)
        return await asyncio.to_thread(self.handles, calls, placed, is_arriving=True)

    def start_run(self, new: NewRun, connection: Any = None) -> Run[Any]:
        """Store a run of a workflow: all or nothing."""
        if connection is None:
            self.make_ready()
            number, is_new = drive_together(
                self.engine, lambda: start_steps(new, self.ids, sign=self.signer())
            )
            self.waker.wake(*control.admit(self.engine))
            return Run(self.desk, number, is_new=is_new)
        self._check_kind(connection)
        if self._can_make_ready_beside():
            self.make_ready()
        number, is_new = drive_on(connection, self._starting(new), self.settings.schema)
        return Run(self.desk, number, is_new=is_new)

    async def astart_run(self, new: NewRun, connection: Any = None) -> Run[Any]:
        """`start_run`, awaited."""
        if connection is None:
            return await asyncio.to_thread(self.start_run, new)
        self._check_kind(connection)
        if self._can_make_ready_beside():
            await asyncio.to_thread(self.make_ready)
        number, is_new = await adrive_on(connection, self._starting(new), self.settings.schema)
        return Run(self.desk, number, is_new=is_new)

    def condition_name(self, condition: Condition) -> str:
        """The name under which a condition is looked up by workers."""
        if isinstance(condition, str):
            return condition
        for name, function in self.conditions.items():
            if function is condition:
                return name
        raise ConfigError(
            f"expected a condition or its name, got {condition!r}; write @app.condition above the function"
        )

    def journal(self, job: Claimed, now: Callable[[], int]) -> StoredJournal:
        """What the body of a job remembers."""
        return StoredJournal(self, job, now)

    def close(self) -> None:
        """Give connections back. What is used again opens them again, and finds its tables again."""
        self.results.close()
        settle_wakers(self.engine)
        self.engine.close()
        self._has_tables = self._is_ready = False

    def _connection_of(self, calls: Sequence[Call[Any]], connection: Any) -> Any:
        """The one connection that a batch belongs to, or None for our own."""
        for call in calls:
            if not isinstance(call, Call):
                raise EnqueueError(
                    f"expected calls made by task.job(...), got {call!r}; write app.enqueue_many([add.job(1, 2)])"
                )
        tasks = _tasks_of(calls)
        for task in tasks:
            if not task.belongs_to(self):
                raise EnqueueError(f"task {task.name!r} belongs to another app; enqueue it there")
        if connection is not None:
            return connection
        named = {id(task.connection): task.connection for task in tasks}
        if len(named) > 1:
            raise EnqueueError(
                "the calls name different connections; a batch is one transaction, so enqueue them apart"
            )
        return next(iter(named.values()))

    def _enqueue_here(self, calls: Sequence[Call[Any]]) -> list[Job[Any]]:
        self.make_ready()
        jobs, must_be_new = [call.new for call in calls], _must_be_new(calls)

        # Jobs with keys arrive and are admitted like those of a caller's transaction: admission is one road. So do those
        # that a time of uniqueness may take back.
        is_limited = any(job.limits or job.unique_for_us is not None for job in jobs)
        bounded = self._bounded(jobs)
        queues = {job.queue for job in jobs if job.run_at is None}
        has_replaced = any(job.replaces for job in jobs)
        is_plain = not (is_limited or has_replaced or bounded)
        wakes = self.waker.with_commit(*queues) if is_plain else []

        def steps() -> Steps[list[Enqueued]]:
            return enqueue_steps(
                jobs,
                self.ids,
                arriving=is_limited,
                sign=self.signer(),
                must_be_new=must_be_new,
                bounded=bounded,
                wakes=wakes,
            )

        # One job is one row: it is there or not. Of several, those before a duplicate have to go again.
        is_undone_by_error = len(jobs) > 1 and must_be_new
        placed = (
            drive(self.engine, steps())
            if is_plain and not is_undone_by_error
            else drive_together(self.engine, steps)
        )
        if has_replaced or bounded:
            self.waker.wake(*queues)
            self.waker.wake_dispatchers()
        if not is_plain:
            return self._admitted(calls, placed)
        woken = {wake.payload for wake in wakes}
        self.waker.wake(*(queue for queue in queues if queue_mark(queue) not in woken))
        if any(job.run_at is not None for job in jobs):
            self.waker.wake_dispatchers()
        return self.handles(calls, placed)

    def _admitted(self, calls: Sequence[Call[Any]], placed: list[Enqueued]) -> list[Job[Any]]:
        """Let jobs with keys line up now; those that must not wait are discarded where their key is full. Where jobs may
        have been put elsewhere than the call says, the handles show them as they are."""
        self.waker.wake(*control.admit(self.engine))
        found = reads.find(self.engine, [place.id for place in placed])
        full = [
            place.id
            for call, place in zip(calls, placed, strict=True)
            if call.task.limits.discards and place.id in found and found[place.id].state is State.BLOCKED
        ]
        if full:
            control.withdraw(self.engine, full, "discarded", self.settings.retention)
            found |= reads.find(self.engine, full)
        return [
            Job(found[place.id], self.results, call.task.signature, is_new=place.is_new)
            if place.id in found
            else Job(
                Placed(call.new, place.id, wall_us(), True),
                self.results,
                call.task.signature,
                is_new=place.is_new,
            )
            for call, place in zip(calls, placed, strict=True)
        ]

    def _bounded(self, jobs: Sequence[NewJob]) -> set[str]:
        """Queues of these jobs that are declared with a bound, or would reject if one was set at run time."""
        queues = map(self.settings.queue, {job.queue for job in jobs})
        return {queue.name for queue in queues if queue.max_ready is not None or queue.on_full == "reject"}

    def _can_make_ready_beside(self) -> bool:
        """Whether tables can be made while a caller's transaction is open: on SQLite it may hold the only write lock."""
        return not self._is_ready and self.engine.kind == "postgres"

    def _check_kind(self, connection: Any) -> None:
        kind = kind_of(connection)
        if kind != self.engine.kind:
            raise EnqueueError(
                f"connection: the jobs live in {self.engine.kind}, this connection is to {kind}; enqueue without connection="
            )

    def _starting(self, new: NewRun) -> Steps[tuple[int, bool]]:
        placed = yield from start_steps(new, self.ids, sign=self.signer())
        if self.engine.kind == "postgres" and self.settings.wake_in_transaction:
            yield "wake_with_commit", {"channel": channel(self.settings.schema, "wake"), "payload": ARRIVAL}
        return placed

    def _arriving(self, calls: Sequence[Call[Any]]) -> Steps[list[Enqueued]]:
        if any(call.new.replaces for call in calls):
            raise EnqueueError(
                "connection: a job that replaces another (on_conflict='replace', debounce=) would lock it until your commit "
                "and make workers wait; enqueue it after the commit, without connection="
            )
        placed = yield from enqueue_steps(
            [call.new for call in calls],
            self.ids,
            arriving=True,
            sign=self.signer(),
            must_be_new=_must_be_new(calls),
        )
        if self.engine.kind == "postgres" and self.settings.wake_in_transaction:
            yield "wake_with_commit", {"channel": channel(self.settings.schema, "wake"), "payload": ARRIVAL}
        return placed

    def signer(self) -> Sign | None:
        """How the jobs of this app are signed; None where they are not."""
        keys = self.keys
        if keys is None:
            return None

        def sign(job: NewJob, number: int) -> str:
            return keys.sign(
                queue=job.queue, task=job.task, job_id=id_text(number), created_at_us=signed_time_us(number),
                payload=job.payload, group=job.group,
            )  # fmt: skip

        return sign

    def handles(
        self, calls: Sequence[Call[Any]], placed: list[Enqueued], *, is_arriving: bool = False
    ) -> list[Job[Any]]:
        """The jobs of calls that were placed."""
        now = wall_us()
        holders = [place.id for place in placed if not place.is_new]
        # What cannot be seen from here (another job of the caller's open transaction) is shown as it was asked for.
        found = reads.find(self.engine, holders) if holders else {}
        return [
            Job(
                found.get(place.id) or Placed(call.new, place.id, now, is_arriving), self.results, call.task.signature,
                is_new=place.is_new,
            )
            for call, place in zip(calls, placed, strict=True)
        ]  # fmt: skip


def signed_time_us(number: int) -> int:
    """The creation time that a signature covers: the one inside the id, known to the signer before the insert."""
    return ((number >> NUMBER_BITS) + EPOCH_MS) * 1000


def _must_be_new(calls: Sequence[Call[Any]]) -> list[int]:
    """The places of calls whose task refuses a second job with their key."""
    uniques = {id(task): task.policy.unique for task in _tasks_of(calls)}
    refusing = {
        task for task, unique in uniques.items() if unique is not None and unique.on_conflict == "error"
    }
    return [place for place, call in enumerate(calls) if id(call.task) in refusing] if refusing else []


def _tasks_of(calls: Sequence[Call[Any]]) -> list[AnyTask]:
    """The distinct tasks of calls: most batches have one."""
    return list({id(call.task): call.task for call in calls}.values())
