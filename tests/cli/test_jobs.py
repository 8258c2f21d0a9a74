"""`evenflow jobs` and `evenflow job`: what is listed, what is told of one, and nothing that steers a terminal."""

import json
import re
from typing import Any

import pytest

from evenflow import Context, Evenflow, Fail, Retry
from tests.cli.running import evenflow, evenflow_on_terminal
from tests.cli.stage import Stage

SUMMARY = [
    "id", "state", "task", "queue", "group", "priority", "attempt", "max_attempts", "crashes", "created_at", "run_at",
    "started_at", "finished_at", "good_until", "progress", "error",
]  # fmt: skip
DETAILS = ["args", "kwargs", "result", "worker", "unique_key", "cancel_why", "errors"]
ERROR = ["attempt", "at", "code", "class_name", "message", "data", "traceback"]


def listed(url: str, *options: str) -> list[str]:
    done = evenflow("jobs", "--json", "--url", url, *options)
    assert done.exit_code == 0, done.output
    return [job["id"] for job in json.loads(done.stdout)["jobs"]]


def shown(url: str, id: str) -> dict[str, Any]:
    done = evenflow("job", id, "--json", "--url", url)
    assert done.exit_code == 0, done.output
    found: dict[str, Any] = json.loads(done.stdout)
    return found


class TestList:
    def test_newest_first_and_page_by_page(self, stage: Stage) -> None:
        ids = [job.id for job in stage.add.enqueue_many([(number,) for number in range(5)])][::-1]
        first = json.loads(evenflow("jobs", "--json", "--limit", "2", "--url", stage.url).stdout)
        assert [job["id"] for job in first["jobs"]] == ids[:2]
        assert first["next"] == ids[1]
        last = json.loads(
            evenflow("jobs", "--json", "--limit", "3", "--before", ids[1], "--url", stage.url).stdout
        )
        assert [job["id"] for job in last["jobs"]] == ids[2:]
        assert last["next"] is None

    def test_the_table_says_how_to_go_on(self, sqlite_stage: Stage) -> None:
        jobs = sqlite_stage.add.enqueue_many([(1,), (2,)])
        done = evenflow("jobs", "--limit", "1", "--url", sqlite_stage.url)
        assert done.stderr == f"more: --before {jobs[1].id}\n"
        assert evenflow("jobs", "--url", sqlite_stage.url).stderr == ""

    def test_filters_narrow_the_list(self, stage: Stage) -> None:
        (failed,) = stage.failed()
        bob, alice = stage.add.enqueue(1), stage.add.enqueue(1, tenant="alice")
        assert listed(stage.url, "--state", "failed") == [failed.id]
        assert listed(stage.url, "--queue", "default") == [alice.id, bob.id]
        assert listed(stage.url, "--task", "shop.fail") == [failed.id]
        assert listed(stage.url, "--group", "bob") == [bob.id]
        assert listed(stage.url, "--group", "bob", "--state", "failed") == []
        assert evenflow("jobs", "--queue", "none", "--url", stage.url).stdout == "no jobs match\n"

    def test_every_job_has_the_same_keys(self, stage: Stage) -> None:
        stage.failed()
        stage.add.enqueue(1)
        jobs = json.loads(evenflow("jobs", "--json", "--url", stage.url).stdout)["jobs"]
        assert [list(job) for job in jobs] == [SUMMARY, SUMMARY]
        assert jobs[0]["error"] is None
        assert jobs[1]["error"] == {"code": "UNHANDLED_ERROR", "message": "no such card"}

    def test_the_table_has_one_line_per_job(self, sqlite_stage: Stage) -> None:
        (failed,) = sqlite_stage.failed()
        head, line = evenflow("jobs", "--url", sqlite_stage.url).stdout.splitlines()
        assert head.split() == ["JOB", "STATE", "TASK", "QUEUE", "GROUP", "ATTEMPT", "CREATED", "ERROR"]
        assert line.startswith(f"{failed.id}  failed  shop.fail  mail")
        assert line.endswith("UNHANDLED_ERROR: no such card")

    @pytest.mark.parametrize("options", [["--state", "lost"], ["--limit", "0"]])
    def test_a_wrong_filter_is_a_wrong_use(self, options: list[str]) -> None:
        assert evenflow("jobs", "--url", "sqlite:///x.db", *options).exit_code == 2

    def test_a_cursor_that_is_no_id_is_said(self, sqlite_stage: Stage) -> None:
        done = evenflow("jobs", "--before", "yesterday", "--url", sqlite_stage.url)
        assert (done.exit_code, done.stderr) == (
            1,
            "Error: expected a job id of 13 small letters and digits, got 'yesterday'\n",
        )


