"""The spacer: it moves waiting jobs in batches, rests between them, and writes nothing where nothing is asked."""

from evenflow.queues import Queue
from evenflow.services.spacer import LEARN_EVERY_S, LOOK_EVERY_S, Spacer
from evenflow.store.control import declare_queue, learn_costs
from evenflow.store.spacing import is_asked
from tests.store.scene import Scene, new_job, rows_of


def test_it_looks_from_time_to_time_while_nothing_is_asked(scene: Scene) -> None:
    declare_queue(scene.engine, Queue("default", fair="time"))
    assert Spacer(scene.engine).step() == LOOK_EVERY_S


def test_it_hardly_looks_where_no_queue_is_fair_by_time(scene: Scene) -> None:
    declare_queue(scene.engine, Queue("default"))
    assert Spacer(scene.engine).step() == LEARN_EVERY_S


def test_it_moves_what_is_asked_and_comes_back_soon_while_there_is_more(scene: Scene) -> None:
    declare_queue(scene.engine, Queue("default", fair="time"))
    scene.enqueue(*(new_job(group=group) for group in ("quick", "slow") for _ in range(1500)))
    learn_costs(scene.engine, {("default", "quick"): (1, 100), ("default", "slow"): (1, 1000)}, now=scene.now)
    spacer, steps = Spacer(scene.engine), 0
    while is_asked(scene.engine):
        assert spacer.step() <= LOOK_EVERY_S
        steps += 1
        assert steps <= 4
    assert steps == 4
    assert spacer.step() == LOOK_EVERY_S
    turns = {row["id"]: row["turn"] for row in rows_of(scene.engine, "job")}
    assert turns[1000 + 1500 + 10] > 9 * turns[1000 + 10]
