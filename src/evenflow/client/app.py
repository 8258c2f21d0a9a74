"""The client: declare tasks, enqueue calls, look at jobs and control them."""

import enum
import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from evenflow.checks import whole
from evenflow.client.breakers import BreakerControl, BreakerStatus, declare_breakers, status_of
from evenflow.client.handle import Job
from evenflow.client.journal import LONGEST_EVENT, StoredJournal
from evenflow.client.keyed import rate_limits
from evenflow.client.limit_rows import LimitRow, limit_rows
from evenflow.client.options import TaskOptions, declared_policy
from evenflow.client.producer import Producer
from evenflow.client.run import Run
from evenflow.client.schedule_options import ScheduleOptions
from evenflow.client.schedules import Schedules
from evenflow.client.step import OnError
from evenflow.client.task import LONGEST_NAME, AnyTask, Call, Task, task_name
from evenflow.client.why import Reason, reasons
from evenflow.client.workflow import Workflow
from evenflow.codec import check_text, encode_result
from evenflow.context import Context
from evenflow.durations import Duration
from evenflow.errors import ConfigError, JobNotFound, PayloadError, RateLimited
from evenflow.hooks import Hooks
from evenflow.ids import id_number
from evenflow.job import Claimed, JobRecord, State
from evenflow.limits import Breaker, Rate
from evenflow.rules.breaker import declared
from evenflow.settings import Options, Settings
from evenflow.store import control, durable, gates, limits, reads, runs
from evenflow.store.gates import Gate
from evenflow.store.limits import Limiter
from evenflow.store.open import prepare

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])
_BATCH = 500

Ids = str | Iterable[str]


class Unset(enum.Enum):
    """What an argument is that was not given, where None says something of its own."""

    UNSET = "unset"


UNSET = Unset.UNSET


class _Unasked:
    """For type checkers alone. No function asks for one, so whose first parameter takes it takes anything: that is no
    Context, and its calls go unchecked rather than be held to a signature without their first argument."""


