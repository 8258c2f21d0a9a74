"""Schedules: calls of tasks that recur. Declared in code with `app.recurring`, or added at run time."""

import difflib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any, TypeAlias, Unpack

from evenflow.client.handle import Job
from evenflow.client.producer import Producer
from evenflow.client.schedule_options import ScheduleOptions, key_mistakes, option_mistakes, pattern_mistakes
from evenflow.client.task import AnyTask, Call, Task
from evenflow.clock import MICROSECOND, from_us
from evenflow.codec import CallSignature, decode_call, encode_call, remark
from evenflow.durations import Duration, duration_us
from evenflow.errors import (
    ConfigError,
    DecodeError,
    EnqueueError,
    PayloadError,
    ScheduleNotFound,
    UnknownQueue,
)
from evenflow.ids import id_text
from evenflow.job import NewJob
from evenflow.queues import name_mistakes
from evenflow.rules.recurrence import Pattern
from evenflow.schedule import CatchUp, NewSchedule, Overlap, Source, StoredSchedule
from evenflow.store import schedules as store
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.reads import now_us
from evenflow.store.schedules import Planned


@dataclass(frozen=True, slots=True)
class Schedule:
    """A schedule as it was when it was read. Times are in UTC; `next_run` is None while it does not fire."""

    key: str
    text: str
    """The pattern in words."""
    task: str
    cron: str | None
    every: timedelta | None
    timezone: str
    args: tuple[Any, ...]
    kwargs: dict[str, Any]
    queue: str | None
    priority: int | None
    catch_up: CatchUp
    overlap: Overlap
    jitter: timedelta
    description: str | None
    source: Source
    """`"code"` or `"added"` (at run time)."""
    next_run: datetime | None
    last_run: datetime | None
    last_job: str | None
    paused: bool
    paused_by: str | None
    paused_why: str | None
    served: bool
    """Whether a living scheduler declares it (code) or knows its task (added)."""
    error: str | None
    """Why its last slot could not fire."""


@dataclass(frozen=True, slots=True)
class Stored:
    """A job that a schedule has made, as instrumentation is told of it."""

    id: str


@dataclass(frozen=True, slots=True)
class Fire:
    """What became of one slot of a schedule."""

    slot: datetime
    fired_at: datetime
    outcome: str
    """`enqueued`, `duplicate` (a unique job was open), `overlapped` (the last run was), `failed`, `by hand`."""
    job: str | None


SEQUENCES = (list, tuple)
NOBODY = 0  # no scheduler has this id
# Names for lists: inside of the class below, `list` is its method.
Texts: TypeAlias = list[str]
Rows: TypeAlias = list[Schedule]
Fires: TypeAlias = list[Fire]
Numbers: TypeAlias = list[int]


