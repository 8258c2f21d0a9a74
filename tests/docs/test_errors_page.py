"""The page on errors agrees with the code: the tree, and the codes."""

import re

from evenflow import errors
from evenflow.errors import Code, EvenflowError
from evenflow.rules.retry import FINAL_CODES
from tests.docs.pages import page, plain

ERRORS = page("errors")
_BRANCH = re.compile(r"^((?:│   |    )*)(?:├── |└── )?(\w+)$")


def drawn_tree() -> dict[str, str | None]:
    """Class -> parent, as drawn."""
    tree = next(block.text for block in ERRORS.blocks if block.text.startswith("EvenflowError"))
    parents: dict[str, str | None] = {}
    line_of: list[str] = []
    for line in tree.splitlines():
        depth, name = (len(line) - len(line.lstrip("│├└─ "))) // 4, line.lstrip("│├└─ ")
        line_of = [*line_of[:depth], name]
        parents[name] = line_of[depth - 1] if depth else None
    return parents


def test_the_drawn_tree_is_that_of_the_classes() -> None:
    classes = [
        each for each in vars(errors).values() if isinstance(each, type) and issubclass(each, EvenflowError)
    ]
    real = {
        each.__name__: next((b.__name__ for b in each.__bases__ if b in classes), None) for each in classes
    }
    assert drawn_tree() == real


def test_every_code_is_explained_and_none_is_invented() -> None:
    assert {plain(row["code"]) for row in ERRORS.table("Codes")} == {code.value for code in Code}


def test_codes_that_are_never_retried_are_the_final_ones() -> None:
    never = {plain(row["code"]) for row in ERRORS.table("Codes") if row["retried"] == "never"}
    unused = {plain(row["code"]) for row in ERRORS.table("Codes") if "not used yet" in row["means"]}
    assert never == {code.value for code in FINAL_CODES} - unused


def test_every_error_of_the_tree_is_mentioned_outside_of_it() -> None:
    parents = {parent for parent in drawn_tree().values() if parent}
    leaves = drawn_tree().keys() - parents
    assert [name for name in leaves if f"`{name}`" not in ERRORS.prose] == []
