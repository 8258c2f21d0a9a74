"""Stopping: more urgent with each word, never less, and the time that running jobs get."""

import pytest

from evenflow.worker import stopping as stopping_module
from evenflow.worker.stopping import Stop, Stopping


class Clock:
    """A monotonic clock that stands still until it is moved."""

    def __init__(self) -> None:
        self.now = 100.0

    def monotonic(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    clock = Clock()
    monkeypatch.setattr(stopping_module, "time", clock)
    return clock


def test_a_stop_becomes_more_urgent_and_never_less() -> None:
    stopping = Stopping(30.0)
    was_on = stopping.is_on
    assert [stopping.heed(how) for how in (Stop.DRAIN, Stop.AT_ONCE, Stop.GRACEFUL, Stop.AT_ONCE)] == [
        True,
        True,
        False,
        False,
    ]
    assert (was_on, stopping.is_on, stopping.is_time_up()) == (False, True, True)


def test_running_jobs_get_the_timeout_from_the_first_graceful_stop(clock: Clock) -> None:
    stopping = Stopping(30.0)
    stopping.heed(Stop.DRAIN)
    clock.now += 1_000.0
    assert (stopping.is_hurrying, stopping.is_time_up()) == (False, False)
    stopping.heed(Stop.GRACEFUL)
    clock.now += 29.9
    assert (stopping.is_hurrying, stopping.is_time_up()) == (True, False)
    clock.now += 0.1
    assert stopping.is_time_up()


def test_a_stop_at_once_leaves_no_time() -> None:
    stopping = Stopping(30.0)
    assert not stopping.is_time_up()
    stopping.heed(Stop.AT_ONCE)
    assert stopping.is_time_up()
