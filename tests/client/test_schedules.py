"""Schedules as users write them: found from the code, refused with every mistake, changed while workers run."""

import asyncio
import contextlib
import threading
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenflow import ConfigError, Context, EnqueueError, Evenflow, Queue, Schedule, ScheduleNotFound
from evenflow.services.scheduler import Scheduler
from tests.client.conftest import MakeApp
from tests.processes import wait_until
from tests.store.scene import execute

SECOND = timedelta(seconds=1)


@pytest.fixture
def sent(app: Evenflow) -> list[tuple[str, int]]:
    """What `mail` has sent."""
    found: list[tuple[str, int]] = []

    @app.task(name="mail", queue="post", priority=7)
    def mail(to: str, count: int = 1) -> None:
        found.append((to, count))

    return found


def mistakes_of(raised: "pytest.ExceptionInfo[ConfigError]") -> list[str]:
    return raised.value.mistakes


def make_due(app: Evenflow, key: str) -> None:
    """Let a slot of an interval have come: the one at which it was first declared."""
    assert app.schedules.get(key).every is not None
    execute(app._producer.engine, f"update evenflow_schedule set next_run = anchor where key = '{key}'")


def step(app: Evenflow) -> None:
    app.prepare()
    scheduler = Scheduler(app._producer.engine, app.schedules)
    while scheduler.step() == 0.0:
        pass


# In code


async def test_a_decorated_task_is_found_and_runs_without_a_further_list(app: Evenflow) -> None:
    runs: list[int] = []
    done = threading.Event()

    @app.recurring(every=SECOND, kwargs={"number": 4})
    @app.task(name="tick")
    def tick(number: int) -> None:
        runs.append(number)
        done.set()

    await serve_until(app, done)
    assert set(runs) == {4}
    (schedule,) = app.schedules.list()
    assert (schedule.key, schedule.source, schedule.text) == ("tick", "code", "Every second")
    assert schedule.last_run is not None


async def serve_until(app: Evenflow, done: threading.Event) -> None:
    """A worker in this process, until something has happened in it."""
    worker = asyncio.ensure_future(app.arun_worker(concurrency=2))
    assert await asyncio.to_thread(done.wait, 30)
    worker.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        await worker


def test_a_plain_function_becomes_a_task(sqlite_app: Evenflow) -> None:
    @sqlite_app.recurring("0 6 * * *", key="morning")
    def greet(name: str = "all") -> str:
        return name

    assert greet("bob") == "bob"
    assert sqlite_app.tasks[greet.name] is greet
    assert sqlite_app.schedules.get("morning").task == greet.name


def test_a_task_may_have_several_schedules(sqlite_app: Evenflow) -> None:
    @sqlite_app.recurring("0 6 * * *", key="early", args=("bob",))
    @sqlite_app.recurring("0 18 * * *", key="late", timezone="Asia/Tokyo", args=("ann",))
    @sqlite_app.task
    def greet(name: str) -> None: ...

    early, late = sqlite_app.schedules.list()
    assert (early.args, late.args, late.timezone) == (("bob",), ("ann",), "Asia/Tokyo")


def test_what_code_declares_is_listed_before_any_worker_has_run(app: Evenflow) -> None:
    @app.recurring("30 2 * * *", timezone="Europe/Berlin", description="nightly")
    @app.task(name="clean")
    def clean(ctx: Context) -> None: ...

    (row,) = app.schedules.list()
    assert (row.key, row.text, row.paused, row.last_run) == (
        "clean", "At 02:30 every day (Europe/Berlin)", False, None,
    )  # fmt: skip
    assert row.next_run is not None and row.next_run > datetime.now(UTC)
    assert (row.served, row.description) == (False, "nightly")
    app.schedules.pause("clean", why="holiday")
    assert app.schedules.get("clean").paused


