"""Logging of worker processes: one plain line per event, with the job that a line belongs to."""

import logging
import os
import subprocess
import sys
from typing import Any

from evenflow.ids import id_text
from evenflow.worker.calling import Run, current_run
from evenflow.worker.logs import JobFilter
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
