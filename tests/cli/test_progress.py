"""Progress: bars where there is a terminal, few lines elsewhere."""

import io
import sys

import pytest

from evenflow.cli import progress
from evenflow.cli.progress import showing_progress


def test_away_from_a_terminal_quick_work_passes_in_silence(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_progress({"files": 3}) as show:
        for done in range(4):
            show("files", done)
    assert capsys.readouterr() == ("", "")


def test_the_end_is_said_where_it_is_wanted(capsys: pytest.CaptureFixture[str]) -> None:
    with showing_progress({"Bob": 2000, "Alice": 1}, err=False, says_end=True) as show:
        show("Bob", 2000)
    assert capsys.readouterr() == ("Bob 2,000 of 2,000, Alice 0 of 1\n", "")


def test_long_work_says_a_line_now_and_then_and_its_end(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(progress, "LINE_EVERY_S", 0.0)
    with showing_progress({"files": 2}) as show:
        show("files", 1)
        show("files", 1)
        show("files", 2)
    assert capsys.readouterr().err == "files 1 of 2\nfiles 2 of 2\n"


class Terminal(io.TextIOWrapper):
    """A stream that says it is a terminal."""

    def __init__(self, encoding: str) -> None:
        super().__init__(io.BytesIO(), encoding=encoding)

    def isatty(self) -> bool:
        return True

    def written(self) -> str:
        self.flush()
        raw = self.buffer
        assert isinstance(raw, io.BytesIO)
        return raw.getvalue().decode(self.encoding)


@pytest.mark.parametrize(("encoding", "full"), [("utf-8", "█"), ("ascii", "#")])
def test_bars_are_drawn_over_themselves_in_letters_that_the_terminal_has(
    encoding: str, full: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    terminal = Terminal(encoding)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setitem(sys.modules, "rich.console", None)  # as where rich is not installed
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(progress, "REDRAW_EVERY_S", 0.0)
    with showing_progress({"Bob": 4, "Alice": 1}) as show:
        show("Bob", 2)
        show("Alice", 1)
    text = terminal.written()
    assert f"Bob    {full * 16}" in text
    assert f"Alice  {full * 32}  1 of 1\n" in text
    assert text.count("\x1b[2A") == 2  # three drawings, two of them over the one before


def test_work_of_nothing_is_done() -> None:
    with showing_progress({"files": 0}) as show:
        show("files", 0)
