"""Every code block of the documentation runs, page by page, in an empty folder and against real databases.

Where a block cannot run, the page says so in a comment above it, with the reason.
"""

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from tests.docs.pages import LANGUAGES, NOTES, ROOT, RUNNABLE, Block, all_pages
from tests.postgres_server import DatabaseHost

# What the pages write for "your PostgreSQL"; replaced by the address of the page's own database.
PLACEHOLDER = "//shop:secret@localhost/shop"
PAGE_WITHIN_S = 240

PAGES = [
    name for name, page in all_pages().items() if any(block.language in RUNNABLE for block in page.blocks)
]
BLOCKS = [block for page in all_pages().values() for block in page.blocks]


@pytest.mark.slow
@pytest.mark.timeout(
    PAGE_WITHIN_S + 30
)  # what it says of a page that takes too long must come before its own end
@pytest.mark.parametrize("name", PAGES)
def test_the_code_of_a_page_runs(name: str, folder: Path, request: pytest.FixtureRequest) -> None:
    blocks = [asdict(block) for block in all_pages()[name].blocks if _is_run(block)]
    text = json.dumps(blocks)
    environment = _environment()
    if PLACEHOLDER in text or '"sql"' in text:
        server: DatabaseHost = request.getfixturevalue("postgres_server")
        database = server.create_database()
        request.addfinalizer(lambda: server.drop_database(database))
        address = server.url(database)
        environment["EVENFLOW_DOCS_POSTGRES"] = address
        text = text.replace(PLACEHOLDER, address.partition(":")[2])
    runner = subprocess.Popen(
        [sys.executable, "-m", "tests.docs.page_runner"], cwd=folder, env=environment, text=True, start_new_session=True,
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    try:
        said, complained = runner.communicate(text, timeout=PAGE_WITHIN_S)
    except BaseException:
        os.killpg(runner.pid, signal.SIGKILL)  # with the workers that the page has started
        runner.communicate()
        raise
    assert runner.returncode == 0, f"{said}\n{complained}"


def test_a_block_names_a_language_and_known_notes() -> None:
    for block in BLOCKS:
        place = f"{block.page}:{block.line}"
        assert block.language in LANGUAGES, place
        assert block.notes.keys() <= NOTES, place
        assert block.notes.get("not run") != "", f"{place}: say why it is not run"


def test_nearly_all_blocks_run() -> None:
    code = [block for block in BLOCKS if block.language in RUNNABLE]
    left_out = [block for block in code if "not run" in block.notes]
    assert len(code) > 50
    assert len(left_out) < len(code) / 10, [f"{block.page}:{block.line}" for block in left_out]


def test_a_block_that_does_something_else_than_its_page_says_is_found(folder: Path) -> None:
    for language, text, notes, said in (
        ("python", "print(1)\n1 / 0\n", {}, 'File "p.md", line 8'),
        ("python", "1\n", {"raises": "ValueError"}, "expected ValueError"),
        ("text", "something else\n", {"output": ""}, "expected this output"),
        ("console", "$ echo one\ntwo\n", {}, "expected this output"),
        ("console", "$ exit 3\n", {}, "exited with 3"),
        ("console", "$ false\n", {"background": ""}, "in the background"),
    ):
        block = {"page": "p.md", "line": 7, "language": language, "text": text, "notes": notes}
        done = subprocess.run(
            [sys.executable, "-m", "tests.docs.page_runner"], input=json.dumps([block]), cwd=folder, env=_environment(),
            capture_output=True, text=True, check=False,
        )  # fmt: skip
        assert done.returncode != 0
        assert said in done.stderr


def _is_run(block: Block) -> bool:
    if "not run" in block.notes:
        return False
    return block.language in RUNNABLE or "output" in block.notes or "file" in block.notes


def _environment() -> dict[str, str]:
    """That of the tests without what concerns Evenflow, with the environment's own programs first."""
    kept = {name: value for name, value in os.environ.items() if not re.match("EVENFLOW_|PYTEST_|COV_", name)}
    programs = str(Path(sys.executable).parent)
    return {
        **kept,
        "PATH": f"{programs}{os.pathsep}{kept['PATH']}",
        "PYTHONPATH": f"{ROOT / 'src'}{os.pathsep}{ROOT}",
    }
