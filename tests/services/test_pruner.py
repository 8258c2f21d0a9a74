"""The pruner forgets what has served its time, in bounded steps, and says when it wants to come back."""

import msgspec
import pytest

from evenflow.clock import wall_us
from evenflow.ids import IdSource
from evenflow.schedule import NewSchedule
from evenflow.services import pruner as pruner_module
from evenflow.services.pruner import EVERY_S, Pruner
from evenflow.store import schedules
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.schedules import Planned
from tests.store.scene import DAY, Scene, end_of, new_job, rows_of


@pytest.fixture
def past(store: AnyEngine) -> Scene:
    """A store with finished jobs: three whose retention is over, two that are kept."""
    scene = Scene(store)
    scene.now = wall_us() - 3 * DAY  # on PostgreSQL what expired today goes with the partition of today
    scene.enqueue(*[new_job() for _ in range(5)])
    first, second, third, *kept = scene.claim(5)
    scene.advance(101, *[end_of(job, keep_us=1) for job in (first, second, third)])
    scene.advance(101, *[end_of(job, keep_us=10 * DAY) for job in kept])
    return scene


def test_finished_jobs_are_forgotten_when_their_retention_is_over(past: Scene) -> None:
    assert Pruner(past.engine).step() == EVERY_S
    assert len(rows_of(past.engine, "history")) == 2


def test_it_comes_back_at_once_while_there_is_more(past: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruner_module, "BATCH", 2)
    pruner = Pruner(past.engine)
    assert pruner.step() == 0.0
    while pruner.step() == 0.0:
        pass
    assert len(rows_of(past.engine, "history")) == 2


def test_partitions_of_the_coming_days_are_made(postgres_store: PostgresEngine) -> None:
    Pruner(postgres_store).step()
    with postgres_store.session() as session:
        count = session.execute(
            "select count(*) from pg_inherits where inhparent = 'evenflow.history'::regclass"
        )
        found = count.fetchone()
    assert found is not None and found[0] > 30


def test_any_number_of_pruners_may_run(past: Scene) -> None:
    pruners = [Pruner(past.engine) for _ in range(3)]
    for pruner in pruners:
        pruner.step()
    assert len(rows_of(past.engine, "history")) == 2


def test_fires_are_remembered_for_a_week_and_undeclared_schedules_for_a_month(store: AnyEngine) -> None:
    schedule = NewSchedule("old", "mail.send", "[[],{}]", "* * * * *")
    for days_ago in (31, 6):
        now = wall_us() - days_ago * DAY
        row = msgspec.structs.replace(schedule, key=f"declared {days_ago} days ago")
        schedules.declare(store, 1, [Planned(row, now)], takes_over=True, now=now)
        schedules.fire_by_hand(store, row.key, new_job(), ids=IdSource(), sign=None, now=now)
    Pruner(store).step()
    assert [row["key"] for row in rows_of(store, "schedule")] == ["declared 6 days ago"]
    assert [row["key"] for row in rows_of(store, "fire")] == ["declared 6 days ago"]
