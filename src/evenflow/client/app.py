"""The client: declare tasks, enqueue calls, look at jobs and control them."""

import inspect
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec, Self, TypeVar, Unpack, overload

from evenflow.checks import whole
from evenflow.client.breakers import BreakerControl, BreakerStatus, declare_breakers, status_of
from evenflow.client.declaring import declare_task
from evenflow.client.decorators import Declare, DeclareRecurring, Unasked
from evenflow.client.handle import Job
from evenflow.client.history import MinuteRow, TaskRow, minute_rows, task_rows
from evenflow.client.journal import StoredJournal
from evenflow.client.limit_rows import LimitRow, limit_rows
from evenflow.client.options import TaskOptions
from evenflow.client.producer import Producer
from evenflow.client.publishing import refusal_of, rules_of
from evenflow.client.queue_limits import UNSET, Unset, reset_limit, set_limit
from evenflow.client.rates import rate_usage, take_start
from evenflow.client.run import Run
from evenflow.client.schedule_options import ScheduleOptions
from evenflow.client.schedules import Schedules
from evenflow.client.selection import Ids, batches, filter_of, queue_or_task, records
from evenflow.client.snapshot import Snapshot, take_snapshot
from evenflow.client.step import OnError
from evenflow.client.surrounding import Publishing, both
from evenflow.client.task import AnyTask, Call, Task
from evenflow.client.why import Reason, reasons
from evenflow.client.workflow import Workflow
from evenflow.codec import check_text, encode_result
from evenflow.context import Context
from evenflow.durable import LONGEST_NAME
from evenflow.durations import Duration
from evenflow.errors import ConfigError, EnqueueError, JobNotFound
from evenflow.hooks import Hooks
from evenflow.ids import id_number, job_number
from evenflow.job import Claimed, JobRecord, State
from evenflow.limits import Rate
from evenflow.rules.breaker import declared
from evenflow.settings import Options, Settings
from evenflow.store import control, durable, gates, limits, publishing, reads, runs, statistics
from evenflow.store.gates import Gate
from evenflow.store.limits import Limiter
from evenflow.store.open import prepare
from evenflow.store.statistics import Statistic

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")
C = TypeVar("C", bound=Callable[..., Any])


