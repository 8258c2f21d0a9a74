"""The pipeline: questions ahead of answers, each in a transaction of its own, and what becomes of them when something fails."""

import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evenflow.errors import StoreRefused, StoreUnavailable
from evenflow.job import Claimed, End
from evenflow.store.advance import Advanced, Claim, Want, a_flight, answered, lone_unit
from evenflow.store.pipeline import Pipeline
from evenflow.store.postgres import PostgresEngine
from tests.processes import wait_until
from tests.store.proxy import Proxy, once
from tests.store.scene import ALICE, Scene, end_of, new_job, rows_of, second_engine

TWO = Claim((Want("default", 0, 2),), 2)
WAITING = "select pid from pg_stat_activity where datname = current_database() and wait_event_type = 'Lock'"


@pytest.fixture
def scene(postgres_store: PostgresEngine) -> Scene:
    return Scene(postgres_store)


@pytest.fixture
def pipeline(postgres_store: PostgresEngine) -> Iterator[Pipeline]:
    pipeline = Pipeline(postgres_store)
    yield pipeline
    pipeline.close()


def ask(pipeline: Pipeline, *ends: End, claim: Claim = TWO) -> None:
    unit = lone_unit(ALICE, ends, claim, a_flight())
    assert unit is not None
    pipeline.ask([unit], deadline_s=30.0)


def end_unit(job: Claimed) -> tuple[str, dict[str, Any]]:
    return found_unit(lone_unit(ALICE, [end_of(job)], Claim(moves_v=False), a_flight()))


def claim_unit() -> tuple[str, dict[str, Any]]:
    return found_unit(lone_unit(ALICE, [], TWO, a_flight()))


def found_unit(unit: tuple[str, dict[str, Any]] | None) -> tuple[str, dict[str, Any]]:
    assert unit is not None
    return unit


def heard(pipeline: Pipeline, claim: Claim = TWO) -> Advanced:
    return answered(pipeline.answer(deadline_s=30.0)[-1], claim)


def test_answers_come_in_the_order_of_the_questions(scene: Scene, pipeline: Pipeline) -> None:
    jobs = scene.enqueue(*[new_job() for _ in range(5)])
    for _ in range(3):
        ask(pipeline)
    assert [[job.id for job in heard(pipeline).claimed] for _ in range(3)] == [jobs[:2], jobs[2:4], jobs[4:]]


def test_each_unit_is_a_transaction_that_others_see_before_its_answer_is_heard(
    scene: Scene, pipeline: Pipeline
) -> None:
    jobs = scene.enqueue(*[new_job() for _ in range(4)])
    ask(pipeline)
    first = heard(pipeline)
    ask(pipeline, *map(end_of, first.claimed))
    wait_until(
        lambda: sorted(scene.states().values()) == ["running"] * 2 + ["succeeded"] * 2,
        "the round to be written",
    )
    second = heard(pipeline)
    assert ([job.id for job in second.claimed], second.lost) == (jobs[2:], [])


def test_an_answer_that_came_along_with_another_is_known_to_be_here(scene: Scene, pipeline: Pipeline) -> None:
    """No socket tells of it: both were read at once."""
    scene.enqueue(*[new_job() for _ in range(4)])
    assert not pipeline.has_answer
    ask(pipeline)
    ask(pipeline)
    wait_until(lambda: list(scene.states().values()) == ["running"] * 4, "both to be carried out")
    assert select.select([pipeline.descriptor], [], [], 30)[0]
    first = heard(pipeline)
    wait_until(
        lambda: pipeline.has_answer or bool(select.select([pipeline.descriptor], [], [], 0)[0]), "the other"
    )
    assert len(first.claimed) == len(heard(pipeline).claimed) == 2
    assert not pipeline.has_answer


def test_a_unit_that_is_refused_leaves_those_after_it_alone(scene: Scene, pipeline: Pipeline) -> None:
    scene.enqueue(new_job())
    unit = lone_unit(ALICE, [], TWO, a_flight())
    assert unit is not None
    pipeline.ask([(unit[0], {**unit[1], "wants": "no list"})], deadline_s=30.0)
    ask(pipeline)
    with pytest.raises(StoreRefused, match="json"):
        heard(pipeline)
    assert len(heard(pipeline).claimed) == 1