def test_every_mistake_of_a_declaration_is_told_at_once(sqlite_app: Evenflow) -> None:
    bad: dict[str, Any] = {
        "timezone": "Europe/Berln", "catch_up": "some", "overlap": "no", "jitter": -1, "priority": 101, "queue": "9 lives",
        "description": 7, "args": (1,),
    }  # fmt: skip
    with pytest.raises(ConfigError) as raised:

        @sqlite_app.recurring("61 * * * *", key="k", **bad)
        @sqlite_app.task(name="noop")
        def noop() -> None: ...

    said = mistakes_of(raised)
    assert all(mistake.startswith("schedule 'k': ") for mistake in said)
    for expected in (
        "field 1 (minute) is '61'", "did you mean 'Europe/Berlin'?", "catch_up: expected 'skip' or 'one' or 'all'",
        "overlap: expected 'allow' or 'skip'", "jitter: expected a duration of 0 or more", "priority: expected", "queue '9 lives'",
        "description: expected a text", "takes",
    ):  # fmt: skip
        assert any(expected in mistake for mistake in said), expected
    assert sqlite_app.schedules.declared == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "expected cron= or every=, got neither"),
        ({"cron": "* * * * *", "every": SECOND}, "expected cron= or every=, got cron="),
        ({"every": 0.5}, "every: expected at least one second"),
        ({"every": "often"}, "every: expected a duration"),
        ({"every": SECOND, "timezone": "Asia/Tokyo"}, "has no effect on every="),
        ({"cron": "* * * * *", "key": ""}, "key: expected a text of at least one character"),
        ({"cron": "* * * * *", "key": "x" * 300}, "key"),
        ({"cron": "* * * * *", "args": "bob"}, "expected args=(…)"),
        ({"cron": "* * * * *", "colour": 1}, "unknown option 'colour'"),
        ({"cron": "* * * * *", "description": "a\0b"}, "description: expected a text without NUL"),
    ],
)
def test_a_mistake_is_told_with_what_to_write(
    sqlite_app: Evenflow, options: dict[str, Any], said: str
) -> None:
    @sqlite_app.task(name="noop")
    def noop() -> None: ...

    with pytest.raises(ConfigError) as raised:
        sqlite_app.recurring(**options)(noop)
    assert said in str(raised.value)


def test_the_decorator_without_its_brackets_is_refused(sqlite_app: Evenflow) -> None:
    def report() -> None: ...

    with pytest.raises(
        ConfigError, match=r"expected a cron expression or every=, got a function; write @app\.rec"
    ):
        sqlite_app.recurring(report)  # type: ignore[arg-type]


def test_a_queue_that_is_not_declared_is_refused(sqlite_url: str, make_app: MakeApp) -> None:
    app = make_app(sqlite_url, queues=[Queue("mail"), Queue("default")])
    with pytest.raises(ConfigError, match="queue 'post' is not declared"):
        app.recurring("* * * * *", queue="post")(app.task(lambda_task))


def lambda_task() -> None: ...


def test_a_key_is_declared_once(sqlite_app: Evenflow) -> None:
    @sqlite_app.recurring("* * * * *")
    @sqlite_app.task(name="noop")
    def noop() -> None: ...

    sqlite_app.recurring("* * * * *")(noop)  # the same again, as by a module that is imported twice
    with pytest.raises(ConfigError, match="'noop' is declared twice; give one of them another key="):
        sqlite_app.recurring("0 * * * *")(noop)


def test_the_task_of_another_app_is_refused(sqlite_app: Evenflow, make_app: MakeApp) -> None:
    task = make_app("sqlite:///:memory:").task(lambda_task)
    with pytest.raises(ConfigError, match="belongs to another app"):
        sqlite_app.recurring("* * * * *")(task)


# At run time


