"""How a run ends, from what its body returned or raised. Pure: time and chance are given."""

import asyncio
import dataclasses
import traceback
from typing import Any

import msgspec
import pytest

from evenflow.codec import LONGEST_MESSAGE
from evenflow.errors import Code, DecodeError, ProcessExitError, ResultError, SignatureInvalid
from evenflow.job import Claimed, End, JobError, JudgedEnd
from evenflow.limits import Breaker
from evenflow.rules.retry import NO_RETRY, Retry
from evenflow.settings import Retention
from evenflow.signals import Cancel, Fail, RetryLater, Snooze
from evenflow.worker.outcome import (
    LONGEST_CODE,
    LONGEST_DATA,
    LONGEST_TRACEBACK,
    CancelledByWish,
    Expired,
    Rules,
    TimedOut,
    UnknownTask,
    crashed,
    describe,
    raised,
    released,
    succeeded,
)

NOW = 1_800_000_000_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
RETENTION = Retention(succeeded=DAY // SECOND, failed=60, cancelled=120, expired=180, quarantined=240)


def job(**fields: Any) -> Claimed:
    plain: dict[str, Any] = {
        "id": 7, "epoch": 3, "queue": "default", "task": "mail", "group": None, "priority": 0, "turn": 1.0, "attempt": 1,
        "max_attempts": 5, "crashes": 0, "created_at": NOW, "run_at": NOW, "started_at": NOW, "good_until": None,
        "payload": "[[],{}]", "signature": None, "headers": None, "options": None,
    }  # fmt: skip
    return Claimed(**(plain | fields))


def rules(retry: Retry = NO_RETRY, *, keep_us: int = DAY, max_result_bytes: int = 1000) -> Rules:
    return Rules(retry, keep_us, RETENTION, max_result_bytes)


def end_of(error: BaseException, retry: Retry = NO_RETRY, *, random: float = 0.5, **fields: Any) -> End:
    return raised(job(**({"max_attempts": retry.max_attempts} | fields)), error, rules(retry), NOW, random)


def end_with(value: Any, by: Rules) -> End:
    return succeeded(job(), value, by, lambda: NOW, lambda: 0.5)


def error_of(end: End) -> JobError:
    assert end.error is not None
    return msgspec.json.decode(end.error, type=JobError)


def thrown(act: Any) -> BaseException:
    """An exception as a worker catches it: with its traceback, the worker's own frame first."""
    try:
        act()
    except BaseException as error:
        return error
    raise AssertionError("nothing was raised")


def test_a_result_is_stored_and_kept_as_the_task_says() -> None:
    end = end_with({"a": [1, 2]}, rules(keep_us=5))
    assert end == End(7, 3, "succeeded", 5, result='{"a":[1,2]}')


def test_nothing_returned_is_stored_as_null() -> None:
    assert end_with(None, rules()).result == "null"


@pytest.mark.parametrize("value", [object(), float("nan"), "\ud800", "x" * 2000, {1, object()}])
def test_a_result_that_cannot_be_stored_fails_the_job_and_never_runs_it_again(value: Any) -> None:
    end = end_with(value, rules(Retry(max_attempts=5)))
    assert end.state == "failed"
    assert error_of(end).code == Code.WORKER_SERIALIZATION_ERROR


def test_a_result_that_breaks_the_encoder_fails_the_job_and_never_runs_it_again() -> None:
    @dataclasses.dataclass
    class Hostile:
        a: int = 1

        def __getattribute__(self, name: str) -> Any:
            if name == "a":
                raise RuntimeError("look away")
            return object.__getattribute__(self, name)

    end = end_with(Hostile(), rules(Retry(max_attempts=5)))
    assert end.state == "failed"
    assert error_of(end).code == Code.WORKER_SERIALIZATION_ERROR


@pytest.mark.parametrize("is_raised", [False, True])
def test_a_signal_may_be_returned_or_raised(is_raised: bool) -> None:
    def ended(signal: Any) -> End:
        retry = Retry(max_attempts=5)
        return end_of(signal, retry) if is_raised else end_with(signal, rules(retry))

    assert ended(Snooze(30)) == End(7, 3, "scheduled", run_at=NOW + 30 * SECOND, refund=1)
    assert ended(Cancel("withdrawn")).state == "cancelled"
    assert ended(Retry.later(2)).run_at == NOW + 2 * SECOND
    assert error_of(ended(Fail("NO_FUNDS", "the bank said no", data={"bank": "acme"}))) == JobError(
        "NO_FUNDS", "the bank said no", "Fail", None, {"bank": "acme"}, 1, NOW
    )


def test_a_snooze_of_no_time_is_ready_again_at_once_and_uses_no_attempt() -> None:
    assert end_of(Snooze(0)) == End(7, 3, "ready", refund=1)


def test_a_snooze_does_not_end_a_job_at_its_last_attempt() -> None:
    assert end_of(Snooze(5), attempt=5, max_attempts=5).state == "scheduled"


def test_a_cancel_is_final_and_says_why() -> None:
    end = end_of(Cancel("the account was closed"), Retry(max_attempts=5))
    assert (end.state, end.keep_us) == ("cancelled", 120 * SECOND)
    assert (error_of(end).code, error_of(end).message) == (Code.TASK_CANCELLED, "the account was closed")


def test_retry_later_uses_an_attempt_and_its_own_delay() -> None:
    end = end_of(Retry.later(90), NO_RETRY, attempt=1, max_attempts=2)
    assert (end.state, end.run_at, end.refund) == ("scheduled", NOW + 90 * SECOND, 0)


def test_retry_later_fails_at_the_last_attempt() -> None:
    assert end_of(Retry.later(90), attempt=2, max_attempts=2).state == "failed"


@pytest.mark.parametrize(("attempt", "delay_s"), [(1, 2), (2, 4), (3, 8), (4, 10)])
def test_the_back_off_follows_the_policy(attempt: int, delay_s: int) -> None:
    end = end_of(
        ValueError("no"), Retry(max_attempts=9, base=2, max=10, jitter=False), attempt=attempt, max_attempts=9
    )
    assert (end.state, end.run_at, end.refund) == ("scheduled", NOW + delay_s * SECOND, 0)
    assert error_of(end).attempt == attempt


def test_an_error_fails_the_job_when_its_attempts_are_used_up() -> None:
    end = end_of(ValueError("no"), Retry(max_attempts=9), attempt=9, max_attempts=9)
    assert (end.state, end.keep_us) == ("failed", 60 * SECOND)


def test_the_number_of_attempts_is_the_jobs_own() -> None:
    assert end_of(ValueError("no"), Retry(max_attempts=9), attempt=2, max_attempts=2).state == "failed"


def test_an_error_that_the_policy_does_not_retry_fails_the_job() -> None:
    assert end_of(KeyError("no"), Retry(max_attempts=9, on=(OSError,))).state == "failed"
    assert end_of(OSError("no"), Retry(max_attempts=9, on=(OSError,))).state == "scheduled"
    assert end_of(Fail("FINAL"), Retry(max_attempts=9, give_up_on=("FINAL",))).state == "failed"


def test_an_exception_is_described_with_class_text_and_the_way_there() -> None:
    def outer() -> None:
        inner()

    def inner() -> None:
        raise KeyError("wallet")

    error = describe(thrown(outer))
    assert (error.code, error.message, error.class_name) == (Code.UNHANDLED_ERROR, "'wallet'", "KeyError")
    assert error.traceback is not None
    assert "in inner" in error.traceback and "in outer" in error.traceback
    assert "in thrown" not in error.traceback, "the worker's own frame is no news"


def test_a_class_of_ones_own_is_named_with_its_module() -> None:
    assert describe(ResultlessError()).class_name == f"{__name__}.ResultlessError"


def test_an_exception_without_text_is_described_by_its_class() -> None:
    assert describe(ValueError()).message == "ValueError"


class ResultlessError(Exception):
    """An error of the test's own."""


class UnreadableError(Exception):
    """An error whose text cannot be had."""

    def __str__(self) -> str:
        raise self.args[0]

    __repr__ = __str__


@pytest.mark.parametrize("kind", [RuntimeError, SystemExit])
def test_an_exception_whose_text_cannot_be_read_still_ends_its_job(kind: type[BaseException]) -> None:
    end = end_of(thrown(lambda: _raise_unreadable(kind)))
    assert end.state == "failed"
    assert kind.__name__ in error_of(end).message


def _raise_unreadable(kind: type[BaseException]) -> None:
    raise UnreadableError(kind)


@pytest.mark.parametrize(
    "error", [SystemExit(3), KeyboardInterrupt(), GeneratorExit(), BaseException("base")]
)
def test_exceptions_that_end_programs_end_only_the_job(error: BaseException) -> None:
    end = end_of(error)
    assert end.state == "failed"
    assert error_of(end).class_name == type(error).__name__


def test_a_coroutine_that_cancels_itself_fails_with_a_clear_text() -> None:
    end = end_of(asyncio.CancelledError())
    assert (end.state, error_of(end).class_name) == ("failed", "CancelledError")


@pytest.mark.parametrize(
    ("error", "code", "state"),
    [
        (TimedOut("longer than 3 s"), Code.TASK_TIMEOUT, "failed"),
        (UnknownTask("no task 'x'"), Code.WORKER_RESOLUTION_ERROR, "failed"),
        (DecodeError("argument 'a'"), Code.WORKER_SERIALIZATION_ERROR, "failed"),
        (ResultError("a set"), Code.WORKER_SERIALIZATION_ERROR, "failed"),
        (SignatureInvalid("forged"), Code.SIGNATURE_INVALID, "quarantined"),
        (Expired(), Code.TASK_EXPIRED, "expired"),
        (CancelledByWish("not wanted"), Code.TASK_CANCELLED, "cancelled"),
    ],
)
def test_what_keeps_a_body_from_ending_well_has_its_code(
    error: BaseException, code: Code, state: str
) -> None:
    end = end_of(error)
    assert (end.state, error_of(end).code) == (state, code)


def test_a_timeout_is_tried_again_as_the_policy_says() -> None:
    assert end_of(TimedOut("late"), Retry(max_attempts=3)).state == "scheduled"
    assert end_of(TimedOut("late"), Retry(max_attempts=3, give_up_on=("TASK_TIMEOUT",))).state == "failed"


@pytest.mark.parametrize("error", [DecodeError("a"), ResultError("b"), SignatureInvalid("c"), Expired()])
def test_what_another_attempt_cannot_mend_is_final(error: BaseException) -> None:
    assert end_of(error, Retry(max_attempts=9)).run_at is None


@pytest.mark.parametrize("text", ["nul \0 inside", "lone \ud800 surrogate", "both \0 \udfff", "é ✓ 𝄞"])
def test_every_text_of_an_error_can_be_stored(text: str) -> None:
    for error in (
        ValueError(text),
        Fail(text, text, data={"text": text}),
        Cancel(text),
        CancelledByWish(text),
    ):
        stored = end_of(error).error
        assert stored is not None
        assert "\0" not in stored
        stored.encode()
    assert error_of(end_of(ValueError("é ✓ 𝄞"))).message == "é ✓ 𝄞"


def test_long_texts_are_cut() -> None:
    error = describe(ValueError("x" * 100_000))
    assert len(error.message) == LONGEST_MESSAGE + 1
    code = describe(Fail("C" * 1000, "m" * 100_000))
    assert (len(code.code), len(code.message)) == (LONGEST_CODE + 1, LONGEST_MESSAGE + 1)


def test_a_huge_traceback_keeps_its_end() -> None:
    error = describe(thrown(_endless))
    assert error.class_name == "RecursionError"
    assert error.traceback is not None and len(error.traceback) <= LONGEST_TRACEBACK + 1
    many = describe(thrown(lambda: _chained(200)))
    assert many.traceback is not None and len(many.traceback) == LONGEST_TRACEBACK + 1
    assert many.traceback.endswith("ValueError: link 200 " + "x" * 50 + "\n")


def _endless() -> None:
    _endless()


def _chained(links: int) -> None:
    try:
        if links:
            _chained(links - 1)
    except ValueError as error:
        raise ValueError(f"link {links} " + "x" * 50) from error
    if not links:
        raise ValueError("link 0 " + "x" * 50)


def test_data_that_json_cannot_carry_is_shown_as_text() -> None:
    strange = object()
    assert describe(Fail("A", data={"when": strange})).data == {"when": repr(strange)}
    assert describe(Fail("A", data={"n": float("nan")})).data == {"n": None}
    assert isinstance(describe(Fail("A", data=UnreadableError())).data, str)


def test_huge_data_is_cut() -> None:
    stored = describe(Fail("A", data=["x" * 100] * 1000)).data
    assert isinstance(stored, str) and len(stored) <= LONGEST_DATA


def test_local_variables_are_not_stored() -> None:
    def body() -> None:
        secret = "hunter2"  # noqa: F841 - what a body holds is its own business
        raise ValueError("no")

    assert "hunter2" not in (describe(thrown(body)).traceback or "")
    assert "hunter2" not in traceback.format_exc()


@pytest.mark.parametrize(
    ("crashes", "state", "refund"), [(0, "ready", 1), (1, "ready", 1), (2, "quarantined", 0)]
)
def test_a_crash_is_counted_apart_from_attempts_until_it_quarantines(
    crashes: int, state: str, refund: int
) -> None:
    error = ProcessExitError("isolated process 5 was ended by SIGSEGV", signal="SIGSEGV")
    end = crashed(job(crashes=crashes), error, False, rules(), NOW)
    assert (end.state, end.refund, end.crashed) == (state, refund, 1)
    assert (error_of(end).code, error_of(end).class_name) == (Code.WORKER_CRASHED, "ProcessExitError")


def test_a_crash_fails_where_the_task_says_so() -> None:
    end = crashed(job(), ProcessExitError("gone", exit_code=3), True, rules(), NOW)
    assert (end.state, end.crashed) == ("failed", 1)


def test_a_job_given_back_is_as_if_it_had_not_been_claimed() -> None:
    assert released(job()) == End(7, 3, "ready", refund=1)


def verdict(end: End) -> str:
    """What the end of a guarded run says to its breaker."""
    assert isinstance(end, JudgedEnd)
    (said,) = end.verdicts
    assert said.breaker == "bank"
    return said.outcome


GUARDED = dataclasses.replace(rules(), guards=(("bank", Breaker(ignore=KeyError)),))


@pytest.mark.parametrize(
    ("error", "outcome"),
    [
        (ConnectionError(), "failure"),
        (KeyError(), "none"),
        (Fail("BUSY"), "failure"),
        (RetryLater(1), "failure"),
        (TimedOut("late"), "failure"),
        (asyncio.CancelledError(), "failure"),
        (Snooze(1), "none"),
        (Cancel("no"), "none"),
        (CancelledByWish("no"), "none"),
        (Expired(), "none"),
        (UnknownTask("no"), "none"),
        (SignatureInvalid("no"), "none"),
        (DecodeError("no"), "none"),
        (ResultError("no"), "none"),
    ],
)
def test_an_error_says_to_its_breaker_whether_it_counts(error: BaseException, outcome: str) -> None:
    assert verdict(raised(job(), error, GUARDED, NOW, 0.5)) == outcome


def test_a_success_a_crash_and_a_return_say_what_they_are() -> None:
    assert verdict(end_with(1, GUARDED)) == "success"
    assert verdict(end_with(Snooze(1), GUARDED)) == "none"
    assert verdict(crashed(job(), ProcessExitError("gone"), False, GUARDED, NOW)) == "failure"
    assert verdict(released(job(), GUARDED)) == "none"


def test_a_run_that_no_breaker_guards_ends_without_a_verdict() -> None:
    ends = [end_with(1, rules()), end_of(ValueError()), released(job(), rules())]
    assert not any(isinstance(end, JudgedEnd) for end in ends)