class Client:
    """An app without its worker: what producers and operators use. `Evenflow` adds the worker."""

    def __init__(self, url: str | None = None, **options: Unpack[Options]) -> None:
        self.settings = Settings.build(url, **options)
        if mistakes := declared({}, self._queue_breakers).mistakes:
            raise ConfigError(mistakes)
        self._producer = Producer(self.settings)
        self.hooks = Hooks()
        """What runs when workers start and stop, and around each run: `@app.hooks.on_worker_start` and others."""
        self.schedules = Schedules(self._producer)
        """What recurs: `app.schedules.list()`, and `add`, `update`, `pause`, `resume`, `run_now`, `remove` at run time."""

    @property
    def tasks(self) -> dict[str, AnyTask]:
        """The tasks of this app, by name."""
        return self._producer.tasks

    @overload
    def task(
        self, function: Callable[Concatenate[_Unasked, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, function: Callable[Concatenate[_Unasked, P], T], /) -> Task[..., T, T]: ...
    @overload
    def task(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def task(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    @overload
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> "Declare": ...
    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task: `@app.task` or `@app.task(queue="docs", group="tenant", retry=Retry())`.

        Options: name, queue, priority (-100..100, lower first), retry, timeout, good_until, group, unique, concurrency,
        rate, breaker, single_instance, on_conflict, on_crash, run_in, keep_result. Every mistake of a declaration is
        reported at once, as ConfigError.
        """
        if function is None:
            return lambda real: self._declare(real, options)
        return self._declare(function, options)

    def recurring(
        self, cron: str | None = None, *, every: Duration | None = None, key: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> "DeclareRecurring":  # fmt: skip
        """Let a task recur: `@app.recurring("30 2 * * *", timezone="Europe/Berlin")` above `@app.task`, or above a
        function, which becomes a task. `every=timedelta(minutes=5)` is elapsed time instead of a clock's.

        Options: key (default: the task's name), timezone, args, kwargs, queue, priority, catch_up ("skip", "one",
        "all"), overlap ("allow", "skip"), jitter, description. Mistakes are reported at once, as ConfigError.
        """

        def declare(given: Any) -> AnyTask:
            task = given if isinstance(given, Task) else self._declare(given, {})
            if not task.belongs_to(self._producer):
                raise ConfigError(f"schedule {key or task.name!r}: task {task.name!r} belongs to another app")
            self.schedules.declare(task, key, cron, every, options)
            return task

        return declare  # type: ignore[return-value]

    def enqueue_many(self, calls: Iterable[Call[Any]], *, connection: Any = None) -> list[Job[Any]]:
        """Store calls of any tasks in one transaction: `app.enqueue_many([add.job(1, 2), parse.job("bob", "x")])`."""
        return self._producer.enqueue(list(calls), connection)

    async def aenqueue_many(self, calls: Iterable[Call[Any]], *, connection: Any = None) -> list[Job[Any]]:
        """`enqueue_many`, awaited."""
        return await self._producer.aenqueue(list(calls), connection)

    def workflow(self, name: str, *, on_error: OnError = "fail") -> Workflow:
        """A new workflow to add steps to. `on_error="pause"` pauses a run when one of its steps fails."""
        return Workflow(self._producer, name, on_error)

    def chain(self, first: Call[Any], *tasks: Task[Any, Any, Any], name: str = "chain") -> Workflow:
        """A workflow of steps that each take the result of the one before: `app.chain(fetch.job(url), parse).start()`."""
        made = self.workflow(name)
        made.chain(first, *tasks)
        return made

    def group(self, *calls: Call[Any], name: str = "group") -> Workflow:
        """A workflow of independent calls: `app.group(add.job(1, 2), add.job(3, 4)).start()`. Its result is a dict by
        the steps' names."""
        made = self.workflow(name)
        made.group(*calls)
        return made

    def condition(self, function: C) -> C:
        """Register a condition for `run_when` and `skip_when`, under the function's name: `@app.condition`.

        It is called with the `Conditional` of the step, in the worker, and says True or False.
        """
        name = getattr(function, "__name__", "")
        if not callable(function) or inspect.iscoroutinefunction(function) or not name:
            raise ConfigError(f"condition {name!r}: expected a plain function with a name, got {function!r}")
        if self._producer.conditions.get(name, function) is not function:
            raise ConfigError(f"condition {name!r} is declared twice; give one of them another name")
        self._producer.conditions[name] = function
        return function

    @property
    def conditions(self) -> dict[str, Callable[..., Any]]:
        """The conditions of this app, by name."""
        return self._producer.conditions

    def workflow_run(self, id: str) -> Run[Any]:
        """The run with this id: its own, or the one that was given to `start`. Or JobNotFound."""
        self._producer.make_tables()
        number = runs.find_by_key(self._producer.engine, id)
        if number is None:
            number = _number(id)
        return Run(self._producer.desk, number).refresh()

    def workflow_runs(
        self, *, state: str | None = None, workflow: str | None = None, limit: int = runs.PAGE
    ) -> list[Run[Any]]:
        """Runs, newest first."""
        self._producer.make_tables()
        rows = runs.page(self._producer.engine, state=state, name=workflow, top=limit)
        return [Run(self._producer.desk, row.id, row) for row in rows]

    def emit(self, name: str, payload: Any = None) -> int:
        """Tell all who wait for it with `ctx.wait_event(name)`; how many jobs it has woken.

        Events are kept for a week: a job that comes to its wait later finds those since it was made.
        """
        self._producer.make_ready()
        text = encode_result(payload, self.settings.max_payload_bytes)
        woken = durable.emit(self._producer.engine, check_text("name", name, LONGEST_EVENT), text)
        if woken:
            self._producer.waker.wake_dispatchers()
        return woken

    def journal(self, job: Claimed, now: Callable[[], int]) -> StoredJournal:
        """What the body of a job remembers. For workers."""
        return self._producer.journal(job, now)

    def job(self, id: str) -> Job[Any]:
        """The job with this id, or JobNotFound."""
        return self._handle(self._producer.results.read(_number(id)))

    def jobs(
        self, *, state: State | str | None = None, queue: str | None = None, task: str | AnyTask | None = None,
        group: str | None = None, limit: int | None = None, before: str | None = None,
    ) -> Iterator[Job[Any]]:  # fmt: skip
        """Jobs newest first, fetched page by page; `before` is the id of the last one seen.

        >>> [job.id for job in app.jobs(state="failed", limit=10)]  # doctest: +SKIP
        """
        wanted = _filter(state, queue, task, group)
        start = reads.NEWEST if before is None else _number(before)
        if limit is not None and limit < 0:
            raise ValueError(f"limit: expected 0 or more, got {limit}")
        return self._pages(wanted, start, limit)

    def cancel(self, ids: Ids | None = None, reason: str = "", **filters: Any) -> int:
        """Stop jobs, by id or by filter (state, queue, task, group). Running ones are told. How many were open."""
        engine, retention = self._producer.engine, self.settings.retention
        count = sum(
            len(control.cancel(engine, batch, retention, reason)) for batch in self._batches(ids, filters)
        )
        if count:
            self._producer.waker.announce_ends()
        return count

    def retry(self, ids: Ids | None = None, **filters: Any) -> int:
        """Put failed, quarantined, cancelled, expired or discarded jobs back to work, with all their attempts. How many."""
        count = sum(len(control.retry(self._producer.engine, batch)) for batch in self._batches(ids, filters))
        if count:
            self._producer.waker.wake_dispatchers()
        return count

    def discard(self, ids: Ids | None = None, **filters: Any) -> int:
        """Give jobs up: open ones do not run, failed ones leave the list of the failed. How many."""
        engine, retention = self._producer.engine, self.settings.retention
        count = sum(len(control.discard(engine, batch, retention)) for batch in self._batches(ids, filters))
        if count:
            self._producer.waker.announce_ends()
        return count

    def pause(
        self, queue: str | None = None, *, task: str | AnyTask | None = None, who: str | None = None, why: str | None = None,
    ) -> None:  # fmt: skip
        """Start no more jobs of this queue, or of this task in any queue; what runs goes on. Lasts until `resume`, over
        restarts: `app.pause("mail")`, `app.pause(task="charge", why="the bank is closed")`."""
        name = _one_of(queue, task)
        if task is None:
            self.settings.queue(name)
        self._producer.make_ready()
        act = control.pause if task is None else gates.pause_task
        act(self._producer.engine, name, who=who, why=why)

    def resume(self, queue: str | None = None, *, task: str | AnyTask | None = None) -> bool:
        """Serve a paused queue, or run a paused task's jobs, again; False if it was not paused."""
        name = _one_of(queue, task)
        self._producer.make_ready()
        if task is None:
            resumed = control.resume(self._producer.engine, name)
            self._producer.waker.wake(name)
        else:
            resumed = gates.resume_task(self._producer.engine, name)
            self._producer.waker.wake_dispatchers()
        return resumed

    def paused_tasks(self) -> list[Gate]:
        """Tasks that are paused: their `name`, and when (`shut_at`), by whom and why."""
        self._producer.make_ready()
        return [gate for gate in gates.gates(self._producer.engine) if gate.cause == "pause"]

    def breakers(self) -> list[BreakerStatus]:
        """Every breaker, with its state, its failures, its probe and how many jobs wait behind it.

        >>> [(each.name, each.state, each.waiting) for each in app.breakers()]  # doctest: +SKIP
        [('bank', 'open', 12)]
        """
        declare_breakers(self._producer)
        return [status_of(row) for row in gates.breakers(self._producer.engine)]

    def breaker(self, name: str) -> BreakerControl:
        """The breaker of this name, to be read, opened, closed or reset by hand."""
        return BreakerControl(self._producer, name)

    def set_limit(
        self,
        queue: str,
        *,
        max_concurrency: int | Unset | None = UNSET,
        max_ready: int | Unset | None = UNSET,
    ) -> None:
        """Change a queue's cap or bound over the whole cluster, now and without a restart. None is no limit;
        `max_concurrency=0` holds the queue. What is not named stays as it is.

        Lasts until it is set again, whatever the code declares; `reset_limit` gives the word back to the code.
        """
        self.settings.queue(queue)
        wrong = (
            [] if max_concurrency is UNSET else whole("max_concurrency", max_concurrency, 0, optional=True)
        )
        wrong += [] if max_ready is UNSET else whole("max_ready", max_ready, 1, optional=True)
        if max_concurrency is UNSET and max_ready is UNSET:
            wrong.append("expected max_concurrency= or max_ready=, got neither")
        if wrong:
            raise ConfigError([f"queue {queue!r}: {mistake}" for mistake in wrong])
        self._producer.make_ready()
        if not isinstance(max_concurrency, Unset):
            control.set_cap(self._producer.engine, queue, max_concurrency)
        if not isinstance(max_ready, Unset):
            control.set_bound(self._producer.engine, queue, max_ready)
        self._producer.waker.wake(queue)

    def reset_limit(self, queue: str) -> None:
        """Forget what `set_limit` said: the declaration counts again."""
        declared = self.settings.queue(queue)
        self._producer.make_ready()
        control.set_cap(self._producer.engine, queue, declared.max_concurrency, is_set=False)
        control.set_bound(self._producer.engine, queue, declared.max_ready, is_set=False)
        self._producer.waker.wake(queue)

    def why(self, id: str) -> list[Reason]:
        """Why this job is not running: the reasons, with numbers and holders.

        >>> [reason.text for reason in app.why(job.id)]  # doctest: +SKIP
        ["queue 'stripe' is at its cap: 3/3 in flight"]
        """
        return reasons(self._producer.engine, self._producer.results.read(_number(id)))

    def limits(self, prefix: str = "") -> list[LimitRow]:
        """Every limit in use: caps, bounds, keys, locks, groups and rates; or those whose names begin with `prefix`."""
        self._producer.make_ready()
        return [row for row in limit_rows(self._producer.engine) if row.name.startswith(prefix)]

    def rate_usage(self, name: str) -> list[Limiter]:
        """How far the rates of a queue or of a task (by its name) are used up in this window."""
        self._producer.make_ready()
        engine = self._producer.engine
        return [
            row for kind in ("queue", "task") for row in limits.limiters(engine, prefix=f"rate:{kind}:{name}")
        ]

    def rate_reset(self, name: str) -> int:
        """Forget the starts of this window for a queue's or a task's rates; how many rates were reset."""
        rows = self.rate_usage(name)
        for row in rows:
            self._producer.waker.wake(*limits.reset_rate(self._producer.engine, row.name))
        return len(rows)

    def throttle(self, name: str, rate: Rate | str) -> None:
        """Count one start under a rate of one's own, or raise RateLimited with the seconds until there is room."""
        self._producer.make_ready()
        checked = Rate(rate) if isinstance(rate, str) else rate
        for limit in rate_limits(f"rate:throttle:{check_text('name', name)}", checked):
            assert limit.window_us is not None
            granted, free_at = limits.take_token(
                self._producer.engine, limit.name, limit.most, limit.window_us
            )
            if not granted:
                wait_us = 0 if free_at is None else free_at - reads.now_us(self._producer.engine)
                raise RateLimited(
                    f"rate {name!r} is used up: {checked.limit}", retry_after=max(0.0, wait_us / 1e6)
                )

    def stats(self) -> dict[str, dict[str, int]]:
        """Open jobs: queue -> state -> count."""
        self._producer.make_tables()
        return reads.counts(self._producer.engine)

    def queues(self) -> list[reads.QueueRow]:
        """Every queue that was declared, paused or used."""
        self._producer.make_ready()
        return reads.queues(self._producer.engine)

    def prepare(self) -> None:
        """Tables up to date, declared queues known to the store. Done by itself before the first use."""
        self._producer.make_ready()

    def migrate(self) -> list[str]:
        """Create or update the tables; the names of the migrations that were applied."""
        return prepare(self._producer.engine)

    def close(self) -> None:
        """Give connections back. The app can be used again afterwards."""
        self._producer.close()

    def _declare(self, function: Callable[..., Any], options: TaskOptions) -> AnyTask:
        given = options.get("name")
        name = task_name(function) if given is None else given
        try:
            check_text("name", name, LONGEST_NAME)
        except PayloadError as wrong:
            raise ConfigError(f"task {name!r}: {wrong}") from None
        if not name:
            raise ConfigError(
                "task '': expected a name of at least one character; leave name= out for the function's own"
            )
        if (known := self.tasks.get(name)) is not None and known.function is not function:
            raise ConfigError(f"task {name!r} is declared twice; give one of them another name=")
        policy, found = declared_policy(options)
        mistakes = [f"task {name!r}: {mistake}" for mistake in found]
        if not found and policy.breaker is not None:
            others = {each: task.policy.breaker for each, task in self.tasks.items() if each != name}
            mistakes += declared({**others, name: policy.breaker}, self._queue_breakers).mistakes
        try:
            task: AnyTask = Task(function, name, policy, self._producer)
        except ConfigError as wrong:
            mistakes += wrong.mistakes
        if mistakes:
            raise ConfigError(mistakes)
        self._producer.tasks[name] = task
        return task

    @property
    def _queue_breakers(self) -> dict[str, Breaker | None]:
        return {queue.name: queue.breaker for queue in self.settings.queues}

    def _pages(self, wanted: reads.Filter, before: int, limit: int | None) -> Iterator[Job[Any]]:
        self._producer.make_tables()
        left = reads.NEWEST if limit is None else limit
        while left and (
            page := reads.page(self._producer.engine, wanted, before=before, top=min(left, reads.PAGE))
        ):
            yield from map(self._handle, page)
            left -= len(page)
            before = page[-1].id

    def _handle(self, record: JobRecord) -> Job[Any]:
        task = self.tasks.get(record.task)
        return Job(record, self._producer.results, task.signature if task else None)

    def _batches(self, ids: Ids | None, filters: dict[str, Any]) -> Iterator[Sequence[int]]:
        """The ids that were named or that match, in batches; a filter is read before anything of its batch changes."""
        self._producer.make_ready()
        if (ids is None) == (not filters):
            raise TypeError("expected ids or a filter (state=, queue=, task=, group=), and not both")
        if ids is not None:
            numbers = [_number(ids)] if isinstance(ids, str) else [_number(each) for each in ids]
            yield from (numbers[start : start + _BATCH] for start in range(0, len(numbers), _BATCH))
            return
        wanted = _filter(**{"state": None, "queue": None, "task": None, "group": None, **filters})
        before = reads.NEWEST
        while page := reads.page(self._producer.engine, wanted, before=before, top=_BATCH):
            before = page[-1].id
            yield [record.id for record in page]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class Declare:
    """What `@app.task(...)` with options is to a type checker; never instantiated."""

    @overload
    def __call__(
        self, function: Callable[Concatenate[_Unasked, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Unasked, P], T], /) -> Task[..., T, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    def __call__(self, function: Any, /) -> Any:
        return function


class DeclareRecurring:
    """What `@app.recurring(...)` is to a type checker; never instantiated."""

    @overload
    def __call__(self, function: Task[P, R, T], /) -> Task[P, R, T]: ...  # type: ignore[overload-overlap]
    @overload
    def __call__(
        self, function: Callable[Concatenate[_Unasked, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[_Unasked, P], T], /) -> Task[..., T, T]: ...
    @overload
    def __call__(
        self, function: Callable[Concatenate[Context, P], Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(
        self, function: Callable[P, Coroutine[Any, Any, T]], /
    ) -> Task[P, Coroutine[Any, Any, T], T]: ...
    @overload
    def __call__(self, function: Callable[Concatenate[Context, P], T], /) -> Task[P, T, T]: ...
    @overload
    def __call__(self, function: Callable[P, T], /) -> Task[P, T, T]: ...
    def __call__(self, function: Any, /) -> Any:
        return function


def _one_of(queue: str | None, task: str | AnyTask | None) -> str:
    if (queue is None) == (task is None):
        raise TypeError("expected a queue or task=, and not both")
    if task is None:
        assert queue is not None
        return queue
    return check_text("task", task.name if isinstance(task, Task) else task, LONGEST_NAME)


def _number(id: str) -> int:
    try:
        return id_number(id)
    except ValueError as wrong:
        raise JobNotFound(str(wrong)) from None


def _filter(
    state: State | str | None, queue: str | None, task: str | AnyTask | None, group: str | None
) -> reads.Filter:
    if state is not None and state not in State.__members__.values():
        raise ValueError(f"state: expected one of {', '.join(State)}, got {state!r}")
    name = task.name if isinstance(task, Task) else task
    return reads.Filter(None if state is None else State(state), queue, name, group)