def test_a_schedule_added_at_run_time_fires_with_its_options(app: Evenflow, sent: list[Any]) -> None:
    added = app.schedules.add(
        "daily", "mail", every="1 day", args=("bob",), kwargs={"count": 2}, queue="slow", priority=-3
    )
    assert isinstance(added, Schedule)
    assert (added.source, added.queue, added.priority, added.args) == ("added", "slow", -3, ("bob", 2))
    make_due(app, "daily")
    step(app)
    (job,) = app.jobs()
    assert (job.task, job.queue, job.priority, job.args) == ("mail", "slow", -3, ("bob", 2))
    app.run_worker(until_empty=True)
    assert sent == [("bob", 2)]
    assert app.schedules.get("daily").last_job == job.id


def test_without_a_queue_or_priority_the_tasks_own_count(app: Evenflow, sent: list[Any]) -> None:
    app.schedules.add("daily", app.tasks["mail"], every="1h", args=["bob"])
    make_due(app, "daily")
    step(app)
    (job,) = app.jobs()
    assert (job.queue, job.priority) == ("post", 7)


def test_adding_is_refused_with_every_mistake(app: Evenflow, sent: list[Any]) -> None:
    with pytest.raises(ConfigError) as raised:
        app.schedules.add("x", "male", cron="* * * * 9", jitter=-1)
    assert len(mistakes_of(raised)) == 3
    app.schedules.add("x", "mail", cron="* * * * *", args=["bob"])
    with pytest.raises(ConfigError, match=r"'x' exists; change it with app\.schedules\.update"):
        app.schedules.add("x", "mail", cron="0 * * * *", args=["bob"])
    app.recurring("0 0 * * *", key="coded", args=["bob"])(app.tasks["mail"])
    with pytest.raises(ConfigError, match="'coded' is declared in code"):
        app.schedules.add("coded", "mail", cron="* * * * *", args=["bob"])


def test_an_update_changes_what_it_names(app: Evenflow, sent: list[Any]) -> None:
    before = app.schedules.add(
        "x", "mail", cron="0 6 * * *", timezone="Asia/Tokyo", args=["bob"], jitter="5s", catch_up="all"
    )
    after = app.schedules.update("x", kwargs={"count": 3}, args=["ann"], overlap="skip")
    assert (after.args, after.overlap, after.catch_up, after.jitter) == (
        ("ann", 3),
        "skip",
        "all",
        5 * SECOND,
    )
    assert (after.cron, after.timezone, after.next_run) == (before.cron, "Asia/Tokyo", before.next_run)
    moved = app.schedules.update("x", cron="0 7 * * *")
    assert before.next_run is not None and moved.next_run is not None
    assert (moved.next_run - before.next_run) % timedelta(days=1) == timedelta(hours=1)
    interval = app.schedules.update("x", every=timedelta(hours=2))
    assert (interval.cron, interval.every, interval.text) == (None, timedelta(hours=2), "Every 2 hours")
    assert (interval.timezone, interval.jitter) == ("UTC", 5 * SECOND)
    with pytest.raises(ConfigError, match="has no effect on every="):
        app.schedules.update("x", timezone="Asia/Tokyo")
    with pytest.raises(ConfigError, match="field 1"):
        app.schedules.update("x", cron="61 * * * *")
    with pytest.raises(ScheduleNotFound, match="no schedule 'y'"):
        app.schedules.update("y", cron="* * * * *")


def test_code_is_changed_and_removed_in_code(app: Evenflow, sent: list[Any]) -> None:
    app.recurring("0 0 * * *", key="coded", args=["bob"])(app.tasks["mail"])
    step(app)
    with pytest.raises(ConfigError, match="declared in code; change it there"):
        app.schedules.update("coded", cron="* * * * *")
    with pytest.raises(ConfigError, match="declared in code; remove it there, or pause it"):
        app.schedules.remove("coded")


def test_a_removed_schedule_is_gone(app: Evenflow, sent: list[Any]) -> None:
    app.schedules.add("x", "mail", cron="* * * * *", args=["bob"])
    app.schedules.remove("x")
    assert app.schedules.list() == []
    for act in (app.schedules.get, app.schedules.remove, app.schedules.pause, app.schedules.resume):
        with pytest.raises(ScheduleNotFound):
            act("x")


