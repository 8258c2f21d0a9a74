"""The scheduler: slots fire on time, late ones as told, one bad schedule holds up nobody, versions live side by side."""

import contextlib
import logging
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec
import pytest

from evenflow.errors import EnqueueError, StoreRefused
from evenflow.job import Limit, NewJob
from evenflow.schedule import SCHEDULER_SILENT_US, NewSchedule, StoredSchedule
from evenflow.services import scheduler as scheduler_module
from evenflow.services.scheduler import LOOK_EVERY_S, Scheduler
from evenflow.store import schedules
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.open import AnyEngine
from evenflow.store.schedules import Planned
from tests.store.scene import DAY, SECOND, START, Scene, execute, new_job, rows_of

MINUTE = 60 * SECOND
FIRST = START - START % MINUTE + MINUTE  # the first full minute


@dataclass
class PlainPlan:
    """A program with these schedules and tasks; the job of every schedule carries its key."""

    declared: Sequence[NewSchedule] = ()
    task_names: Sequence[str] = ("mail.send",)
    sign: Sign | None = None
    fields: dict[str, Any] = field(default_factory=dict)
    broken: set[str] = field(default_factory=set)
    words: str = "the arguments do not fit"

    @contextlib.contextmanager
    def published(self, jobs: Sequence[NewJob]) -> Iterator[tuple[Sequence[NewJob], list[int]]]:
        yield jobs, []

    def job(self, schedule: StoredSchedule) -> NewJob:
        if schedule.key in self.broken:
            raise EnqueueError(self.words)
        return new_job(payload=f'[["{schedule.key}"],{{}}]', **self.fields)


