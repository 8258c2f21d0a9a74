"""Time: stored in whole microseconds, measured on clocks that never step."""

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest
import time_machine
from hypothesis import given
from hypothesis import strategies as st

from evenflow.clock import from_us, lease_s, to_us, wall_us


def test_wall_time_is_microseconds_since_the_epoch() -> None:
    with time_machine.travel(1_800_000_000, tick=False):
        assert wall_us() == 1_800_000_000_000_000


@given(st.datetimes(timezones=st.just(UTC)))
def test_a_moment_survives_storage_to_the_microsecond(moment: datetime) -> None:
    assert from_us(to_us(moment)) == moment


@given(
    st.datetimes(timezones=st.just(UTC)).filter(lambda moment: 2 < moment.year < 9998), st.integers(-14, 14)
)
def test_a_moment_is_the_same_in_every_zone(moment: datetime, hours: int) -> None:
    local = moment.astimezone(timezone(timedelta(hours=hours)))
    assert to_us(local) == to_us(local.astimezone(UTC))
    assert from_us(to_us(local)).tzinfo is UTC


def test_moments_before_the_epoch_are_negative() -> None:
    assert to_us(datetime(1969, 12, 31, 23, 59, 59, 999_999, tzinfo=UTC)) == -1


def test_a_moment_without_a_zone_is_refused() -> None:
    with pytest.raises(TypeError):
        to_us(datetime(2027, 1, 1))  # noqa: DTZ001 - that is what is refused


def test_the_clock_of_leases_does_not_follow_the_wall() -> None:
    before = lease_s()
    with time_machine.travel(time.time() - 3600, tick=True):
        stepped = lease_s()
    assert before <= stepped < before + 60