def test_a_name_that_is_nearly_right_is_told(app: Evenflow, sent: list[Any]) -> None:
    app.schedules.add("report", "mail", cron="* * * * *", args=["bob"])
    with pytest.raises(ScheduleNotFound, match="did you mean 'report'"):
        app.schedules.pause("reprot")


def test_a_pause_holds_until_it_is_resumed(app: Evenflow, sent: list[Any]) -> None:
    app.schedules.add("x", "mail", every="1h", catch_up="all", args=["bob"])
    app.schedules.pause("x", who="ann", why="holiday")
    paused = app.schedules.get("x")
    assert (paused.paused, paused.paused_by, paused.paused_why, paused.next_run) == (
        True,
        "ann",
        "holiday",
        None,
    )
    make_due(app, "x")
    step(app)
    assert list(app.jobs()) == []
    assert app.schedules.resume("x")
    assert not app.schedules.resume("x")
    next_run = app.schedules.get("x").next_run
    assert next_run is not None and next_run > datetime.now(UTC) - SECOND


def test_a_pause_can_say_anything(app: Evenflow, sent: list[Any]) -> None:
    app.schedules.add("x", "mail", cron="* * * * *", args=["bob"])
    app.schedules.pause("x", who="ann\ud800", why="cut off by\0")
    paused = app.schedules.get("x")
    assert (paused.paused_by, paused.paused_why) == ("ann?", "cut off by\\0")


def test_run_now_enqueues_beside_the_slots(app: Evenflow, sent: list[Any]) -> None:
    before = app.schedules.add("x", "mail", cron="0 0 1 1 *", args=["bob"])
    job = app.schedules.run_now("x")
    app.run_worker(until_empty=True)
    assert (job.result(timeout=30), sent) == (None, [("bob", 1)])
    after = app.schedules.get("x")
    assert (after.next_run, after.last_job) == (before.next_run, job.id)
    assert [fire.outcome for fire in app.schedules.fires("x")] == ["by hand"]


def test_what_was_added_outlives_the_program_and_its_task(
    app: Evenflow, sent: list[Any], engine_url: str, make_app: MakeApp
) -> None:
    app.schedules.add("x", "mail", every="1h", args=["bob"])
    other = make_app(engine_url)
    (row,) = other.schedules.list()
    assert (row.key, row.served) == ("x", False)
    with pytest.raises(EnqueueError, match="task 'mail' is not declared here"):
        other.schedules.run_now("x")
    make_due(other, "x")
    step(other)
    assert list(other.jobs()) == []
    step(app)
    assert len(list(app.jobs())) == 1


def test_a_call_that_no_longer_fits_its_task_is_shown_and_costs_its_slot(
    app: Evenflow, sent: list[Any], engine_url: str, make_app: MakeApp
) -> None:
    app.schedules.add("x", "mail", every="1h", args=["bob", 2])
    changed = make_app(engine_url)
    changed.task(name="mail")(lambda_task)
    make_due(changed, "x")
    step(changed)
    assert "DecodeError" in (changed.schedules.get("x").error or "")
    assert list(changed.jobs()) == []


def test_jobs_of_schedules_are_signed(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url, signing_keys={"k1": "s" * 32})
    done: list[int] = []

    @app.recurring(every="1h", key="x")
    @app.task(name="sign")
    def sign() -> None:
        done.append(1)

    make_due(app, "x")
    step(app)
    app.schedules.run_now("x")
    app.run_worker(until_empty=True)
    assert done == [1, 1]


async def test_a_worker_in_this_process_fires_what_is_added_while_it_runs(app: Evenflow) -> None:
    done = threading.Event()

    @app.task(name="ping")
    def ping() -> None:
        done.set()

    serving = asyncio.ensure_future(serve_until(app, done))
    await asyncio.to_thread(app.schedules.add, "x", ping, every=SECOND)
    await serving
    wait_until(lambda: app.schedules.get("x").last_run is not None, "the fire to be noted")
