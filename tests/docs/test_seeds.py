"""The page on acceptance: every number has its row, and every test that is named exists.

How many lines are open is said here, so that a line cannot become open again unnoticed.
"""

import ast
import re
from functools import cache

from tests.docs.pages import ROOT, page, plain

LINES = {"S0": 64, "S1": 54, "S2": 50, "S3": 52, "S4": 46}
MOST_OPEN = 56
SEEDS = page("seeds")
_TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")


def rows() -> list[dict[str, str]]:
    return [row for heading in SEEDS.headings if heading[:2] in LINES for row in SEEDS.table(heading)]


def is_open(row: dict[str, str]) -> bool:
    return row["proof"].startswith("open")


@cache
def named_in(path: str) -> set[str]:
    """The tests of a file: `test_x`, or `TestY::test_x`."""
    body = ast.parse((ROOT / path).read_text()).body
    found = {
        f"{each.name}::{test}"
        for each in body
        if isinstance(each, ast.ClassDef)
        for test in _functions(each.body)
    }
    return {name for name in found | _functions(body) if name.split("::")[-1].startswith("test_")}


def _functions(body: list[ast.stmt]) -> set[str]:
    return {each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_number_has_one_row_in_its_order() -> None:
    expected = [f"{part}-{number}" for part, count in LINES.items() for number in range(1, count + 1)]
    assert len(expected) == 266
    assert [plain(row["number"]) for row in rows()] == expected


def test_every_line_names_tests_or_says_why_it_is_open() -> None:
    for row in rows():
        if is_open(row):
            assert re.match(r"open: \S", row["proof"]), row["number"]
        else:
            assert re.fullmatch(rf"{_TEST.pattern}(?:, {_TEST.pattern})*", row["proof"]), row["number"]


def test_every_test_that_is_named_exists() -> None:
    named = {(row["number"], path, name) for row in rows() for path, name in _TEST.findall(row["proof"])}
    assert named
    missing = [
        each for each in sorted(named) if not (ROOT / each[1]).is_file() or each[2] not in named_in(each[1])
    ]
    assert missing == []


def test_no_more_lines_are_open_than_before() -> None:
    left = [row["number"] for row in rows() if is_open(row)]
    assert len(left) <= MOST_OPEN, left
