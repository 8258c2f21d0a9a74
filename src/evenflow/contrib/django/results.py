"""Evenflow's jobs as Django's results: the same facts in the words of `TaskResult`.

Arguments and results may be of types that JSON has no form for (dates, model rows); where it has one, it is JSON's.
"""

import contextlib
import os
import socket
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

import msgspec
from django.conf import settings
from django.utils import timezone

from evenflow.client.producer import signed_time_us
from evenflow.clock import from_us
from evenflow.codec import CallSignature, decode_call, decode_result
from evenflow.context import Context
from evenflow.contrib.django import compat
from evenflow.contrib.django.references import IN_PAYLOAD, resolved
from evenflow.errors import Code, DeserializationError
from evenflow.ids import id_number, id_text
from evenflow.job import JobError, JobRecord, State
from evenflow.worker.calling import Run

UNKNOWN_WORKER = "unknown"
"""Stands for the workers of earlier attempts, of which only the number is kept."""
# Errors that name no class of a user's, by their code: what to import for them.
_CLASS_OF_CODE: dict[str, str] = {
    Code.TASK_TIMEOUT: "builtins.TimeoutError",
    Code.TASK_CANCELLED: "evenflow.errors.JobCancelled",
    Code.TASK_EXPIRED: "evenflow.errors.JobExpired",
    Code.SIGNATURE_INVALID: "evenflow.errors.SignatureInvalid",
    Code.LOCK_CONTENDED: "evenflow.worker.outcome.LockContended",
    Code.WORKER_RESOLUTION_ERROR: "evenflow.worker.outcome.UnknownTask",
}
_OWN_CLASSES = {
    "Fail": "evenflow.signals.Fail",
    "RetryLater": "evenflow.signals.RetryLater",
    "CancelledError": "asyncio.CancelledError",
}
_OWN_CODES = {Code.WORKER_CRASHED, Code.WORKER_SERIALIZATION_ERROR}
_errors = msgspec.json.Decoder(list[JobError]).decode


@dataclass(frozen=True, slots=True, kw_only=True)
class EvenflowResult(compat.TaskResult):
    """A result whose arguments may be more than JSON can say."""

    def __post_init__(self) -> None:
        object.__setattr__(self, "args", _plain(list(self.args)))
        object.__setattr__(self, "kwargs", _plain(dict(self.kwargs)))


def new_result(
    task: Any,
    alias: str,
    id: str,
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    *,
    enqueued_at: datetime | None,
) -> EvenflowResult:
    """The result of a job that was sent a moment ago, or that waits for a commit."""
    return EvenflowResult(
        task=task, id=id, status=compat.TaskResultStatus.READY, enqueued_at=enqueued_at, started_at=None,
        last_attempted_at=None, finished_at=None, args=list(args), kwargs=dict(kwargs), backend=alias, errors=[],
        worker_ids=[],
    )  # fmt: skip


def sent_at(id: str) -> datetime:
    """When a job was enqueued, as its id tells: the same to whoever sent it and to whoever reads it."""
    return _local(signed_time_us(id_number(id)))


def stored_result(
    record: JobRecord, task: Any, alias: str, signature: CallSignature | None
) -> EvenflowResult:
    """A stored job as a result. `task` is the Django task as it was declared."""
    args, kwargs = decode_call(record.payload, signature)
    ended = record.state.is_end
    result = EvenflowResult(
        task=_sent_task(task, alias, record), id=id_text(record.id), status=_status(record.state),
        enqueued_at=_local(signed_time_us(record.id)), started_at=_moment(record.started_at),
        last_attempted_at=_moment(record.started_at), finished_at=_moment(record.finished_at) if ended else None,
        args=list(args), kwargs=kwargs, backend=alias,
        errors=[task_error(each) for each in (_errors(record.errors) if record.errors else [])],
        worker_ids=_worker_ids(record.attempt, record.worker),
    )  # fmt: skip
    if record.state is State.SUCCEEDED:
        annotation = Any if signature is None else signature.return_annotation
        object.__setattr__(result, "_return_value", _returned(record.result or "null", annotation))
    return result


