"""The producer: from bound calls to durable jobs, on our own connection or inside a caller's transaction."""

import asyncio
import threading
from collections.abc import Sequence
from typing import Any

from evenflow.client.handle import Job
from evenflow.client.results import Results
from evenflow.client.task import AnyTask, Call
from evenflow.clock import wall_us
from evenflow.errors import DuplicateJob, EnqueueError
from evenflow.ids import EPOCH_MS, NUMBER_BITS, IdSource, id_text
from evenflow.job import JobRecord, NewJob, State
from evenflow.settings import Settings
from evenflow.signing import KeyRing
from evenflow.store import control
from evenflow.store.callers import adrive_on, drive_on, kind_of
from evenflow.store.engine import Steps, drive
from evenflow.store.enqueue import Enqueued, enqueue_steps
from evenflow.store.open import AnyEngine, open_engine, prepare
from evenflow.store.signals import ARRIVAL, Waker, channel


class Producer:
    """What all tasks of an app share to enqueue: settings, engine, ids, wake-ups."""

    def __init__(self, settings: Settings) -> None:
        self.settings = settings
        self.tasks: dict[str, AnyTask] = {}
        self.engine: AnyEngine = open_engine(settings.database, settings.schema)
        self.keys = KeyRing.build(settings.signing_keys) if settings.signing_keys else None
        self.ids = IdSource()
        self.waker = Waker(self.engine)
        self.results = Results(self.engine, settings.retention, self.make_ready)
        self._ready_lock = threading.Lock()
        self._is_ready = False

    def declared(self, name: str) -> AnyTask | None:
        return self.tasks.get(name)

    def make_ready(self) -> None:
        """Before the first use: tables up to date, declared queues known to the store. Once per app."""
        if self._is_ready:
            return
        with self._ready_lock:
            if not self._is_ready:
                prepare(self.engine)
                for queue in self.settings.queues:
                    control.declare_queue(self.engine, queue)
                self._is_ready = True

    def enqueue(self, calls: Sequence[Call[Any]], connection: Any = None) -> list[Job[Any]]:
        """Store calls: all or none."""
        if not calls:
            return []
        if connection is not None:
            placed = drive_on(connection, self._arriving(calls, connection), self.settings.schema)
            return self._handles(calls, placed, is_arriving=True)
        self.make_ready()
        placed = drive(
            self.engine, enqueue_steps([call.new for call in calls], self.ids, sign=self._signer())
        )
        self.waker.wake(*{call.new.queue for call in calls if call.new.run_at is None})
        if any(call.new.run_at is not None for call in calls):
            self.waker.wake_dispatchers()
        return self._handles(calls, placed)

    async def aenqueue(self, calls: Sequence[Call[Any]], connection: Any = None) -> list[Job[Any]]:
        """`enqueue`, awaited."""
        if connection is None:
            return await asyncio.to_thread(self.enqueue, calls)
        placed = await adrive_on(connection, self._arriving(calls, connection), self.settings.schema)
        return self._handles(calls, placed, is_arriving=True)

    def close(self) -> None:
        self.results.close()
        self.engine.close()

    def _arriving(self, calls: Sequence[Call[Any]], connection: Any) -> Steps[list[Enqueued]]:
        kind = kind_of(connection)
        if kind != self.engine.kind:
            raise EnqueueError(
                f"connection: the jobs live in {self.engine.kind}, this connection is to {kind}; enqueue without connection="
            )
        placed = yield from enqueue_steps(
            [call.new for call in calls], self.ids, arriving=True, sign=self._signer()
        )
        if kind == "postgres" and self.settings.wake_in_transaction:
            yield "wake_with_commit", {"channel": channel(self.settings.schema, "wake"), "payload": ARRIVAL}
        return placed

    def _signer(self) -> Any:
        keys = self.keys
        if keys is None:
            return None

        def sign(job: NewJob, number: int) -> str:
            return keys.sign(
                queue=job.queue, task=job.task, job_id=id_text(number), created_at_us=signed_time_us(number),
                payload=job.payload, group=job.group,
            )  # fmt: skip

        return sign

    def _handles(
        self, calls: Sequence[Call[Any]], placed: list[Enqueued], *, is_arriving: bool = False
    ) -> list[Job[Any]]:
        now = wall_us()
        jobs = []
        for call, place in zip(calls, placed, strict=True):
            if not place.is_new:
                jobs.append(self._existing(call, place))
                continue
            jobs.append(
                Job(_new_record(call.new, place.id, now, is_arriving), self.results, call.task.signature)
            )
        return jobs

    def _existing(self, call: Call[Any], place: Enqueued) -> Job[Any]:
        unique = call.task.policy.unique
        if unique is not None and unique.on_conflict == "error":
            holder = id_text(place.id)
            raise DuplicateJob(
                f"task {call.new.task!r}: job {holder} with the same unique key is open", job_id=holder
            )
        record = _new_record(call.new, place.id, wall_us(), False)
        return Job(record, self.results, call.task.signature, is_new=False)


def signed_time_us(number: int) -> int:
    """The creation time that a signature covers: the one inside the id, known to the signer before the insert."""
    return ((number >> NUMBER_BITS) + EPOCH_MS) * 1000


def _new_record(new: NewJob, number: int, now: int, is_arriving: bool) -> JobRecord:
    state = State.ARRIVING if is_arriving else State.READY if new.run_at is None else State.SCHEDULED
    return JobRecord(
        number, state, new.queue, new.task, new.group, new.priority, 0, new.max_attempts, 0, now, new.run_at or now, None, None,
        new.good_until, None, new.unique_key, new.payload, None, None, None, new.headers, new.options, None,
    )  # fmt: skip
