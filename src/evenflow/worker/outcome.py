"""How a run ends: from what a body returned or raised to the one record that is written. Pure; chance and time are given."""

import asyncio
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec

from evenflow.codec import encode_result, storable_text
from evenflow.errors import Code, DecodeError, ProcessExitError, ResultError, SignatureInvalid
from evenflow.job import MAX_CRASHES, Claimed, End, JobError, JudgedEnd, Verdict
from evenflow.limits import Breaker
from evenflow.rules.breaker import counts
from evenflow.rules.retry import Retry
from evenflow.settings import Retention
from evenflow.signals import Cancel, Fail, RetryLater, Signal, Snooze, Suspend
from evenflow.store.control import TOO_LATE
from evenflow.store.retention import kept_us

LONGEST_TRACEBACK = 16_000
LONGEST_CODE = 200
LONGEST_DATA = 16_000
# A host that is out of processes, files or memory needs a moment; a job that came back at once would only add to its load.
START_AGAIN_US = 1_000_000
_encode = msgspec.json.Encoder().encode


class UnknownTask(Exception):
    """The job's task is not in this worker's registry."""


class NotAllowed(Exception):
    """The job's task may not run in the queue where the job is."""


class TimedOut(Exception):
    """The body ran longer than its timeout."""


class LockContended(Exception):
    """The job's lock is held by another job. `skips` ends it without a run; else it is a failed attempt."""

    def __init__(self, message: str, *, skips: bool = False) -> None:
        super().__init__(message)
        self.skips = skips


class Expired(Exception):
    """The job's good_until passed between claim and start."""


class StartedLate(Exception):
    """A rate's job reached its body too long after its claim: it was not entered, and goes back."""


class NoProcess(Exception):
    """The host could not start a process for an isolated body: it was not entered, and its job goes back."""


class CancelledByWish(Exception):
    """Somebody wanted the job to stop, and it did."""


class SkippedByCondition(Exception):
    """A condition of the workflow's step said that it is not to run."""


class ConditionFailed(Exception):
    """A condition of the workflow's step is not known here, or raised."""


class RunPaused(Exception):
    """The run of the workflow was paused between the release of the step and its start."""


@dataclass(frozen=True, slots=True)
class Rules:
    """What decides about the end of a task's runs, with what the call itself said already worked in."""

    retry: Retry
    keep_us: int
    retention: Retention
    max_result_bytes: int
    guards: tuple[tuple[str, Breaker], ...] = ()


def succeeded(
    job: Claimed, value: Any, rules: Rules, now: Callable[[], int], random: Callable[[], float]
) -> End:
    """The end of a body that returned: its result, unless it returned a signal or something that cannot be stored.

    Time and chance are functions here: a result, which is what nearly all bodies return, needs neither.
    """
    result = "null"
    if value is not None:
        if isinstance(value, Signal):
            return raised(job, value, rules, now(), random())
        try:
            result = encode_result(value, rules.max_result_bytes)
        except ResultError as error:
            return raised(job, error, rules, now(), random())
    if not rules.guards:
        return End(
            job.id, job.epoch, "succeeded", rules.keep_us, result=result, run_id=job.run_id, is_plain=job.is_plain
        )  # fmt: skip
    end = End(job.id, job.epoch, "succeeded", rules.keep_us, result=result, run_id=job.run_id)
    return _judged(end, tuple(Verdict(name, "success") for name, _ in rules.guards))


def raised(job: Claimed, error: BaseException, rules: Rules, now: int, random: float) -> End:
    """The end of a body that raised, or that was kept from running."""
    end = _of_error(job, error, rules, now, random)
    return _judged(end, _verdicts(error, rules)) if rules.guards else end


