"""Every error that Evenflow raises for its callers, and the codes that stored errors carry.

One tree; messages say what was expected, what came and what to do. Imports nothing of Evenflow.

    EvenflowError
    ├── ConfigError                     settings or a declaration are wrong (.mistakes)
    ├── EnqueueError                    refused before anything was written
    │   ├── PayloadError                arguments do not fit the function, or cannot be stored
    │   ├── QueueFull                   the queue is at max_ready and rejects (.queue, .limit, .count)
    │   ├── DuplicateJob                a live job holds the unique key (.job_id)
    │   └── UnknownQueue                the queue is not declared
    ├── JobNotFound (LookupError)       no live or kept job has this id
    ├── UnknownBreaker (LookupError)    no breaker of this name was declared
    ├── ScheduleNotFound (LookupError)  no schedule has this key
    ├── JobEnded                        a job ended without a result (.job, .error)
    │   ├── JobFailed
    │   │   └── RunFailed               a run of a workflow failed
    │   ├── JobExpired
    │   └── JobCancelled
    │       └── RunCancelled            a run of a workflow was cancelled
    ├── EventTimeout (TimeoutError)     the event that a body waits for did not come
    ├── ResultTimeout (TimeoutError)    the wait is over, the job is not
    ├── StoreError                      the database said no
    │   ├── StoreUnavailable            try again
    │   │   └── StoreTooSlow            a read took longer than the one who asked would wait
    │   ├── StoreRefused                do not try again
    │   ├── SchemaError                 the tables do not fit this version
    │   │   ├── SchemaMissing
    │   │   └── SchemaNewer
    │   └── DriverMissing               an extra has to be installed (.extra)
    ├── LeaseLost                       this run no longer owns its job
    ├── SignatureInvalid                the stored job is not what its signer wrote
    ├── DecodeError                     stored data does not fit the annotations
    │   └── DeserializationError        a row that an argument refers to is gone
    ├── ResultError                     the returned value cannot be stored
    ├── RateLimited                     no room in the window (.retry_after)
    └── WorkerCrashed                   the process that ran the job is gone
        ├── ProcessExitError            its supervisor saw it die (.exit_code, .signal)
        └── ProcessPrunedError          its heartbeat ran out
"""

from collections.abc import Iterable
from enum import StrEnum
from typing import Any


class Code(StrEnum):
    """What a stored error is called. Tasks may add codes of their own through `Fail`.

    >>> Code.TASK_TIMEOUT == "TASK_TIMEOUT"
    True
    """

    UNHANDLED_ERROR = "UNHANDLED_ERROR"
    WORKER_SERIALIZATION_ERROR = "WORKER_SERIALIZATION_ERROR"
    WORKER_RESOLUTION_ERROR = "WORKER_RESOLUTION_ERROR"
    WORKER_CRASHED = "WORKER_CRASHED"
    TASK_TIMEOUT = "TASK_TIMEOUT"
    TASK_EXPIRED = "TASK_EXPIRED"
    TASK_CANCELLED = "TASK_CANCELLED"
    LOCK_CONTENDED = "LOCK_CONTENDED"
    BREAKER_OPEN = "BREAKER_OPEN"
    SIGNATURE_INVALID = "SIGNATURE_INVALID"
    WORKFLOW_CONDITION_EVALUATION_ERROR = "WORKFLOW_CONDITION_EVALUATION_ERROR"
    WORKFLOW_CONDITION_SKIPPED = "WORKFLOW_CONDITION_SKIPPED"
    WORKFLOW_DEPENDENCY_FAILED = "WORKFLOW_DEPENDENCY_FAILED"
    WORKFLOW_STEP_FAILED = "WORKFLOW_STEP_FAILED"
    WORKFLOW_SUCCESS_CASE_NOT_MET = "WORKFLOW_SUCCESS_CASE_NOT_MET"


class EvenflowError(Exception):
    """The root of the tree: `except EvenflowError` catches whatever Evenflow itself raises.

    Attributes beyond the message are keyword arguments, so every error survives the way between processes.
    """


class ConfigError(EvenflowError):
    """Settings, a queue or a task declaration are wrong. Mend everything in `.mistakes`, then start again.

    >>> ConfigError(["cluster_wide_cap: expected 1 or more, got 0"]).mistakes
    ['cluster_wide_cap: expected 1 or more, got 0']
    """

    mistakes: list[str]

    def __init__(self, mistakes: str | Iterable[str]) -> None:
        self.mistakes = [mistakes] if isinstance(mistakes, str) else list(mistakes)
        super().__init__(_numbered(self.mistakes))


class EnqueueError(EvenflowError):
    """A job was refused before anything was written. Nothing has to be undone: mend the call, repeat it."""


class PayloadError(EnqueueError):
    """The arguments do not fit the function, or hold a value that cannot be stored; the message names it."""


class QueueFull(EnqueueError):
    """The queue holds `max_ready` jobs and `on_full="reject"`. Try later, or let it overflow.

    `.queue` is its name, `.limit` its bound, `.count` how many jobs count towards it.

    >>> QueueFull("queue 'mail' is full", queue="mail", limit=100, count=100).limit
    100
    """

    def __init__(self, message: str, *, queue: str = "", limit: int = 0, count: int = 0) -> None:
        super().__init__(message)
        self.queue = queue
        self.limit = limit
        self.count = count


