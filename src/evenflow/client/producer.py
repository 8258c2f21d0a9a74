"""The producer: from bound calls to durable jobs, on our own connection or inside a caller's transaction."""

import asyncio
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, cast

import msgspec

from evenflow.client.handle import Job, Placed
from evenflow.client.journal import StoredJournal
from evenflow.client.results import Results
from evenflow.client.run import Desk, Run
from evenflow.client.step import Condition
from evenflow.client.surrounding import Publishing
from evenflow.client.task import AnyTask, Call
from evenflow.clock import Clock
from evenflow.errors import ConfigError, EnqueueError
from evenflow.ids import EPOCH_MS, NUMBER_BITS, IdSource, id_number, id_text
from evenflow.job import Claimed, NewJob
from evenflow.settings import Settings
from evenflow.signing import KeyRing
from evenflow.store import control, reads
from evenflow.store.callers import adrive_on, drive_on, drive_together, kind_of
from evenflow.store.engine import Steps, drive
from evenflow.store.enqueue import Enqueued, enqueue_plain, enqueue_steps, enqueue_together, fresh_ids
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.open import AnyEngine, open_engine, prepare
from evenflow.store.signals import ARRIVAL, Waker, channel, queue_mark, settle_wakers
from evenflow.store.workflows import NewRun, start_steps