def _of_error(job: Claimed, error: BaseException, rules: Rules, now: int, random: float) -> End:
    match error:
        case Snooze():
            return _back(job, now, error.delay_us, refund=1)
        case StartedLate():
            return unstarted(job)
        case NoProcess():
            return _back(job, now, START_AGAIN_US, refund=1)
        case Suspend():
            return End(
                job.id,
                job.epoch,
                "scheduled",
                run_at=error.until_us,
                refund=1,
                waits_for_event=error.waits_for_event,
            )
        case RunPaused():
            return End(job.id, job.epoch, "waiting", refund=1, run_id=job.run_id)
        case SkippedByCondition():
            return _final(job, "skipped", JobError(Code.WORKFLOW_CONDITION_SKIPPED, _said(error)), rules, now)
        case ConditionFailed():
            described = JobError(Code.WORKFLOW_CONDITION_EVALUATION_ERROR, _said(error))
            return _final(job, "failed", described, rules, now)
        case Cancel():
            return _final(
                job, "cancelled", JobError(Code.TASK_CANCELLED, storable_text(error.reason)), rules, now
            )
        case CancelledByWish():
            return _final(job, "cancelled", JobError(Code.TASK_CANCELLED, _said(error)), rules, now)
        case Expired():
            return _final(job, "expired", TOO_LATE, rules, now)
        case LockContended(skips=True):
            return _final(job, "skipped", JobError(Code.LOCK_CONTENDED, _said(error)), rules, now)
        case SignatureInvalid():
            return _final(job, "quarantined", JobError(Code.SIGNATURE_INVALID, _said(error)), rules, now)
        case NotAllowed():
            return _final(
                job, "quarantined", JobError(Code.WORKER_RESOLUTION_ERROR, _said(error)), rules, now
            )
    described = describe(error)
    delay = _delay(job, error, described.code, rules.retry, random)
    if delay is None:
        return _final(job, "failed", described, rules, now)
    return _back(job, now, int(delay * 1_000_000), error=_stored(job, described, now))


def crashed(job: Claimed, error: ProcessExitError, fails: bool, rules: Rules, now: int) -> End:
    """The end of an isolated body whose process died: counted apart from attempts, as rescue does."""
    described = JobError(Code.WORKER_CRASHED, _said(error), type(error).__qualname__)
    end = End(job.id, job.epoch, "ready", refund=1, crashed=1, error=_stored(job, described, now))
    if fails or job.crashes + 1 >= MAX_CRASHES:
        state = "failed" if fails else "quarantined"
        keep = kept_us(rules.retention, state)
        stored = _stored(job, described, now)
        end = End(job.id, job.epoch, state, keep, crashed=1, error=stored, run_id=job.run_id)
    return _judged(end, _verdicts(error, rules)) if rules.guards else end


def released(job: Claimed, rules: Rules | None = None) -> End:
    """The end of a run that this worker gives back: as if it had not been claimed. A probe makes room for the next."""
    end = End(job.id, job.epoch, "ready", refund=1)
    if rules is None or not rules.guards:
        return end
    return _judged(end, tuple(Verdict(name, "none") for name, _ in rules.guards))


def unstarted(job: Claimed) -> End:
    """The end of a claim whose body was not entered: as `released`, and its rates are not charged either."""
    return End(job.id, job.epoch, "ready", refund=1, unstarted=1)


def describe(error: BaseException) -> JobError:
    """An exception as it is stored: texts only, cut to size, without local variables."""
    match error:
        case Fail():
            code = storable_text(error.code, LONGEST_CODE)
            return JobError(code, storable_text(str(error.message or code)), "Fail", None, _plain(error.data))
        case TimedOut():
            return JobError(Code.TASK_TIMEOUT, _said(error))
        case LockContended():
            return JobError(Code.LOCK_CONTENDED, _said(error))
        case UnknownTask():
            return JobError(Code.WORKER_RESOLUTION_ERROR, _said(error))
        case DecodeError() | ResultError():
            return JobError(Code.WORKER_SERIALIZATION_ERROR, _said(error), type(error).__qualname__)
        case RetryLater():
            return JobError(Code.UNHANDLED_ERROR, "asked to be tried again later", "RetryLater")
        case asyncio.CancelledError():
            return JobError(
                Code.UNHANDLED_ERROR,
                "the coroutine was cancelled from within",
                "CancelledError",
                _trace(error),
            )
    message = _said(error) or _class_name(error)
    return JobError(Code.UNHANDLED_ERROR, message, _class_name(error), _trace(error))


