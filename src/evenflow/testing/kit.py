"""The kit of one test: an app on a database of the test's own, or inside of the test's transaction."""

import asyncio
import contextlib
import secrets
import time
from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Literal

from evenflow import Context, Evenflow, Job, State, Task
from evenflow.clock import Clock, from_us, to_us
from evenflow.database_url import parse_url
from evenflow.durations import Duration, duration_us
from evenflow.ids import EPOCH_MS, NUMBER_BITS, id_text
from evenflow.store import control, reads, schedules
from evenflow.store.borrowed import borrowed_engine
from evenflow.store.open import AnyEngine, open_engine
from evenflow.testing.clock import FakeClock
from evenflow.testing.draining import Drain, Drained, apart_from_loops
from evenflow.testing.matching import (
    OPEN,
    Arguments,
    Moment,
    Named,
    Wanted,
    listing,
    refuse_unknown_names,
    task_name,
    window_of,
)
from evenflow.testing.performing import MemoryJournal, perform

Mode = Literal["manual", "inline"]
AnyTask = Task[Any, Any, Any]
IN_MEMORY = "sqlite:///:memory:"


@contextlib.contextmanager
def manual(
    app: Evenflow, *, url: str | None = IN_MEMORY, connection: Any = None, now: datetime | None = None
) -> Iterator["Kit"]:
    """While the block lasts, what the app enqueues is stored and nothing runs until the test says so.

    The app works on a fresh database in memory; on another one with `url=`, on its own with `url=None`, or with
    `connection=` (as for `enqueue`) on that connection, inside of its transaction: then nothing is left of the test when
    that is rolled back. The app's clock stands still, at `now` or at the present.
    """
    with _kit(app, "manual", url, connection, now) as kit:
        yield kit


@contextlib.contextmanager
def inline(
    app: Evenflow, *, url: str | None = IN_MEMORY, connection: Any = None, now: datetime | None = None
) -> Iterator["Kit"]:
    """As `manual`, but each job runs as soon as it is enqueued, before `enqueue` returns; later ones when the clock has
    come to them and the test drains. A job that fails does not fail its enqueue: look at `job.state` or `job.result()`."""
    with _kit(app, "inline", url, connection, now) as kit:
        yield kit


@contextlib.contextmanager
def _kit(
    app: Evenflow, mode: Mode, url: str | None, connection: Any, now: datetime | None
) -> Iterator["Kit"]:
    producer = app._producer
    former = producer.engine, producer.is_shared, producer.on_enqueued
    own = _engine(app, url, connection)
    if own is not None:
        producer.use(own, is_shared=True, has_tables=connection is not None)
    kit = Kit(app, mode, now)
    try:
        producer.make_ready()
        yield kit
    finally:
        kit.has_ended = True
        producer.on_enqueued = former[2]
        producer.engine.clock.set_us = None
        if own is not None:
            producer.close()
            producer.use(former[0], is_shared=former[1])


def _engine(app: Evenflow, url: str | None, connection: Any) -> AnyEngine | None:
    if connection is not None:
        return borrowed_engine(connection, app.settings.schema, Clock())
    if url is None:
        return None
    return open_engine(parse_url(url), app.settings.schema)