class Client:
    """An app without its worker: what producers and operators use. `Evenflow` adds the worker."""

    def __init__(self, url: str | None = None, **options: Unpack[Options]) -> None:
        self.settings = Settings.build(url, **options)
        if mistakes := declared({}, self.settings.queue_breakers).mistakes:
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
        self, function: Callable[Concatenate[Unasked, P], Coroutine[Any, Any, T]], /
    ) -> Task[..., Coroutine[Any, Any, T], T]: ...
    @overload
    def task(self, function: Callable[Concatenate[Unasked, P], T], /) -> Task[..., T, T]: ...
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
    def task(self, function: None = None, /, **options: Unpack[TaskOptions]) -> Declare: ...
    def task(self, function: Any = None, /, **options: Unpack[TaskOptions]) -> Any:
        """Make a function a task: `@app.task` or `@app.task(queue="docs", group="tenant", retry=Retry())`.

        Options: name, queue, priority (-100..100, lower first), retry, timeout, good_until, group, unique, concurrency,
        rate, breaker, single_instance, on_conflict, on_crash, run_in, keep_result. Every mistake of a declaration is
        reported at once, as ConfigError.
        """
        if function is None:
            return lambda real: declare_task(self._producer, real, options)
        return declare_task(self._producer, function, options)

    def recurring(
        self, cron: str | None = None, *, every: Duration | None = None, key: str | None = None,
        **options: Unpack[ScheduleOptions],
    ) -> DeclareRecurring:  # fmt: skip
        """Let a task recur: `@app.recurring("30 2 * * *", timezone="Europe/Berlin")` above `@app.task`, or above a
        function, which becomes a task. `every=timedelta(minutes=5)` is elapsed time instead of a clock's.

        Options: key (default: the task's name), timezone, args, kwargs, queue, priority, catch_up ("skip", "one",
        "all"), overlap ("allow", "skip"), jitter, description. Mistakes are reported at once, as ConfigError.
        """
        if callable(cron):
            raise ConfigError(
                "recurring: expected a cron expression or every=, got a function; write @app.recurring('0 6 * * *')"
            )

        def declare(given: Any) -> AnyTask:
            task = given if isinstance(given, Task) else declare_task(self._producer, given, {})
            if not task.belongs_to(self._producer):
                raise ConfigError(f"schedule {key or task.name!r}: task {task.name!r} belongs to another app")
            self.schedules.declare(task, key, cron, every, options)
            return task

        return declare  # type: ignore[return-value]

    def enqueue_many(
        self, calls: Iterable[Call[Any]], *, connection: Any = None, ids: Sequence[str] | None = None
    ) -> list[Job[Any]]:
        """Store calls of any tasks in one transaction: `app.enqueue_many([add.job(1, 2), parse.job("bob", "x")])`.

        `ids` are those of the jobs, one for each call, where they were taken before by `reserve_ids`.
        """
        return self._producer.enqueue(list(calls), connection, ids)

    def reserve_ids(self, count: int) -> list[str]:
        """Ids for jobs that are enqueued later, by `enqueue_many(calls, ids=…)`: for those who have to write an id down
        before its job may exist. What is not used is no loss."""
        if wrong := whole("count", count, 1, 100_000):
            raise ValueError(wrong[0])
        return self._producer.reserve_ids(count)

    async def aenqueue_many(self, calls: Iterable[Call[Any]], *, connection: Any = None) -> list[Job[Any]]:
        """`enqueue_many`, awaited."""
        return await self._producer.aenqueue(list(calls), connection)

    def publish_with(self, publishing: Publishing) -> None:
        """Surround every enqueue of this app. For instrumentation, such as `evenflow.tracing`; several may do it, and
        the jobs carry the headers of all."""
        former = self._producer.publishing
        self._producer.publishing = publishing if former is None else both(former, publishing)

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
            try:
                number = id_number(id)
            except ValueError:
                raise JobNotFound(
                    f"there is no run {id!r}: expected the id of a run, or the one that was given to its start; "
                    "evenflow workflows, or app.workflow_runs(), shows those that exist"
                ) from None
        return Run(self._producer.desk, number).refresh()

    def workflow_runs(
        self, *, state: str | None = None, workflow: str | None = None, limit: int = runs.PAGE
    ) -> list[Run[Any]]:
        """Runs, newest first; ValueError for a state that there is not."""
        if state is not None and state not in runs.RUN_STATES:
            raise ValueError(f"state: expected one of {', '.join(runs.RUN_STATES)}, got {state!r}")
        self._producer.make_tables()
        rows = runs.page(self._producer.engine, state=state, name=workflow, top=limit)
        return [Run(self._producer.desk, row.id, row) for row in rows]

    def emit(self, name: str, payload: Any = None) -> int:
        """Tell all who wait for it with `ctx.wait_event(name)`; how many jobs it has woken.

        Events are kept for a week: a job that comes to its wait later finds those since it was made.
        """
        if name == "":
            raise EnqueueError("name: expected the name of an event, got ''")
        self._producer.make_ready()
        text = encode_result(payload, self.settings.max_payload_bytes)
        woken = durable.emit(self._producer.engine, check_text("name", name, LONGEST_NAME), text)
        if woken:
            self._producer.waker.wake_dispatchers()
        return woken

    def journal(self, job: Claimed, now: Callable[[], int]) -> StoredJournal:
        """What the body of a job remembers. For workers."""
        return self._producer.journal(job, now)

    def job(self, id: str) -> Job[Any]:
        """The job with this id, or JobNotFound."""
        return self._handle(self._producer.results.read(job_number(id)))

    def jobs(
        self, *, state: State | str | None = None, queue: str | None = None, task: str | AnyTask | None = None,
        group: str | None = None, limit: int | None = None, before: str | None = None,
    ) -> Iterator[Job[Any]]:  # fmt: skip
        """Jobs newest first, fetched page by page; `before` is the id of the last one seen.

        >>> [job.id for job in app.jobs(state="failed", limit=10)]  # doctest: +SKIP
        """
        wanted = filter_of(state, queue, task, group)
        start = reads.NEWEST if before is None else job_number(before)
        if wrong := whole("limit", limit, 0, optional=True):
            raise ValueError(wrong[0])
        return map(self._handle, records(self._producer, wanted, start, limit))

    def cancel(self, ids: Ids | None = None, reason: str = "", **filters: Any) -> int:
        """Stop jobs, by id or by filter (state, queue, task, group). Running ones are told. How many were open."""
        engine, retention = self._producer.engine, self.settings.retention
        count = sum(
            len(control.cancel(engine, batch, retention, reason))
            for batch in batches(self._producer, ids, filters)
        )
        if count:
            self._producer.waker.announce_ends()
        return count

    def retry(self, ids: Ids | None = None, **filters: Any) -> int:
        """Put failed, quarantined, cancelled, expired or discarded jobs back to work, with all their attempts. How many."""
        count = sum(
            len(control.retry(self._producer.engine, batch))
            for batch in batches(self._producer, ids, filters)
        )
        if count:
            self._producer.waker.wake_dispatchers()
        return count

    def discard(self, ids: Ids | None = None, **filters: Any) -> int:
        """Give jobs up: open ones do not run, failed ones leave the list of the failed. How many."""
        engine, retention = self._producer.engine, self.settings.retention
        count = sum(
            len(control.discard(engine, batch, retention)) for batch in batches(self._producer, ids, filters)
        )
        if count:
            self._producer.waker.announce_ends()
        return count

    def pause(
        self, queue: str | None = None, *, task: str | AnyTask | None = None, who: str | None = None, why: str | None = None,
    ) -> None:  # fmt: skip
        """Start no more jobs of this queue, or of this task in any queue; what runs goes on. Lasts until `resume`, over
        restarts: `app.pause("mail")`, `app.pause(task="charge", why="the bank is closed")`."""
        name = queue_or_task(queue, task)
        if task is None:
            self.settings.queue(name)
        self._producer.make_ready()
        act = control.pause if task is None else gates.pause_task
        act(self._producer.engine, name, who=who, why=why)

    def resume(self, queue: str | None = None, *, task: str | AnyTask | None = None) -> bool:
        """Serve a paused queue, or run a paused task's jobs, again; False if it was not paused."""
        name = queue_or_task(queue, task)
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
        set_limit(self._producer, queue, max_concurrency, max_ready)

    def reset_limit(self, queue: str) -> None:
        """Forget what `set_limit` said: the declaration counts again."""
        reset_limit(self._producer, queue)

    def why(self, id: str) -> list[Reason]:
        """Why this job is not running: the reasons, with numbers and holders.

        >>> [reason.text for reason in app.why(job.id)]  # doctest: +SKIP
        ["queue 'stripe' is at its cap: 3/3 in flight"]
        """
        return reasons(self._producer.engine, self._producer.results.read(job_number(id)))

    def limits(self, prefix: str = "") -> list[LimitRow]:
        """Every limit in use: caps, bounds, keys, locks, groups and rates; or those whose names begin with `prefix`. Of the last
        four kinds the first 1,000 by name."""
        self._producer.make_ready()
        return limit_rows(self._producer.engine, prefix)

    def rate_usage(self, name: str) -> list[Limiter]:
        """How far the rates of a queue or of a task (by its name) are used up in this window."""
        self._producer.make_ready()
        return rate_usage(self._producer.engine, name)

    def rate_reset(self, name: str) -> int:
        """Forget the starts of this window for a queue's or a task's rates; how many rates were reset."""
        rows = self.rate_usage(name)
        for row in rows:
            self._producer.waker.wake(*limits.reset_rate(self._producer.engine, row.name))
        return len(rows)

    def throttle(self, name: str, rate: Rate | str) -> None:
        """Count one start under a rate of one's own, or raise RateLimited with the seconds until there is room."""
        self._producer.make_ready()
        take_start(self._producer.engine, name, rate if isinstance(rate, Rate) else Rate(rate))

    def publish(self, *tasks: AnyTask) -> dict[str, str | None]:
        """Let programs in other languages enqueue these tasks, or all of this app, by the SQL function `evenflow.enqueue`
        (PostgreSQL). Name -> why it will be refused there, or None. Call it again when declarations change.

        >>> app.publish(welcome)  # doctest: +SKIP
        {'shop.welcome': None}
        """
        if self._producer.engine.kind != "postgres":
            raise ConfigError(
                "publish: expected a PostgreSQL database, got SQLite, which has no functions to enqueue by"
            )
        chosen = {task.name: task for task in tasks or self.tasks.values()}
        if foreign := [name for name, task in chosen.items() if not task.belongs_to(self._producer)]:
            raise ConfigError([f"publish: task {name!r} belongs to another app" for name in foreign])
        self._producer.make_ready()
        rules = {name: rules_of(task, self.settings) for name, task in chosen.items()}
        publishing.publish(self._producer.engine, rules)
        return {name: refusal_of(text) for name, text in rules.items()}

    def withdraw(self, *tasks: AnyTask | str) -> list[str]:
        """Let these tasks no longer be enqueued by SQL; the names of those that could be."""
        self._producer.make_ready()
        names = [task if isinstance(task, str) else task.name for task in tasks]
        return publishing.withdraw(self._producer.engine, names)

    def stats(self) -> dict[str, dict[str, int]]:
        """Open jobs: queue -> state -> count."""
        self._producer.make_tables()
        return reads.counts(self._producer.engine)

    def history(
        self, minutes: int = 60, *, queue: str | None = None, task: str | AnyTask | None = None
    ) -> list[MinuteRow]:
        """What has run in the last minutes, one row each, oldest first: how much, how it ended, how long it waited and took.

        Statistics, not accounts: workers report every ten seconds, and one that is killed takes its last report along.

        >>> [(row.at, row.succeeded, row.run_p95) for row in app.history(5)]  # doctest: +SKIP
        """
        self._producer.make_tables()
        name = task.name if isinstance(task, Task) else task
        return minute_rows(self._producer.engine, minutes, queue, name)

    def totals(self, minutes: int | None = None) -> list[TaskRow]:
        """What has run of each task in each queue: since the beginning, or in the last minutes.

        >>> {row.task: row.failed for row in app.totals(minutes=60)}  # doctest: +SKIP
        """
        self._producer.make_tables()
        return task_rows(self._producer.engine, minutes)

    def statistics(self) -> list[Statistic]:
        """The totals of each task in each queue as they are stored, with histograms; `totals` is for people."""
        self._producer.make_tables()
        return statistics.totals(self._producer.engine)

    def snapshot(self) -> Snapshot:
        """One look at everything: queues with their depths and ages, workers, limits and breakers. Bounded reads."""
        declare_breakers(self._producer)
        return take_snapshot(self._producer.engine)

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

    def _handle(self, record: JobRecord) -> Job[Any]:
        task = self.tasks.get(record.task)
        return Job(record, self._producer.results, task.signature if task else None)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
