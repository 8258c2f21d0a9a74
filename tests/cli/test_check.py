"""`evenflow check`: every mistake with its advice, without a database; with `--live`, what the database says."""

import json
import textwrap
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evenflow.store import leases
from tests.cli.conftest import WriteApp
from tests.cli.running import evenflow
from tests.cli.stage import Stage

KEYS = ["ok", "app", "database", "queue_mode", "queues", "tasks", "schedules", "live", "mistakes", "warnings"]
LIVE = ["connected", "schema", "listens", "pooler", "workers"]
GOOD = """
    from evenflow import Evenflow, Queue, Retry

    app = Evenflow("sqlite:///shop.db", queues=[Queue("mail", max_concurrency=2), Queue("default")])

    @app.task(queue="mail", retry=Retry(max_attempts=3), timeout=90)
    async def send(to: str) -> None: ...

    @app.task
    def add(a: int) -> int:
        return a
    """


def checked(locator: str, *flags: str) -> dict[str, Any]:
    done = evenflow("check", locator, "--json", *flags)
    found: dict[str, Any] = json.loads(done.stdout)
    assert done.exit_code == (0 if found["ok"] else 1)
    assert list(found) == KEYS
    return found


def app_on(url: str, write_app: WriteApp) -> str:
    return write_app(
        f"from evenflow import Evenflow\napp = Evenflow({url!r})\n@app.task\ndef work() -> None: ...\n"
    )


def test_an_app_in_order_is_described(write_app: WriteApp, folder: Path) -> None:
    module = write_app(textwrap.dedent(GOOD))
    found = checked(module)
    assert found == {
        "ok": True,
        "app": module,
        "database": "sqlite:///shop.db",
        "queue_mode": "custom",
        "queues": [
            {"name": "mail", "priority": 50, "fair": "round-robin", "max_concurrency": 2},
            {"name": "default", "priority": 50, "fair": "round-robin", "max_concurrency": None},
        ],
        "tasks": [
            {
                "name": f"{module}.send",
                "queue": "mail",
                "max_attempts": 3,
                "timeout_s": 90.0,
                "is_async": True,
            },
            {
                "name": f"{module}.add",
                "queue": "default",
                "max_attempts": 1,
                "timeout_s": None,
                "is_async": False,
            },
        ],
        "schedules": [],
        "live": None,
        "mistakes": [],
        "warnings": [],
    }
    text = evenflow("check", module).stdout
    assert "database  sqlite:///shop.db\n" in text
    assert text.endswith("no mistakes\n")
    assert not list(folder.glob("*.db"))


def test_every_mistake_of_the_settings_is_said_at_once(write_app: WriteApp) -> None:
    module = write_app(
        "from evenflow import Evenflow, Queue\n"
        "app = Evenflow('sqlite:///a.db', queues=[Queue('9'), Queue('mail', priority=0)], cluster_wide_cap=0)\n"
    )
    found = checked(module)
    assert len(found["mistakes"]) == 3
    assert found["database"] is None
    done = evenflow("check", module)
    assert done.stdout.count("mistake  ") == 3
    assert done.stdout.endswith("3 mistakes\n")
    assert "queue 'mail': priority: expected a whole number from 1 to 100, got 0" in done.stdout


def test_a_task_on_a_queue_that_nobody_declared_is_a_mistake(write_app: WriteApp) -> None:
    module = write_app(
        "from evenflow import Evenflow, Queue\napp = Evenflow('sqlite:///a.db', queues=[Queue('mail')])\n"
        "@app.task(queue='post')\ndef send() -> None: ...\n"
    )
    (mistake,) = checked(module)["mistakes"]
    assert mistake.startswith(f"task '{module}.send': queue 'post' is not declared")


