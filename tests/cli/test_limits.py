"""`evenflow limits`: every limit with its use and its holders; and changing those of a queue."""

import json
from typing import Any

from evenflow import Concurrency, Rate
from evenflow.store import bounds, control
from tests.cli.running import evenflow
from tests.cli.stage import Stage

KEYS = ["name", "kind", "used", "limit", "waiting", "opens_at", "holders"]


def listed(stage: Stage) -> dict[str, dict[str, Any]]:
    rows = json.loads(evenflow("limits", "--json", "--url", stage.url).stdout)["limits"]
    return {row["name"]: row for row in rows}


def test_a_database_without_limits_says_so(stage: Stage) -> None:
    assert evenflow("limits", "--url", stage.url).stdout.startswith("no limits: ")
    assert json.loads(evenflow("limits", "--json", "--url", stage.url).stdout) == {"limits": []}


def test_every_kind_of_limit_is_listed_with_its_use(stage: Stage) -> None:
    app = stage.app
    app.set_limit("default", max_concurrency=4, max_ready=3)
    key = app.task(name="sync", queue="sync", concurrency=Concurrency(to=2, key="tenant"))(_sync)
    lock = app.task(name="nightly", queue="sync", single_instance=True)(_nightly)
    rate = app.task(name="ping", queue="sync", rate=Rate("1/hour"))(_nightly)
    holders = key.enqueue_many([("bob",), ("bob",), ("bob",)])
    locks = lock.enqueue_many([(), ()])
    stage.add.enqueue_many([(number,) for number in range(5)])
    rate.enqueue_many([(), ()])
    bounds.fill_all(stage.engine)
    control.declare_cluster(stage.engine, 50)
    rows = listed(stage)
    assert all(list(row) == KEYS for row in rows.values())
    assert {name: (row["kind"], row["used"], row["limit"], row["waiting"]) for name, row in rows.items()} == {
        "cluster": ("cluster cap", 0, 50, 7),
        "queue:default": ("queue cap", 0, 4, 3),
        "ready:default": ("bound", 3, 3, 2),
        "key:sync:bob": ("key", 2, 2, 1),
        "lock:nightly": ("lock", 1, 1, 1),
        "rate:task:ping/1/hour": ("rate", 1, 1, 1),
    }
    assert rows["key:sync:bob"]["holders"] == [job.id for job in holders[:2]]
    assert rows["lock:nightly"]["holders"] == [locks[0].id]


def test_the_table_shows_who_holds_what(stage: Stage) -> None:
    lock = stage.app.task(name="nightly", single_instance=True)(_nightly)
    first, _ = lock.enqueue_many([(), ()])
    lines = [line.split() for line in evenflow("limits", "--url", stage.url).stdout.splitlines()]
    assert lines == [
        ["LIMIT", "KIND", "USED", "OF", "WAITING", "OPENS", "HELD", "BY"],
        ["lock:nightly", "lock", "1", "1", "1", first.id],
    ]


def test_limits_are_set_lifted_and_given_back(stage: Stage) -> None:
    stage.add.enqueue(1)
    said = evenflow(
        "limits", "set", "default", "--max-concurrency", "3", "--max-ready", "100", "--url", stage.url
    )
    assert said.stdout == "queue 'default': max_concurrency=3, max_ready=100\n"
    assert {name: row["limit"] for name, row in listed(stage).items()} == {
        "queue:default": 3,
        "ready:default": 100,
    }
    said = evenflow("limits", "set", "default", "--max-ready", "none", "--url", stage.url)
    assert said.stdout == "queue 'default': max_ready=none\n"
    assert list(listed(stage)) == ["queue:default"]
    said = evenflow("limits", "set", "default", "--reset", "--url", stage.url)
    assert said.stdout == "queue 'default' is as the code says: max_concurrency=none, max_ready=none\n"
    assert listed(stage) == {}


def test_the_database_may_be_named_before_the_word_set(stage: Stage) -> None:
    stage.add.enqueue(1)
    evenflow("limits", "--url", stage.url, "set", "default", "--max-concurrency", "2")
    assert listed(stage)["queue:default"]["limit"] == 2


def test_json_may_be_asked_for_before_the_word_set(stage: Stage) -> None:
    stage.add.enqueue(1)
    said = evenflow("limits", "--json", "--url", stage.url, "set", "default", "--max-concurrency", "2")
    assert json.loads(said.stdout) == {"queue": "default", "max_concurrency": 2}


def test_a_queue_that_nobody_knows_is_worth_a_word(stage: Stage) -> None:
    stage.add.enqueue(1)
    said = evenflow("limits", "set", "defualt", "--max-concurrency", "2", "--url", stage.url)
    assert "did you mean 'default'?" in said.stderr


def test_a_number_that_makes_no_sense_is_told(stage: Stage) -> None:
    said = evenflow("limits", "set", "default", "--max-ready", "0", "--url", stage.url)
    assert said.exit_code == 2
    assert "expected a whole number of 1 or more, or 'none', got '0'" in said.stderr
    said = evenflow("limits", "set", "default", "--max-concurrency", "many", "--url", stage.url)
    assert said.exit_code == 2
    assert "expected a whole number of 0 or more, or 'none', got 'many'" in said.stderr


def test_nothing_to_set_is_told(stage: Stage) -> None:
    for options in ([], ["--reset", "--max-ready", "5"]):
        said = evenflow("limits", "set", "default", *options, "--url", stage.url)
        assert said.exit_code == 2
        assert "say --max-concurrency N, --max-ready N or both; or --reset alone" in said.stderr


def _sync(tenant: str) -> None: ...


def _nightly() -> None: ...