class Producer:
    """What all tasks of an app share to enqueue: settings, engine, ids, wake-ups."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: dict[str, AnyTask] = {}
        self.keys = KeyRing.build(settings.signing_keys) if settings.signing_keys else None
        self.ids = IdSource()
        self.conditions: dict[str, Callable[..., Any]] = {}
        self.on_enqueued: Callable[[Sequence[Job[Any]], Any], None] | None = None
        """Called with jobs that were stored, and the caller's connection or None: for the testing kit."""
        self.publishing: Publishing | None = None
        """What surrounds every enqueue and may give its jobs headers."""
        # Those that are declared with a bound, or would reject if one was set at run time.
        self._bounded = {
            queue.name
            for queue in settings.queues
            if queue.max_ready is not None or queue.on_full == "reject"
        }
        self._ready_lock = threading.RLock()
        self.use(open_engine(settings.database, settings.schema), is_shared=settings.database.memory)

    def use(self, engine: AnyEngine, *, is_shared: bool, has_tables: bool = False) -> None:
        """Work on this engine from now on. One that is shared is also that of the workers of this process."""
        self.engine, self.is_shared = engine, is_shared
        self.waker = Waker(engine)
        self.results = Results(engine, self.settings.retention, self.waker, self.make_tables)
        self.desk = Desk(engine, self.settings.retention, self.waker, self.results, self.make_tables)
        self._has_tables, self._is_ready = has_tables, False

    @property
    def clock(self) -> Clock:
        """The clock of the engine."""
        return self.engine.clock

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
                for queue in self.settings.queues:
                    control.declare_queue(self.engine, queue)
                self._is_ready = True

    def reserve_ids(self, count: int) -> list[str]:
        """Ids for jobs that are stored later."""
        self.make_ready()
        return [id_text(number) for number in drive(self.engine, fresh_ids(self.ids, count))]

    def enqueue_one(self, call: Call[Any], connection: Any = None) -> Job[Any]:
        """`enqueue` of a call that a task of ours has just made: there is nothing to ask about the batch it is."""
        if connection is None and call.task.connection is None and self.publishing is None:
            self.make_ready()
            if self._is_plain(call.new):
                job = self._enqueue_plain(call)
                if self.on_enqueued is not None:
                    self.on_enqueued([job], None)
                return job
        return self.enqueue([call], connection)[0]

    def enqueue(
        self, calls: Sequence[Call[Any]], connection: Any = None, ids: Sequence[str] | None = None
    ) -> list[Job[Any]]:
        """Store calls: all or none. `ids` were reserved for them."""
        if not calls:
            return []
        numbers = None if ids is None else self._numbers(calls, ids)
        if self.publishing is None:
            return self._enqueue(calls, connection, numbers)
        self._connection_of(calls, connection)  # what cannot be enqueued is not published
        placed: list[Job[Any]] = []
        with self.publishing(calls, placed) as published:
            placed += self._enqueue(published, connection, numbers)
        return placed

    def _enqueue(
        self, calls: Sequence[Call[Any]], connection: Any, numbers: Sequence[int] | None
    ) -> list[Job[Any]]:
        connection = self._connection_of(calls, connection)
        if connection is None:
            return self._told(self._enqueue_here(calls, numbers))
        self._check_kind(connection)
        if self._can_make_ready_beside():
            self.make_ready()
        placed = drive_on(connection, self._arriving(calls, numbers), self.settings.schema, self.clock)
        return self._told(self.handles(calls, placed, is_arriving=True), connection)

    async def aenqueue(self, calls: Sequence[Call[Any]], connection: Any = None) -> list[Job[Any]]:
        """`enqueue`, awaited."""
        if not calls:
            return []
        if self.publishing is None:
            return await self._aenqueue(calls, connection)
        self._connection_of(calls, connection)  # what cannot be enqueued is not published
        placed: list[Job[Any]] = []
        with self.publishing(calls, placed) as published:
            placed += await self._aenqueue(published, connection)
        return placed

    async def _aenqueue(self, calls: Sequence[Call[Any]], connection: Any) -> list[Job[Any]]:
        connection = self._connection_of(calls, connection)
        if connection is None:
            return await asyncio.to_thread(lambda: self._told(self._enqueue_here(calls)))
        self._check_kind(connection)
        if self._can_make_ready_beside():
            await asyncio.to_thread(self.make_ready)
        placed = await adrive_on(connection, self._arriving(calls), self.settings.schema, self.clock)
        if all(place.is_new for place in placed):
            return self._told(self.handles(calls, placed, is_arriving=True), connection)
        jobs = await asyncio.to_thread(self.handles, calls, placed, is_arriving=True)
        return self._told(jobs, connection)

    @contextmanager
    def published(self, jobs: Sequence[NewJob]) -> Iterator[tuple[list[NewJob], list[Any]]]:
        """Around jobs that are stored by another way than an enqueue: steps of runs, jobs of schedules. They are given with
        the headers that instrumentation gives them; what was stored goes into the list."""
        placed: list[Any] = []
        if self.publishing is None or not jobs:
            yield list(jobs), placed
            return
        # Instrumentation reads the job alone: what begins sub-workflows and fan-outs has no task of the app.
        calls = [Call(cast(Any, self.tasks.get(job.task)), job) for job in jobs]
        with self.publishing(calls, placed) as published:
            yield [call.new for call in published], placed

    def start_run(self, new: NewRun, connection: Any = None) -> Run[Any]:
        """Store a run of a workflow: all or nothing."""
        with self.published(_jobs_of(new)) as (jobs, placed):
            run = self._start_run(_with_jobs(new, jobs), connection)
            placed.append(run)
        return run

    def _start_run(self, new: NewRun, connection: Any) -> Run[Any]:
        if connection is None:
            self.make_ready()
            number, is_new = drive_together(
                self.engine, lambda: start_steps(new, self.ids, sign=self.signer())
            )
            self.waker.wake(*control.admit(self.engine, self.settings.retention))
            self._told([])
            return Run(self.desk, number, is_new=is_new)
        self._check_kind(connection)
        if self._can_make_ready_beside():
            self.make_ready()
        number, is_new = drive_on(connection, self._starting(new), self.settings.schema, self.clock)
        self._told([], connection)
        return Run(self.desk, number, is_new=is_new)

    async def astart_run(self, new: NewRun, connection: Any = None) -> Run[Any]:
        """`start_run`, awaited."""
        with self.published(_jobs_of(new)) as (jobs, placed):
            run = await self._astart_run(_with_jobs(new, jobs), connection)
            placed.append(run)
        return run

    async def _astart_run(self, new: NewRun, connection: Any) -> Run[Any]:
        if connection is None:
            return await asyncio.to_thread(self._start_run, new, None)
        self._check_kind(connection)
        if self._can_make_ready_beside():
            await asyncio.to_thread(self.make_ready)
        number, is_new = await adrive_on(connection, self._starting(new), self.settings.schema, self.clock)
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

    def _told(self, jobs: list[Job[Any]], connection: Any = None) -> list[Job[Any]]:
        if self.on_enqueued is not None:
            self.on_enqueued(jobs, connection)
        return jobs

    def _connection_of(self, calls: Sequence[Call[Any]], connection: Any) -> Any:
        """The one connection that a batch belongs to, or None for our own."""
        for call in calls:
            if not isinstance(call, Call):
                raise EnqueueError(
                    f"expected calls made by task.job(...), got {call!r}; write app.enqueue_many([add.job(1, 2)])"
                )
        tasks = {call.task for call in calls}  # most batches have one
        for task in tasks:
            if not task.belongs_to(self):
                raise EnqueueError(f"task {task.name!r} belongs to another app; enqueue it there")
        if connection is not None:
            return connection
        named = calls[0].task.connection
        if len(tasks) > 1 and any(task.connection is not named for task in tasks):
            raise EnqueueError(
                "the calls name different connections; a batch is one transaction, so enqueue them apart"
            )
        return named

    def _numbers(self, calls: Sequence[Call[Any]], ids: Sequence[str]) -> list[int]:
        """The ids that were reserved for these calls."""
        if len(ids) != len(calls):
            raise EnqueueError(f"ids: expected one for each of the {len(calls)} calls, got {len(ids)}")
        try:
            return [id_number(each) for each in ids]
        except ValueError as wrong:
            raise EnqueueError(f"ids: {wrong}; take them from app.reserve_ids()") from None

    def _enqueue_here(
        self, calls: Sequence[Call[Any]], numbers: Sequence[int] | None = None
    ) -> list[Job[Any]]:
        self.make_ready()
        if len(calls) == 1 and self._is_plain(calls[0].new):
            return [self._enqueue_plain(calls[0], numbers)]
        jobs = [call.new for call in calls]
        # Most ask for nothing but a row. These have a time, something unique, or keys.
        special = [job for job in jobs if job.run_at is not None or job.unique_key is not None or job.limits]
        queues = {job.queue for job in jobs}
        bounded = self._bounded & queues
        if bounded or any(map(_is_admitted, special)):
            return self._enqueue_and_admit(calls, jobs, bounded, numbers)
        must_be_new: Sequence[int] = ()
        if special:
            must_be_new = _must_be_new(calls)
            queues = {job.queue for job in jobs if job.run_at is None}
        if must_be_new and len(jobs) > 1:
            # One job is one row: it is there or not. Of several, those before a duplicate have to go again.
            wakes = []
            placed = enqueue_together(
                self.engine, jobs, self.ids, numbers=numbers, sign=self.signer(), must_be_new=must_be_new
            )
        else:
            wakes = self.waker.with_commit(*queues)
            steps = enqueue_steps(
                jobs, self.ids, numbers=numbers, sign=self.signer(), must_be_new=must_be_new, wakes=wakes
            )
            placed = drive(self.engine, steps)
        woken = {wake.payload for wake in wakes}
        self.waker.wake(*[queue for queue in queues if not woken or queue_mark(queue) not in woken])
        if special and any(job.run_at is not None for job in special):
            self.waker.wake_dispatchers()
        return self.handles(calls, placed)

    def _is_plain(self, job: NewJob) -> bool:
        """Whether it asks for nothing but a row."""
        is_special = job.run_at is not None or job.unique_key is not None or job.limits
        return not is_special and job.queue not in self._bounded

    def _enqueue_plain(self, call: Call[Any], numbers: Sequence[int] | None = None) -> Job[Any]:
        """What most programs do most often. Lists and sets of one thing took a tenth of it, beside the disk."""
        job = call.new
        wakes = self.waker.with_commit(job.queue)
        number = enqueue_plain(self.engine, job, self.ids, numbers=numbers, sign=self.signer(), wakes=wakes)
        if not wakes:
            self.waker.wake(job.queue)
        return Job(Placed(job, number, self.clock.wall_us()), self.results, call.task.signature)

    def _enqueue_and_admit(
        self,
        calls: Sequence[Call[Any]],
        jobs: Sequence[NewJob],
        bounded: set[str],
        numbers: Sequence[int] | None,
    ) -> list[Job[Any]]:
        """Jobs with keys arrive and are admitted like those of a caller's transaction: admission is one road. So do those
        that a time of uniqueness may take back."""
        placed = enqueue_together(
            self.engine,
            jobs,
            self.ids,
            numbers=numbers,
            arriving=any(job.limits or job.unique_for_us is not None for job in jobs),
            sign=self.signer(),
            must_be_new=_must_be_new(calls),
            bounded=bounded,
        )
        if bounded or any(job.replaces for job in jobs):
            self.waker.wake(*{job.queue for job in jobs if job.run_at is None})
            self.waker.wake_dispatchers()
        return self._admitted(calls, placed)

    def _admitted(self, calls: Sequence[Call[Any]], placed: list[Enqueued]) -> list[Job[Any]]:
        """Let jobs with keys line up now. Where jobs may have been put elsewhere than the call says, or were discarded, the
        handles show them as they are."""
        for _ in range(0, len(placed), control.ADMITTED_AT_ONCE):
            self.waker.wake(*control.admit(self.engine, self.settings.retention))
        found = reads.find(self.engine, [place.id for place in placed])
        return [
            Job(found[place.id], self.results, call.task.signature, is_new=place.is_new)
            if place.id in found
            else Job(
                Placed(call.new, place.id, self.clock.wall_us(), True),
                self.results,
                call.task.signature,
                is_new=place.is_new,
            )
            for call, place in zip(calls, placed, strict=True)
        ]

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

    def _arriving(
        self, calls: Sequence[Call[Any]], numbers: Sequence[int] | None = None
    ) -> Steps[list[Enqueued]]:
        if any(call.new.replaces for call in calls):
            raise EnqueueError(
                "connection: a job that replaces another (on_conflict='replace', debounce=) would lock it until your commit "
                "and make workers wait; enqueue it after the commit, without connection="
            )
        placed = yield from enqueue_steps(
            [call.new for call in calls],
            self.ids,
            numbers=numbers,
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
        now = self.clock.wall_us()
        holders = [place.id for place in placed if not place.is_new]
        if not holders:
            return [
                Job(Placed(call.new, place.id, now, is_arriving), self.results, call.task.signature)
                for call, place in zip(calls, placed, strict=True)
            ]
        # What cannot be seen from here (another job of the caller's open transaction) is shown as it was asked for.
        found = reads.find(self.engine, holders)
        return [
            Job(
                found.get(place.id) or Placed(call.new, place.id, now, is_arriving),
                self.results,
                call.task.signature,
                is_new=place.is_new,
            )
            for call, place in zip(calls, placed, strict=True)
        ]


def signed_time_us(number: int) -> int:
    """The creation time that a signature covers: the one inside the id, known to the signer before the insert."""
    return ((number >> NUMBER_BITS) + EPOCH_MS) * 1000


def _is_admitted(job: NewJob) -> bool:
    """Whether more than its own row decides what becomes of it."""
    return bool(job.limits) or job.unique_for_us is not None or job.replaces


def _must_be_new(calls: Sequence[Call[Any]]) -> list[int]:
    """The places of calls whose task refuses a second job with their key."""
    uniques = [call.task.policy.unique for call in calls]
    return [
        place for place, unique in enumerate(uniques) if unique is not None and unique.on_conflict == "error"
    ]


def _jobs_of(new: NewRun) -> list[NewJob]:
    return [step.job for step in new.steps if step.job is not None]


def _with_jobs(new: NewRun, jobs: Sequence[NewJob]) -> NewRun:
    """The run with these jobs in the places of its own."""
    following = iter(jobs)
    steps = [
        step if step.job is None else msgspec.structs.replace(step, job=next(following)) for step in new.steps
    ]
    return msgspec.structs.replace(new, steps=steps)
