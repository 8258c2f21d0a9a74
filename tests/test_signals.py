"""Signals: what a body may return or raise."""

import pickle
from datetime import timedelta

import pytest

from evenflow.errors import EvenflowError
from evenflow.signals import Cancel, Fail, RetryLater, Signal, Snooze

EACH = [Fail("CODE", "text", {"a": 1}), Snooze(1.5), Cancel("gone"), RetryLater(timedelta(minutes=1))]


@pytest.mark.parametrize("signal", EACH)
def test_a_signal_can_be_raised(signal: Signal) -> None:
    with pytest.raises(Signal) as caught:
        raise signal
    assert caught.value is signal


@pytest.mark.parametrize("signal", EACH)
def test_a_signal_is_not_an_error_of_evenflow(signal: Signal) -> None:
    assert not isinstance(signal, EvenflowError)


@pytest.mark.parametrize("signal", EACH)
def test_a_signal_survives_the_way_between_processes(signal: Signal) -> None:
    other = pickle.loads(pickle.dumps(signal))
    assert type(other) is type(signal)
    assert vars(other) == vars(signal)


def test_a_failure_carries_code_message_and_data() -> None:
    failure = Fail("CARD_DECLINED", "the bank said no", data={"bank": "acme"})
    assert (failure.code, failure.message, failure.data) == (
        "CARD_DECLINED",
        "the bank said no",
        {"bank": "acme"},
    )
    assert str(failure) == "CARD_DECLINED: the bank said no"


def test_a_failure_without_a_code_is_an_unhandled_error() -> None:
    assert str(Fail()) == "UNHANDLED_ERROR"


@pytest.mark.parametrize("kind", [Snooze, RetryLater])
def test_delays_take_seconds_timedeltas_and_texts(kind: type[Snooze | RetryLater]) -> None:
    assert [kind(each).delay_us for each in (2, timedelta(seconds=2), "2s")] == [2_000_000] * 3


@pytest.mark.parametrize("kind", [Snooze, RetryLater])
@pytest.mark.parametrize("delay", [-1, float("nan"), True, "soon"])
def test_a_delay_that_is_none_is_refused_where_it_is_written(
    kind: type[Snooze | RetryLater], delay: object
) -> None:
    with pytest.raises(ValueError, match="expected"):
        kind(delay)  # type: ignore[arg-type]