def test_units_of_one_question_are_one_transaction_and_see_what_those_before_them_wrote(
    scene: Scene, pipeline: Pipeline
) -> None:
    job = scene.running()
    pipeline.ask([end_unit(job), claim_unit()], deadline_s=30.0)
    ended, claimed = pipeline.answer(deadline_s=30.0)
    assert (answered(ended, TWO).lost, answered(claimed, TWO).claimed) == ([], [])
    scene.enqueue(new_job())
    pipeline.ask([claim_unit(), claim_unit()], deadline_s=30.0)
    assert [len(answered(rows, TWO).claimed) for rows in pipeline.answer(deadline_s=30.0)] == [1, 0]


def test_of_units_of_which_one_is_refused_nothing_is_written(scene: Scene, pipeline: Pipeline) -> None:
    """Also where the refused one comes first, and those behind it were to be prepared."""
    job = scene.running()
    name, asked = claim_unit()
    bad = (name, {**asked, "wants": "no list"})
    for units in ([bad, end_unit(job)], [end_unit(job), bad]):
        pipeline.ask(units, deadline_s=30.0)
        ask(pipeline)
        with pytest.raises(StoreRefused, match="json"):
            pipeline.answer(deadline_s=30.0)
        assert heard(pipeline).claimed == []
        assert scene.states() == {job.id: "running"}
    pipeline.ask([end_unit(job), claim_unit()], deadline_s=30.0)
    assert answered(pipeline.answer(deadline_s=30.0)[0], TWO).lost == []


def test_units_that_lose_a_deadlock_are_all_run_again(
    postgres_store: PostgresEngine, scene: Scene, pipeline: Pipeline
) -> None:
    first, second = scene.running(), scene.running()
    with postgres_store.connect() as other:
        other.execute("set deadlock_timeout = '20s'")
        with other.transaction():
            other.execute("select from evenflow.job where id = %s for update", (second.id,))
            pipeline.ask([end_unit(first), end_unit(second)], deadline_s=30.0)
            ask(pipeline)
            wait_until(lambda: not _is_free(postgres_store, first), "the round to hold the first job")
            other.execute("select from evenflow.job where id = %s for update", (first.id,))
    assert [answered(rows, TWO).lost for rows in pipeline.answer(deadline_s=30.0)] == [[], []]
    assert heard(pipeline).claimed == []
    assert sorted(scene.states().values()) == ["succeeded", "succeeded"]


def test_the_clock_of_the_engine_counts(
    postgres_store: PostgresEngine, scene: Scene, pipeline: Pipeline
) -> None:
    scene.enqueue(new_job())
    postgres_store.clock.set_us = scene.now + 5
    ask(pipeline)
    assert heard(pipeline).claimed[0].started_at == scene.now + 5


def test_questions_and_answers_may_be_larger_than_what_a_socket_holds(
    scene: Scene, pipeline: Pipeline
) -> None:
    payload = f'[["{"x" * 200_000}"],{{}}]'
    scene.enqueue(*[new_job(payload=payload) for _ in range(40)])
    many = Claim((Want("default", 0, 20),), 20)
    ask(pipeline, claim=many)
    first = heard(pipeline, many).claimed
    ask(pipeline, claim=many)  # four megabytes come while four go out
    ask(pipeline, *[end_of(job, result=payload) for job in first])
    assert [job.payload for job in heard(pipeline, many).claimed] == [payload] * 20
    assert heard(pipeline).lost == []
    assert {row["result"] for row in rows_of(scene.engine, "history")} == {payload}


def test_an_answer_that_does_not_come_in_time_is_given_up(
    postgres_store: PostgresEngine, scene: Scene, pipeline: Pipeline
) -> None:
    job = scene.running()
    with postgres_store.connect() as other, other.transaction():
        other.execute("select from evenflow.job for update")
        ask(pipeline, end_of(job))
        with pytest.raises(StoreUnavailable, match="in time"):
            pipeline.answer(deadline_s=0.05)
    wait_until(lambda: scene.states() == {job.id: "succeeded"}, "the server to carry it out all the same")
    ask(pipeline, end_of(job))
    assert heard(pipeline).lost == [(job.id, job.epoch)]