def _judged(end: End, verdicts: tuple[Verdict, ...]) -> JudgedEnd:
    return JudgedEnd(*(*msgspec.structs.astuple(end), verdicts))


def _verdicts(error: BaseException, rules: Rules) -> tuple[Verdict, ...]:
    """What a run that ended with this error says to the breakers that guard it."""
    code = _code(error)
    return tuple(
        Verdict(name, "failure" if code is not None and counts(breaker, error, code) else "none")
        for name, breaker in rules.guards
    )


def _code(error: BaseException) -> str | None:
    """The code that an error is stored with, without its description; None for what is no error."""
    match error:
        case (
            Snooze()
            | Cancel()
            | CancelledByWish()
            | Expired()
            | LockContended()
            | StartedLate()
            | NoProcess()
        ):
            return None
        case Fail():
            return error.code
        case TimedOut():
            return Code.TASK_TIMEOUT
        case ProcessExitError():
            return Code.WORKER_CRASHED
        case UnknownTask() | NotAllowed():
            return Code.WORKER_RESOLUTION_ERROR
        case SignatureInvalid():
            return Code.SIGNATURE_INVALID
        case DecodeError() | ResultError():
            return Code.WORKER_SERIALIZATION_ERROR
        case _:
            return Code.UNHANDLED_ERROR


def _delay(job: Claimed, error: BaseException, code: str, retry: Retry, random: float) -> float | None:
    """Seconds to the next attempt, or None. The job's own number of attempts counts, not the declaration's."""
    if job.attempt >= job.max_attempts:
        return None
    if isinstance(error, RetryLater):
        return error.delay_us / 1_000_000
    return retry.delay(job.attempt, random) if retry.allows(error, code) else None


def _final(job: Claimed, state: str, error: JobError, rules: Rules, now: int) -> End:
    stored = _stored(job, error, now)
    return End(job.id, job.epoch, state, kept_us(rules.retention, state), error=stored, run_id=job.run_id)


def _back(job: Claimed, now: int, delay_us: int, *, refund: int = 0, error: str | None = None) -> End:
    if delay_us <= 0:
        return End(job.id, job.epoch, "ready", refund=refund, error=error)
    return End(job.id, job.epoch, "scheduled", run_at=now + delay_us, refund=refund, error=error)


def _stored(job: Claimed, error: JobError, now: int) -> str:
    return _encode(msgspec.structs.replace(error, attempt=job.attempt, at=now)).decode()


def _class_name(error: BaseException) -> str:
    kind = type(error)
    name = kind.__qualname__ if kind.__module__ == "builtins" else f"{kind.__module__}.{kind.__qualname__}"
    return storable_text(name, LONGEST_CODE)


def _trace(error: BaseException) -> str:
    shown = error.__traceback__.tb_next if error.__traceback__ else None  # without the worker's own frame
    text = storable_text("".join(traceback.format_exception(type(error), error, shown)), limit=None)
    return text if len(text) <= LONGEST_TRACEBACK else "…" + text[-LONGEST_TRACEBACK:]


def _said(error: BaseException) -> str:
    """The exception's own text. A class whose text cannot be had must not keep its job from ending."""
    try:
        return storable_text(str(error))
    except BaseException as second:
        return f"(the text of this error cannot be read: {type(second).__name__})"


def _plain(data: Any) -> Any:
    """Data of a Fail as JSON can carry it; what it cannot is shown as text."""
    try:
        encoded = _encode(msgspec.to_builtins(data, enc_hook=repr))
        return (
            msgspec.json.decode(encoded) if len(encoded) <= LONGEST_DATA else storable_text(encoded.decode())
        )
    except Exception:
        return storable_text(object.__repr__(data))
