"""Declared limits: checked where they are written."""

import dataclasses
from datetime import timedelta
from typing import Any

import pytest

from evenflow.errors import ConfigError
from evenflow.limits import Breaker, Concurrency, Rate


def test_a_rate_knows_its_count_and_window() -> None:
    rate = Rate("60/minute", key="tenant", burst=10)
    assert (rate.count, rate.window_us, rate.at_once, rate.key) == (60, 60_000_000, 10, "tenant")


def test_without_a_burst_the_whole_count_may_start_at_once() -> None:
    assert Rate("60/minute").at_once == 60


@pytest.mark.parametrize("text", ["60", "0/minute", "fast", "2000000/s"])
def test_a_rate_that_cannot_be_kept_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="Rate: expected"):
        Rate(text)


@pytest.mark.parametrize("burst", [0, 61, -1, True, 1.5, "3"])
def test_a_burst_outside_the_count_is_refused(burst: object) -> None:
    with pytest.raises(ConfigError, match="expected a burst from 1 to 60"):
        Rate("60/minute", burst=burst)  # type: ignore[arg-type]


@pytest.mark.parametrize("key", ["", 7, ["tenant"]])
def test_a_rate_s_key_is_a_name_a_template_or_a_callable(key: object) -> None:
    with pytest.raises(ConfigError, match="expected a key"):
        Rate("60/minute", key=key)  # type: ignore[arg-type]


def test_a_breaker_defaults_to_five_failures_and_a_minute() -> None:
    breaker = Breaker()
    assert (breaker.failure_threshold, breaker.cooldown_us, breaker.probe_lease_us) == (
        5,
        60_000_000,
        60_000_000,
    )


def test_a_breaker_takes_timedeltas_and_a_lease_of_its_own() -> None:
    breaker = Breaker(cooldown_s=timedelta(minutes=2), probe_lease_s=0.5)
    assert (breaker.cooldown_us, breaker.probe_lease_us) == (120_000_000, 500_000)


def test_a_breaker_reports_all_its_mistakes_together() -> None:
    with pytest.raises(ConfigError) as refused:
        Breaker(failure_threshold=0, cooldown_s=-1, name="", probe_lease_s=0)
    assert len(refused.value.mistakes) == 4


def test_limits_are_frozen() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Rate("5/s").key = "other"  # type: ignore[misc]
    with pytest.raises(dataclasses.FrozenInstanceError):
        Breaker().name = "other"  # type: ignore[misc]


@pytest.mark.parametrize("wrong", ["", "x" * 201, "a\0", "\ud800", 5])
def test_names_that_no_database_stores_are_refused(wrong: Any) -> None:
    with pytest.raises(ConfigError, match="Breaker: name: expected a text"):
        Breaker(name=wrong)
    with pytest.raises(ConfigError, match="Concurrency: scope: expected a text"):
        Concurrency(scope=wrong)


@pytest.mark.parametrize("table", [{}, {7: 1}, {"bob": 0}, {"bob": 2**31}])
def test_a_table_of_limits_that_nobody_can_look_up_is_refused(table: Any) -> None:
    with pytest.raises(ConfigError, match="Concurrency: to: expected"):
        Concurrency(to=table, key="tenant")
