"""The context of a run: what a body may know about its job, and say about its progress."""

import logging
from collections.abc import Callable, Mapping
from datetime import datetime
from typing import Any

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
    writes of an attempt that was taken for dead. `cancelled` turns true when somebody wants the job to stop.

    >>> from evenflow import Context
    >>> def resize(ctx: Context, path: str) -> None:
    ...     ctx.progress(1, 10)
    ...     if ctx.cancelled:
    ...         return
    """

    __slots__ = (
        "_cancel_why",
        "_report",
        "attempt",
        "deadline",
        "fence",
        "group",
        "job_id",
        "log",
        "queue",
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
    ) -> None:
        self.job_id = job_id
        self.task = task
        self.attempt = attempt
        self.fence = fence
        self.queue = queue
        self.group = group
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