def running_result(
    run: Run, task: Any, alias: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> EvenflowResult:
    """The result of a job whose body is about to run, for its context and for the signals."""
    job = run.job
    started_at = _local(job.started_at)
    return EvenflowResult(
        task=remade(task, backend=alias, queue_name=job.queue, priority=-job.priority, run_after=None),
        id=id_text(job.id), status=compat.TaskResultStatus.RUNNING, enqueued_at=_local(signed_time_us(job.id)),
        started_at=started_at, last_attempted_at=started_at, finished_at=None, args=list(args), kwargs=dict(kwargs),
        backend=alias, errors=[],
        worker_ids=_workers_so_far(job.attempt),
    )  # fmt: skip


def performed_result(
    about: Context, task: Any, alias: str, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> EvenflowResult:
    """As `running_result`, for a body that a test performs without a job."""
    now = timezone.now()
    return EvenflowResult(
        task=remade(task, backend=alias, queue_name=about.queue, run_after=None), id=about.job_id or id_text(0),
        status=compat.TaskResultStatus.RUNNING, enqueued_at=now, started_at=now, last_attempted_at=now, finished_at=None,
        args=list(args), kwargs=dict(kwargs), backend=alias, errors=[], worker_ids=_workers_so_far(about.attempt),
    )  # fmt: skip


def fail(result: EvenflowResult, error: JobError, at: datetime) -> None:
    """Note on a running result that it has failed."""
    result.errors.append(task_error(error))
    object.__setattr__(result, "status", compat.TaskResultStatus.FAILED)
    object.__setattr__(result, "finished_at", at)


def succeed(result: EvenflowResult, value: Any, at: datetime) -> None:
    """Note on a running result what its body returned."""
    object.__setattr__(result, "_return_value", value)
    object.__setattr__(result, "status", compat.TaskResultStatus.SUCCESSFUL)
    object.__setattr__(result, "finished_at", at)


def task_error(error: JobError) -> Any:
    """An error as Django tells it: the path of its class, and its traceback or its message."""
    name = class_path(error)
    text = error.traceback or f"{name.rpartition('.')[2]}: {error.message}\n"
    return compat.TaskError(exception_class_path=name, traceback=text)


def class_path(error: JobError) -> str:
    """What to import for the class of a stored error.

    >>> class_path(JobError("UNHANDLED_ERROR", "no", "ValueError"))
    'builtins.ValueError'
    """
    name = error.class_name
    if error.code in _OWN_CODES and name is not None:
        return f"evenflow.errors.{name}"
    if name in _OWN_CLASSES:
        return _OWN_CLASSES[name]
    if name is None:
        return _CLASS_OF_CODE.get(error.code, "evenflow.errors.JobEnded")
    return name if "." in name else f"builtins.{name}"


def _status(state: State) -> Any:
    if state is State.RUNNING:
        return compat.TaskResultStatus.RUNNING
    if state is State.SUCCEEDED:
        return compat.TaskResultStatus.SUCCESSFUL
    return compat.TaskResultStatus.FAILED if state.is_end else compat.TaskResultStatus.READY


def _worker_ids(attempts: int, worker: int | None) -> list[str]:
    if attempts == 0:
        return []
    last = UNKNOWN_WORKER if worker is None else id_text(worker)
    return [*[UNKNOWN_WORKER] * (attempts - 1), last]


def _workers_so_far(attempt: int) -> list[str]:
    return [*[UNKNOWN_WORKER] * (attempt - 1), f"{os.getpid()}@{socket.gethostname()}"]


def _plain(value: Any) -> Any:
    try:
        return compat.normalized(value)
    except (TypeError, ValueError):
        return value


def _returned(text: str, annotation: Any) -> Any:
    value = decode_result(text, annotation)
    if IN_PAYLOAD in text:
        with contextlib.suppress(DeserializationError):  # a row that is gone is shown as what it was
            return resolved(value)
    return _plain(value)


def _sent_task(task: Any, alias: str, record: JobRecord) -> Any:
    is_later = record.run_at > record.created_at and not record.errors
    return remade(
        task, backend=alias, queue_name=record.queue, priority=-record.priority,
        run_after=_local(record.run_at) if is_later and record.state is State.SCHEDULED else None,
    )  # fmt: skip


def remade(task: Any, **changes: Any) -> Any:
    """The task with other values, unchecked: a stored job may name a queue that is no longer declared."""
    made = object.__new__(type(task))
    for each in fields(task):
        object.__setattr__(made, each.name, changes.get(each.name, getattr(task, each.name)))
    return made


def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else _local(stored)


def _local(stored: int) -> datetime:
    """A moment as Django's settings want it: aware, or naive in the default time zone."""
    moment = from_us(stored)
    return moment if settings.USE_TZ else timezone.make_naive(moment, timezone.get_default_timezone())
