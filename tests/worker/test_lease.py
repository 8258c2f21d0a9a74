"""The lease of a worker: until when its jobs are its own, and what is in doubt after a call without an answer."""

import logging
import time
from collections.abc import Callable

import pytest

from evenflow.settings import Settings
from evenflow.store.engine import Parameters, Row
from evenflow.worker import lease as lease_module
from evenflow.worker.lease import DOUBT_EVERY_S, DOUBT_S, Lease

WORKER = 7


class Store:
    """Answers the two questions of a lease; `on_call` is what happens meanwhile."""

    kind = "sqlite"

    def __init__(self) -> None:
        self.is_alive = True
        self.in_flight: list[tuple[int, int]] = []
        self.on_call: Callable[[], None] = lambda: None

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        self.on_call()
        if name == "beat":
            return [(WORKER, 0, "alive")] if self.is_alive else []
        return list(self.in_flight)


class Times:
    """The clock of leases, moved by hand."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1_000.0
        monkeypatch.setattr(lease_module, "lease_s", lambda: self.now)


@pytest.fixture
def store() -> Store:
    return Store()


@pytest.fixture
def times(monkeypatch: pytest.MonkeyPatch) -> Times:
    return Times(monkeypatch)


def leased(store: Store) -> Lease:
    settings = Settings.build("sqlite:///jobs.db", lease_ms=10_000, heartbeat_ms=2_000, environ={})
    return Lease(store, WORKER, settings)  # type: ignore[arg-type]


def test_what_runs_is_let_go_before_the_lease_is_over(store: Store, times: Times) -> None:
    lease = leased(store)
    assert not lease.is_running_out()
    times.now += 8.1
    assert lease.is_running_out()
    assert not lease.is_over()
    times.now += 2.0
    assert lease.is_over()


def test_a_heartbeat_counts_from_when_it_was_sent(store: Store, times: Times) -> None:
    lease = leased(store)

    def dawdle() -> None:
        times.now += 6.0

    store.on_call = dawdle
    assert lease.beat({}, now=50.0).is_alive
    assert lease.beat_at == 52.0
    times.now += 4.0
    assert lease.is_over()


def test_a_heartbeat_of_one_who_counts_as_dead_renews_nothing(store: Store, times: Times) -> None:
    lease = leased(store)
    store.is_alive = False
    times.now += 5.0
    assert not lease.beat({}, now=50.0).is_alive
    times.now += 5.0
    assert lease.is_over()


def test_claims_that_we_do_not_know_of_go_back_while_there_is_doubt(store: Store) -> None:
    lease = leased(store)
    store.in_flight = [(3, 1), (1, 2), (2, 1)]
    assert not lease.looks_for_unknown(100.0)
    lease.doubt(100.0)
    assert lease.beat_at == 0.0
    assert lease.looks_for_unknown(100.0)
    ends = lease.unknown_claims({(2, 1)}, 100.0)
    assert [(end.id, end.epoch, end.state, end.refund, end.unstarted) for end in ends] == [
        (1, 2, "ready", 1, 1),
        (3, 1, "ready", 1, 1),
    ]
    assert not lease.looks_for_unknown(100.0 + DOUBT_EVERY_S - 0.1)
    assert lease.looks_for_unknown(100.0 + DOUBT_EVERY_S)
    assert not lease.looks_for_unknown(100.0 + DOUBT_S)


@pytest.mark.parametrize(("doubts", "level"), [(False, logging.WARNING), (True, logging.INFO)])
def test_a_refused_end_is_a_lost_lease_unless_it_may_be_our_own(
    doubts: bool, level: int, store: Store, caplog: pytest.LogCaptureFixture
) -> None:
    lease = leased(store)
    if doubts:
        lease.doubt(time.monotonic())
    with caplog.at_level(logging.INFO, logger="evenflow.worker"):
        lease.say_lost([(1, 4)])
    assert [(record.levelno, "epoch 4" in record.message) for record in caplog.records] == [(level, True)]


def test_after_a_refused_end_what_the_store_takes_for_ours_is_looked_for_once(store: Store) -> None:
    lease = leased(store)
    lease.say_lost([(1, 4)])
    assert lease.looks_for_unknown(time.monotonic())
    lease.unknown_claims(set(), time.monotonic())
    assert not lease.looks_for_unknown(time.monotonic() + DOUBT_EVERY_S)
