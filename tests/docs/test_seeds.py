"""The page on acceptance: every number has its row, and every test that is named exists.

How many lines are open is said here, so that a line cannot become open again unnoticed.
"""

import ast
import re
from functools import cache

from tests.docs.pages import ROOT, page, plain

LINES = {"S0": 64, "S1": 54, "S2": 50, "S3": 52, "S4": 46}
MOST_OPEN = 0
SEEDS = page("seeds")
NOT_IN_THE_SUITE = {"chaos", "large"}
_TEST = re.compile(r"`(tests/[\w/]+\.py)::([\w:]+)`")
_OTHERWISE = re.compile(r"otherwise: \S[^|]*? \(\[Design\]\(design\.md#changed-on-the-way\)\); ")


def rows() -> list[dict[str, str]]:
    return [row for heading in SEEDS.headings if heading[:2] in LINES for row in SEEDS.table(heading)]


def is_open(row: dict[str, str]) -> bool:
    return row["proof"].startswith("open")


def is_otherwise(row: dict[str, str]) -> bool:
    return row["proof"].startswith("otherwise")


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


@cache
def outside_the_suite(path: str) -> set[str]:
    """Those that only `make chaos` or `make large` runs."""
    body = ast.parse((ROOT / path).read_text()).body
    if any(isinstance(each, ast.Assign) and _attributes(each) & NOT_IN_THE_SUITE for each in body):
        return named_in(path)
    classes = [each for each in body if isinstance(each, ast.ClassDef)]
    placed = [("", each) for each in body] + [
        (f"{owner.name}::", each) for owner in classes for each in owner.body
    ]
    return {
        f"{prefix}{each.name}"
        for prefix, each in placed
        if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)
        and any(_attributes(mark) & NOT_IN_THE_SUITE for mark in each.decorator_list)
    }


def _attributes(tree: ast.AST) -> set[str]:
    return {each.attr for each in ast.walk(tree) if isinstance(each, ast.Attribute)}


def _functions(body: list[ast.stmt]) -> set[str]:
    return {each.name for each in body if isinstance(each, ast.FunctionDef | ast.AsyncFunctionDef)}


def test_every_number_has_one_row_in_its_order() -> None:
    expected = [f"{part}-{number}" for part, count in LINES.items() for number in range(1, count + 1)]
    assert len(expected) == 266
    assert [plain(row["number"]) for row in rows()] == expected


def test_every_line_names_tests_or_says_why_it_is_open() -> None:
    for row in rows():
        proof = row["proof"]
        if is_open(row):
            assert re.match(r"open: \S", proof), row["number"]
            continue
        if is_otherwise(row):
            reason = _OTHERWISE.match(proof)
            assert reason, f"{row['number']}: a reason in the design, then the tests of what is done instead"
            proof = proof[reason.end() :]
        assert re.fullmatch(rf"{_TEST.pattern}(?:, {_TEST.pattern})*", proof), row["number"]


def test_every_line_that_is_not_open_has_a_test_in_the_suite() -> None:
    for row in rows():
        named = _TEST.findall(row["proof"])
        assert is_open(row) or any(name not in outside_the_suite(path) for path, name in named), row["number"]


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