class Schedules:
    """The schedules of an app: `app.schedules`. Changes at run time last over restarts and deployments."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer
        self._declared: dict[str, NewSchedule] = {}
        self._stored = 0

    @property
    def declared(self) -> Sequence[NewSchedule]:
        """What the code declares."""
        return [*self._declared.values()]

    def declare(
        self,
        task: AnyTask,
        key: str | None,
        cron: str | None,
        every: Duration | None,
        options: ScheduleOptions,
    ) -> None:
        """What `app.recurring` does. ConfigError with every mistake, a key that is declared twice included."""
        name = task.name if key is None else key
        mistakes: Texts = []
        new = self._checked(name, task, cron, every, options, mistakes)
        if name in self._declared and self._declared[name] != new:
            mistakes.append(f"schedule {name!r} is declared twice; give one of them another key=")
        if mistakes or new is None:
            raise ConfigError(mistakes)
        self._declared[name] = new

    def add(
        self, key: str, task: AnyTask | str, *, cron: str | None = None, every: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:  # fmt: skip
        """Add a schedule at run time: `app.schedules.add("report-7", report, cron="0 6 * * *", kwargs={"id": 7})`.

        ConfigError lists every mistake; a key that is taken is one of them.
        """
        mistakes: Texts = []
        new = self._checked(key, self._known(key, task, mistakes), cron, every, options, mistakes)
        if mistakes or new is None:
            raise ConfigError(mistakes)
        if key in self._declared:
            raise ConfigError([_taken_by_code(key)])
        now = self._now()
        if not store.add(self._producer.engine, _planned(new, now), now=now):
            raise ConfigError([self._taken(key)])
        self._producer.waker.wake_schedulers()
        return self.get(key)

    def update(
        self, key: str, *, task: AnyTask | str | None = None, cron: str | None = None, every: Duration | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> Schedule:  # fmt: skip
        """Change a schedule that was added at run time; what is not named stays. A new pattern counts from now."""
        row = self._row(key)
        if row.source == "code":
            raise ConfigError([f"schedule {key!r} is declared in code; change it there"])
        mistakes: Texts = []
        known = self._known(key, row.task if task is None else task, mistakes)
        if cron is None and every is None:
            cron, every = row.cron, None if row.every_us is None else row.every_us * MICROSECOND
        signature = known.signature if known is not None and known.name == row.task else None
        kept = _options_of(row, signature)
        if every is not None:
            del kept["timezone"]  # elapsed time has none
        new = self._checked(key, known, cron, every, {**kept, **options}, mistakes)
        if mistakes or new is None:
            raise ConfigError(mistakes)
        now = self._now()
        if not store.change(self._producer.engine, _planned(new, now), row.fingerprint, now=now):
            raise ConfigError(
                [f"schedule {key!r} was changed by somebody else meanwhile; read it and try again"]
            )
        self._producer.waker.wake_schedulers()
        return self.get(key)

    def pause(self, key: str, *, who: str | None = None, why: str | None = None) -> None:
        """Fire no more, until `resume`. Lasts over restarts and deployments."""
        self._make_ready()
        if not store.pause(self._producer.engine, key, who=remark("who", who), why=remark("why", why)):
            raise self._missing(key)

    def resume(self, key: str) -> bool:
        """Fire again from the next slot on; what the pause kept from firing is not caught up. False if not paused."""
        row = self._row(key)
        next_run = _pattern(row).next_after(self._now())
        is_resumed = store.resume(self._producer.engine, key, next_run)
        self._producer.waker.wake_schedulers()
        return is_resumed

    def run_now(self, key: str) -> Job[Any]:
        """Enqueue its job now, beside its slots, paused or not."""
        call = self._call(self._row(key))
        new, producer = call.new, self._producer
        with self.published([new]) as (jobs, ids):
            placed = store.fire_by_hand(
                producer.engine, key, jobs[0], ids=producer.ids, sign=producer.signer(), now=self._now()
            )
            ids.append(placed.id)
        producer.waker.wake_dispatchers()
        producer.waker.wake(new.queue)
        return producer.handles([call], [placed], is_arriving=bool(new.limits))[0]

    def remove(self, key: str) -> None:
        """Delete a schedule that was added at run time, or one of code that no living program declares any more."""
        self._row(key)
        if not store.remove(self._producer.engine, key):
            raise ConfigError([f"schedule {key!r} is declared in code; remove it there, or pause it"])

    def get(self, key: str) -> Schedule:
        """The schedule with this key, or ScheduleNotFound."""
        return shown(self._row(key))

    def list(self) -> Rows:
        """All schedules of this database, by key."""
        self._make_ready()
        return [shown(row) for row in store.found(self._producer.engine)]

    def fires(self, key: str, *, limit: int = 20) -> Fires:
        """The last slots of a schedule and what became of them, newest first."""
        self._producer.make_tables()
        return [
            Fire(
                from_us(row.slot), from_us(row.fired_at), row.outcome, None if row.job_id is None else id_text(row.job_id)
            )
            for row in store.fires(self._producer.engine, key, top=limit)
        ]  # fmt: skip

    @property
    def task_names(self) -> Texts:
        """The tasks whose jobs can be made here."""
        return [*self._producer.tasks]

    @property
    def sign(self) -> Sign | None:
        """How jobs of this app are signed."""
        return self._producer.signer()

    def job(self, schedule: StoredSchedule) -> NewJob:
        """The job of a schedule, by the task as it is declared here; EnqueueError where it is not, or does not fit."""
        return self._call(schedule).new

    @contextmanager
    def published(self, jobs: Sequence[NewJob]) -> Iterator[tuple[Sequence[NewJob], Numbers]]:
        """Around the jobs of a slot, for instrumentation; whoever stores them puts their ids into the list."""
        with self._producer.published(jobs) as (made, placed):
            ids: Numbers = []
            yield made, ids
            placed += [Stored(id_text(id)) for id in ids]

    def _call(self, schedule: StoredSchedule) -> Call[Any]:
        task = self._producer.tasks.get(schedule.task)
        if task is None:
            raise EnqueueError(
                f"schedule {schedule.key!r}: task {schedule.task!r} is not declared here; "
                "name the app that has it, with --app MODULE:APP on the command line"
            )
        args, kwargs = decode_call(schedule.payload, task.signature)
        if schedule.queue is not None:
            task = task.using(queue=schedule.queue)
        if schedule.priority is not None:
            task = task.using(priority=schedule.priority)
        return task.job(*args, **kwargs)

    def _checked(
        self, key: str, task: AnyTask | None, cron: str | None, every: Duration | None, options: ScheduleOptions,
        mistakes: Texts,
    ) -> NewSchedule | None:  # fmt: skip
        found = [
            *key_mistakes(key),
            *pattern_mistakes(cron, every, options),
            *option_mistakes(options),
            *self._queue_mistakes(options.get("queue")),
        ]
        payload = "" if task is None else self._payload(task, options, found)
        mistakes += [f"schedule {key!r}: {mistake}" for mistake in found]
        if mistakes or task is None:
            return None
        return NewSchedule(
            key, task.name, payload, cron, None if every is None else duration_us(every), options.get("timezone", "UTC"),
            options.get("queue"), options.get("priority"), options.get("catch_up", "skip"),
            options.get("overlap", "allow"), duration_us(options.get("jitter", 0)), options.get("description"),
        )  # fmt: skip

    def _payload(self, task: AnyTask, options: ScheduleOptions, found: Texts) -> str:
        args, kwargs = options.get("args", ()), options.get("kwargs") or {}
        if not isinstance(args, SEQUENCES) or not isinstance(kwargs, Mapping):
            found.append(f"expected args=(…) and kwargs={{…}}, got {args!r} and {kwargs!r}")
            return ""
        try:
            return encode_call(task.signature, args, kwargs, self._producer.settings.max_payload_bytes)
        except PayloadError as wrong:
            found.append(str(wrong))
            return ""

    def _queue_mistakes(self, queue: object) -> Texts:
        if queue is None:
            return []
        if not isinstance(queue, str) or name_mistakes(queue):
            return name_mistakes(queue)
        try:
            self._producer.settings.queue(queue)
        except UnknownQueue as wrong:
            return [str(wrong)]
        return []

    def _known(self, key: str, task: AnyTask | str, mistakes: Texts) -> AnyTask | None:
        known = self._producer.tasks.get(task.name if isinstance(task, Task) else task)
        if known is None:
            mistakes.append(
                f"schedule {key!r}: expected a task of this app, got {task!r}; declare it with @app.task"
            )
        return known

    def _make_ready(self) -> None:
        """What the code declares is in the books, also where no scheduler has run yet. Changes nobody else's word."""
        self._producer.make_ready()
        if self._stored < len(self._declared):
            now = now_us(self._producer.engine)
            planned = [_planned(each, now) for each in self._declared.values()]
            self._stored = len(planned)
            store.declare(self._producer.engine, NOBODY, planned, takes_over=False, now=now)

    def _row(self, key: str) -> StoredSchedule:
        self._make_ready()
        rows = store.found(self._producer.engine, key)
        if not rows:
            raise self._missing(key)
        return rows[0]

    def _missing(self, key: str) -> ScheduleNotFound:
        keys = [row.key for row in store.found(self._producer.engine)]
        near = difflib.get_close_matches(key, keys, n=1)
        advice = (
            f"did you mean {near[0]!r}?"
            if near
            else "evenflow schedules, or app.schedules.list(), shows those that exist"
        )
        return ScheduleNotFound(f"there is no schedule {key!r}; {advice}")

    def _taken(self, key: str) -> str:
        if self._row(key).source == "code":
            return f"{_taken_by_code(key)}, or remove it if no program has it any more"
        return f"schedule {key!r} exists; change it with app.schedules.update({key!r}, …)"

    def _now(self) -> int:
        self._make_ready()
        return now_us(self._producer.engine)


