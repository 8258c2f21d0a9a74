"""`evenflow schedules`: what recurs, told and changed."""

import json
import textwrap
from typing import Any

import pytest

from evenflow.services.scheduler import Scheduler
from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow
from tests.cli.stage import Stage

KEYS = [
    "key", "text", "state", "description", "task", "args", "kwargs", "cron", "every_s", "timezone", "queue", "priority",
    "catch_up", "overlap", "jitter_s", "source", "next_run", "last_run", "last_job", "paused", "paused_by", "paused_why",
    "served", "error",
]  # fmt: skip


@pytest.fixture
def locator(stage: Stage, write_app: WriteApp) -> str:
    """An app with a task and a schedule on the stage's database."""
    return write_app(
        textwrap.dedent(f"""
            from datetime import datetime
            from evenflow import Evenflow

            app = Evenflow({stage.url!r})

            @app.recurring("30 2 * * *", key="nightly", timezone="Europe/Berlin", description="cleans up")
            @app.task(name="shop.clean")
            def clean() -> None: ...

            @app.task(name="shop.bill")
            def bill(who: str, at: datetime) -> None: ...
            """)
    )


def listed(*arguments: str) -> dict[str, Any]:
    done = evenflow("schedules", *arguments, "--json")
    assert done.exit_code == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def added(locator: str, *options: str) -> str:
    done = evenflow("schedules", "add", "bills", "--task", "shop.bill", "--app", locator, *options)
    assert done.exit_code == 0, done.stderr
    return done.stdout


BILL = ("--args", '["bob"]', "--kwargs", '{"at": "2026-01-01T00:00:00Z"}')
ANN = ("--args", '["ann"]', *BILL[2:])


def test_there_may_be_none(stage: Stage) -> None:
    done = evenflow("schedules", "--url", stage.url)
    assert (done.exit_code, done.stdout) == (
        0,
        "no schedules: none was declared by a worker that ran here, or added\n",
    )
    assert listed("--url", stage.url) == {"schedules": [], "schedulers": []}


def test_a_schedule_is_added_listed_and_shown_in_words(stage: Stage, locator: str) -> None:
    said = added(locator, *BILL, "--cron", "0 9 * * MON", "--timezone", "Asia/Tokyo", "--catch-up", "one")
    assert said.startswith("schedule 'bills' is added: At 09:00 on Monday (Asia/Tokyo); next run 20")
    for arguments in (["schedules", "--url", stage.url], ["schedules", "list", "--url", stage.url]):
        done = evenflow(*arguments)
        assert "At 09:00 on Monday (Asia/Tokyo)" in done.stdout
        assert "no scheduler is running: nothing fires" in done.stderr
    found = {row["key"]: row for row in listed("--url", stage.url)["schedules"]}
    assert set(found) == {"bills", "nightly"}
    assert list(found["bills"]) == KEYS
    bills = found["bills"]
    assert (bills["source"], bills["catch_up"], bills["state"]) == ("added", "one", "unserved")
    assert (bills["args"][0], bills["paused"]) == ("bob", False)
    shown = evenflow("schedules", "show", "bills", "--url", stage.url).stdout
    assert "At 09:00 on Monday (Asia/Tokyo)" in shown


def test_arguments_are_read_by_the_annotations_of_the_task(stage: Stage, locator: str) -> None:
    added(locator, *BILL, "--every", "90 minutes")
    row = listed("show", "bills", "--url", stage.url)
    assert (row["text"], row["args"], row["fires"]) == (
        "Every 90 minutes", ["bob", "2026-01-01T00:00:00+00:00"], [],
    )  # fmt: skip


def test_what_is_wrong_is_told_at_once(stage: Stage, locator: str) -> None:
    wrong = ("schedules", "add", "bills", "--task", "shop.bill", "--app", locator, "--cron", "61 * * * *")
    done = evenflow(*wrong, "--jitter", "-1s")
    assert done.exit_code == 1
    for said in ("field 1 (minute)", "jitter", "'who' is missing"):
        assert said in done.stderr
    assert evenflow(*wrong, "--args", "bob").exit_code == 2


