"""Passing on: keys go to the next in line beside the pump, gathered while there is enough to do, and not lost in an outage."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest

from evenflow import Concurrency, Evenflow
from evenflow.errors import StoreUnavailable
from evenflow.ids import id_number
from evenflow.store.engine import Parameters, Row, as_json
from evenflow.store.limits import Promoted
from evenflow.store.open import AnyEngine
from evenflow.worker import passing
from evenflow.worker.passing import Passing, Way
from tests.processes import wait_until


class Watched:
    """An engine whose promotions can be held up, made to fail, and counted."""

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self.kind = engine.kind
        self.promotions: list[set[str]] = []
        self.may_go = threading.Event()
        self.may_go.set()
        self.failures = 0

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        if name == "promote":
            self.promotions.append(set(parameters["limiters"].strip("[]").replace('"', "").split(",")))
            assert self.may_go.wait(deadline_s)
            if self.failures:
                self.failures -= 1
                raise StoreUnavailable("on purpose")
        return self._engine.run(name, parameters, deadline_s=deadline_s)

    def run_all(self, units: Any, *, deadline_s: float = 30.0) -> list[list[Row]]:
        return self._engine.run_all(units, deadline_s=deadline_s)

    def close(self) -> None:
        """It is the app's."""


@contextmanager
def passing_on(
    engine: Watched, tell: Callable[[set[str]], None], way: Way | None = None
) -> Iterator[Passing]:
    thread = Passing(engine, tell, way=way or ("beside" if engine.kind == "postgres" else "between"))
    try:
        yield thread
    finally:
        engine.may_go.set()
        thread.close()


@pytest.fixture
def engine(postgres_app: Evenflow) -> Watched:
    """PostgreSQL, where a thread of its own passes keys on."""
    postgres_app.migrate()
    return Watched(postgres_app._producer.engine)


@pytest.fixture
def file(sqlite_app: Evenflow) -> Watched:
    """SQLite, as a connection that somebody has lent: the pump passes on by itself."""
    sqlite_app.migrate()
    return Watched(sqlite_app._producer.engine)


def test_a_key_that_is_given_goes_to_the_next_in_line_and_its_queue_is_told(
    app: Evenflow,
) -> None:
    engine = Watched(app._producer.engine)

    @app.task(concurrency=Concurrency(to=1, key="tenant"))
    def parse(tenant: str) -> None: ...

    first, second = parse.enqueue("bob"), parse.enqueue("bob")
    (key,) = (row.name for row in app.limits() if row.waiting)
    engine.run("release_holds", {"ids": as_json([id_number(first.id)])})
    told: list[set[str]] = []
    with passing_on(engine, told.append) as thread:
        thread.give([key])
        if thread.due_at is not None:
            thread.pass_on()
        wait_until(lambda: bool(told), "the queue to be told")
    assert (told, app.job(second.id).state) == ([{"default"}], "ready")


def test_keys_that_come_while_others_are_passed_on_go_together(engine: Watched) -> None:
    with passing_on(engine, lambda _: None) as thread:
        engine.may_go.clear()
        thread.give(["a"])
        wait_until(lambda: bool(engine.promotions), "the first promotion to begin")
        thread.give(["b"])
        thread.give(["c"])
        engine.may_go.set()
        wait_until(lambda: not thread.is_busy, "all keys to be passed on")
    assert engine.promotions == [{"a"}, {"b", "c"}]


def test_keys_rest_while_there_is_enough_to_do_until_one_is_urgent(
    engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "LONGEST_REST_S", 60.0)
    monkeypatch.setattr(passing, "REST_SHARE", 1_000_000)
    with passing_on(engine, lambda _: None) as thread:
        thread.give(["a"], is_urgent=False)
        wait_until(lambda: not thread.is_busy, "the first key, which goes at once")
        thread.give(["b"], is_urgent=False)
        assert thread.is_busy
        thread.give(["c"])
        wait_until(lambda: not thread.is_busy, "the urgent key, and those with it")
    assert engine.promotions == [{"a"}, {"b", "c"}]