def shown(row: StoredSchedule) -> Schedule:
    """A stored schedule as users see it."""
    args, kwargs = _arguments(row)
    return Schedule(
        key=row.key, text=_words(row), task=row.task, cron=row.cron,
        every=None if row.every_us is None else row.every_us * MICROSECOND, timezone=row.timezone, args=args, kwargs=kwargs,
        queue=row.queue, priority=row.priority, catch_up=row.catch_up, overlap=row.overlap,
        jitter=row.jitter_us * MICROSECOND, description=row.description, source=row.source,
        next_run=from_us(row.next_run) if row.paused_at is None else None,
        last_run=None if row.last_run is None else from_us(row.last_run),
        last_job=None if row.last_job is None else id_text(row.last_job),
        paused=row.paused_at is not None, paused_by=row.paused_by, paused_why=row.paused_why, served=row.is_served,
        error=row.error,
    )  # fmt: skip


def _words(row: StoredSchedule) -> str:
    try:
        return _pattern(row).in_words()
    except ValueError:  # written by a version or a host that knows more
        return row.cron or ""


def _pattern(row: StoredSchedule) -> Pattern:
    return Pattern(row.cron, row.every_us, row.timezone, row.anchor)


def _planned(new: NewSchedule, now: int) -> Planned:
    return Planned(new, Pattern(new.cron, new.every_us, new.timezone, now).next_after(now))


def _arguments(row: StoredSchedule) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # Without the task's annotations: the same on every machine, whatever code it has.
    try:
        return decode_call(row.payload)
    except DecodeError as wrong:
        return (f"<{wrong}>",), {}


def _options_of(row: StoredSchedule, signature: CallSignature | None) -> ScheduleOptions:
    args, kwargs = decode_call(row.payload, signature)
    return ScheduleOptions(
        timezone=row.timezone, args=args, kwargs=kwargs, queue=row.queue, priority=row.priority, catch_up=row.catch_up,
        overlap=row.overlap, jitter=row.jitter_us * MICROSECOND, description=row.description,
    )  # fmt: skip


def _taken_by_code(key: str) -> str:
    return f"schedule {key!r} is declared in code; choose another key"