@pytest.mark.parametrize("verb", ["pg_terminate_backend", "pg_cancel_backend"])
def test_a_session_that_somebody_ends_is_a_reason_to_try_again(
    postgres_store: PostgresEngine, scene: Scene, pipeline: Pipeline, verb: str
) -> None:
    job = scene.running()
    with postgres_store.connect() as other, postgres_store.connect() as third, other.transaction():
        other.execute("select from evenflow.job for update")
        ask(pipeline, end_of(job))
        wait_until(lambda: third.execute(WAITING).fetchone() is not None, "the session to wait")
        third.execute(f"select {verb}(pid) from ({WAITING}) w".encode())
        with pytest.raises(StoreUnavailable):
            heard(pipeline)
    pipeline.close()
    ask(pipeline, end_of(job))
    assert heard(pipeline).lost == []


def test_one_that_loses_a_deadlock_is_run_again_and_the_next_is_not_disturbed(
    postgres_store: PostgresEngine, scene: Scene, pipeline: Pipeline
) -> None:
    """The round and another transaction hold a job each and want the other's."""
    first, second = scene.running(), scene.running()
    scene.enqueue(new_job())
    with postgres_store.connect() as other:
        other.execute("set deadlock_timeout = '20s'")  # the round's session finds it
        with other.transaction():
            other.execute("select from evenflow.job where id = %s for update", (second.id,))
            ask(pipeline, end_of(first), end_of(second), claim=Claim())
            ask(pipeline)
            wait_until(lambda: not _is_free(postgres_store, first), "the round to hold the first job")
            other.execute("select from evenflow.job where id = %s for update", (first.id,))
    assert heard(pipeline).lost == []
    assert len(heard(pipeline).claimed) == 1
    assert sorted(scene.states().values()) == ["running", "succeeded", "succeeded"]


def _is_free(engine: PostgresEngine, job: Claimed) -> bool:
    with engine.connect() as session:
        try:
            session.execute("select from evenflow.job where id = %s for update nowait", (job.id,))
        except psycopg.errors.LockNotAvailable:
            return False
    return True


def test_a_connection_that_died_while_idle_is_replaced(
    postgres_store: PostgresEngine, scene: Scene, pipeline: Pipeline, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.store.libpq.FRESH_S", 0.0)
    jobs = scene.enqueue(new_job())
    ask(pipeline)
    first = heard(pipeline).claimed
    with postgres_store.connect() as other:
        other.execute(
            "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
            " where datname = current_database() and pid <> pg_backend_pid()"
        )
    ask(pipeline, *map(end_of, first))
    assert heard(pipeline).lost == []
    assert scene.states() == {jobs[0]: "succeeded"}


def test_a_connection_that_is_not_used_is_let_go(
    pipeline: Pipeline, scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    ask(pipeline)
    monkeypatch.setattr("evenflow.store.pipeline.IDLE_S", 0.0)
    pipeline.close_when_idle()
    assert heard(pipeline).claimed == [], "not while somebody waits for an answer"
    pipeline.close_when_idle()
    assert pipeline._session is None
    ask(pipeline)
    assert heard(pipeline).claimed == []


@pytest.mark.parametrize("fate", ["lose message", "lose answer"])
def test_after_a_lost_connection_nothing_is_under_way(
    postgres_store: PostgresEngine, folder: Path, fate: str
) -> None:
    scene = Scene(postgres_store)
    job = scene.running()
    with Proxy(postgres_store._conninfo, folder) as proxy:
        engine = PostgresEngine(proxy.conninfo)
        pipeline = Pipeline(engine)
        proxy.fate = once(fate, b"jsonb_to_recordset")  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            ask(pipeline, end_of(job))
            heard(pipeline)
        ask(pipeline, end_of(job))
        assert heard(pipeline).lost == ([(job.id, job.epoch)] if fate == "lose answer" else [])
        pipeline.close()
        engine.close()
    assert scene.states() == {job.id: "succeeded"}


def test_behind_a_pooler_there_is_none(pgbouncer_store: PostgresEngine) -> None:
    pgbouncer_store.run("count_live", {})
    assert not Pipeline(pgbouncer_store).is_possible


def test_another_process_may_take_what_lies_between_two_rounds(scene: Scene, pipeline: Pipeline) -> None:
    """Rounds ahead hold no lock while nobody works on them."""
    jobs = scene.enqueue(*[new_job() for _ in range(6)])
    other = second_engine(scene.engine)
    ask(pipeline)
    wait_until(lambda: list(scene.states().values()).count("running") == 2, "the first round to be done")
    assert [job.id for job in Scene(other).claim(2)] == jobs[2:4]
    ask(pipeline)
    assert [job.id for job in (*heard(pipeline).claimed, *heard(pipeline).claimed)] == [*jobs[:2], *jobs[4:]]
    other.close()