class TestOne:
    def test_a_job_that_is_not_there(self, stage: Stage) -> None:
        done = evenflow("job", "0000000000000", "--url", stage.url)
        assert done.exit_code == 1
        assert done.stderr.startswith("Error: no job 0000000000000: it was never committed")

    def test_a_result_and_arguments(self, stage: Stage) -> None:
        job = stage.add.enqueue(40, b=2)
        stage.run_all()
        found = shown(stage.url, job.id)
        assert list(found) == SUMMARY + DETAILS
        assert (found["state"], found["args"], found["kwargs"]) == ("succeeded", [40, 2], {})
        assert found["result"] == 42
        assert found["finished_at"] > found["started_at"] >= found["created_at"]
        text = evenflow("job", job.id, "--url", stage.url).stdout
        assert "call        shop.add(40, 2)\n" in text
        assert "result      42\n" in text

    def test_every_attempt_is_told_with_its_traceback(self, engine_url: str) -> None:
        with Evenflow(engine_url) as app:

            @app.task(name="shop.charge", retry=Retry(max_attempts=2, backoff="fixed", base=0))
            def charge(ctx: Context, card: str) -> None:
                if ctx.attempt == 1:
                    raise ConnectionError("the bank is away")
                raise Fail("CARD_EXPIRED", "the card has expired", {"card": card})

            job = charge.enqueue("1234")
            app.run_worker(until_empty=True)
        errors = shown(engine_url, job.id)["errors"]
        assert [list(error) for error in errors] == [ERROR, ERROR]
        assert [(error["attempt"], error["code"]) for error in errors] == [
            (1, "UNHANDLED_ERROR"),
            (2, "CARD_EXPIRED"),
        ]
        assert (errors[0]["class_name"], errors[1]["data"]) == ("ConnectionError", {"card": "1234"})
        text = evenflow("job", job.id, "--url", engine_url).stdout
        assert (
            "attempt 1: UNHANDLED_ERROR ConnectionError: the bank is away\nTraceback (most recent call last):\n"
            in text
        )
        assert 'raise ConnectionError("the bank is away")' in text
        assert "attempt 2: CARD_EXPIRED" in text
        assert '  data: {"card":"1234"}\n' in text

    def test_a_job_in_the_future_says_when(self, sqlite_stage: Stage) -> None:
        job = sqlite_stage.add.using(run_after=7200, good_until=86_400, priority=-3).enqueue(1)
        text = evenflow("job", job.id, "--url", sqlite_stage.url).stdout
        assert "(in 1 h 59 min)" in text
        assert "good until  " in text
        assert "priority    -3\n" in text

    def test_an_argument_without_a_form_in_json_is_shown_as_text(self, sqlite_url: str) -> None:
        with Evenflow(sqlite_url) as app:
            job = app.task(name="mixed")(lambda *values: None).enqueue(2**80, b"\x00", {1, 2})
        assert shown(sqlite_url, job.id)["args"][0] == 2**80
        assert "call        mixed(" in evenflow("job", job.id, "--url", sqlite_url).stdout


class TestTerminal:
    def test_what_users_wrote_cannot_steer_it(self, sqlite_stage: Stage) -> None:
        job = sqlite_stage.fail.enqueue("\x1b]0;x\x07\x1b[2J\r[b]")
        sqlite_stage.run_all()
        for command in (["jobs"], ["job", job.id]):
            done = evenflow_on_terminal(*command, "--url", sqlite_stage.url)
            assert done.code == 0
            assert r"\x1b]0;x\x07\x1b[2J\r[b]" in re.sub(r"\s|\x1b\[[0-9;]*m", "", done.text)
            assert "\x1b]" not in done.text
            assert "\x1b[2J" not in done.text

    def test_colour_is_for_terminals_that_want_it(self, sqlite_stage: Stage) -> None:
        sqlite_stage.failed()
        red = "\x1b[31m"
        assert red in evenflow_on_terminal("jobs", "--url", sqlite_stage.url).text
        assert red not in evenflow_on_terminal("jobs", "--url", sqlite_stage.url, NO_COLOR="1").text
        assert "\x1b" not in evenflow("jobs", "--url", sqlite_stage.url).stdout
