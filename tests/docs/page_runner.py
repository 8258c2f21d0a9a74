"""Runs the blocks of one page, in order, in the current folder: `python -m tests.docs.page_runner < blocks.json`.

Python blocks share one module, `page`. The first block that does not do what the page says ends the run, with the
page and the line where it stands.
"""

import contextlib
import io
import json
import os
import re
import signal
import subprocess
import sys
import types
from pathlib import Path
from typing import Any

COMMAND_WITHIN_S = 60
STOP_WITHIN_S = 30


class Wrong(Exception):
    """A block did something else than the page says."""


class Runner:
    """One run of one page."""

    def __init__(self) -> None:
        self._module = types.ModuleType("page")
        sys.modules["page"] = self._module
        self._printed = ""
        self._background: list[subprocess.Popen[str]] = []

    def run(self, block: dict[str, Any]) -> None:
        notes = block["notes"]
        if "file" in notes:
            Path(notes["file"]).write_text(block["text"])
        elif block["language"] == "text":
            _compare(self._printed, block["text"])
        elif block["language"] == "python":
            self._run_python(block)
        elif block["language"] == "sql":
            _run_sql(block["text"])
        elif "background" in notes:
            self._background += [_started(command) for command, _ in _commands(block["text"])]
        else:
            self._run_console(block["text"], int(notes.get("exits", 0)))

    def close(self) -> None:
        """Stop what runs in the background; it has to end well."""
        for process in self._background:
            process.send_signal(signal.SIGTERM)
        codes = [_ended(process) for process in self._background]
        if any(codes):
            raise Wrong(f"what ran in the background ended with {codes}")

    def _run_python(self, block: dict[str, Any]) -> None:
        # As many empty lines before it as on the page, so that a traceback names the page's line.
        source = "\n" * (block["line"] - 1) + block["text"]
        code = compile(source, block["page"], "exec")
        wanted = block["notes"].get("raises")
        out = io.StringIO()
        try:
            with contextlib.redirect_stdout(out):
                exec(code, vars(self._module))
        except Exception as error:
            if type(error).__name__ != wanted:
                raise
            print(error, file=out)
        else:
            if wanted is not None:
                raise Wrong(f"expected {wanted}, nothing was raised")
        self._printed = out.getvalue()

    def _run_console(self, text: str, code: int) -> None:
        commands = _commands(text)
        for number, (command, expected) in enumerate(commands):
            done = subprocess.run(
                ["/bin/sh", "-c", command], stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False,
                timeout=COMMAND_WITHIN_S,
            )  # fmt: skip
            wanted = code if number == len(commands) - 1 else 0
            if done.returncode != wanted:
                raise Wrong(f"`{command}` exited with {done.returncode}, expected {wanted}\n{done.stdout}")
            if expected:
                _compare(done.stdout, expected)
            self._printed = done.stdout


def _commands(text: str) -> list[tuple[str, str]]:
    """(command, what it prints): a line with `$ ` begins a command, one with `> ` goes on with it."""
    found: list[tuple[str, str]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], ""))
        elif line.startswith("> ") and not found[-1][1]:
            found[-1] = (f"{found[-1][0]}\n{line[2:]}", "")
        else:
            found[-1] = (found[-1][0], f"{found[-1][1]}{line}\n")
    return found


def _compare(printed: str, expected: str) -> None:
    pattern = ".*".join(re.escape(part) for part in expected.strip().split("…"))
    if not re.fullmatch(pattern, printed.strip(), re.DOTALL):
        raise Wrong(f"expected this output:\n{expected}\ngot this:\n{printed}")


def _run_sql(text: str) -> None:
    """On the page's database, and taken back again: the page's statements may be about the whole server."""
    import psycopg

    with psycopg.connect(os.environ["EVENFLOW_DOCS_POSTGRES"]) as connection:
        connection.execute(text.encode())
        connection.rollback()


def _started(command: str) -> subprocess.Popen[str]:
    return subprocess.Popen(["/bin/sh", "-c", f"exec {command}"], text=True)


def _ended(process: subprocess.Popen[str]) -> int:
    try:
        return process.wait(STOP_WITHIN_S)
    except subprocess.TimeoutExpired:
        process.kill()
        return process.wait()


def main() -> None:
    runner = Runner()
    sys.path.insert(0, os.getcwd())
    try:
        for block in json.load(sys.stdin):
            try:
                runner.run(block)
            except BaseException:
                print(f"{block['page']}, the block at line {block['line']}:", file=sys.stderr)
                raise
    finally:
        runner.close()


if __name__ == "__main__":
    main()
