"""The handle on a job: what is known of it, and waiting for its end."""

from datetime import datetime
from typing import TYPE_CHECKING, Any, Generic, TypeVar

import msgspec

from evenflow.clock import from_us
from evenflow.codec import CallSignature, decode_call, decode_result
from evenflow.errors import JobCancelled, JobEnded, JobExpired, JobFailed
from evenflow.ids import id_text
from evenflow.job import JobError, JobRecord, NewJob, State
from evenflow.store.logs import LogLine

if TYPE_CHECKING:
    from evenflow.client.results import Results

T_co = TypeVar("T_co", covariant=True)

_ENDS: dict[State, type[JobEnded]] = {
    State.FAILED: JobFailed,
    State.QUARANTINED: JobFailed,
    State.EXPIRED: JobExpired,
    State.CANCELLED: JobCancelled,
    State.SKIPPED: JobCancelled,
    State.DISCARDED: JobCancelled,
}
_errors = msgspec.json.Decoder(list[JobError])


class Placed(msgspec.Struct, frozen=True, gc=False):
    """A job that was stored a moment ago, as its call says. Of thousands, few are looked at."""

    new: NewJob
    id: int
    at: int
    is_arriving: bool = False

    def record(self) -> JobRecord:
        new = self.new
        state = State.ARRIVING if self.is_arriving else State.READY if new.run_at is None else State.SCHEDULED
        return JobRecord(
            self.id, state, new.queue, new.task, new.group, new.priority, 0, new.max_attempts, 0, self.at,
            new.run_at or self.at, None, None, new.good_until, None, new.unique_key, new.payload, None, None, None,
            new.headers, new.options, None,
        )  # fmt: skip


class Job(Generic[T_co]):
    """One enqueued call. The attributes are those of the moment it was read; `refresh()` reads again.

    >>> job = add.enqueue(1, 2)           # doctest: +SKIP
    >>> job.result(timeout=10)            # doctest: +SKIP
    3
    """

    __slots__ = ("_known", "_results", "_signature", "is_new")

    def __init__(
        self,
        known: "JobRecord | Placed",
        results: "Results",
        signature: CallSignature | None = None,
        *,
        is_new: bool = True,
    ) -> None:
        self._known = known
        self._results = results
        self._signature = signature
        self.is_new = is_new
        """False where a unique key was taken and this is the job that holds it."""

    @property
    def _record(self) -> JobRecord:
        known = self._known
        if isinstance(known, Placed):
            known = self._known = known.record()
        return known

    @property
    def record(self) -> JobRecord:
        """Everything that is stored of it, as it is stored: for tools that show or translate jobs."""
        return self._record

    @property
    def id(self) -> str:
        """Its name in the store: text that sorts by time."""
        return id_text(self._record.id)

    @property
    def state(self) -> State:
        """Where it was in its life when it was read."""
        return self._record.state

    @property
    def task(self) -> str:
        """The task's name."""
        return self._record.task

    @property
    def queue(self) -> str:
        """The queue it is in."""
        return self._record.queue

    @property
    def group(self) -> str | None:
        """Whose job it is, for fair turns, or None."""
        return self._record.group

    @property
    def priority(self) -> int:
        """-100 to 100, lower first."""
        return self._record.priority

    @property
    def args(self) -> tuple[Any, ...]:
        """The positional arguments, as the annotations say."""
        return decode_call(self._record.payload, self._signature)[0]

    @property
    def kwargs(self) -> dict[str, Any]:
        """The named arguments, as the annotations say."""
        return decode_call(self._record.payload, self._signature)[1]

    @property
    def attempt(self) -> int:
        """How many attempts have begun."""
        return self._record.attempt

    @property
    def max_attempts(self) -> int:
        """How many attempts it may have."""
        return self._record.max_attempts

    @property
    def crashes(self) -> int:
        """How often a process died under it; counted apart from attempts."""
        return self._record.crashes

    @property
    def created_at(self) -> datetime:
        """When it was enqueued, by the database's clock."""
        return from_us(self._record.created_at)

    @property
    def run_at(self) -> datetime:
        """When it is or was due."""
        return from_us(self._record.run_at)

    @property
    def started_at(self) -> datetime | None:
        """When the last attempt was claimed, or None."""
        return _moment(self._record.started_at)

    @property
    def finished_at(self) -> datetime | None:
        """When it ended, or None."""
        return _moment(self._record.finished_at)

    @property
    def good_until(self) -> datetime | None:
        """When it is not worth starting any more, or None."""
        return _moment(self._record.good_until)

    @property
    def errors(self) -> list[JobError]:
        """Every attempt that did not succeed, oldest first."""
        return _errors.decode(self._record.errors) if self._record.errors else []

    @property
    def error(self) -> JobError | None:
        """The last error, or None."""
        errors = self.errors
        return errors[-1] if errors else None

    @property
    def progress(self) -> dict[str, Any] | None:
        """What the body last said with `ctx.progress`: done, total, note."""
        found: dict[str, Any] | None = (
            msgspec.json.decode(self._record.progress) if self._record.progress else None
        )
        return found

    def logs(self) -> list[LogLine]:
        """What the body said with `ctx.log`, oldest first: lines with at, attempt, level, line."""
        return self._results.logs(self._record.id)

    def refresh(self) -> "Job[T_co]":
        """Read the job again, in place. `JobNotFound` if it ended and nothing was kept."""
        self._known = self._results.read(self._record.id)
        return self

    def cancel(self, reason: str = "") -> bool:
        """Stop the job: at once if it does not run yet, else its worker is told. False if it had ended already."""
        return self._results.cancel(self._record.id, reason)

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the end and return what the body returned.

        Raises `JobFailed`, `JobExpired` or `JobCancelled` as it ended, `ResultTimeout` when the time is over
        (0 only looks), `JobNotFound` if it ended without keeping its result.
        """
        self._known = self._results.wait(self._record.id, timeout)
        return self._outcome()

    async def aresult(self, timeout: float | None = None) -> T_co:
        """`result`, awaited; no thread waits meanwhile."""
        self._known = await self._results.await_end(self._record.id, timeout)
        return self._outcome()

    def _outcome(self) -> T_co:
        record = self._record
        if record.state is not State.SUCCEEDED:
            error = self.error
            text = f"job {self.id} ({record.task}) ended {record.state}" + (
                f": {error.code}: {error.message}" if error else ""
            )
            raise _ENDS[record.state](text, job=self, error=error)
        annotation = self._signature.return_annotation if self._signature else Any
        value: T_co = decode_result(record.result or "null", annotation)
        return value

    def __repr__(self) -> str:
        return f"<Job {self.id} {self.task} {self.state}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Job) and other._record.id == self._record.id

    def __hash__(self) -> int:
        return hash(self._record.id)


def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else from_us(stored)
