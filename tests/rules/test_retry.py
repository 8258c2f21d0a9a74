"""Retry policies: checked where they are declared, capped after jitter, decided by class and by code."""

from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.durations import duration_seconds
from evenflow.errors import Code, ConfigError
from evenflow.rules.retry import FINAL_CODES, NO_RETRY, Retry, database_delay
from evenflow.signals import Fail, RetryLater

CHANCES = st.floats(0, 1, exclude_max=True)
ATTEMPTS = st.integers(1, 10_000)
SECONDS = st.integers(0, 10_000_000).map(lambda us: us / 1_000_000)
SHAPED = st.builds(
    lambda shape, base, extra, jitter: Retry(backoff=shape, base=base, max=base + extra, jitter=jitter),
    st.sampled_from(["exponential", "linear", "fixed"]),
    SECONDS,
    st.integers(0, 5_000),
    st.booleans(),
)
LISTED = st.builds(
    lambda delays, jitter: Retry(backoff=delays, jitter=jitter),
    st.lists(SECONDS, min_size=1),
    st.booleans(),
)
POLICIES = st.one_of(SHAPED, LISTED)


def plain(policy: Retry, attempts: int = 5) -> list[float]:
    return [policy.delay(attempt, 0.0) for attempt in range(1, attempts + 1)]


def test_exponential_doubles_from_the_base() -> None:
    assert plain(Retry(base=2, jitter=False)) == [2, 4, 8, 16, 32]


def test_linear_adds_the_base() -> None:
    assert plain(Retry(backoff="linear", base=2, jitter=False)) == [2, 4, 6, 8, 10]


def test_fixed_repeats_the_base() -> None:
    assert plain(Retry(backoff="fixed", base=timedelta(seconds=2), jitter=False)) == [2, 2, 2, 2, 2]


def test_a_list_is_followed_and_its_last_entry_repeats() -> None:
    assert plain(Retry(backoff=[1, "10s", timedelta(minutes=1)], jitter=False)) == [1, 10, 60, 60, 60]


def test_jitter_spreads_from_half_to_one_and_a_half() -> None:
    policy = Retry(backoff="fixed", base=10)
    assert (policy.delay(1, 0.0), policy.delay(1, 0.5)) == (5, 10)
    assert policy.delay(1, 0.999) == pytest.approx(14.99)


def test_the_cap_comes_after_jitter() -> None:
    policy = Retry(backoff="fixed", base=10, max=12)
    assert (policy.delay(1, 0.0), policy.delay(1, 0.5)) == (5, 8.5)
    assert policy.delay(1, 0.9999) < 12


def test_delays_at_the_cap_still_differ() -> None:
    policy = Retry(base=1, max=60)
    assert {policy.delay(40, random) for random in (0.0, 0.25, 0.5)} == {30, 37.5, 45}


@given(POLICIES, ATTEMPTS, CHANCES)
def test_no_delay_is_negative_or_above_the_maximum(policy: Retry, attempt: int, random: float) -> None:
    listed = [] if isinstance(policy.backoff, str) else [duration_seconds(each) for each in policy.backoff]
    longest = 1.5 * max(listed) if policy.max is None else duration_seconds(policy.max)
    assert 0 <= policy.delay(attempt, random) <= longest


@given(st.sampled_from(["exponential", "linear", "fixed"]), SECONDS, st.integers(1, 9_999), CHANCES)
def test_a_shape_never_gets_less_patient(shape: Any, base: float, attempt: int, random: float) -> None:
    policy = Retry(backoff=shape, base=base)
    assert policy.delay(attempt, random) <= policy.delay(attempt + 1, random) * (1 + 1e-12)


@given(POLICIES)
def test_equal_declarations_are_equal(policy: Retry) -> None:
    again = Retry(policy.max_attempts, policy.backoff, policy.base, policy.max, policy.jitter)
    assert again == policy
    assert hash(again) == hash(policy)


def test_a_task_without_a_policy_has_one_attempt_and_a_policy_five() -> None:
    assert (NO_RETRY.max_attempts, Retry().max_attempts) == (1, 5)
    assert NO_RETRY.decide(1, 0.5, OSError()) is None


@given(POLICIES, ATTEMPTS, CHANCES)
def test_a_retry_is_decided_while_attempts_are_left(policy: Retry, attempt: int, random: float) -> None:
    expected = policy.delay(attempt, random) if attempt < policy.max_attempts else None
    assert policy.decide(attempt, random, OSError()) == expected


