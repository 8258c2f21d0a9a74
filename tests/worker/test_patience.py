"""How long worker processes wait for the database: at their start, and for each call."""

from collections.abc import Callable
from typing import Any, TypeVar

import pytest

from evenflow.errors import StoreRefused, StoreUnavailable
from evenflow.settings import Resilience, Settings
from evenflow.store.engine import Parameters, Row, Steps, drive
from evenflow.worker.outage import WorkerGaveUp
from evenflow.worker.patience import Impatient, when_available

T = TypeVar("T")


class Recorder:
    """An engine that notes the deadlines it is given."""

    kind = "sqlite"

    def __init__(self) -> None:
        self.deadlines: list[float] = []
        self.is_closed = False

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        self.deadlines.append(deadline_s)
        return []

    def run_all(self, units: Any, *, deadline_s: float = 30.0) -> list[list[Row]]:
        self.deadlines.append(deadline_s)
        return []

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        self.deadlines.append(deadline_s)
        return drive(self, make_steps())

    def close(self) -> None:
        self.is_closed = True


def one_beat() -> Steps[None]:
    yield "beat", {}


def test_no_call_lasts_longer_than_half_a_lease() -> None:
    engine = Recorder()
    impatient = Impatient(engine, Settings.build("sqlite:///:memory:", lease_ms=10_000, environ={}))
    impatient.run("advance", {})
    impatient.run("beat", {}, deadline_s=3.0)
    impatient.run_all([("advance", {})])
    impatient.together(one_beat)
    assert engine.deadlines[:4] == [5.0, 3.0, 5.0, 5.0]
    impatient.close()
    assert engine.is_closed


def test_a_short_lease_leaves_a_call_a_second() -> None:
    engine = Recorder()
    Impatient(engine, Settings.build("sqlite:///:memory:", heartbeat_ms=50, lease_ms=500, environ={})).run(
        "advance", {}
    )
    assert engine.deadlines == [1.0]


class Away:
    """A database that answers only after some tries."""

    def __init__(self, failures: int) -> None:
        self.left = failures
        self.waited: list[float] = []

    def ask(self) -> str:
        if self.left:
            self.left -= 1
            raise StoreUnavailable("away")
        return "there"


def test_what_can_be_done_is_done_without_waiting() -> None:
    away = Away(0)
    assert when_available(away.ask, Resilience(), away.waited.append) == "there"
    assert away.waited == []


def test_a_database_that_is_away_is_waited_for_with_growing_delays() -> None:
    away = Away(8)
    assert (
        when_available(
            away.ask, Resilience(db_retry_initial_ms=500, db_retry_max_ms=2_000), away.waited.append
        )
        == "there"
    )
    assert len(away.waited) == 8
    assert all(0.25 * 2**number <= delay <= 2.0 for number, delay in enumerate(away.waited[:3]))
    assert max(away.waited) <= 2.0


def test_patience_ends_after_the_given_number_of_failures() -> None:
    away = Away(99)
    with pytest.raises(WorkerGaveUp, match="unavailable 4 times in a row: away"):
        when_available(away.ask, Resilience(db_retry_max_attempts=4), away.waited.append)
    assert len(away.waited) == 3


def test_an_error_that_waiting_cannot_mend_is_raised_at_once() -> None:
    def refuse() -> None:
        raise StoreRefused("no rights")

    with pytest.raises(StoreRefused):
        when_available(refuse, Resilience())


def test_the_waiting_can_be_ended_from_outside() -> None:
    def stop(delay_s: float) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        when_available(Away(99).ask, Resilience(), stop)
