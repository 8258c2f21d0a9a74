"""The runner of the suite: which failures are looked at twice, and that a second look can fail too."""

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.processes import wait_until
from tools.suite import FAILURES_VARIABLE, MOST, ROOT, deserves_second_look

SAMPLE = """\
import pathlib

import pytest


@pytest.mark.{mark}
def test_sample() -> None:
    tries = pathlib.Path(__file__).with_name("tries")
    tries.write_text("x" + (tries.read_text() if tries.exists() else ""))
    assert len(tries.read_text()) >= {passes_at}
"""

LONG = """\
import pathlib
import time

HERE = pathlib.Path(__file__)


def test_long() -> None:
    try:
        HERE.with_name("begun").touch()
        time.sleep(600)
    finally:
        time.sleep(1)  # longer than subprocess.run would wait before it kills
        HERE.with_name("cleaned").touch()
"""

# Whoever was started in the background is deaf to it, and so are all whom it starts.
HEARS_CTRL_C = """\
import runpy, signal
signal.signal(signal.SIGINT, signal.default_int_handler)
runpy.run_module("tools.suite", run_name="__main__", alter_sys=True)
"""


@pytest.fixture
def folder() -> Iterator[Path]:
    """A place inside of the project, where pytest finds its settings, that nobody else looks at."""
    (ROOT / "build").mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=ROOT / "build") as name:
        yield Path(name)


@pytest.mark.parametrize(
    ("failures", "expected"),
    [
        ({}, False),
        ({"a": True}, True),
        ({"a": True, "b": False}, False),
        ({str(number): True for number in range(MOST)}, True),
        ({str(number): True for number in range(MOST + 1)}, False),
    ],
)
def test_a_few_failures_of_tests_that_start_processes_deserve_a_second_look(
    failures: dict[str, bool], expected: bool
) -> None:
    assert deserves_second_look(failures) is expected


@pytest.mark.process
@pytest.mark.parametrize(
    ("mark", "passes_at", "tries", "code"),
    [("process", 2, 2, 0), ("process", 3, 2, 1), ("slow", 2, 1, 1)],
    ids=["passes alone", "fails alone too", "starts no process"],
)
def test_a_test_that_fails_is_run_once_more_only_where_it_starts_processes(
    folder: Path, mark: str, passes_at: int, tries: int, code: int
) -> None:
    sample = folder / "test_sample.py"
    sample.write_text(SAMPLE.format(mark=mark, passes_at=passes_at))
    with suite_of(sample) as process:
        said, _ = process.communicate()
    assert process.returncode == code, said
    assert len((folder / "tries").read_text()) == tries
    assert ("passed alone" in said) is (code == 0)


@pytest.mark.process
def test_ctrl_c_lets_the_tests_clean_up(folder: Path) -> None:
    sample = folder / "test_long.py"
    sample.write_text(LONG)
    with suite_of(sample) as process:
        wait_until((folder / "begun").exists, "the test to begin", 60)
        os.killpg(process.pid, signal.SIGINT)  # as a terminal does
        said, _ = process.communicate(timeout=60)
    assert process.returncode == pytest.ExitCode.INTERRUPTED, said
    assert (folder / "cleaned").exists()


@contextlib.contextmanager
def suite_of(sample: Path) -> "Iterator[subprocess.Popen[str]]":
    others = ("PYTEST", FAILURES_VARIABLE)
    process = subprocess.Popen(
        [sys.executable, "-c", HEARS_CTRL_C, "-p", "tests.conftest", str(sample)],
        cwd=ROOT, env={name: value for name, value in os.environ.items() if not name.startswith(others)},
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip
    with process:
        try:
            yield process
        finally:
            if process.poll() is None:  # or we would wait for it for ever
                os.killpg(process.pid, signal.SIGKILL)
