"""Tables: aligned, without surprises, fitted where `rich` is there."""

import pytest

from evenflow.cli.tables import Cell, print_table
from tests.cli.running import evenflow_on_terminal, without_rich
from tests.cli.stage import Stage


def test_columns_are_aligned_and_numbers_stand_to_the_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("name", "jobs", "note"), [("mail", 5, None), ("reports", 12_345, Cell("late", "red"))])
    assert capsys.readouterr().out == "NAME       JOBS  NOTE\nmail          5\nreports  12,345  late\n"


def test_no_line_ends_in_blanks(capsys: pytest.CaptureFixture[str]) -> None:
    print_table(("a", "b"), [("x", Cell("", "red")), ("y", "long enough")])
    assert all(line == line.rstrip() for line in capsys.readouterr().out.splitlines())


@pytest.mark.parametrize("has_rich", [True, False], ids=["rich", "plain"])
def test_a_terminal_shows_the_same_words_with_and_without_rich(
    has_rich: bool, sqlite_stage: Stage, folder: object
) -> None:
    (job,) = sqlite_stage.failed()
    variables = {} if has_rich else without_rich(folder)  # type: ignore[arg-type]
    done = evenflow_on_terminal("jobs", "--url", sqlite_stage.url, NO_COLOR="1", **variables)
    assert done.code == 0
    assert job.id in done.text
    assert "shop.fail" in done.text
    assert "no such card" in done.text.replace("\n", " ")


def test_a_dumb_terminal_gets_plain_text(sqlite_stage: Stage) -> None:
    sqlite_stage.failed()
    done = evenflow_on_terminal("queues", "--url", sqlite_stage.url, TERM="dumb", NO_COLOR="1")
    assert "\x1b" not in done.text
