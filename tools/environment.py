"""Creates `.venv` and installs the project with the extras named on the command line, when something changed.

Runs under the machine's own Python, so it uses the standard library alone. Safe to call twice at once: a lock
on the project folder makes the second caller wait and then find everything done.
"""

import fcntl
import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
STAMP = VENV / "evenflow-install.json"
OLDEST_PYTHON = (3, 11)


def main(extras: list[str]) -> int:
    """Bring the environment up to date: `python3 tools/environment.py test docs`."""
    if sys.version_info < OLDEST_PYTHON:
        print(f"Evenflow needs Python 3.11 or newer; this is {sys.version.split()[0]}.", file=sys.stderr)
        return 1
    with project_lock():
        return ensure_installed(set(extras))


@contextmanager
def project_lock() -> Iterator[None]:
    """Hold the one lock of this working copy; whoever changes `.venv` takes it."""
    folder = os.open(ROOT, os.O_RDONLY)
    try:
        fcntl.flock(folder, fcntl.LOCK_EX)
        yield
    finally:
        os.close(folder)


def ensure_installed(extras: set[str]) -> int:
    """Install what is missing and return an exit code; the caller holds the project lock."""
    stamp = read_stamp()
    is_current = stamp.get("fingerprint") == fingerprint() and interpreter_works()
    installed = set(stamp.get("extras", "").split()) if is_current else set()
    if is_current and extras <= installed:
        return 0
    wanted = sorted(extras | installed)
    code = 0 if interpreter_works() else create_venv()
    code = code or install(wanted)
    if code == 0:
        write_stamp({"fingerprint": fingerprint(), "extras": " ".join(wanted)})
    return code


def fingerprint() -> str:
    """Everything that makes an installed environment stale when it changes."""
    parts = ((ROOT / "pyproject.toml").read_bytes(), str(ROOT).encode())
    return hashlib.sha256(b"\0".join(parts)).hexdigest()


def interpreter_works() -> bool:
    python = VENV / "bin" / "python"
    if not (python.exists() and (VENV / "bin" / "pip").exists()):
        return False
    # A copied or moved folder carries a venv whose scripts point at the old place.
    probe = [str(python), "-c", "import sys, pip; print(sys.prefix)"]
    answer = subprocess.run(probe, capture_output=True, text=True, check=False)
    return answer.returncode == 0 and Path(answer.stdout.strip()) == VENV and pip_script_is_local()


def pip_script_is_local() -> bool:
    first_line = (VENV / "bin" / "pip").read_bytes().split(b"\n", 1)[0]
    return not first_line.startswith(b"#!/") or first_line.startswith(b"#!" + bytes(VENV))


def create_venv() -> int:
    print(f"Creating {VENV} with {sys.executable}", flush=True)
    code = subprocess.run([sys.executable, "-m", "venv", "--clear", str(VENV)], check=False).returncode
    if code != 0:
        hint = "On Debian and Ubuntu the module comes with the package python3-venv."
        print(f"Could not create a virtual environment. {hint}", file=sys.stderr)
    return code


def install(extras: list[str]) -> int:
    target = f"{ROOT}[{','.join(extras)}]" if extras else str(ROOT)
    print(f"Installing evenflow[{','.join(extras)}] into .venv (a minute on the first run)", flush=True)
    # Twice quiet: warnings of the user's own pip configuration are not ours to repeat; errors still show. What is never
    # imported need not be compiled.
    command = [
        str(VENV / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "-qq",
        "--no-compile",
        "--editable",
        target,
    ]
    environment = {**os.environ, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}
    return subprocess.run(command, check=False, env=environment).returncode


def read_stamp() -> dict[str, str]:
    try:
        stamp = json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}
    return stamp if isinstance(stamp, dict) else {}


def write_stamp(stamp: dict[str, str]) -> None:
    unfinished = STAMP.with_suffix(".new")
    unfinished.write_text(json.dumps(stamp))
    unfinished.replace(STAMP)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
