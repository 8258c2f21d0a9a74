"""`--json` on commands that act: one document that says what was done."""

import json
from typing import Any

import pytest

from evenflow import Evenflow
from evenflow.cli.program import main
from tests.cli.running import evenflow


def document(*arguments: str) -> Any:
    done = evenflow(*arguments, "--json")
    assert done.exit_code == 0, done.output
    return json.loads(done.stdout)


@pytest.fixture
def url(sqlite_url: str) -> str:
    with Evenflow(sqlite_url) as app:
        app.task(name="note")(lambda: None).enqueue_many([(), ()])
    return sqlite_url


def test_every_command_has_it_but_those_that_print_something_of_their_own() -> None:
    without = {
        name
        for name, command in commands()
        if not any("--json" in parameter.opts for parameter in command.params)
    }
    assert without == {"worker", "web", "completion", "demo"}


def commands() -> list[tuple[str, Any]]:
    found = []
    context = main.make_context("evenflow", ["--version"], resilient_parsing=True)
    for name in main.list_commands(context):
        command: Any = main.get_command(context, name)
        found.append((name, command))
        found += [(f"{name} {inner}", each) for inner, each in getattr(command, "commands", {}).items()]
    return found


def test_acts_on_jobs_tell_how_many(url: str) -> None:
    assert document("cancel", "--url", url, "--state", "ready", "--yes") == {
        "act": "cancelled",
        "matched": 2,
        "changed": 2,
    }
    assert document("retry", "--queue", "default", "--url", url, "--yes") == {
        "act": "retried",
        "matched": 0,
        "changed": 0,
    }


def test_pauses_tell_what_is_paused(url: str) -> None:
    assert document("pause", "default", "--url", url) == {"queue": "default", "task": None, "paused": True}
    assert document("resume", "default", "--url", url)["changed"] is True
    assert document("resume", "default", "--url", url)["changed"] is False


def test_limits_tell_their_numbers(url: str) -> None:
    assert document("limits", "set", "default", "--max-concurrency", "3", "--url", url) == {
        "queue": "default",
        "max_concurrency": 3,
    }
    back = {"queue": "default", "max_concurrency": None, "max_ready": None}
    assert document("limits", "set", "default", "--reset", "--url", url) == back


def test_migrations_and_seeds_tell_what_came_in(sqlite_url: str) -> None:
    assert document("migrate", "--url", sqlite_url)["applied"][0] == "0001_foundation"
    assert document("migrate", "--url", sqlite_url)["applied"] == []
    assert document("seed", "--count", "5", "--url", sqlite_url)["enqueued"] == 5