class Kit:
    """What a test does with an app. Made by `manual`, `inline`, or the pytest fixture `evenflow_testing`."""

    def __init__(self, app: Evenflow, mode: Mode, now: datetime | None) -> None:
        self.app = app
        self.mode = mode
        self.has_ended = False
        """Whether the block of this kit is over: the app then works on its own database again."""
        self._producer = app._producer
        self._drain = Drain(app, self._producer.engine, 1 + secrets.randbits(62))
        self.clock = FakeClock(self._producer.engine.clock, now, self._drain.serve)
        """The time of the app; see `FakeClock`."""
        self._since = (time.time_ns() // 1_000_000 - EPOCH_MS) << NUMBER_BITS
        if mode == "inline":
            self._producer.on_enqueued = self._run_inline

    def drain(
        self, queue: str | Sequence[str] | None = None, *, until_empty: bool = True, raises: bool = False
    ) -> Drained:
        """Run what can run now, here, one job after the other; how many runs ended in which state.

        Of all queues that the app serves, or of those that are named. Jobs that the bodies enqueue run as well, unless
        `until_empty=False`: then as many run as are ready now. With `raises` the first error of a body is raised, after
        its end was stored.
        """
        self._refuse_ended()
        queues = [queue] if isinstance(queue, str) else list(queue or self.app.served_queues())
        most = None if until_empty else self._ready(queues)
        return apart_from_loops(lambda: self._drain.run(queues, most=most, raises=raises))

    async def adrain(
        self, queue: str | Sequence[str] | None = None, *, until_empty: bool = True, raises: bool = False
    ) -> Drained:
        """`drain`, awaited: on a thread of its own."""
        return await asyncio.to_thread(self.drain, queue, until_empty=until_empty, raises=raises)

    def run_for(self, by: Duration | None = None, *, raises: bool = False, **parts: float) -> Drained:
        """Let this much time pass, and run everything at the moment when it is due: schedules, retries, delays, rates.

        >>> kit.run_for(hours=24)["succeeded"]              # doctest: +SKIP
        """
        if (by is None) == (not parts):
            raise TypeError("run_for: expected seconds or a timedelta, or parts such as hours=1")
        span = duration_us(timedelta(**parts) if by is None else by)
        return self.run_until(from_us(self.clock.now_us + span), raises=raises)

    def run_until(self, moment: datetime, *, raises: bool = False) -> Drained:
        """`run_for`, up to a moment."""
        ends, total = to_us(moment), Drained()
        while True:
            total += self.drain(raises=raises)
            due = self._next_due()
            if due is None or due > ends:
                break
            self.clock.travel(from_us(due))
        self.clock.travel(moment)
        total += self.drain(raises=raises)
        return total

    def perform(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> Any:
        """Call a task as a worker would, without a job: what it gets and what it returns is encoded and decoded as if it had
        been stored. A Context among the arguments (`kit.context(...)`) is the one that the body gets. Sleeps pass at once;
        what the body raises is raised."""
        if not isinstance(task, Task):
            raise TypeError(
                f"perform: expected a task of Evenflow, got {task!r}; of Django's task: evenflow_task(task)"
            )
        return perform(self.app, task, MemoryJournal(lambda: self.clock.now_us), args, kwargs)

    async def aperform(self, task: AnyTask, /, *args: Any, **kwargs: Any) -> Any:
        """`perform`, awaited: on a thread of its own."""
        return await asyncio.to_thread(self.perform, task, *args, **kwargs)

    def context(self, task: Named = "", *, attempt: int = 1, job_id: str = "", **about: Any) -> Context:
        """A context for `perform` or a plain call: `perform(charge, "bob", ctx=kit.context(attempt=3))`."""
        known = {"fence": attempt, "queue": "default", **about}
        return Context(job_id=job_id or id_text(0), task=task_name(task) or "", attempt=attempt, **known)

    def all_enqueued(
        self, task: Named | None = None, args: Arguments | None = None, *, queue: str | None = None,
        group: str | None = None, priority: int | None = None, state: State | str | None = None,
        run_at: Moment | tuple[Moment, Moment] | None = None,
    ) -> list[Job[Any]]:  # fmt: skip
        """The jobs that are as the arguments say, oldest first.

        Those that are open; in inline mode also those that have ended; with `state=` those in that state (`"any"`: all).
        `args` is a part of the arguments by name, or the first of them in order; a value of it may be a mapping (a part of
        what is there), or a function that says whether it fits. `run_at` is a moment, a delay, or a pair of them.
        """
        wanted = self._wanted(task, args, queue, group, priority, state, run_at)
        return [job for job in self._jobs() if wanted.matches(self.app, job)]

    def assert_enqueued(
        self, task: Named | None = None, args: Arguments | None = None, *, queue: str | None = None,
        group: str | None = None, priority: int | None = None, state: State | str | None = None,
        run_at: Moment | tuple[Moment, Moment] | None = None, count: int | None = None,
    ) -> Job[Any]:  # fmt: skip
        """Fail unless such a job was enqueued, or `count` of them; the first one. See `all_enqueued`.

        >>> kit.assert_enqueued(welcome, {"address": "bob@example.org"}, run_at=timedelta(hours=1))   # doctest: +SKIP
        """
        wanted = self._wanted(task, args, queue, group, priority, state, run_at)
        there = self._jobs()
        found = [job for job in there if wanted.matches(self.app, job)]
        if not found or (count is not None and len(found) != count):
            number = "a job" if count is None else f"{count} jobs"
            raise AssertionError(
                f"expected {number} with {wanted}; found {len(found)}; {listing(self.app, there)}"
            )
        return found[0]

    def refute_enqueued(
        self, task: Named | None = None, args: Arguments | None = None, *, queue: str | None = None,
        group: str | None = None, priority: int | None = None, state: State | str | None = None,
        run_at: Moment | tuple[Moment, Moment] | None = None,
    ) -> None:  # fmt: skip
        """Fail if such a job was enqueued. See `all_enqueued`."""
        wanted = self._wanted(task, args, queue, group, priority, state, run_at)
        there = self._jobs()
        found = [job for job in there if wanted.matches(self.app, job)]
        if found:
            raise AssertionError(
                f"expected no job with {wanted}; found {len(found)}; {listing(self.app, there)}"
            )

    def _wanted(
        self, task: Named | None, args: Arguments | None, queue: str | None, group: str | None,
        priority: int | None, state: State | str | None, run_at: Moment | tuple[Moment, Moment] | None,
    ) -> Wanted:  # fmt: skip
        if isinstance(args, str):
            raise TypeError(
                f"args: expected a mapping or a sequence of arguments, got {args!r}; write ({args!r},)"
            )
        name = task_name(task)
        refuse_unknown_names(self.app, name, args)
        states = OPEN if state is None and self.mode == "manual" else None
        if state is not None and state != "any":
            states = frozenset({State(state)})
        window = window_of(run_at, self.clock.now_us)
        return Wanted(name, args, queue, group, priority, states, window)

    def _jobs(self) -> list[Job[Any]]:
        """All jobs since the kit was made, oldest first."""
        self._refuse_ended()
        return sorted(
            (job for job in self.app.jobs() if job.id >= id_text(self._since)), key=lambda job: job.id
        )

    def _refuse_ended(self) -> None:
        if self.has_ended:
            raise RuntimeError(
                "the block of this kit has ended, and its jobs with it; ask inside of the block"
            )

    def _ready(self, queues: Sequence[str]) -> int:
        self._drain.serve()
        counts = self.app.stats()
        served = {name for name in counts if any(name == each or _covers(each, name) for each in queues)}
        return sum(counts[name].get(State.READY, 0) for name in served)

    def _next_due(self) -> int | None:
        """When something will be due that is not now."""
        engine, now = self._producer.engine, self.clock.now_us
        rows = schedules.found(engine)
        ahead = control.ahead(engine)
        moments = [ahead.due, ahead.free]
        moments += [row.next_run for row in rows if row.paused_at is None]
        return min((each for each in moments if each is not None and each > now), default=None)

    def _run_inline(self, jobs: Sequence[Job[Any]], connection: Any) -> None:
        if connection is None:
            self.drain()
        else:
            self._run_in_transaction(connection)
        found = (
            reads.find(self._producer.engine, [job._record.id for job in jobs]) if connection is None else {}
        )
        for job in jobs:
            if job._record.id in found:
                job._known = found[job._record.id]

    def _run_in_transaction(self, connection: Any) -> None:
        """A job in a caller's transaction is nobody else's to see: it is run on the caller's connection."""
        producer = self._producer
        engine = borrowed_engine(connection, self.app.settings.schema, producer.clock)
        drain = Drain(self.app, engine, 1 + secrets.randbits(62))
        former, is_shared = producer.engine, producer.is_shared
        producer.use(engine, is_shared=True, has_tables=True)
        try:
            apart_from_loops(lambda: drain.run(self.app.served_queues(), most=None, raises=False))
        finally:
            producer.use(former, is_shared=is_shared, has_tables=True)


def _covers(pattern: str, name: str) -> bool:
    return pattern.endswith("*") and name.startswith(pattern[:-1])
