"""Schedules in the store: whose word counts, and a fire that is one transaction, on both engines."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from evenflow.job import NewJob
from evenflow.schedule import SCHEDULER_SILENT_US, NewSchedule, StoredSchedule
from evenflow.store import schedules
from evenflow.store.enqueue import Enqueued
from evenflow.store.open import AnyEngine
from evenflow.store.schedules import Fire, Planned
from tests.store.scene import DAY, SECOND, START, Scene, new_job, rows_of, second_engine

MINUTE = 60 * SECOND
OLD, NEW = 1, 2  # two schedulers


def made(key: str = "report", **fields: Any) -> NewSchedule:
    return NewSchedule(
        **{"key": key, "task": "mail.send", "payload": "[[],{}]", "cron": "* * * * *", **fields}
    )


def planned(schedule: NewSchedule, next_run: int = START + MINUTE) -> Planned:
    return Planned(schedule, next_run)


def see(scene: Scene, scheduler: int, *declared: NewSchedule, tasks: tuple[str, ...] = ()) -> None:
    fingerprints = [each.fingerprint for each in declared]
    schedules.see(
        scene.engine,
        scheduler,
        host="here",
        pid=scheduler,
        fingerprints=fingerprints,
        tasks=tasks,
        now=scene.now,
    )


def declare(
    scene: Scene,
    scheduler: int,
    *declared: NewSchedule,
    takes_over: bool = True,
    next_run: int = START + MINUTE,
) -> list[str]:
    see(scene, scheduler, *declared)
    rows = [planned(each, next_run) for each in declared]
    return schedules.declare(scene.engine, scheduler, rows, takes_over=takes_over, now=scene.now)


def row(scene: Scene, key: str = "report") -> StoredSchedule:
    (found,) = schedules.found(scene.engine, key, now=scene.now)
    return found


def fire(
    scene: Scene,
    schedule: StoredSchedule,
    *slots: int,
    job: NewJob | None = None,
    engine: AnyEngine | None = None,
) -> list[Enqueued] | None:
    jobs = [(slot, job or new_job()) for slot in slots]
    next_run = max(slots, default=START) + MINUTE
    return schedules.fire(
        engine or scene.engine, schedule, jobs, next_run, ids=scene.ids, sign=None, now=scene.now
    )


# Whose word counts


def test_what_code_declares_is_stored_with_its_next_slot(scene: Scene) -> None:
    assert declare(scene, NEW, made(timezone="Europe/Berlin", jitter_us=5, catch_up="one")) == ["report"]
    found = row(scene)
    assert (found.source, found.cron, found.timezone) == ("code", "* * * * *", "Europe/Berlin")
    assert (found.next_run, found.anchor, found.created_at) == (START + MINUTE, START, START)
    assert (found.jitter_us, found.catch_up, found.overlap, found.last_run) == (5, "one", "allow", None)


def test_declaring_the_same_again_changes_nothing(scene: Scene) -> None:
    declare(scene, NEW, made())
    before = row(scene)
    scene.now += DAY
    assert declare(scene, NEW, made(), next_run=START + 2 * DAY) == []
    assert row(scene) == before


def test_a_changed_pattern_has_a_new_next_slot_and_anything_else_keeps_it(scene: Scene) -> None:
    declare(scene, NEW, made())
    declare(scene, NEW, made(description="mails"), next_run=START + 5 * MINUTE)
    assert (row(scene).description, row(scene).next_run) == ("mails", START + MINUTE)
    declare(scene, NEW, made(timezone="Asia/Tokyo"), next_run=START + 6 * MINUTE)
    assert row(scene).next_run == START + 6 * MINUTE
    scene.now += MINUTE
    declare(scene, NEW, made(cron=None, every_us=MINUTE), next_run=START + 7 * MINUTE)
    assert (row(scene).next_run, row(scene).anchor) == (START + 7 * MINUTE, START + MINUTE)


def test_a_new_version_takes_over_and_the_old_one_does_not_take_it_back(scene: Scene) -> None:
    old, new = made(), made(cron="*/5 * * * *")
    declare(scene, OLD, old)
    declare(scene, NEW, new)
    assert declare(scene, OLD, old, takes_over=False) == []
    assert row(scene).fingerprint == new.fingerprint


def test_the_old_version_goes_on_when_the_new_one_is_gone(scene: Scene) -> None:
    old, new = made(), made(cron="*/5 * * * *")
    declare(scene, OLD, old)
    declare(scene, NEW, new)
    scene.now += SCHEDULER_SILENT_US + 1
    assert declare(scene, OLD, old, takes_over=False) == ["report"]
    assert row(scene).fingerprint == old.fingerprint


def test_a_schedule_is_served_as_long_as_a_living_scheduler_declares_it(scene: Scene) -> None:
    declare(scene, OLD, made())
    assert row(scene).is_served
    scene.now += SCHEDULER_SILENT_US
    assert not row(scene).is_served
    see(scene, OLD, made())
    assert row(scene).is_served


def test_what_a_new_version_does_not_declare_stays_with_those_who_do(scene: Scene) -> None:
    declare(scene, OLD, made("kept"), made("dropped"))
    declare(scene, NEW, made("kept"))
    assert row(scene, "dropped").is_served
    scene.now += SCHEDULER_SILENT_US + 1
    see(scene, NEW, made("kept"))
    assert not row(scene, "dropped").is_served
    mine = [made("kept").fingerprint]
    assert [each.key for each in schedules.due(scene.engine, mine, [], top=9, now=scene.now)[0]] == ["kept"]


def test_code_leaves_alone_what_was_added_under_its_key(scene: Scene) -> None:
    assert schedules.add(scene.engine, planned(made(task="by.hand")), now=scene.now)
    assert declare(scene, NEW, made()) == []
    assert (row(scene).source, row(scene).task) == ("added", "by.hand")


def test_a_key_can_be_added_once(scene: Scene) -> None:
    assert schedules.add(scene.engine, planned(made()), now=scene.now)
    assert not schedules.add(scene.engine, planned(made(cron="0 0 * * *")), now=scene.now)
    assert row(scene).cron == "* * * * *"


def test_what_was_added_is_served_by_whoever_knows_its_task(scene: Scene) -> None:
    schedules.add(scene.engine, planned(made()), now=scene.now)
    assert not row(scene).is_served
    see(scene, NEW, tasks=("mail.send",))
    assert row(scene).is_served
    assert schedules.due(scene.engine, [], ["other"], top=9, now=scene.now)[0] == []
    assert len(schedules.due(scene.engine, [], ["mail.send"], top=9, now=scene.now)[0]) == 1


def test_a_change_at_run_time_needs_what_was_read(scene: Scene) -> None:
    first, second = made(), made(cron="*/5 * * * *")
    schedules.add(scene.engine, planned(first), now=scene.now)
    later = planned(second, START + 5 * MINUTE)
    assert not schedules.change(scene.engine, later, "another", now=scene.now)
    assert schedules.change(scene.engine, later, first.fingerprint, now=scene.now)
    assert (row(scene).cron, row(scene).next_run) == ("*/5 * * * *", START + 5 * MINUTE)
    declare(scene, NEW, made("coded"))
    coded = made("coded", queue="other")
    assert not schedules.change(scene.engine, planned(coded), made("coded").fingerprint, now=scene.now)


def test_only_what_nobody_declares_can_be_removed(scene: Scene) -> None:
    declare(scene, NEW, made("coded"))
    schedules.add(scene.engine, planned(made("added")), now=scene.now)
    assert not schedules.remove(scene.engine, "coded", now=scene.now)
    assert not schedules.remove(scene.engine, "nothing", now=scene.now)
    assert schedules.remove(scene.engine, "added", now=scene.now)
    assert schedules.remove(scene.engine, "coded", now=scene.now + SCHEDULER_SILENT_US + 1)


def test_a_paused_schedule_is_not_due_and_keeps_its_pause_over_declarations(scene: Scene) -> None:
    declare(scene, NEW, made())
    assert schedules.pause(scene.engine, "report", who="ann", why="holiday", now=scene.now)
    declare(scene, NEW, made(description="changed"))
    assert (row(scene).paused_at, row(scene).paused_by, row(scene).paused_why) == (START, "ann", "holiday")
    mine = [made(description="changed").fingerprint]
    assert schedules.due(scene.engine, mine, [], top=9, now=scene.now) == ([], 0)
    assert schedules.resume(scene.engine, "report", START + DAY)
    assert not schedules.resume(scene.engine, "report", START + 2 * DAY)
    assert (row(scene).paused_at, row(scene).next_run) == (None, START + DAY)
    assert not schedules.pause(scene.engine, "nothing")


def test_the_earliest_is_due_first(scene: Scene) -> None:
    for key, slot in (("late", 3), ("soon", 1), ("then", 2)):
        declare(scene, NEW, made(key), next_run=START + slot)
    mine = [made(key).fingerprint for key in ("late", "soon", "then")]
    found, now = schedules.due(scene.engine, mine, [], top=2, now=scene.now)
    assert ([each.key for each in found], now) == (["soon", "then"], START)


def test_living_schedulers_are_listed(scene: Scene) -> None:
    see(scene, OLD)
    scene.now += SCHEDULER_SILENT_US
    see(scene, NEW)
    assert [(each.id, each.host) for each in schedules.schedulers(scene.engine, now=scene.now)] == [
        (NEW, "here")
    ]


# Fires


@pytest.fixture
def due_row(scene: Scene) -> StoredSchedule:
    """A schedule of code whose slot has come."""
    declare(scene, NEW, made(), next_run=START)
    return row(scene)


def test_a_fire_enqueues_its_job_notes_it_and_moves_on(scene: Scene, due_row: StoredSchedule) -> None:
    placed = fire(scene, due_row, START)
    assert placed is not None
    job = placed[0].id
    assert scene.states() == {job: "ready"}
    found = row(scene)
    assert (found.next_run, found.last_run, found.last_job) == (START + MINUTE, START, job)
    assert schedules.fires(scene.engine, "report") == [Fire(START, START, job, "enqueued")]


def test_a_slot_fires_once_whoever_tries_again(scene: Scene, due_row: StoredSchedule) -> None:
    assert fire(scene, due_row, START) is not None
    assert fire(scene, due_row, START) is None
    assert len(scene.states()) == 1


def test_a_slot_that_has_fired_never_fires_again_whatever_the_row_says(
    scene: Scene, due_row: StoredSchedule
) -> None:
    fire(scene, due_row, START)
    scene.now += SCHEDULER_SILENT_US + 1
    assert schedules.remove(scene.engine, "report", now=scene.now)
    declare(scene, NEW, made(), next_run=START)
    assert fire(scene, row(scene), START) == []
    assert len(scene.states()) == 1


def test_several_slots_fire_in_one_go(scene: Scene, due_row: StoredSchedule) -> None:
    slots = [START, START + MINUTE, START + 2 * MINUTE]
    placed = fire(scene, due_row, *slots)
    assert placed is not None
    assert len(scene.states()) == 3
    assert [each.slot for each in schedules.fires(scene.engine, "report", top=2)] == slots[:0:-1]
    assert (row(scene).last_run, row(scene).last_job) == (slots[-1], placed[-1].id)


def test_nothing_is_left_of_a_fire_that_fails_half_way(scene: Scene, due_row: StoredSchedule) -> None:
    before = scene.contents()

    def fails(*_: object) -> str:
        raise OSError("the process died here")

    with pytest.raises(OSError, match="died"):
        schedules.fire(
            scene.engine,
            due_row,
            [(START, new_job())],
            START + MINUTE,
            ids=scene.ids,
            sign=fails,
            now=scene.now,
        )
    assert scene.contents() == before
    assert (row(scene).next_run, schedules.fires(scene.engine, "report")) == (START, [])
    assert fire(scene, row(scene), START) is not None


def test_a_paused_or_changed_schedule_does_not_fire_for_who_read_it_before(
    scene: Scene, due_row: StoredSchedule
) -> None:
    schedules.pause(scene.engine, "report")
    assert fire(scene, due_row, START) is None
    schedules.resume(scene.engine, "report", START)
    declare(scene, NEW, made(description="changed"))
    assert fire(scene, due_row, START) is None
    assert scene.states() == {}


def test_while_the_last_run_is_open_an_overlap_is_skipped(scene: Scene) -> None:
    declare(scene, NEW, made(overlap="skip"), next_run=START)
    placed = fire(scene, row(scene), START)
    assert placed is not None
    assert fire(scene, row(scene), START + MINUTE) == []
    assert [each.outcome for each in schedules.fires(scene.engine, "report")] == ["overlapped", "enqueued"]
    (running,) = scene.claim(1)
    assert fire(scene, row(scene), START + 2 * MINUTE) == []
    scene.finish(running)
    assert fire(scene, row(scene), START + 3 * MINUTE) not in (None, [])


def test_of_several_slots_that_must_not_overlap_the_last_one_fires(scene: Scene) -> None:
    declare(scene, NEW, made(overlap="skip"), next_run=START)
    fire(scene, row(scene), START, START + MINUTE)
    found = schedules.fires(scene.engine, "report")
    assert [(each.slot, each.outcome) for each in found] == [
        (START + MINUTE, "enqueued"),
        (START, "overlapped"),
    ]


def test_a_unique_job_that_is_open_stands_for_the_new_one(scene: Scene, due_row: StoredSchedule) -> None:
    (holder,) = scene.enqueue(new_job(unique_key="one"))
    placed = fire(scene, due_row, START, job=new_job(unique_key="one"))
    assert placed == [Enqueued(holder, False)]
    assert schedules.fires(scene.engine, "report") == [Fire(START, START, holder, "duplicate")]


def test_a_job_that_cannot_be_made_costs_its_slot_and_no_more(scene: Scene, due_row: StoredSchedule) -> None:
    assert schedules.fail(scene.engine, due_row, [START], START + MINUTE, "no such task", now=scene.now)
    assert not schedules.fail(scene.engine, due_row, [START], START + MINUTE, "again", now=scene.now)
    assert (row(scene).error, row(scene).next_run) == ("no such task", START + MINUTE)
    assert [each.outcome for each in schedules.fires(scene.engine, "report")] == ["failed"]
    fire(scene, row(scene), START + MINUTE)
    assert row(scene).error is None


def test_a_fire_by_hand_is_noted_beside_the_slots(scene: Scene, due_row: StoredSchedule) -> None:
    placed = schedules.fire_by_hand(
        scene.engine, "report", new_job(), ids=scene.ids, sign=None, now=START + 5
    )
    assert schedules.fires(scene.engine, "report") == [Fire(START + 5, START + 5, placed.id, "by hand")]
    assert (row(scene).next_run, row(scene).last_job) == (START, placed.id)


def test_old_fires_and_schedules_of_code_that_nobody_declares_are_forgotten(
    scene: Scene, due_row: StoredSchedule
) -> None:
    schedules.add(scene.engine, planned(made("added")), now=scene.now)
    fire(scene, due_row, START, START + 1, START + 2)
    assert schedules.prune(scene.engine, DAY, now=START + DAY - 1) == 0
    assert schedules.forget_undeclared(scene.engine, DAY, now=START + DAY - 1) == []
    assert schedules.prune(scene.engine, DAY, top=2, now=START + DAY) == 2
    assert schedules.prune(scene.engine, DAY, top=2, now=START + DAY) == 1
    assert schedules.forget_undeclared(scene.engine, DAY, now=START + DAY) == ["report"]
    assert [each["key"] for each in rows_of(scene.engine, "schedule")] == ["added"]


def test_a_schedule_that_is_declared_all_the_time_is_not_forgotten(
    scene: Scene, due_row: StoredSchedule
) -> None:
    scene.now += 2 * DAY
    see(scene, NEW, made())
    assert schedules.forget_undeclared(scene.engine, DAY, now=scene.now) == []
    assert row(scene).key == "report"


def test_of_many_threads_one_fires_each_slot(scene: Scene, due_row: StoredSchedule) -> None:
    engines = [second_engine(scene.engine) for _ in range(6)]
    results: list[Any] = []
    barrier = threading.Barrier(len(engines))

    def race(engine: AnyEngine) -> Callable[[], None]:
        def run() -> None:
            barrier.wait()
            results.append(fire(scene, due_row, START, engine=engine))

        return run

    threads = [threading.Thread(target=race(engine)) for engine in engines]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for engine in engines:
        engine.close()
    assert len([each for each in results if each]) == 1
    assert len(results) == len(engines)
    assert len(scene.states()) == 1