def test_a_schedule_is_paused_resumed_and_removed(stage: Stage, locator: str) -> None:
    added(locator, *BILL, "--cron", "0 9 * * *")
    done = evenflow("schedules", "pause", "bills", "--why", "holiday", "--url", stage.url)
    assert done.stdout == "schedule 'bills' is paused\n"
    row = listed("show", "bills", "--url", stage.url)
    assert (row["state"], row["paused_why"], row["next_run"]) == ("paused", "holiday", None)
    assert "fires again; next run 20" in evenflow("schedules", "resume", "bills", "--url", stage.url).stdout
    assert "was not paused" in evenflow("schedules", "resume", "bills", "--url", stage.url).stdout
    assert (
        evenflow("schedules", "remove", "bills", "--url", stage.url).stdout == "schedule 'bills' is removed\n"
    )
    done = evenflow("schedules", "remove", "bills", "--url", stage.url)
    assert (done.exit_code, "no schedule 'bills'" in done.stderr) == (1, True)


def test_an_update_changes_what_it_says_and_no_more(stage: Stage, locator: str) -> None:
    added(locator, *BILL, "--cron", "0 9 * * *", "--timezone", "Asia/Tokyo", "--jitter", "5s")
    update = ("schedules", "update", "bills", "--app", locator)
    done = evenflow(*update, "--cron", "0 8 * * *", "--catch-up", "one")
    assert done.stdout.startswith("schedule 'bills' is changed: At 08:00 every day (Asia/Tokyo); next run 20")
    row = json.loads(evenflow(*update, "--every", "2h", *ANN, "--json").stdout)
    assert (row["text"], row["catch_up"], row["jitter_s"]) == ("Every 2 hours", "one", 5.0)
    assert row["args"] == ["ann", "2026-01-01T00:00:00+00:00"]
    done = evenflow("schedules", "update", "nightly", "--cron", "0 8 * * *", "--app", locator)
    assert (done.exit_code, "declared in code; change it there" in done.stderr) == (1, True)
    done = evenflow(*update, "--cron", "61 * * * *")
    assert (done.exit_code, "field 1 (minute)" in done.stderr) == (1, True)


def test_the_database_may_be_named_before_the_subcommand(stage: Stage, locator: str) -> None:
    added(locator, *BILL, "--cron", "0 9 * * *")
    assert evenflow("schedules", "--url", stage.url, "pause", "bills").exit_code == 0


def test_run_now_needs_the_app_that_has_the_task(stage: Stage, locator: str) -> None:
    added(locator, *BILL, "--cron", "0 9 * * *")
    done = evenflow("schedules", "run-now", "bills", "--url", stage.url)
    assert (done.exit_code, "--app MODULE:APP" in done.stderr) == (1, True)
    done = evenflow("schedules", "run-now", "bills", "--app", locator)
    (job,) = stage.app.jobs()
    assert done.stdout == f"schedule 'bills': job {job.id} is ready\n"
    shown = evenflow("schedules", "show", "bills", "--url", stage.url).stdout
    assert "by hand" in shown and job.id in shown


def test_a_schedule_of_code_is_active_while_a_scheduler_lives(stage: Stage) -> None:
    stage.app.recurring("* * * * *", key="minutely", args=(1,))(stage.add)
    Scheduler(stage.engine, stage.app.schedules).step()
    found = listed("--url", stage.url)
    assert [row["state"] for row in found["schedules"]] == ["active"]
    assert len(found["schedulers"]) == 1
    done = evenflow("schedules", "--url", stage.url)
    assert ("active" in done.stdout, done.stderr) == (True, "")
    done = evenflow("schedules", "remove", "minutely", "--url", stage.url)
    assert "declared in code; remove it there, or pause it" in done.stderr


def test_check_tells_the_schedules_and_their_mistakes(write_app: WriteApp, locator: str) -> None:
    done = evenflow("check", locator)
    assert "At 02:30 every day (Europe/Berlin)" in done.stdout
    (schedule,) = json.loads(evenflow("check", locator, "--json").stdout)["schedules"]
    assert (schedule["key"], schedule["text"]) == ("nightly", "At 02:30 every day (Europe/Berlin)")
    bad = write_app(
        "from evenflow import Evenflow\napp = Evenflow('sqlite:///a.db')\n"
        "@app.recurring('0 25 * * *', timezone='Mars/Base', jitter=-1)\ndef work() -> None: ...\n"
    )
    done = evenflow("check", bad)
    assert done.exit_code == 1
    for said in ("field 2 (hour) is '25'; expected 0-23", "no 'Mars/Base'", "jitter"):
        assert said in done.stdout


def test_a_schedule_that_is_not_there_is_answered_with_how_to_find_one(sqlite_stage: Stage) -> None:
    shown = evenflow("schedules", "show", "nope", "--url", sqlite_stage.url)
    assert shown.exit_code == 1
    assert "there is no schedule 'nope'; evenflow schedules, or app.schedules.list()," in shown.stderr