def test_only_the_listed_errors_are_retried() -> None:
    policy = Retry(on=(OSError, "BUSY"))
    assert policy.allows(ConnectionError())
    assert policy.allows(Fail("BUSY"))
    assert policy.allows(code="BUSY")
    assert not policy.allows(ValueError())
    assert not policy.allows(Fail("BROKEN"))


def test_giving_up_wins_over_retrying() -> None:
    policy = Retry(on=OSError, give_up_on=(FileNotFoundError, Code.TASK_TIMEOUT))
    assert policy.allows(ConnectionError())
    assert not policy.allows(FileNotFoundError())
    assert not Retry(give_up_on="BROKEN").allows(Fail("BROKEN"))
    assert not policy.allows(code=Code.TASK_TIMEOUT)


def test_a_code_is_not_taken_for_a_part_of_another() -> None:
    assert not Retry(on="TASK").allows(code=Code.TASK_TIMEOUT)


def test_an_exception_without_a_code_is_an_unhandled_error() -> None:
    assert Retry(on="UNHANDLED_ERROR").allows(ValueError())
    assert not Retry(on="UNHANDLED_ERROR").allows(OSError(), code=Code.TASK_TIMEOUT)


@pytest.mark.parametrize("code", sorted(FINAL_CODES))
def test_final_errors_are_never_retried_and_cannot_be_listed(code: Code) -> None:
    assert not Retry().allows(code=code)
    with pytest.raises(ConfigError, match=f"{code} is final"):
        Retry(on=(code,))


def test_crashes_timeouts_and_contention_follow_the_policy() -> None:
    for code in (Code.WORKER_CRASHED, Code.TASK_TIMEOUT, Code.LOCK_CONTENDED, Code.WORKER_RESOLUTION_ERROR):
        assert Retry().allows(code=code)


def test_retry_later_sets_the_delay_but_adds_no_attempts() -> None:
    later = Retry.later(90)
    assert isinstance(later, RetryLater)
    assert Retry(max_attempts=2, on=OSError, max=5).decide(1, 0.5, later) == 90
    assert Retry(max_attempts=2).decide(2, 0.5, later) is None


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"max_attempts": 0}, "max_attempts: expected"),
        ({"max_attempts": True}, "max_attempts: expected"),
        ({"max_attempts": 10_001}, "max_attempts: expected"),
        ({"backoff": "quadratic"}, "backoff: expected 'exponential', 'linear', 'fixed' or a list"),
        ({"backoff": []}, "backoff: expected"),
        ({"backoff": 5}, "backoff: expected"),
        ({"backoff": [1, -1]}, r"backoff\[1\]: expected"),
        ({"base": -1}, "base: expected"),
        ({"base": "5"}, "base: expected"),
        ({"max": float("nan")}, "max: expected"),
        ({"base": 10, "max": 5}, "max: expected at least base"),
        ({"base": 3601}, "max: expected at least base"),
        ({"backoff": [1, 9], "max": 5}, "max: expected at least the longest entry"),
        ({"jitter": 1}, "jitter: expected True or False"),
        ({"on": (5,)}, "on: expected exception classes or error codes, got 5"),
        ({"on": int}, "on: expected exception classes"),
        ({"on": OSError()}, "on: expected exception classes"),
        ({"give_up_on": ("",)}, "give_up_on: expected"),
    ],
)
def test_a_wrong_policy_is_refused_where_it_is_declared(options: dict[str, Any], text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        Retry(**options)
    assert len(refused.value.mistakes) == 1


def test_all_mistakes_of_a_policy_come_together() -> None:
    with pytest.raises(ConfigError) as refused:
        Retry(max_attempts=0, base=-1, jitter=None, on=3)  # type: ignore[arg-type]
    assert len(refused.value.mistakes) == 4


def test_the_database_is_tried_again_after_doubling_delays() -> None:
    assert [database_delay(500, 30_000, n, 0.5) for n in range(6)] == [0.5, 1, 2, 4, 8, 16]
    assert [database_delay(500, 30_000, n, 0.0) for n in (6, 7, 999)] == [15, 15, 15]


@given(st.integers(100, 60_000), st.integers(500, 300_000), st.integers(0, 100_000), CHANCES)
def test_a_database_delay_never_exceeds_its_maximum(
    initial: int, longest: int, failures: int, random: float
) -> None:
    delay = database_delay(initial, longest, failures, random)
    assert min(initial, longest) / 2_000 <= delay <= longest / 1_000
