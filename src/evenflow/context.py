"""The context of a run: what a body may know about its job, say about its progress, and remember between attempts."""

import logging
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from datetime import datetime
from typing import Any

from evenflow.codec import Reference
from evenflow.durable import Durable, Journal
from evenflow.durations import Duration
from evenflow.errors import EvenflowError

Report = Callable[[Mapping[str, Any]], None]
Say = Callable[[str, str], None]


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """The log of a run: goes where the logger `evenflow.task` goes, and is kept with the job from level INFO up."""

    def __init__(self, extra: Mapping[str, object], say: Say | None) -> None:
        super().__init__(logging.getLogger("evenflow.task"), extra)
        self._say = say

    def log(self, level: int, msg: object, *args: object, **kwargs: Any) -> None:
        """Log a line, as any logger does."""
        super().log(level, msg, *args, **kwargs)
        if self._say is not None and level >= logging.INFO:
            self._say(logging.getLevelName(level), _message(level, msg, args))


def _message(level: int, msg: object, args: tuple[object, ...]) -> str:
    """The line as loggers write it. One that does not fit its arguments fails no job: logging has complained already."""
    record = logging.LogRecord("", level, "", 0, msg, args, None)
    try:
        return record.getMessage()
    except Exception:
        return f"{msg} {args}"


class Context:
    """Passed to a parameter annotated `Context`; not part of the call.

    `fence` grows with every claim of the job: a store that remembers the greatest fence it has seen can refuse the
    writes of an attempt that was taken for dead. `cancelled` turns true when somebody wants the job to stop. `headers` is
    what instrumentation sent along with the job, such as the context of a trace.

    >>> from evenflow import Context
    >>> def resize(ctx: Context, path: str) -> None:
    ...     ctx.progress(1, 10)
    ...     if ctx.cancelled:
    ...         return
    """

    __slots__ = (
        "_cancel_why",
        "_durable",
        "_report",
        "_transact",
        "attempt",
        "deadline",
        "fence",
        "group",
        "headers",
        "job_id",
        "log",
        "queue",
        "run_id",
        "step_name",
        "task",
    )

    def __init__(
        self,
        *,
        job_id: str,
        task: str,
        attempt: int,
        fence: int,
        queue: str,
        group: str | None = None,
        deadline: datetime | None = None,
        report: Report | None = None,
        say: Say | None = None,
        journal: Journal | None = None,
        is_async: bool = False,
        run_id: str | None = None,
        step_name: str | None = None,
        headers: Mapping[str, str] | None = None,
        transact: Callable[[], Any] | None = None,
    ) -> None:
        self._transact = transact
        self.run_id = run_id
        self.step_name = step_name
        self._durable = Durable(journal, is_async=is_async)
        self.job_id = job_id
        self.task = task
        self.attempt = attempt
        self.fence = fence
        self.queue = queue
        self.group = group
        self.headers: Mapping[str, str] = headers or {}
        self.deadline = deadline
        self.log = JobLog({"job_id": job_id, "task": task, "attempt": attempt, "queue": queue}, say)
        self._cancel_why: str | None = None
        self._report = report

    @property
    def cancelled(self) -> bool:
        """Whether somebody wants this run to end. Look at it between steps of long work."""
        return self._cancel_why is not None

    @property
    def cancel_reason(self) -> str | None:
        """What was said with the wish to cancel."""
        return self._cancel_why

    def cancel(self, why: str) -> None:
        """Turn `cancelled` on. For the worker."""
        self._cancel_why = why

    def progress(self, done: float, total: float | None = None, note: str | None = None) -> None:
        """Say how far the work is; stored about once a second and shown with the job."""
        if self._report is not None:
            self._report({"done": done, "total": total, "note": note})

    def transaction(self) -> Any:
        """A connection to the queue's database in a transaction that is committed together with the end of this job, when
        the body has returned: `with ctx.transaction() as connection`, in coroutines `async with`. What the body does
        there happens exactly once: it is rolled back where the body raises, the process dies, or the job has another
        owner. One per run; leave commit and rollback to the worker, and enqueue with `connection=connection`.

        >>> def pay(ctx: Context, account: str, cents: int) -> None:
        ...     with ctx.transaction() as connection:
        ...         connection.execute("update account set cents = cents - ? where name = ?", (cents, account))
        """
        if self._transact is None:
            raise EvenflowError("ctx.transaction(): there is one for jobs in workers, not in a plain call")
        return self._transact()

    def step(self, name: str, function: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call a function once, over all attempts of this job: its result is stored, and later attempts get it from
        there. Each step of a body needs a name of its own. Awaited in coroutines.

        >>> def order(ctx: Context, item: str) -> str:
        ...     paid = ctx.step("pay", pay, item)      # not paid again when what follows fails
        ...     return ctx.step("ship", ship, item, paid)
        """
        return self._durable.step(name, function, args, kwargs)

    def sleep(self, time: Duration, *, name: str | None = None) -> Any:
        """Go on after this time, without a slot meanwhile: the body is entered again, and what it did in steps is not
        done again. Uses no attempt. Awaited in coroutines."""
        return self._durable.sleep(time, name)

    def wait_event(self, name: str, timeout: Duration | None = None) -> Any:
        """The payload of the next event of this name (`app.emit`) since the job was made, waited for without a slot.
        Raises `EventTimeout` where none comes in time. Awaited in coroutines."""
        return self._durable.wait_event(name, timeout)

    def add_step(
        self, task: Any, /, *args: Any, name: str | None = None, after: Any = (), kwargs: Mapping[str, Any] | None = None,
        **named: Any,
    ) -> Any:  # fmt: skip
        """In a step of a workflow: add a step to the run. Whoever waits for this step waits for that one as well.
        Adding it again in a later attempt changes nothing. The id of its job. Awaited in coroutines."""
        return self._durable.add_step(task, args, {**named, **(kwargs or {})}, name, after)

    def output(self, name: str) -> Reference:
        """The result of another step of this run, as an argument for `add_step`, which then waits for it."""
        return Reference(name)

    def spread(self) -> int:
        """For the built-in task of a fan-out."""
        return self._durable.spread()


is_tested: ContextVar[bool] = ContextVar("evenflow_is_tested", default=False)
"""Whether a test runs bodies on its own thread, one after the other."""
performed: ContextVar[Context | None] = ContextVar("evenflow_performed", default=None)
"""The context of a body that a test calls without a job. What is put around bodies finds it here."""
