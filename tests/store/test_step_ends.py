"""Rounds that end steps of workflows and go out as a whole on PostgreSQL: all that the store promises of steps, by that road too."""

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest

import tests.store.test_workflows
from evenflow.job import End
from evenflow.settings import Settings
from evenflow.store.advance import KEPT, NOTHING, Advanced, Claim, Want, advance
from evenflow.store.postgres import PostgresEngine
from evenflow.worker.patience import Impatient
from evenflow.worker.rounds import Round, Rounds
from tests.store.scene import ALICE, Scene, end_of
from tests.store.test_workflows import (
    Flow,
    TestACancel,
    TestAnAddition,
    TestAPause,
    TestARetry,
    TestResults,
    step,
    test_a_wide_join_is_told_in_linear_time,
    test_random_graphs_end_as_the_model_says_whatever_order_crashes_and_lost_tellings,
)

__all__ = [
    "TestACancel", "TestAPause", "TestARetry", "TestAnAddition", "TestResults",
    "test_a_wide_join_is_told_in_linear_time",
    "test_random_graphs_end_as_the_model_says_whatever_order_crashes_and_lost_tellings",
]  # fmt: skip


SETTINGS = Settings.build(
    "sqlite:///:memory:", environ={}
)  # of the calls of a worker it says how long they may take


class SimpleRounds(Rounds):
    """As rounds go ahead where no joins are expected."""

    def _units(self, asked: Round, *, expects_joins: bool) -> list[tuple[str, dict[str, Any]]] | None:
        return super()._units(asked, expects_joins=False)


class RoundsScene(Scene):
    """A scene whose ends are written, and whose jobs are claimed, by rounds of workers."""

    def __init__(self, engine: PostgresEngine, *, expects_joins: bool) -> None:
        super().__init__(engine)
        self._expects_joins = expects_joins
        self._rounds: dict[int, Rounds] = {}

    def advance(self, worker: int, *ends: End, claim: Claim = NOTHING) -> Advanced:
        engine = self.engine
        assert isinstance(engine, PostgresEngine)
        kind = Rounds if self._expects_joins else SimpleRounds
        rounds = self._rounds.setdefault(worker, kind(Impatient(engine, SETTINGS), worker, KEPT, None))
        engine.clock.set_us = self.now
        try:
            _, answer = rounds.exchange(ends, claim, None)
        finally:
            engine.clock.set_us = None
        if not answer.is_rich:
            return answer
        claimed = advance(engine, worker, (), claim, now=self.now).claimed
        return msgspec.structs.replace(answer, claimed=claimed)


@pytest.fixture(params=["expecting joins", "expecting none"])
def scene(request: pytest.FixtureRequest, postgres_store: PostgresEngine) -> Iterator[Scene]:
    yield RoundsScene(postgres_store, expects_joins=request.param == "expecting joins")


class TestTelling(tests.store.test_workflows.TestTelling):
    def test_comes_before_the_claim_of_the_round_that_writes_the_end(self, flow: Flow) -> None:
        """Unless a join was not expected: then it comes after the commit, by whoever has written the end."""
        run = flow.start(step("a"), step("b", 0), step("c", 0), step("d", 1, 2))
        wants = Claim([Want("default", 0, 9)], 9)
        answer = flow.scene.advance(ALICE, end_of(flow.claim()["a"]), claim=wants)
        assert [job.task for job in answer.claimed] == ["b", "c"]
        answer = flow.scene.advance(ALICE, *map(end_of, answer.claimed), claim=wants)
        if not answer.claimed:
            assert answer.runs == {run}
            flow.settle(*answer.runs)
            answer = flow.scene.advance(ALICE, claim=wants)
        assert [job.task for job in answer.claimed] == ["d"]
        flow.finish(*answer.claimed)
        assert flow.state(run) == "succeeded"


@pytest.fixture
def flow(scene: Scene) -> Flow:
    return Flow(scene)
