"""Logging of worker processes: one plain line per event, with the job that a line belongs to."""

import logging
import subprocess
import sys
from collections.abc import Iterator

import pytest

from evenflow.ids import id_text
from evenflow.worker.calling import Run, current_run
from evenflow.worker.logs import JobFilter, configure_logging
from tests.worker.test_outcome import job


@pytest.fixture
def bare_root(monkeypatch: pytest.MonkeyPatch) -> Iterator[logging.Logger]:
    """The root logger as a fresh program has it."""
    root = logging.getLogger()
    monkeypatch.setattr(root, "handlers", [])
    level = root.level
    yield root
    root.setLevel(level)


def record(**extra: object) -> logging.LogRecord:
    made = logging.LogRecord("shop", logging.INFO, __file__, 1, "sold", (), None)
    made.__dict__.update(extra)
    JobFilter().filter(made)
    return made


def test_a_line_outside_of_any_run_names_no_job() -> None:
    assert record().job == ""


def test_a_line_below_a_body_names_its_job_and_task() -> None:
    token = current_run.set(Run(job(id=5, task="mail"), None))
    try:
        made = record()
    finally:
        current_run.reset(token)
    assert (made.job, made.job_id, made.task) == (f" [job {id_text(5)}]", id_text(5), "mail")


def test_a_line_that_says_its_job_itself_is_believed() -> None:
    assert record(job_id="abc").job == " [job abc]"


def test_a_program_without_logging_gets_lines_on_standard_error(bare_root: logging.Logger) -> None:
    configure_logging("warning")
    (handler,) = bare_root.handlers
    assert isinstance(handler, logging.StreamHandler) and handler.stream is sys.stderr
    assert bare_root.level == logging.WARNING


def test_the_environment_sets_the_level_where_nothing_else_does(
    bare_root: logging.Logger, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("EVENFLOW_LOGLEVEL", "error")
    configure_logging("")
    assert bare_root.level == logging.ERROR


def test_what_the_user_has_configured_is_left_alone(bare_root: logging.Logger) -> None:
    own = logging.NullHandler()
    bare_root.addHandler(own)
    configure_logging("debug")
    assert bare_root.handlers == [own]


def test_a_line_has_no_colours_and_names_its_process() -> None:
    code = "import logging; from evenflow.worker.logs import configure_logging; configure_logging('info'); logging.info('sold')"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "\033" not in done.stderr
    assert done.stderr.rstrip().endswith("root: sold")
    assert "INFO" in done.stderr
