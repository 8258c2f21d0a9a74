"""Rows that somebody else changes while a statement of ours waits for them: PostgreSQL goes on with their newest version,
and a statement that looks for the old one by its address would pass them by. SQLite has one writer at a time."""

import threading
from collections.abc import Callable
from typing import TypeVar

import pytest

from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import await_job
from tests.processes import wait_until
from tests.store.scene import ALICE, Scene, end_of, new_job
from tests.store.test_workflows import Flow, step

T = TypeVar("T")
WAITING = "select 1 from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"


@pytest.fixture
def scene(postgres_store: PostgresEngine) -> Scene:
    return Scene(postgres_store)


def overtaken(scene: Scene, job: int, act: Callable[[], T]) -> T:
    """Do something while somebody else has changed the job and commits only when we wait for him."""
    answers: list[T] = []
    thread = threading.Thread(target=lambda: answers.append(act()))
    engine = scene.engine
    assert isinstance(engine, PostgresEngine)
    with engine.session() as other, engine.session() as looking:
        with other.transaction():
            other.execute("update evenflow.job set awaited = true where id = %s", [job])
            thread.start()
            wait_until(lambda: bool(looking.execute(WAITING.encode()).fetchall()), "us to wait for him")
        thread.join(30)
    return answers[0]


@pytest.mark.parametrize("state", ["scheduled", "ready", "succeeded"])
def test_the_end_of_a_run_is_written_though_somebody_begins_to_wait_for_it(scene: Scene, state: str) -> None:
    job, bystander = scene.running(), scene.running()
    ends = [end_of(job, state, run_at=scene.now + 5), end_of(bystander, state, run_at=scene.now + 5)]
    answer = overtaken(scene, job.id, lambda: scene.advance(ALICE, *ends))
    assert answer.lost == []
    assert scene.states() == dict.fromkeys([job.id, bystander.id], state)


@pytest.mark.parametrize("children", [1, 2])
@pytest.mark.parametrize("group", [None, "bob"])
def test_a_step_begins_though_somebody_begins_to_wait_for_it(
    scene: Scene, children: int, group: str | None
) -> None:
    flow = Flow(scene)
    run = flow.start(
        step("a"), step("b", 0, job={"group": group}), *(step("c", 0, 1) for _ in range(children - 1))
    )
    parent = flow.claim()["a"]
    child = flow.steps(run)["b"].id
    overtaken(scene, child, lambda: scene.advance(ALICE, end_of(parent)))
    scene.admit()
    assert flow.states(run)["b"] == "ready"
    assert scene.live(child)["awaited"]


def test_a_step_that_is_told_later_begins_though_somebody_begins_to_wait_for_it(scene: Scene) -> None:
    flow = Flow(scene)
    run = flow.start(step("a"), step("b"), step("c", 0, 1, delay_us=5))
    jobs = flow.claim()
    child = flow.steps(run)["c"].id
    scene.advance(ALICE, end_of(jobs["a"]))
    overtaken(scene, child, lambda: scene.advance(ALICE, end_of(jobs["b"])))
    assert flow.states(run)["c"] in ("scheduled", "arriving")


def test_a_job_that_was_overtaken_is_claimed_next_time(scene: Scene) -> None:
    (job,) = scene.enqueue(new_job())
    await_job(scene.engine, job)
    assert scene.claim_ids() == [job]
