"""The keeper runs services one step at a time, waits outages out, and never dies in silence."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from evenflow.errors import StoreRefused, StoreUnavailable
from evenflow.services import keeper as keeper_module
from evenflow.services.keeper import Keeper
from evenflow.settings import Queue, Resilience, Settings
from evenflow.store import control
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import Waker, settle_wakers
from tests.processes import wait_until
from tests.store.scene import second_engine

QUICK = Resilience(db_retry_initial_ms=100, db_retry_max_ms=500)


class Scripted:
    """A service that does what the test says and counts its steps."""

    def __init__(self, name: str, act: Callable[[], float]) -> None:
        self.name = name
        self.act = act
        self.steps = 0

    def step(self) -> float:
        self.steps += 1
        return self.act()


class House:
    """A keeper over scripted services, and the deaths it tells of."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self.deaths: list[BaseException] = []
        self.keepers: list[Keeper] = []

    def keep(
        self,
        *services: Scripted,
        listens: bool = True,
        longest_delay_s: float | None = None,
        **resilience: int,
    ) -> Keeper:
        options = {"db_retry_initial_ms": 100, "db_retry_max_ms": 500, **resilience}
        settings = Settings.build("sqlite:///:memory:", resilience=Resilience(**options), environ={})
        keeper = Keeper(
            services,
            self.engine,
            settings,
            lambda _, error: self.deaths.append(error),
            listens=listens,
            longest_delay_s=longest_delay_s,
        )
        keeper.start()
        self.keepers.append(keeper)
        return keeper


@pytest.fixture
def house(store: AnyEngine) -> Iterator[House]:
    made = House(store)
    yield made
    for keeper in made.keepers:
        keeper.stop()
        wait_until(lambda keeper=keeper: not keeper.is_alive, "the keeper to end")  # type: ignore[misc]


def test_a_service_is_called_again_when_it_asked_for_it(house: House) -> None:
    often, seldom = Scripted("often", lambda: 0.05), Scripted("seldom", lambda: 3600.0)
    house.keep(often, seldom)
    wait_until(lambda: often.steps >= 5, "five steps")
    assert seldom.steps == 1


def test_a_service_with_more_to_do_does_not_keep_the_others_waiting(house: House) -> None:
    turns: list[str] = []

    def taken(name: str) -> float:
        turns.append(name)
        return 0.0

    house.keep(Scripted("greedy", lambda: taken("greedy")), Scripted("other", lambda: taken("other")))
    wait_until(lambda: len(turns) >= 40, "both to be served")
    assert turns[:40] == ["greedy", "other"] * 20


def test_an_outage_is_waited_out(house: House) -> None:
    failures = iter([StoreUnavailable("away")] * 3)

    def act() -> float:
        for error in failures:
            raise error
        return 0.05

    service = Scripted("service", act)
    house.keep(service)
    wait_until(lambda: service.steps >= 5, "steps after the outage")
    assert house.deaths == []


def test_services_that_cannot_even_begin_are_told_too(house: House, monkeypatch: pytest.MonkeyPatch) -> None:
    def no_descriptor() -> None:
        raise OSError(24, "Too many open files")

    monkeypatch.setattr("os.pipe", no_descriptor)
    keeper = house.keep(Scripted("service", lambda: 1.0))
    wait_until(lambda: bool(house.deaths), "the death to be told")
    monkeypatch.undo()
    wait_until(lambda: not keeper.is_alive, "the keeper to end")
    assert [str(death) for death in house.deaths] == ["[Errno 24] Too many open files"]


def test_any_other_error_is_fatal_and_told(house: House) -> None:
    def act() -> float:
        raise StoreRefused("no rights")

    keeper = house.keep(Scripted("service", act))
    wait_until(lambda: not keeper.is_alive, "the keeper to end")
    assert [str(death) for death in house.deaths] == ["no rights"]


def test_patience_ends_where_the_settings_say_so(house: House) -> None:
    def act() -> float:
        raise StoreUnavailable("away")

    service = Scripted("service", act)
    keeper = house.keep(service, db_retry_max_attempts=3)
    wait_until(lambda: not keeper.is_alive, "the keeper to end")
    assert service.steps == 3
    assert [str(death) for death in house.deaths] == ["away"]


