"""How a worker bears a failing database: delays, the breaker, the end of patience."""

import logging

import pytest

from evenflow.errors import StoreUnavailable
from evenflow.rules.breaker import Circuit
from evenflow.settings import Resilience
from evenflow.worker.outage import Outage, WorkerGaveUp

AWAY = StoreUnavailable("PostgreSQL: connection refused")
MIDDLE = 0.5  # the chance that leaves a delay about as it is


def outage(**resilience: int) -> Outage:
    return Outage(Resilience(**{"circuit_breaker_threshold": 1000, **resilience}))


def test_delays_double_up_to_the_greatest() -> None:
    away = outage(db_retry_initial_ms=500, db_retry_max_ms=4_000)
    delays = [away.failed(AWAY, now=0.0, random=MIDDLE) for _ in range(6)]
    assert delays[:3] == [0.5, 1.0, 2.0]
    assert all(delay <= 4.0 for delay in delays)
    assert max(away.failed(AWAY, now=0.0, random=0.999) for _ in range(6)) <= 4.0


def test_the_back_off_starts_again_after_a_round_that_worked() -> None:
    away = outage()
    for _ in range(5):
        away.failed(AWAY, now=0.0, random=MIDDLE)
    away.succeeded(now=1.0, did_work=False)
    assert away.failed(AWAY, now=2.0, random=MIDDLE) == 0.5


def test_every_error_of_the_database_counts_and_is_said_with_its_reason(
    caplog: pytest.LogCaptureFixture,
) -> None:
    """S3-35"""
    away = outage()
    for number in range(1, 4):
        away.failed(AWAY, now=float(number), random=MIDDLE)
        assert away.failures == number
        said = f"the database is unavailable (PostgreSQL: connection refused); try {number + 1} in"
        assert said in caplog.text


def test_patience_ends_after_the_given_number_of_failures_in_a_row() -> None:
    away = outage(db_retry_max_attempts=3)
    away.failed(AWAY, now=0.0, random=MIDDLE)
    away.succeeded(now=0.0, did_work=True)
    away.failed(AWAY, now=0.0, random=MIDDLE)
    away.failed(AWAY, now=0.0, random=MIDDLE)
    with pytest.raises(WorkerGaveUp, match="3 times in a row: PostgreSQL: connection refused"):
        away.failed(AWAY, now=0.0, random=MIDDLE)


def test_without_a_number_patience_never_ends() -> None:
    away = outage()
    for _ in range(5_000):
        away.failed(AWAY, now=0.0, random=MIDDLE)
    assert away.failures == 5_000


def test_the_failure_that_reaches_the_threshold_opens_the_circuit(caplog: pytest.LogCaptureFixture) -> None:
    away = outage(circuit_breaker_threshold=3, circuit_breaker_cooldown_s=60)
    assert [away.failed(AWAY, now=float(now), random=MIDDLE) for now in range(2)] == [0.5, 1.0]
    assert away.circuit(now=1.0) is Circuit.CLOSED
    assert away.failed(AWAY, now=2.0, random=MIDDLE) == 60.0
    assert away.circuit(now=2.0) is Circuit.OPEN
    assert away.circuit(now=61.9) is Circuit.OPEN
    assert away.circuit(now=62.0) is Circuit.HALF_OPEN
    assert (
        "circuit-open: the database failed 3 times in a row (PostgreSQL: connection refused)" in caplog.text
    )


def test_a_probe_that_fails_opens_the_circuit_for_a_full_cooldown_again() -> None:
    away = outage(circuit_breaker_threshold=1, circuit_breaker_cooldown_s=60)
    assert away.failed(AWAY, now=0.0, random=MIDDLE) == 60.0
    assert away.failed(AWAY, now=61.0, random=MIDDLE) == 60.0
    assert away.circuit(now=120.0) is Circuit.OPEN
    assert away.circuit(now=121.0) is Circuit.HALF_OPEN


@pytest.mark.parametrize("did_work", [True, False])
def test_a_probe_that_reaches_the_database_closes_the_circuit(
    did_work: bool, caplog: pytest.LogCaptureFixture
) -> None:
    away = outage(circuit_breaker_threshold=2, circuit_breaker_cooldown_s=60)
    for now in (0.0, 1.0):
        away.failed(AWAY, now=now, random=MIDDLE)
    with caplog.at_level(logging.WARNING):
        away.succeeded(now=62.0, did_work=did_work)
    assert away.circuit(now=62.0) is Circuit.CLOSED
    assert "circuit-closed" in caplog.text
    assert away.failed(AWAY, now=63.0, random=MIDDLE) == 0.5, "the count starts anew"


def test_an_empty_round_does_not_hide_a_run_of_failing_writes() -> None:
    away = outage(circuit_breaker_threshold=3, circuit_breaker_cooldown_s=60)
    for now in (0.0, 1.0):
        away.failed(AWAY, now=now, random=MIDDLE)
        away.succeeded(now=now, did_work=False)
    assert away.failed(AWAY, now=2.0, random=MIDDLE) == 60.0


def test_a_round_that_did_work_resets_the_count() -> None:
    away = outage(circuit_breaker_threshold=2, circuit_breaker_cooldown_s=60)
    for now in range(10):
        assert away.failed(AWAY, now=float(now), random=MIDDLE) == 0.5
        away.succeeded(now=float(now), did_work=True)


def test_a_try_before_the_cooldown_is_over_decides_nothing() -> None:
    away = outage(circuit_breaker_threshold=1, circuit_breaker_cooldown_s=60)
    away.failed(AWAY, now=0.0, random=MIDDLE)
    away.succeeded(now=5.0, did_work=True)
    assert away.circuit(now=6.0) is Circuit.OPEN


def test_the_last_opening_is_remembered_with_its_reason() -> None:
    away = outage(circuit_breaker_threshold=1)
    assert away.last_opening is None
    away.failed(AWAY, now=0.0, random=MIDDLE)
    assert away.last_opening == {"failures": 1, "reason": "PostgreSQL: connection refused"}
