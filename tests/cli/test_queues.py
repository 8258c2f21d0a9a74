"""`evenflow queues`: one line per queue, and the same as a document."""

import json

from tests.cli.running import evenflow
from tests.cli.stage import Stage

KEYS = [
    "name",
    "jobs",
    "more",
    "priority",
    "fair",
    "max_concurrency",
    "max_ready",
    "on_full",
    "paused",
    "paused_at",
    "paused_by",
    "paused_why",
]
OPEN = ["arriving", "scheduled", "waiting", "blocked", "overflow", "ready", "claimed", "running"]


def test_an_empty_database_has_no_queues(stage: Stage) -> None:
    assert (
        evenflow("queues", "--url", stage.url).stdout == "no queues yet: none was declared, used or paused\n"
    )
    assert json.loads(evenflow("queues", "--json", "--url", stage.url).stdout) == {
        "queues": [],
        "paused_tasks": [],
    }


def test_the_table_counts_what_each_queue_holds(stage: Stage) -> None:
    fill(stage)
    lines = [line.split() for line in evenflow("queues", "--url", stage.url).stdout.splitlines()]
    assert lines[0] == [
        "QUEUE",
        "READY",
        "RUNNING",
        "SCHEDULED",
        "OTHER",
        "PRIORITY",
        "FAIR",
        "CAP",
        "PAUSED",
    ]
    assert lines[1] == ["default", "1,234", "0", "1", "1", "50", "round-robin"]
    assert lines[2] == [
        "mail",
        "1",
        "0",
        "0",
        "0",
        "50",
        "round-robin",
        "3",
        "paused",
        "by",
        "ann:",
        "the",
        "card",
        "expired",
    ]


def test_the_document_has_the_same_keys_for_every_queue(stage: Stage) -> None:
    fill(stage)
    default, mail = json.loads(evenflow("queues", "--json", "--url", stage.url).stdout)["queues"]
    assert list(default) == list(mail) == KEYS
    assert list(default["jobs"]) == OPEN
    assert default["jobs"] == dict.fromkeys(OPEN, 0) | {"ready": 1234, "scheduled": 1, "blocked": 1}
    assert (default["paused"], default["paused_at"], default["max_concurrency"]) == (False, None, None)
    assert (mail["paused"], mail["paused_by"], mail["paused_why"]) == (True, "ann", "the card expired")
    assert (mail["max_concurrency"], mail["paused_at"][-6:]) == (3, "+00:00")


def fill(stage: Stage) -> None:
    stage.add.enqueue_many([(1,)] * 1234)
    stage.add.using(run_after=3600).enqueue(1)
    stage.set_state(stage.add.enqueue(1), "blocked")
    stage.fail.enqueue("x")
    stage.app.set_limit("mail", max_concurrency=3)
    stage.app.pause("mail", who="ann", why="the card expired")


def test_paused_tasks_are_told_below_the_queues(stage: Stage) -> None:
    stage.add.enqueue(1)
    stage.app.pause(task="shop.add", who="ann", why="stocktaking")
    shown = evenflow("queues", "--url", stage.url).stdout.splitlines()
    assert shown[-1] == "task 'shop.add' is paused by ann: stocktaking"
    (row,) = json.loads(evenflow("queues", "--json", "--url", stage.url).stdout)["paused_tasks"]
    assert (row["name"], row["paused_by"], row["paused_why"]) == ("shop.add", "ann", "stocktaking")
