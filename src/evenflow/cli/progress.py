"""Progress of long work: live bars on a terminal, a line now and then elsewhere. Never more often than it can be read."""

import contextlib
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, TextIO, TypeAlias

import click

from evenflow.cli.tables import is_terminal, rich_console

if TYPE_CHECKING:
    from rich.console import Console

Show: TypeAlias = Callable[[str, int], None]
"""Say how far the work of that name is."""

REDRAW_EVERY_S = 0.1
LINE_EVERY_S = 2.0
_WIDTH = 32


@contextlib.contextmanager
def showing_progress(
    totals: Mapping[str, int], *, err: bool = True, says_end: bool = False
) -> Iterator[Show]:
    """Show how far pieces of work are, each with its total, while the block lasts.

    Away from a terminal quick work passes in silence, unless `says_end`.

    >>> with showing_progress({"files": 2}) as show:  # doctest: +SKIP
    ...     show("files", 1)
    """
    stream = sys.stderr if err else sys.stdout
    if console := rich_console(stream):
        with _rich_bars(console, totals) as show:
            yield show
        return
    drawn = _Bars(totals, stream) if is_terminal(stream) else _Lines(totals, stream, says_end)
    try:
        yield drawn.show
    finally:
        drawn.finish()


class _Bars:
    """One bar per piece of work, drawn over itself."""

    def __init__(self, totals: Mapping[str, int], stream: TextIO) -> None:
        self._totals = totals
        self._done = dict.fromkeys(totals, 0)
        self._stream = stream
        self._label = max(map(len, totals))
        self._full, self._empty = _letters(stream)
        self._drawn_at = 0.0
        self._is_drawn = False

    def show(self, name: str, done: int) -> None:
        self._done[name] = done
        if time.monotonic() - self._drawn_at >= REDRAW_EVERY_S:
            self.draw()

    def finish(self) -> None:
        self.draw()

    def draw(self) -> None:
        self._drawn_at = time.monotonic()
        up = f"\x1b[{len(self._totals)}A" if self._is_drawn else ""
        self._is_drawn = True
        self._stream.write(up + "".join(f"\r\x1b[2K{self._bar(name)}\n" for name in self._totals))
        self._stream.flush()

    def _bar(self, name: str) -> str:
        done, total = self._done[name], self._totals[name]
        filled = _WIDTH * done // total if total else _WIDTH
        bar = self._full * filled + self._empty * (_WIDTH - filled)
        return f"{name:{self._label}}  {bar}  {done:,} of {total:,}"


class _Lines:
    """A line when something has changed and the last line is a while ago."""

    def __init__(self, totals: Mapping[str, int], stream: TextIO, says_end: bool) -> None:
        self._totals = totals
        self._done = dict.fromkeys(totals, 0)
        self._stream = stream
        self._said_at = time.monotonic()
        self._said = ""
        self._says_end = says_end

    def show(self, name: str, done: int) -> None:
        self._done[name] = done
        if time.monotonic() - self._said_at >= LINE_EVERY_S:
            self.say()

    def finish(self) -> None:
        if self._said or self._says_end:
            self.say()

    def say(self) -> None:
        self._said_at = time.monotonic()
        text = ", ".join(f"{name} {done:,} of {self._totals[name]:,}" for name, done in self._done.items())
        if text != self._said:
            self._said = text
            click.echo(text, file=self._stream)


@contextlib.contextmanager
def _rich_bars(console: "Console", totals: Mapping[str, int]) -> Iterator[Show]:
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (
        TextColumn("{task.description}", markup=False),
        BarColumn(_WIDTH),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, refresh_per_second=1 / REDRAW_EVERY_S) as bars:
        tasks = {name: bars.add_task(name, total=total) for name, total in totals.items()}
        yield lambda name, done: bars.update(tasks[name], completed=done)


def _letters(stream: TextIO) -> tuple[str, str]:
    try:
        "█░".encode(stream.encoding or "ascii")
    except UnicodeEncodeError:
        return "#", "."
    return "█", "░"
