"""The pages of the documentation as data: their text, headings, tables and code blocks.

A comment right above a block says how it is run (`NOTES`). Reads files and runs nothing.
"""

import re
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
DOCS = ROOT / "docs"
README = ROOT / "README.md"

NOTES = {
    "not run",  # with the reason
    "file",  # the block is a file of this name, for the blocks that follow
    "raises",  # the name of the exception that the block ends with
    "exits",  # the exit code of the block's last command
    "background",  # the command goes on until the page ends, then gets TERM
    "output",  # a text block: what the block before it has printed; `…` stands for anything
}
RUNNABLE = {"python", "console", "sql"}
LANGUAGES = RUNNABLE | {"text"}

_FENCE = re.compile(r"^```(\w*|\{[\w-]+\})$")
_NOTE = re.compile(r"<!-- ([a-z ]+?)(?:: (.+?))? -->")
_HEADING = re.compile(r"^(#+) (.+)$")


@dataclass(frozen=True)
class Block:
    """One fenced block; `line` is that of its first line of text."""

    page: str
    line: int
    language: str
    text: str
    notes: dict[str, str] = field(default_factory=dict)


@dataclass(frozen=True)
class Page:
    """One page. `name` is its path from the project's folder."""

    name: str
    text: str

    @property
    def blocks(self) -> list[Block]:
        return _blocks(self.name, self.text)

    @property
    def prose(self) -> str:
        """The page without its blocks."""
        return re.sub(r"^```.*?^```$", "", self.text, flags=re.DOTALL | re.MULTILINE)

    @property
    def headings(self) -> list[str]:
        return [found[2] for line in self.prose.splitlines() if (found := _HEADING.match(line))]

    def section(self, heading: str) -> str:
        """The text below a heading, up to the next one of its level or above."""
        inside, level, lines = False, 0, []
        for line in _outside_of_blocks_marked(self.text):
            found = _HEADING.match(line.text) if not line.is_in_block else None
            if inside and found and len(found[1]) <= level:
                break
            if inside:
                lines.append(line.text)
            elif found and found[2] == heading:
                inside, level = True, len(found[1])
        if not inside:
            raise LookupError(f"{self.name} has no section {heading!r}")
        return "\n".join(lines)

    def table(self, heading: str) -> list[dict[str, str]]:
        """The first table below a heading, as rows of column name -> cell."""
        lines = [line for line in self.section(heading).splitlines() if line.startswith("|")]
        if not lines:
            raise LookupError(f"{self.name}, {heading!r}: no table")
        names, *rows = [_cells(line) for line in lines if not re.fullmatch(r"[|\s:-]+", line)]
        return [dict(zip(names, row, strict=True)) for row in rows]


@cache
def all_pages() -> dict[str, Page]:
    """The pages at the project's root and every page of the manual, by name."""
    paths = [README, *sorted(set(ROOT.glob("*.md")) - {README}), *sorted(DOCS.glob("*.md"))]
    return {
        name: Page(name, path.read_text("utf-8")) for path in paths for name in [str(path.relative_to(ROOT))]
    }


def page(name: str) -> Page:
    """One page of the manual: `page("caps")`."""
    return all_pages()[f"docs/{name}.md"]


def plain(cell: str) -> str:
    """A cell without its backquotes."""
    return cell.replace("`", "").strip()


@dataclass(frozen=True)
class _Line:
    text: str
    is_in_block: bool


def _outside_of_blocks_marked(text: str) -> list[_Line]:
    lines, is_inside = [], False
    for line in text.splitlines():
        is_fence = line.startswith("```")
        lines.append(_Line(line, is_inside or is_fence))
        is_inside ^= is_fence
    return lines


def _blocks(page: str, text: str) -> list[Block]:
    blocks: list[Block] = []
    notes: dict[str, str] = {}
    start, language, body = 0, "", list[str]()
    for number, line in enumerate(text.splitlines(), start=1):
        if start:
            if line == "```":
                if not language.startswith("{"):  # a directive is Sphinx's business
                    blocks.append(Block(page, start, language, "\n".join(body) + "\n", notes))
                start, notes, body = 0, {}, []
            else:
                body.append(line)
        elif found := _FENCE.match(line):
            start, language = number + 1, found[1]
        elif note := _NOTE.fullmatch(line.strip()):
            notes = {**notes, note[1]: note[2] or ""}
        elif line.strip():
            notes = {}
    return blocks


def _cells(line: str) -> list[str]:
    return [cell.replace("\\|", "|").strip() for cell in re.split(r"(?<!\\)\|", line.strip().strip("|"))]