class Desk:
    """Schedulers over one store, with a clock that the test turns."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self.scene = Scene(engine)
        self.now = START

    def scheduler(self, *declared: NewSchedule, **plan: Any) -> Scheduler:
        return Scheduler(self.engine, PlainPlan(declared, **plan), clock=lambda: self.now)

    def run(self, scheduler: Scheduler, now: int | None = None) -> float:
        """Let it work until it wants to wait: how long."""
        self.now = self.now if now is None else now
        for _ in range(20):
            if (left_s := scheduler.step()) > 0:
                return left_s
        raise AssertionError("the scheduler does not come to rest")

    def run_anew(self, scheduler: Scheduler, now: int) -> float:
        """As after a while: it also says again what it declares."""
        scheduler._declare_at = 0.0
        return self.run(scheduler, now)

    def fired(self, key: str = "report") -> list[tuple[int, str]]:
        return [(each.slot, each.outcome) for each in reversed(schedules.fires(self.engine, key, top=200))]

    def jobs(self) -> list[dict[str, Any]]:
        return rows_of(self.engine, "job")

    def row(self, key: str = "report") -> StoredSchedule:
        return schedules.found(self.engine, key, now=self.now)[0]


@pytest.fixture
def desk(store: AnyEngine) -> Desk:
    return Desk(store)


def every_minute(key: str = "report", **fields: Any) -> NewSchedule:
    return NewSchedule(
        **{"key": key, "task": "mail.send", "payload": "[[],{}]", "cron": "* * * * *", **fields}
    )


def test_it_fires_when_a_slot_has_come_and_not_before(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute())
    desk.run(scheduler)
    assert desk.row().next_run == FIRST
    desk.run(scheduler, FIRST - 1)
    assert desk.jobs() == []
    desk.run(scheduler, FIRST)
    assert desk.fired() == [(FIRST, "enqueued")]
    assert [job["state"] for job in desk.jobs()] == ["ready"]


def test_it_asks_to_be_called_when_the_next_slot_comes(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute())
    assert desk.run(scheduler) == LOOK_EVERY_S
    assert desk.run(scheduler, FIRST - 200_000) == pytest.approx(0.2)
    assert desk.run(desk.scheduler()) == LOOK_EVERY_S


def test_slots_keep_their_distance_however_late_it_looks(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute())
    desk.run(scheduler)
    for late_s in (0, 7, 3, 59):
        slot = desk.row().next_run
        desk.run(scheduler, slot + late_s * SECOND)
    assert [slot for slot, _ in desk.fired()] == [FIRST + number * MINUTE for number in range(4)]


def test_an_interval_is_elapsed_time_from_when_it_was_first_declared(desk: Desk) -> None:
    schedule = every_minute(cron=None, every_us=90 * SECOND)
    desk.run(desk.scheduler(schedule))
    desk.run(desk.scheduler(schedule), START + 91 * SECOND)
    desk.run(desk.scheduler(schedule), START + 185 * SECOND)
    assert [slot for slot, _ in desk.fired()] == [START + 90 * SECOND, START + 180 * SECOND]


@pytest.mark.parametrize(
    ("catch_up", "slots"),
    [("skip", []), ("one", [600]), ("all", [0, 120, 240, 360, 480, 600])],
)
def test_after_downtime_missed_slots_are_caught_up_as_told(
    desk: Desk, catch_up: str, slots: list[int]
) -> None:
    schedule = every_minute(cron="*/2 * * * *", catch_up=catch_up)
    desk.run(desk.scheduler(schedule))
    first = desk.row().next_run
    desk.run(desk.scheduler(schedule), first + 690 * SECOND)
    assert [(slot - first) // SECOND for slot, _ in desk.fired()] == slots
    assert desk.row().next_run == first + 720 * SECOND
    assert len(desk.jobs()) == len(slots)


def test_a_long_downtime_is_caught_up_by_a_hundred_slots_at_most(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    schedule = every_minute(catch_up="all")
    desk.run(desk.scheduler(schedule))
    desk.run(desk.scheduler(schedule), FIRST + 30 * DAY)
    fired = desk.fired()
    assert (len(fired), fired[-1][0]) == (100, FIRST + 30 * DAY)
    assert "missed slots are passed over" in caplog.text


def test_two_schedulers_fire_a_slot_once(desk: Desk) -> None:
    one, other = desk.scheduler(every_minute()), desk.scheduler(every_minute())
    desk.run(one)
    desk.run(other)
    for minute in range(5):
        desk.run(other, FIRST + minute * MINUTE)
        desk.run(one)
    assert len(desk.fired()) == len(desk.jobs()) == 5


def test_a_job_that_cannot_be_made_costs_its_slot_and_holds_up_nobody(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    scheduler = desk.scheduler(every_minute("bad"), every_minute("good"), broken={"bad"})
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    assert (desk.fired("bad"), desk.fired("good")) == ([(FIRST, "failed")], [(FIRST, "enqueued")])
    assert desk.row("bad").error == "EnqueueError: the arguments do not fit"
    assert desk.row("bad").next_run == FIRST + MINUTE
    assert "'bad': its job cannot be enqueued, the slot is passed over" in caplog.text


def test_a_job_that_the_database_refuses_costs_its_slot_and_holds_up_nobody(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute(), fields={"priority": 30_000})
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    assert desk.fired() == [(FIRST, "failed")]
    assert (desk.row().error or "").startswith("StoreRefused: ")
    assert desk.jobs() == []


def test_an_error_that_no_database_stores_is_noted_as_far_as_it_can_be(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute("bad"), every_minute("good"), broken={"bad"}, words="odd\0")
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    assert (desk.fired("bad"), desk.fired("good")) == ([(FIRST, "failed")], [(FIRST, "enqueued")])
    assert desk.row("bad").error == "EnqueueError: odd\\0"


def test_a_failure_that_cannot_be_noted_holds_up_nobody(
    desk: Desk, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> bool:
        raise StoreRefused("the row is too long")

    monkeypatch.setattr(schedules, "fail", refuse)
    scheduler = desk.scheduler(every_minute("bad"), every_minute("good"), broken={"bad"})
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    assert desk.fired("good") == [(FIRST, "enqueued")]
    assert (desk.fired("bad"), desk.row("bad").next_run) == ([], FIRST)
    assert "schedule 'bad' cannot fire here, and that cannot be noted" in caplog.text


def test_a_row_that_cannot_be_read_here_waits_and_holds_up_nobody(
    desk: Desk, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(scheduler_module, "BATCH", 1)
    for key in ("odd", "odder"):
        schedules.add(desk.engine, Planned(every_minute(key), START), now=START)
    execute(desk.engine, "update evenflow_schedule set timezone = 'Mars/Base'")
    scheduler = desk.scheduler(every_minute("good"))
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    assert desk.fired("good") == [(FIRST, "enqueued")]
    assert "no time zone 'Mars/Base'" in (desk.row("odd").error or "")
    assert desk.fired("odd") == []


def test_jitter_starts_the_job_later_and_leaves_the_slot(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute(jitter_us=MINUTE))
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    (job,) = desk.jobs()
    assert job["state"] == "scheduled"
    assert FIRST < job["run_at"] <= FIRST + MINUTE
    assert desk.fired() == [(FIRST, "enqueued")]


def test_a_slow_run_and_the_next_slot_do_not_overlap_where_that_is_wanted(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute(overlap="skip"))
    desk.run(scheduler)
    for minute in range(3):
        desk.run(scheduler, FIRST + minute * MINUTE)
    assert [outcome for _, outcome in desk.fired()] == ["enqueued", "overlapped", "overlapped"]
    (running,) = desk.scene.claim(5)
    desk.scene.finish(running)
    desk.run(scheduler, FIRST + 3 * MINUTE)
    assert desk.fired()[-1] == (FIRST + 3 * MINUTE, "enqueued")


def test_jobs_with_keys_arrive_and_line_up_like_all_others(desk: Desk) -> None:
    limits = (Limit("key:mail.send", 1, 180 * SECOND),)
    scheduler = desk.scheduler(every_minute(), fields={"limits": limits})
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    assert [job["state"] for job in desk.jobs()] == ["arriving"]
    assert len(rows_of(desk.engine, "hold")) == 1


def test_jobs_are_signed_where_the_program_signs(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute(), sign=lambda job, number: f"signed-{number}")
    desk.run(scheduler)
    desk.run(scheduler, FIRST)
    (job,) = desk.jobs()
    assert job["signature"] == f"signed-{job['id']}"


# Programs side by side


def test_it_leaves_alone_what_another_program_declares(desk: Desk) -> None:
    mail, bills = desk.scheduler(every_minute("mail")), desk.scheduler(every_minute("bills"))
    desk.run(mail)
    desk.run(bills)
    desk.run(mail, FIRST)
    assert (len(desk.fired("mail")), desk.fired("bills")) == (1, [])
    desk.run(bills)
    assert len(desk.fired("bills")) == 1


def test_of_two_versions_the_newer_one_fires_and_the_older_one_comes_back_after_it(desk: Desk) -> None:
    old = desk.scheduler(every_minute(catch_up="all"))
    desk.run(old)
    new = desk.scheduler(every_minute(cron="*/5 * * * *", catch_up="all"))
    desk.run(new)
    desk.run_anew(old, START + 1)
    assert desk.row().cron == "*/5 * * * *"
    desk.run_anew(old, FIRST)
    assert desk.fired() == []
    # The newer one was taken back: it is not seen any more.
    desk.run_anew(old, START + SCHEDULER_SILENT_US + SECOND)
    assert desk.row().cron == "* * * * *"
    desk.run(old, desk.row().next_run)
    assert len(desk.fired()) == 1


def test_what_a_version_no_longer_declares_fires_until_its_last_declarer_is_gone(desk: Desk) -> None:
    old, new = (
        desk.scheduler(every_minute("kept"), every_minute("dropped")),
        desk.scheduler(every_minute("kept")),
    )
    desk.run(old)
    desk.run(new)
    desk.run(new, FIRST)
    desk.run(old)
    assert len(desk.fired("dropped")) == 1
    desk.run_anew(new, FIRST + 2 * MINUTE)
    assert len(desk.fired("dropped")) == 1
    assert not desk.row("dropped").is_served
    assert desk.row("kept").is_served


def test_what_was_added_at_run_time_fires_wherever_its_task_is_known(desk: Desk) -> None:
    schedules.add(desk.engine, Planned(every_minute("added"), FIRST), now=START)
    stranger = desk.scheduler(task_names=("other",))
    desk.run(stranger, FIRST)
    assert desk.fired("added") == []
    desk.run(desk.scheduler(), FIRST)
    assert desk.fired("added") == [(FIRST, "enqueued")]


def test_a_key_of_code_that_was_added_by_hand_is_said_aloud(
    desk: Desk, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO)
    schedules.add(desk.engine, Planned(every_minute(), FIRST), now=START)
    desk.run(desk.scheduler(every_minute(cron="0 0 * * *"), every_minute("mine")))
    assert "schedule 'report' of this program does not fire" in caplog.text
    assert "schedules declared: mine" in caplog.text


def test_pauses_are_obeyed_and_nothing_is_caught_up_after_them(desk: Desk) -> None:
    scheduler = desk.scheduler(every_minute(catch_up="all"))
    desk.run(scheduler)
    schedules.pause(desk.engine, "report")
    desk.run(scheduler, FIRST + 10 * MINUTE)
    assert desk.fired() == []
    schedules.resume(desk.engine, "report", FIRST + 11 * MINUTE)
    desk.run(scheduler, FIRST + 11 * MINUTE)
    assert [slot for slot, _ in desk.fired()] == [FIRST + 11 * MINUTE]


def test_an_idle_scheduler_writes_nothing(desk: Desk, monkeypatch: pytest.MonkeyPatch) -> None:
    scheduler = desk.scheduler(every_minute())
    desk.run(scheduler)
    units: list[str] = []
    run = desk.engine.run

    def noted(name: str, parameters: Any, **options: Any) -> Any:
        units.append(name)
        return run(name, parameters, **options)

    monkeypatch.setattr(desk.engine, "run", noted)
    for _ in range(10):
        desk.run(scheduler)
    assert units == ["due_schedules"] * 10


def test_the_clock_of_the_database_decides(store: AnyEngine, monkeypatch: pytest.MonkeyPatch) -> None:
    schedule = every_minute(cron=None, every_us=3600 * SECOND)
    scheduler = Scheduler(store, PlainPlan([schedule]))
    scheduler.step()
    (row,) = schedules.found(store, "report")
    execute(store, f"update evenflow_schedule set next_run = {row.anchor}")
    while scheduler.step() == 0.0:
        pass
    assert [each.slot for each in schedules.fires(store, "report")] == [row.anchor]
    assert msgspec.structs.asdict(schedules.found(store, "report")[0])["next_run"] == row.next_run