class DuplicateJob(EnqueueError):
    """A job already holds the unique key and `on_conflict="error"`. `.job_id` says which."""

    def __init__(self, message: str, *, job_id: str = "") -> None:
        super().__init__(message)
        self.job_id = job_id


class UnknownQueue(EnqueueError):
    """The queue is not declared or its name is malformed. Add it to `queues=` or use `queue_mode="open"`."""


class UnknownBreaker(EvenflowError, LookupError):
    """No breaker of this name was ever declared. Correct the name, or declare it with a task or a queue."""


class JobNotFound(EvenflowError, LookupError):
    """No job has this id: it was never committed, kept no result, or its retention has passed."""


class ScheduleNotFound(EvenflowError, LookupError):
    """No schedule has this key: it was never declared or added, or it was removed."""


class JobEnded(EvenflowError):
    """A job ended without a result. `.job` is the job as it ended, `.error` its `JobError` (or None)."""

    def __init__(self, message: str, *, job: Any = None, error: Any = None) -> None:
        super().__init__(message)
        self.job = job
        self.error = error


class JobFailed(JobEnded):
    """The job ended `failed` or `quarantined`. Read `.error`, mend the cause, then `app.retry(job.id)`."""


class JobExpired(JobEnded):
    """The job's `good_until` passed before it could end. Enqueue it again if the work is still wanted."""


class JobCancelled(JobEnded):
    """The job ended `cancelled`, `skipped` or `discarded`: somebody, or a rule, decided against it."""


class RunFailed(JobFailed):
    """The run of a workflow ended `failed`. `.job` is the run; `run.steps()` tells which step, `run.retry()` tries again."""


class RunCancelled(JobCancelled):
    """The run of a workflow was cancelled. `.job` is the run. Start it anew if the work is still wanted."""


class EventTimeout(EvenflowError, TimeoutError):
    """`ctx.wait_event(…, timeout=…)`: no such event came in time. Catch it where that is an answer too."""


class ResultTimeout(EvenflowError, TimeoutError):
    """`result(timeout=…)` waited long enough; the job goes on. Wait again, or ask `app.why(job.id)`."""


class StoreError(EvenflowError):
    """The database could not do what was asked. The kinds below say whether trying again can help."""


class StoreUnavailable(StoreError):
    """The database is away, busy or ended the connection. The same call may succeed later: try again."""


class StoreTooSlow(StoreUnavailable):
    """A read took longer than the one who asked would wait, and was ended. Ask for less, or again when less is going on."""


class StoreRefused(StoreError):
    """The database answered and said no (rights, constraint, bad file). Trying again cannot help."""


class SchemaError(StoreError):
    """The tables found are not the tables that this version of Evenflow works with."""


class SchemaMissing(SchemaError):
    """The tables are missing or older than this version. Run `evenflow migrate` or `app.migrate()`."""


class SchemaNewer(SchemaError):
    """The tables were migrated by a newer Evenflow. Upgrade this installation; tables never go back."""


class DriverMissing(StoreError):
    """A package that this database or feature needs is not installed.

    >>> str(DriverMissing("psycopg is not installed", extra="postgres"))
    "psycopg is not installed; install it with: pip install 'evenflow[postgres]'"
    """

    def __init__(self, message: str, *, extra: str = "") -> None:
        super().__init__(f"{message}; install it with: pip install 'evenflow[{extra}]'" if extra else message)
        self.extra = extra


class LeaseLost(EvenflowError):
    """This run's (job id, epoch) no longer match: the job has another owner. Drop the result."""


class SignatureInvalid(EvenflowError):
    """A stored job is unsigned, or its signature does not match. It is quarantined; find out who wrote it."""


class DecodeError(EvenflowError):
    """Stored arguments or a stored result do not fit the annotations, as after a changed signature."""


class DeserializationError(DecodeError):
    """A row that an argument refers to is gone, so the job fails. Enqueue in the row's own transaction."""


class ResultError(EvenflowError):
    """The value a task returned cannot be stored. The job fails and is not run again: mend the value."""


class RateLimited(EvenflowError):
    """No start is left in the window. Try again in `.retry_after` seconds."""

    def __init__(self, message: str, *, retry_after: float = 0.0) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class WorkerCrashed(EvenflowError):
    """The process that ran a job ended under it. Recorded with WORKER_CRASHED, never raised in a body."""


class ProcessExitError(WorkerCrashed):
    """A worker process died and its supervisor saw it. `.exit_code` or `.signal` says how.

    >>> ProcessExitError("worker process 41 was ended by SIGKILL", signal="SIGKILL").signal
    'SIGKILL'
    """

    def __init__(self, message: str, *, exit_code: int | None = None, signal: str | None = None) -> None:
        super().__init__(message)
        self.exit_code = exit_code
        self.signal = signal


class ProcessPrunedError(WorkerCrashed):
    """A worker's heartbeat ran out, so its jobs were taken from it: its host is gone, frozen or cut off."""


def _numbered(mistakes: list[str]) -> str:
    if len(mistakes) == 1:
        return mistakes[0]
    lines = [f"{len(mistakes)} mistakes in the configuration:"]
    lines += [f"  {number}. {mistake}" for number, mistake in enumerate(mistakes, start=1)]
    return "\n".join(lines)
