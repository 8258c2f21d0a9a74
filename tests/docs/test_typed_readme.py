"""The first five minutes of the README, typed into two terminals in an empty folder as a reader would."""

import os
import re
import shlex
import sys
from collections.abc import Iterator
from pathlib import Path

import pexpect
import pytest

from tests.docs.pages import README, Block, all_pages
from tests.docs.test_code_blocks import _environment

pytestmark = pytest.mark.slow

PROMPT = "README> "
WITHIN_S = 60
SECTION, END = "## Five minutes", "For PostgreSQL"


def first_minutes() -> list[Block]:
    """The blocks of the section, without the installation and what needs another database."""
    text = README.read_text()
    first, end = (text[: text.index(mark)].count("\n") for mark in (SECTION, END))
    blocks = all_pages()["README.md"].blocks
    return [block for block in blocks if first < block.line < end and "not run" not in block.notes]


class Terminal:
    """A shell at a prompt."""

    def __init__(self, folder: Path) -> None:
        variables = {
            **_environment(),
            "PS1": PROMPT,
            "TERM": "xterm-256color",
            "BASH_SILENCE_DEPRECATION_WARNING": "1",
        }
        self._shell = pexpect.spawn(
            "/bin/bash", ["--norc", "--noprofile", "--noediting"], cwd=str(folder), env=variables, encoding="utf-8",
            timeout=WITHIN_S, dimensions=(24, 100),
        )  # fmt: skip
        self._shell.expect_exact(PROMPT)

    def type(self, command: str) -> None:
        self._shell.sendline(command)
        self._shell.expect_exact("\n")  # the echo of what was typed

    def sees(self, pattern: str) -> None:
        self._shell.expect(pattern)

    def answer(self) -> str:
        """What was printed until the next prompt, without colours."""
        self._shell.expect_exact(PROMPT)
        printed = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", self._shell.before or "")
        return printed.replace("\r\n", "\n").strip()

    def interrupt(self) -> None:
        self._shell.sendintr()

    def close(self) -> None:
        self._shell.close(force=True)


@pytest.fixture
def terminals(folder: Path) -> Iterator[tuple[Terminal, Terminal]]:
    opened = Terminal(folder), Terminal(folder)
    yield opened
    for terminal in opened:
        terminal.close()


def test_what_the_readme_says_to_type_does_what_it_says(
    folder: Path, terminals: tuple[Terminal, Terminal]
) -> None:
    first, second = terminals
    assert list(folder.iterdir()) == []
    typed = 0
    for block in first_minutes():
        if "file" in block.notes:
            (folder / block.notes["file"]).write_text(block.text)
            continue
        for command, expected in commands(block.text):
            typed += 1
            if "background" in block.notes:
                first.type(command)
                first.sees("Serving")
            else:
                second.type(command)
                assert second.answer() == expected
    assert typed >= 2
    first.interrupt()
    said = first.answer()
    assert "Traceback" not in said
    first.type("echo $?")
    assert first.answer() == "0"
    assert {path.name for path in folder.iterdir()} >= {"jobs.py", "jobs.db"}


def test_the_demo_draws_bars_on_a_terminal_and_says_where_its_file_is(
    folder: Path, terminals: tuple[Terminal, Terminal]
) -> None:
    first, _ = terminals
    first.type(f"TMPDIR={shlex.quote(str(folder))} evenflow demo --fast")
    said = first.answer()
    for expected in ("Bob", "Alice waited", "Limits held", "0 lost", "The jobs stay in"):
        assert expected in said
    path = re.search(r"The jobs stay in (\S+);", said)
    assert path is not None and os.path.exists(path[1])
    first.type("echo $?")
    assert first.answer() == "0"


def commands(text: str) -> list[tuple[str, str]]:
    """(what is typed after `$ `, what is to appear) of a console block."""
    found: list[tuple[str, list[str]]] = []
    for line in text.splitlines():
        if line.startswith("$ "):
            found.append((line[2:], []))
        else:
            found[-1][1].append(line)
    return [(command, "\n".join(lines).strip()) for command, lines in found]


def test_the_interpreter_of_the_terminals_is_that_of_the_tests(terminals: tuple[Terminal, Terminal]) -> None:
    terminals[0].type("python -c 'import sys; print(sys.executable)'")
    assert Path(terminals[0].answer()).parent == Path(sys.executable).parent
