"""Type checkers see a task's signature: right calls pass, wrong ones are errors, in mypy and in pyright."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent.parent
PAGES = ["accepted.py", "refused.py"]

CHECKED_WITHIN_S = 280

# A checker that knows nothing yet reads the whole package: minutes on a crowded machine.
pytestmark = [pytest.mark.slow, pytest.mark.timeout(CHECKED_WITHIN_S + 20)]


def run(*command: str) -> "subprocess.CompletedProcess[str]":
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=CHECKED_WITHIN_S, check=False
    )


def test_mypy_accepts_right_calls_and_refuses_wrong_ones() -> None:
    # strict has warn_unused_ignores: a marked line without its error is an error itself. What `make lint` knows is used:
    # it depends on the contents of files, so nothing that has changed is overlooked.
    files = [str(HERE / page) for page in PAGES]
    done = run(sys.executable, "-m", "mypy", "--strict", *files)
    assert done.returncode == 0, done.stdout + done.stderr


def test_pyright_accepts_right_calls_and_refuses_wrong_ones(tmp_path: Path) -> None:
    settings = tmp_path / "pyrightconfig.json"
    settings.write_text(
        json.dumps(
            {
                "include": [str(HERE / page) for page in PAGES],
                "extraPaths": [str(ROOT / "src")],
                "pythonVersion": "3.11",
                "typeCheckingMode": "standard",
                "enableTypeIgnoreComments": False,
                "reportUnnecessaryTypeIgnoreComment": "error",
            }
        )
    )
    done = run(
        sys.executable,
        "-m",
        "basedpyright",
        "--project",
        str(settings),
        "--pythonpath",
        sys.executable,
        "--outputjson",
    )
    report = json.loads(done.stdout)
    found = [
        f"{each['file']}:{each['range']['start']['line'] + 1}: {each['message']}"
        for each in report["generalDiagnostics"]
    ]
    assert found == []
    assert report["summary"]["filesAnalyzed"] == len(PAGES)
