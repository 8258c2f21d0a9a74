"""Logging of worker processes: one plain line per event, with the job that a line belongs to."""

import json
import logging
import os
import subprocess
import sys
from datetime import datetime
from typing import Any

import pytest

from evenflow.errors import ConfigError
from evenflow.ids import id_text
from evenflow.worker.calling import Run, current_run
from evenflow.worker.logs import JobFilter, log_format
from tests.worker.test_outcome import job


def filtered(**extra: object) -> dict[str, Any]:
    """What a record knows after the filter has seen it."""
    record = logging.LogRecord("shop", logging.INFO, __file__, 1, "sold", (), None)
    record.__dict__.update(extra)
    JobFilter().filter(record)
    return record.__dict__


def program(text: str, **environment: str) -> str:
    """What a program of its own writes to standard error: pytest has handlers of its own in this one."""
    code = f"import logging; from evenflow.worker.logs import configure_logging\n{text}"
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, capture_output=True, text=True, check=True, env=os.environ | environment
    ).stderr


def test_a_line_outside_of_any_run_names_no_job() -> None:
    assert filtered()["job"] == ""


def test_a_line_below_a_body_names_its_job_and_task() -> None:
    token = current_run.set(Run(job(id=5, task="mail"), None))
    try:
        found = filtered()
    finally:
        current_run.reset(token)
    assert (found["job"], found["job_id"], found["task"]) == (f" [job {id_text(5)}]", id_text(5), "mail")


def test_a_line_that_says_its_job_itself_is_believed() -> None:
    assert filtered(job_id="abc")["job"] == " [job abc]"


def test_a_program_without_logging_gets_plain_lines_on_standard_error() -> None:
    said = program("configure_logging('info'); logging.info('sold'); logging.debug('looked')")
    assert said.rstrip().endswith("root: sold")
    assert "INFO" in said
    assert "\033" not in said
    assert "looked" not in said


def test_the_environment_sets_the_level_where_nothing_else_does() -> None:
    text = "configure_logging(''); logging.warning('minor'); logging.error('major')"
    said = program(text, EVENFLOW_LOGLEVEL="error")
    assert "major" in said and "minor" not in said


def test_what_the_user_has_configured_is_left_alone() -> None:
    text = (
        "logging.basicConfig(format='mine: %(message)s'); configure_logging('debug'); logging.warning('sold')"
    )
    assert program(text) == "mine: sold\n"


def test_a_message_cannot_forge_another_line() -> None:
    said = program("configure_logging('info'); logging.info('sold\\n2026-01-01 ERROR all is lost\\x1b[2J')")
    assert len(said.splitlines()) == 1
    assert r"sold\n2026-01-01 ERROR all is lost\x1b[2J" in said


def test_the_lines_of_a_traceback_are_marked_as_belonging_to_their_record() -> None:
    text = "configure_logging('info')\ntry: raise ValueError('a\\nINFO b')\nexcept ValueError: logging.exception('no')"
    first, *rest = program(text).splitlines()
    assert first.endswith("root: no")
    assert rest and all(line.startswith("  | ") for line in rest)
    assert any("INFO b" in line for line in rest)


def test_json_is_one_object_per_record_with_the_job_and_the_worker() -> None:
    text = """configure_logging('info', 'json')
from evenflow.worker.logs import name_worker
from evenflow.worker.calling import Run, current_run
from tests.worker.test_outcome import job
name_worker(7)
logging.info('up')
current_run.set(Run(job(id=5, task='mail', queue='post', attempt=2), None))
try: raise ValueError('a\\nb')
except ValueError: logging.exception('sold %s', 'x\\ny')
"""
    up, sold = (json.loads(line) for line in program(text).splitlines())
    assert (up["level"], up["logger"], up["message"], up["worker"]) == ("INFO", "root", "up", id_text(7))
    assert datetime.fromisoformat(up["at"]).tzinfo is not None
    assert "job_id" not in up
    assert {name: sold[name] for name in ("message", "job_id", "task", "queue", "attempt", "worker")} == {
        "message": "sold x\ny", "job_id": id_text(5), "task": "mail", "queue": "post", "attempt": 2, "worker": id_text(7),
    }  # fmt: skip
    assert sold["exception"].endswith("ValueError: a\nb")


def test_the_environment_sets_the_format_where_nothing_else_does() -> None:
    said = program("configure_logging('info'); logging.info('sold')", EVENFLOW_LOG_FORMAT="json")
    assert json.loads(said)["message"] == "sold"


def test_a_format_that_is_none_is_refused() -> None:
    with pytest.raises(ConfigError, match="EVENFLOW_LOG_FORMAT: expected text or json, got 'xml'"):
        log_format("xml")


def test_processes_that_a_worker_starts_log_as_it_does() -> None:
    text = "configure_logging('warning', 'json'); from evenflow.worker.logs import logged_as; logging.error(logged_as())"
    assert json.loads(program(text))["message"] == "('WARNING', 'json')"
    text = "logging.basicConfig(); from evenflow.worker.logs import logged_as; logging.error(logged_as())"
    assert program(text) == "ERROR:root:('', '')\n"
