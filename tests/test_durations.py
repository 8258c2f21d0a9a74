"""Durations and rates: a strict grammar that reads back what it writes."""

import contextlib
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.durations import (
    LONGEST_US,
    duration_seconds,
    duration_us,
    format_duration,
    format_rate,
    parse_rate,
)

LENGTHS = st.integers(0, LONGEST_US)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("30s", 30), ("5 minutes", 300), ("1 minute", 60), ("1h", 3600), ("2 hours", 7200), ("1d", 86_400),
        ("2 weeks", 1_209_600), ("250ms", 0.25), ("1.5h", 5400), ("10 sec", 10), ("3 mins", 180),
        ("7us", 7e-6),
    ],
)  # fmt: skip
def test_texts_with_units_are_read(text: str, seconds: float) -> None:
    assert duration_us(text) == round(seconds * 1_000_000)


@pytest.mark.parametrize(
    "text",
    [
        "", "30", "1.5", "s", "30 S", "1H", "-5s", "+5s", "5  s", " 5s", "5s ", "1e3s", "1h30m", "5 months",
        ".5s", "5.s", "٣s", "5s\n", "0.5us", "inf s", "1_000s",
    ],
)  # fmt: skip
def test_anything_else_is_refused_rather_than_guessed(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        duration_us(text)


@pytest.mark.parametrize(
    "value",
    [True, None, [], float("nan"), float("inf"), -1, -0.5, 1e-9, timedelta(days=-1), 10**12, "40000 days"],
)
def test_values_without_a_sensible_length_are_refused(value: object) -> None:
    with pytest.raises(ValueError, match="expected"):
        duration_us(value)  # type: ignore[arg-type]


def test_a_fraction_finer_than_a_microsecond_is_never_cut_off() -> None:
    with pytest.raises(ValueError, match="whole microseconds"):
        duration_us("1.00000000000000000000000000000000001s")


def test_numbers_are_seconds() -> None:
    assert (duration_us(90), duration_us(0.1), duration_us(0)) == (90_000_000, 100_000, 0)
    assert duration_seconds(timedelta(minutes=1)) == 60.0


@given(LENGTHS)
def test_a_written_duration_reads_back_the_same(length: int) -> None:
    assert duration_us(format_duration(length)) == length


@given(LENGTHS)
def test_a_timedelta_and_its_text_agree(length: int) -> None:
    assert duration_us(timedelta(microseconds=length)) == duration_us(f"{length}us") == length


@given(st.text(max_size=12))
def test_no_text_does_anything_but_parse_or_raise_value_error(text: str) -> None:
    for parse in (duration_us, parse_rate):
        with contextlib.suppress(ValueError):
            parse(text)


@pytest.mark.parametrize(
    ("text", "count", "window_us"),
    [
        ("60/minute", 60, 60_000_000), ("5/s", 5, 1_000_000), ("1000/day", 1000, 86_400_000_000),
        ("10/30s", 10, 30_000_000), ("3 / 5 minutes", 3, 300_000_000), ("1/h", 1, 3_600_000_000),
    ],
)  # fmt: skip
def test_rates_are_read(text: str, count: int, window_us: int) -> None:
    assert parse_rate(text) == (count, window_us)


@pytest.mark.parametrize(
    "text", ["", "60", "60/", "/minute", "0/s", "5/0s", "-1/s", "1.5/s", "5/10", "5 per s", "5//s", 60]
)
def test_other_rates_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        parse_rate(text)


@given(st.integers(1, 10**9), st.integers(1, LONGEST_US))
def test_a_written_rate_reads_back_the_same(count: int, window_us: int) -> None:
    assert parse_rate(format_rate(count, window_us)) == (count, window_us)
