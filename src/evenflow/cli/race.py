"""The race of the demo: Bob's thousands of files and Alice's one page, once with fair turns and once first come, first served.

Runs real jobs in a real store with the in-process worker; what it reports is read back from the store.
"""

import asyncio
import contextlib
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from evenflow import Evenflow, EvenflowError, Job, Queue, State, Task
from evenflow.ids import id_number
from evenflow.job import JobRecord
from evenflow.store import reads
from evenflow.store.open import AnyEngine

BOB, ALICE = "Bob", "Alice"
FAIR, FIFO = "fair", "first-come"
QUEUES = (Queue(FAIR), Queue(FIFO, fair="fifo"))
SLOTS = 10
WORK_S = 0.001
BATCH = 1000
LOOK_EVERY_S = 0.02
GIVE_UP_S = 120.0
Watch: TypeAlias = Callable[[str, int], None]
UploadTask: TypeAlias = Task[[str], Coroutine[Any, Any, None], None]


@dataclass(frozen=True, slots=True)
class Leg:
    """How one queue did. Times are the store's, in microseconds."""

    queue: str
    enqueued: int
    succeeded: int
    alice_waited_us: int
    took_s: float

    @property
    def lost(self) -> int:
        return self.enqueued - self.succeeded


class Race:
    """Runs one leg after the other on one app: `await Race(app, engine, files=10_000).run(FAIR, watch)`."""

    def __init__(self, app: Evenflow, engine: AnyEngine, files: int) -> None:
        self._app = app
        self._engine = engine
        self._files = files
        self._done = {BOB: 0, ALICE: 0}
        self._upload = self._declared()

    async def run(self, queue: str, watch: Watch) -> Leg:
        """Bob enqueues his files, the worker starts on them, then Alice comes with her page."""
        self._done = {BOB: 0, ALICE: 0}
        upload = self._upload.using(queue=queue)
        started = time.monotonic()
        bobs = await self._enqueue_files(upload)
        async with self._working(queue) as worker:
            await self._until(lambda: self._done[BOB] > 0, worker, watch)
            alices = await upload.aenqueue(ALICE)
            total = {BOB: self._files, ALICE: 1}
            await self._until(lambda: all(self._done[name] >= total[name] for name in total), worker, watch)
        records = self._read([*bobs, alices])
        return Leg(
            queue,
            enqueued=len(bobs) + 1,
            succeeded=sum(record.state is State.SUCCEEDED for record in records),
            alice_waited_us=_waited_us(records[-1]),
            took_s=time.monotonic() - started,
        )

    def _declared(self) -> UploadTask:
        async def upload(tenant: str) -> None:
            await asyncio.sleep(WORK_S)
            self._done[tenant] += 1

        return self._app.task(name="demo.upload", group="tenant")(upload)

    async def _enqueue_files(self, upload: UploadTask) -> list[Job[None]]:
        jobs: list[Job[None]] = []
        while left := self._files - len(jobs):
            jobs += await upload.aenqueue_many([(BOB,)] * min(left, BATCH))
        return jobs

    @contextlib.asynccontextmanager
    async def _working(self, queue: str) -> AsyncIterator[asyncio.Task[None]]:
        worker = asyncio.create_task(self._app.arun_worker(queues=[queue], concurrency=SLOTS))
        try:
            yield worker
        finally:
            worker.cancel()
            # It writes the last ends before it goes. Not `await worker`: a Ctrl-C that comes now would pass for its own end.
            await asyncio.wait([worker])
            if not worker.cancelled():
                worker.result()

    async def _until(self, is_reached: Callable[[], bool], worker: asyncio.Task[None], watch: Watch) -> None:
        ends_at = time.monotonic() + GIVE_UP_S
        while not is_reached():
            if worker.done():
                worker.result()  # what ended it, if it was an error
                raise EvenflowError("the worker of the demo ended before its jobs did")
            if time.monotonic() > ends_at:
                raise EvenflowError(f"the demo's jobs had not ended after {GIVE_UP_S:g} s: {self._done}")
            await asyncio.sleep(LOOK_EVERY_S)
            for name, done in self._done.items():
                watch(name, done)

    def _read(self, jobs: Sequence[Job[None]]) -> list[JobRecord]:
        """The jobs as the store has them, in the same order; those it does not know are left out."""
        numbers = [id_number(job.id) for job in jobs]
        found: dict[int, JobRecord] = {}
        for first in range(0, len(numbers), BATCH):
            found |= reads.find(self._engine, numbers[first : first + BATCH])
        return [found[number] for number in numbers if number in found]


def _waited_us(record: JobRecord) -> int:
    return (record.started_at or record.created_at) - record.created_at
