"""The manual as a site: Sphinx builds it without a warning, every page can be reached, every picture has a text."""

import re
import shutil
import subprocess
import sys
from fnmatch import fnmatch
from html.parser import HTMLParser
from pathlib import Path
from xml.etree import ElementTree

import pytest

from evenflow import __all__ as public_names
from evenflow.cli.program import COMMANDS
from tests.docs.pages import DOCS, ROOT, all_pages

BUILT_WITHIN_S = 280
IMAGES = sorted((DOCS / "images").glob("*.svg"))
_TOCTREE = re.compile(r"^:::\{toctree\}\n(.*?)^:::$", re.MULTILINE | re.DOTALL)
_IMAGE = re.compile(r"!\[([^\]]*)\]\(([^)]+)\)")


class Ids(HTMLParser):
    """The ids of a page: what can be linked to."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.found: set[str] = set()
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self.found |= {value for name, value in attributes if name == "id" and value}


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The manual, built as `make docs` does it."""
    if shutil.which("sphinx-build", path=str(Path(sys.executable).parent)) is None:
        pytest.fail("sphinx-build is missing; install the extra 'docs'")
    target = tmp_path_factory.mktemp("site")
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "html", str(DOCS), str(target)],
        capture_output=True, text=True, check=False, cwd=ROOT, timeout=BUILT_WITHIN_S,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    return target


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S + 20)  # whichever comes first builds it
def test_every_page_is_built(site: Path) -> None:
    assert {path.stem for path in DOCS.glob("*.md")} <= {path.stem for path in site.glob("*.html")}


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S + 20)  # whichever comes first builds it
def test_the_reference_has_every_public_name(site: Path) -> None:
    ids = Ids((site / "reference.html").read_text()).found
    known = {each.rpartition(".")[2] for each in ids}
    assert [name for name in public_names if name not in known] == []


@pytest.mark.slow
@pytest.mark.timeout(BUILT_WITHIN_S + 20)  # whichever comes first builds it
def test_the_page_of_commands_has_every_command_with_its_options(site: Path) -> None:
    text = (site / "commands.html").read_text()
    ids = Ids(text).found
    assert [name for names in COMMANDS.values() for name in names if f"evenflow-{name}" not in ids] == []
    assert "evenflow-limits-set" in ids, "commands of a group are missing"
    assert "--max-claim-per-worker" in text


def entries() -> set[str]:
    """What the toctrees of the index name, patterns as they stand."""
    blocks = _TOCTREE.findall(all_pages()["docs/index.md"].text)
    lines = [line for block in blocks for line in block.splitlines()]
    return {line for line in lines if line and not line.startswith(":")}


def test_every_page_is_in_a_toctree_and_every_entry_is_a_page() -> None:
    pages = {path.stem for path in DOCS.glob("*.md")} - {"index"}
    assert [page for page in sorted(pages) if not any(fnmatch(page, each) for each in entries())] == []
    assert [each for each in sorted(entries()) if not any(fnmatch(page, each) for page in pages)] == []


def test_every_picture_on_a_page_has_a_text_and_every_picture_is_used() -> None:
    used: set[str] = set()
    for page in all_pages().values():
        for text, target in _IMAGE.findall(page.prose):
            assert len(text) > 20, f"{page.name}: say what {target} shows, for those who cannot see it"
            used.add(Path(target).name)
    assert {path.name for path in IMAGES} <= used


@pytest.mark.parametrize("path", IMAGES, ids=lambda path: path.stem)
def test_a_picture_is_well_formed_described_and_loads_nothing(path: Path) -> None:
    root = ElementTree.fromstring(path.read_text("utf-8"))
    names = {child.tag.rpartition("}")[2]: child.text or "" for child in root}
    assert names["title"] and names["desc"]
    assert "prefers-color-scheme:dark" in names["style"]
    source = path.read_text("utf-8").replace("http://www.w3.org/2000/svg", "")
    assert "http" not in source and "<script" not in source
