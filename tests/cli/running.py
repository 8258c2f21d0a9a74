"""Running `evenflow` in tests: in this process, in a process of its own, or on a terminal."""

import os
import pty
import select
import subprocess
import sys
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from click.testing import CliRunner, Result

from evenflow.cli import main

ROOT = Path(__file__).resolve().parent.parent.parent
WITHIN_S = 60.0


def evenflow(*arguments: str, answer: str | None = None) -> Result:
    """The command in this process, away from any terminal. Exit code, stdout and stderr are in what is returned."""
    return CliRunner().invoke(main, list(arguments), input=answer, prog_name="evenflow")


def evenflow_process(*arguments: str, **variables: str) -> "subprocess.CompletedProcess[str]":
    """The command as a user runs it, in the current folder."""
    return subprocess.run(
        [sys.executable, "-m", "evenflow", *arguments], env=environment(variables), capture_output=True, text=True,
        check=False, timeout=WITHIN_S, stdin=subprocess.DEVNULL,
    )  # fmt: skip


@dataclass(frozen=True)
class Screen:
    """What came to a terminal, escape sequences included."""

    code: int
    text: str


def evenflow_on_terminal(*arguments: str, answer: str = "", **variables: str) -> Screen:
    """The command on a terminal of 100 columns; `answer` is typed right away."""
    master, slave = pty.openpty()
    command = [sys.executable, "-m", "evenflow", *arguments]
    size = {"TERM": "xterm-256color", "COLUMNS": "100", "LINES": "40"}
    with subprocess.Popen(
        command, env=environment({**size, **variables}), stdin=slave, stdout=slave, stderr=slave
    ) as process:
        os.close(slave)
        os.write(master, answer.encode())
        text = _read_all(master)
        os.close(master)
        return Screen(process.wait(WITHIN_S), text.replace("\r\n", "\n"))


def environment(variables: Mapping[str, str]) -> dict[str, str]:
    """That of the tests without what concerns Evenflow or colour."""
    unwanted = ("EVENFLOW_", "NO_COLOR", "FORCE_COLOR", "PYTHONPATH")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(unwanted)}
    return {**kept, "PYTHONPATH": str(ROOT / "src"), **variables}


def without_rich(folder: Path) -> dict[str, str]:
    """Variables with which `rich` cannot be imported, as where the extra is not installed."""
    hidden = folder / "hidden"
    (hidden / "rich").mkdir(parents=True, exist_ok=True)
    (hidden / "rich" / "__init__.py").write_text("raise ImportError('not installed')\n")
    return {"PYTHONPATH": f"{hidden}{os.pathsep}{ROOT / 'src'}"}


def _read_all(descriptor: int) -> str:
    ends_at = time.monotonic() + WITHIN_S
    pieces: list[bytes] = []
    while select.select([descriptor], [], [], max(0.0, ends_at - time.monotonic()))[0]:
        try:
            piece = os.read(descriptor, 65_536)
        except OSError:  # the other side is closed: the end of what a terminal has to say
            return b"".join(pieces).decode()
        if not piece:
            return b"".join(pieces).decode()
        pieces.append(piece)
    raise TimeoutError(f"the command went on for {WITHIN_S:g} s:\n{b''.join(pieces).decode()}")
