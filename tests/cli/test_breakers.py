"""`evenflow breakers`, and opening, closing and resetting one."""

import json

from evenflow import Breaker
from tests.cli.running import evenflow
from tests.cli.stage import Stage

KEYS = [
    "name", "state", "failures", "failure_threshold", "cooldown_s", "on_open", "opened_at", "opens_at", "opened_by",
    "opened_why", "probe", "waiting", "guards",
]  # fmt: skip


def _charge() -> None:
    raise ConnectionError("the bank is down")


def guard(stage: Stage, failures: int) -> None:
    """A guarded task, of which so many jobs have failed and one more waits or runs."""
    charge = stage.app.task(name="charge", breaker=Breaker(failure_threshold=2, name="bank"))(_charge)
    charge.enqueue_many([()] * failures)
    stage.app.run_worker(until_empty=True, concurrency=1)


def document(stage: Stage) -> dict[str, object]:
    (row,) = json.loads(evenflow("breakers", "--json", "--url", stage.url).stdout)["breakers"]
    found: dict[str, object] = row
    return found


def test_without_breakers_the_list_is_empty(stage: Stage) -> None:
    assert evenflow("breakers", "--url", stage.url).stdout == "no breakers: no worker has declared one yet\n"
    assert json.loads(evenflow("breakers", "--json", "--url", stage.url).stdout) == {"breakers": []}


def test_a_breaker_is_listed_with_what_it_counts_and_who_waits(stage: Stage) -> None:
    guard(stage, failures=4)
    row = document(stage)
    assert list(row) == KEYS
    assert (row["name"], row["state"], row["failures"], row["waiting"]) == ("bank", "open", 2, 2)
    assert (row["guards"], row["opened_why"], row["cooldown_s"]) == (
        ["task:charge"],
        "2 failures in a row",
        60.0,
    )
    head, line = evenflow("breakers", "--url", stage.url).stdout.splitlines()
    assert head.split()[:4] == ["BREAKER", "STATE", "FAILURES", "WAITING"]
    assert line.split()[:4] == ["bank", "open", "2/2", "2"]
    assert line.endswith("task:charge  2 failures in a row")


def test_a_breaker_is_opened_closed_and_reset_by_hand(stage: Stage) -> None:
    guard(stage, failures=1)
    done = evenflow("breakers", "open", "bank", "--why", "the bank moves", "--url", stage.url)
    assert (done.exit_code, done.stdout) == (0, "breaker 'bank' is open until it is closed\n")
    row = document(stage)
    assert (row["state"], row["opens_at"], row["opened_why"]) == ("open", None, "the bank moves")
    assert "@" in str(row["opened_by"])
    assert "when closed by hand" in evenflow("breakers", "--url", stage.url).stdout
    done = evenflow("breakers", "close", "bank", "--url", stage.url)
    assert done.stdout == "breaker 'bank' is closed\n"
    assert evenflow("breakers", "close", "bank", "--url", stage.url).stdout == "breaker 'bank' was not open\n"
    guard(stage, failures=1)
    assert document(stage)["failures"] == 1
    assert evenflow("breakers", "reset", "bank", "--url", stage.url).exit_code == 0
    assert document(stage)["failures"] == 0


def test_a_slip_of_the_finger_is_answered_with_the_name_that_was_meant(sqlite_stage: Stage) -> None:
    guard(sqlite_stage, failures=1)
    done = evenflow("breakers", "open", "bnak", "--url", sqlite_stage.url)
    assert done.exit_code == 1
    assert done.stderr == "Error: no breaker 'bnak' is known here; did you mean 'bank'?\n"


def test_options_before_the_subcommand_are_refused_rather_than_ignored(sqlite_stage: Stage) -> None:
    done = evenflow("breakers", "--url", sqlite_stage.url, "close", "bank")
    assert done.exit_code == 2
    assert "options stand after the command: evenflow breakers close" in done.stderr