def test_what_looks_unintended_is_a_warning_and_no_failure(write_app: WriteApp) -> None:
    module = write_app(
        "from evenflow import Evenflow, Queue\n"
        "app = Evenflow('sqlite:///:memory:', queues=[Queue('mail', on_full='reject')])\n"
    )
    found = checked(module)
    assert found["ok"]
    assert [warning.split(":")[0] for warning in found["warnings"]] == [
        "queue 'mail'",
        "the database is in memory",
        "the app has no tasks; import the modules that declare them where the app is made",
    ]
    assert (
        "warning  queue 'mail': on_full='reject' has no effect without max_ready\n"
        in evenflow("check", module).stdout
    )


def test_the_password_is_hidden(write_app: WriteApp) -> None:
    module = app_on("postgresql://bob:secret@127.0.0.1:1/jobs", write_app)
    for flags in ([], ["--live"], ["--json"], ["--json", "--live"]):
        done = evenflow("check", module, *flags)
        assert "postgresql://bob:***@127.0.0.1:1/jobs" in done.stdout
        assert "secret" not in done.output


class TestLive:
    def test_a_server_that_is_away_is_a_mistake(self, write_app: WriteApp) -> None:
        found = checked(app_on("postgresql://bob:secret@127.0.0.1:1/jobs", write_app), "--live")
        assert found["live"] == dict.fromkeys(LIVE) | {"connected": False}
        (mistake,) = found["mistakes"]
        assert "Connection refused; is the server running" in mistake

    def test_a_file_that_is_not_there_is_a_mistake_and_stays_away(
        self, write_app: WriteApp, folder: Path
    ) -> None:
        found = checked(app_on("sqlite:///none.db", write_app), "--live")
        assert "there is no file 'none.db'" in found["mistakes"][0]
        assert not list(folder.glob("*.db"))

    def test_missing_tables_are_a_mistake_with_the_command_that_makes_them(
        self, write_app: WriteApp, empty_postgres_url: str
    ) -> None:
        module = app_on(empty_postgres_url, write_app)
        found = checked(module, "--live")
        assert found["live"] == dict.fromkeys(LIVE) | {"connected": True}
        (mistake,) = found["mistakes"]
        assert mistake.endswith(f"run: evenflow migrate --app {module}")
        assert evenflow("migrate", "--app", module).exit_code == 0
        assert checked(module, "--live")["ok"]

    def test_tables_of_a_newer_version_are_a_mistake(self, write_app: WriteApp, postgres_url: str) -> None:
        module = app_on(postgres_url, write_app)
        evenflow("migrate", "--app", module)
        with psycopg.connect(postgres_url) as connection:
            connection.execute("insert into evenflow.migration values (9999, 'future', 0)")
        (mistake,) = checked(module, "--live")["mistakes"]
        assert "upgrade evenflow here" in mistake

    def test_wake_ups_and_workers_are_looked_for(self, write_app: WriteApp, stage: Stage) -> None:
        module = app_on(stage.url, write_app)
        found = checked(module, "--live")
        is_postgres = stage.engine.kind == "postgres"
        assert found["live"]["listens"] is (True if is_postgres else None)
        assert found["live"]["pooler"] is (False if is_postgres else None)
        assert found["live"]["workers"] == 0
        assert found["warnings"] == ["no worker is running: jobs will wait"]
        leases.register(stage.engine, 1, kind="worker", host="one", pid=1, lease_us=60_000_000)
        found = checked(module, "--live")
        assert (found["live"]["workers"], found["warnings"]) == (1, [])
        assert ", 1 worker alive\n" in evenflow("check", module, "--live").stdout

    def test_behind_a_pooler_wake_ups_do_not_come(self, write_app: WriteApp, pgbouncer_url: str) -> None:
        module = app_on(pgbouncer_url, write_app)
        assert evenflow("migrate", "--app", module).exit_code == 0
        found = checked(module, "--live")
        assert (found["ok"], found["live"]["pooler"], found["live"]["listens"]) == (True, True, False)
        assert found["warnings"][0].startswith("no wake-ups: a pooler stands before the database")


@pytest.mark.parametrize("arguments", [[], ["one:app", "two:app"]])
def test_one_app_is_checked_at_a_time(arguments: list[str]) -> None:
    assert evenflow("check", *arguments).exit_code == 2