def test_services_that_a_lease_hangs_on_are_tried_again_soon_and_for_ever(house: House) -> None:
    tried_at: list[float] = []

    def act() -> float:
        tried_at.append(time.monotonic())
        raise StoreUnavailable("away")

    keeper = house.keep(
        Scripted("heart", act),
        longest_delay_s=0.05,
        db_retry_initial_ms=60_000,
        db_retry_max_ms=300_000,
        db_retry_max_attempts=3,
    )
    wait_until(lambda: len(tried_at) >= 8, "many tries", 30)
    assert keeper.is_alive
    assert house.deaths == []


def test_several_keepers_are_asked_to_stop_before_any_is_waited_for(house: House) -> None:
    going, may_end = threading.Event(), threading.Event()

    def act() -> float:
        going.set()
        may_end.wait(30)
        return 0.0

    service = Scripted("service", act)
    keeper = house.keep(service)
    assert going.wait(30)
    keeper.ask_to_stop()  # returns, though the step goes on
    may_end.set()
    wait_until(lambda: not keeper.is_alive, "the keeper to end")
    assert service.steps == 1, "the step that was under way was the last"


def test_a_stop_ends_a_long_wait(house: House) -> None:
    service = Scripted("service", lambda: 3600.0)
    keeper = house.keep(service)
    wait_until(lambda: service.steps == 1, "the first step")
    keeper.stop()
    wait_until(lambda: not keeper.is_alive, "the keeper to end")


@pytest.mark.parametrize("listens", [True, False])
def test_a_hastened_service_takes_its_step_now(house: House, listens: bool) -> None:
    service, other = Scripted("service", lambda: 3600.0), Scripted("other", lambda: 3600.0)
    keeper = house.keep(service, other, listens=listens)
    wait_until(lambda: service.steps == other.steps == 1, "the first steps")
    for steps in (2, 3):
        keeper.hasten("service")
        wait_until(lambda steps=steps: service.steps == steps, "the hastened step")  # type: ignore[misc]
    assert other.steps == 1


def test_a_service_that_is_hastened_during_its_step_takes_another_one(house: House) -> None:
    """The supervisor hastens the undertaker for each dead child: the second may die when the first is being looked for."""
    has_begun, may_end = threading.Event(), threading.Event()

    def look() -> float:
        has_begun.set()
        assert may_end.wait(30)
        return 3600.0

    service = Scripted("service", look)
    keeper = house.keep(service)
    assert has_begun.wait(30)
    keeper.hasten("service")
    may_end.set()
    wait_until(lambda: service.steps == 2, "the step after the one that was under way")


def test_an_arrival_hastens_the_dispatcher_and_nobody_else(house: House) -> None:
    dispatcher, other = Scripted("dispatcher", lambda: 3600.0), Scripted("other", lambda: 3600.0)
    house.keep(dispatcher, other)
    wait_until(lambda: dispatcher.steps >= 1, "the first step")
    elsewhere = second_engine(house.engine)

    def is_hastened() -> bool:
        Waker(elsewhere).wake_dispatchers()
        control.declare_queue(elsewhere, Queue(f"q{time.monotonic_ns()}"))
        return dispatcher.steps >= 3

    wait_until(is_hastened, "the dispatcher to be hastened")
    assert other.steps == 1
    settle_wakers(elsewhere)
    elsewhere.close()


def test_changed_schedules_hasten_the_scheduler_where_the_store_can_tell(house: House) -> None:
    scheduler, dispatcher = Scripted("scheduler", lambda: 3600.0), Scripted("dispatcher", lambda: 3600.0)
    house.keep(scheduler, dispatcher)
    wait_until(lambda: scheduler.steps >= 1, "the first step")
    elsewhere = second_engine(house.engine)
    tells = isinstance(elsewhere, PostgresEngine)

    def is_hastened() -> bool:
        Waker(elsewhere).wake_schedulers()
        return not tells or scheduler.steps >= 2

    wait_until(is_hastened, "the scheduler to be hastened")
    assert dispatcher.steps <= 2, "only the arrival of the first listening counts for it"
    settle_wakers(elsewhere)
    elsewhere.close()


def test_arrivals_in_crowds_are_taken_together(house: House) -> None:
    dispatcher = Scripted("dispatcher", lambda: 3600.0)
    house.keep(dispatcher)
    wait_until(lambda: dispatcher.steps >= 1, "the first step")
    elsewhere = second_engine(house.engine)
    waker = Waker(elsewhere)
    started = time.monotonic()
    while time.monotonic() - started < 1.0:
        waker.wake_dispatchers()
        threading.Event().wait(0.001)
    waker.settle()
    steps, lasted = dispatcher.steps, time.monotonic() - started
    assert steps <= lasted / keeper_module._SHORTEST_S + 10
    elsewhere.close()
