"""Runs every test in several processes at once, and tests of real processes that fail in that crowd once more, alone.

Many times as many processes as cores run then, and any of them may stand still for seconds. What such a test says about time can be
untrue for that reason alone, and has been: whole changes were refused for a bound that held in thousands of runs. So a few
failures of tests that start processes are looked at again, one by one, in a machine that has nothing else to do. A defect
fails there too. Each such test is named at the end: it is a bug of the test, to be mended. All other tests have one try.

`python -m tools.suite [pytest's arguments…]`
"""

import json
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
FAILURES_VARIABLE = "SUITE_FAILURES_FILE"
TESTS_FAILED = 1
MOST = 3
CROWDED = ("process", "browser")
"""The marks of tests that start processes."""


def main(arguments: Sequence[str]) -> int:
    """Run the suite; the exit code is pytest's."""
    with tempfile.TemporaryDirectory() as folder:
        told = Path(folder) / "failures.json"
        code = _pytest(arguments, told)
        failures: dict[str, bool] = json.loads(told.read_text()) if told.exists() else {}
    if code != TESTS_FAILED or not deserves_second_look(failures):
        return code
    print(f"\n{len(failures)} failed among the others; once more, alone:", flush=True)
    code = _pytest(["-n", "0", *failures])
    if code == 0:
        print(
            "failed among the others, passed alone (a bug of the test, to be mended):", *failures, sep="\n  "
        )
    return code


def deserves_second_look(failures: dict[str, bool]) -> bool:
    """Whether these, by name and whether they start processes, may have failed because of the crowd."""
    return 0 < len(failures) <= MOST and all(failures.values())


def _pytest(arguments: Sequence[str], told: Path | None = None) -> int:
    environment = {**os.environ, FAILURES_VARIABLE: str(told)} if told else None
    process = subprocess.Popen([sys.executable, "-m", "pytest", *arguments], cwd=ROOT, env=environment)
    # Ctrl-C reaches it by itself: we wait while it ends the servers and workers of its tests.
    signal.signal(signal.SIGINT, lambda *_: None)
    signal.signal(signal.SIGTERM, lambda *_: process.terminate())
    return process.wait()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