def test_what_an_outage_kept_back_is_passed_on_after_it(
    engine: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "AGAIN_S", 0.01)
    engine.failures = 2
    with passing_on(engine, lambda _: None) as thread:
        thread.give(["a"])
        wait_until(lambda: len(engine.promotions) == 3, "the third try")
    assert engine.promotions == [{"a"}] * 3


def test_the_end_passes_on_what_is_left(engine: Watched, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passing, "LONGEST_REST_S", 60.0)
    monkeypatch.setattr(passing, "REST_SHARE", 1_000_000)
    with passing_on(engine, lambda _: None) as thread:
        thread.give(["a"])
        wait_until(lambda: not thread.is_busy, "the first key")
        thread.give(["b"], is_urgent=False)
    assert engine.promotions == [{"a"}, {"b"}]


def test_the_pump_of_a_file_is_told_when_to_pass_keys_on(file: Watched) -> None:
    with passing_on(file, lambda _: None) as passed:
        seen = [passed.due_at]
        passed.give(["a"], is_urgent=False)
        seen.append(passed.due_at)
        passed.pass_on()
        seen.append(passed.due_at)
        passed.give(["b"], is_urgent=False)
        rests_until = passed.due_at
        passed.give(["c"])
        seen.append(passed.due_at)
        assert seen == [None, 0.0, None, 0.0]  # the first ones go at once, and so do urgent ones
        assert (rests_until or 0.0) > 0.0
    assert file.promotions == [{"a"}, {"b", "c"}]


def test_keys_are_kept_where_the_pump_cannot_pass_them_on(file: Watched) -> None:
    with passing_on(file, lambda _: None) as passed:
        file.failures = 1
        passed.give(["a"])
        with pytest.raises(StoreUnavailable, match="on purpose"):
            passed.pass_on()
        assert passed.is_busy
    assert file.promotions == [{"a"}, {"a"}]


def test_keys_are_carried_by_the_next_round_and_ours_until_it_was_made(
    file: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(passing, "LONGEST_REST_S", 60.0)
    told: list[set[str]] = []
    with passing_on(file, told.append, "within") as passed:
        assert (passed.to_carry(), passed.due_at) == ([], None)
        passed.give(["b", "a"], is_urgent=False)
        assert (
            passed.due_at or 0.0
        ) > time.monotonic() + 30  # enough to do: the next round will come by itself
        passed.give(["c"])
        assert passed.due_at == 0.0
        assert [passed.to_carry(), passed.to_carry()] == [["a", "b", "c"]] * 2  # the first round has failed
        passed.carried(Promoted(queues={"default"}), {"default", "other"})
        assert (passed.is_busy, told) == (False, [])
    assert file.promotions == []


def test_what_a_round_has_made_ready_is_told_where_it_did_not_claim_it(file: Watched) -> None:
    told: list[set[str]] = []
    with passing_on(file, told.append, "within") as passed:
        passed.give(["a"])
        passed.to_carry()
        passed.carried(Promoted(queues={"default", "other"}), {"other"})
    assert told == [{"default"}]


def test_what_a_round_has_left_to_do_is_done_and_kept_in_an_outage(file: Watched) -> None:
    with passing_on(file, lambda _: None, "within") as passed:
        passed.give(["a"])
        passed.to_carry()
        file.failures = 1
        with pytest.raises(StoreUnavailable, match="on purpose"):
            passed.carried(Promoted(more={"b"}), ())
        assert passed.to_carry() == ["b"]
        passed.carried(Promoted(more={"c"}), ())
        assert not passed.is_busy
    assert file.promotions == [{"b"}, {"c"}]


def test_what_the_follow_up_has_made_ready_is_told_though_the_round_has_claimed(sqlite_app: Evenflow) -> None:
    @sqlite_app.task(concurrency=Concurrency(to=1, key="tenant"))
    def parse(tenant: str) -> None: ...

    first, second = parse.enqueue("bob"), parse.enqueue("bob")
    engine = Watched(sqlite_app._producer.engine)
    (key,) = (row.name for row in sqlite_app.limits() if row.waiting)
    engine.run("release_holds", {"ids": as_json([id_number(first.id)])})
    told: list[set[str]] = []
    with passing_on(engine, told.append, "within") as passed:
        passed.carried(Promoted(more={key}), {"default"})
    assert (told, sqlite_app.job(second.id).state) == ([{"default"}], "ready")
