"""Tables: aligned plain text; on a terminal with `rich` installed, fitted to its width. Colour only on terminals."""

import os
import sys
from collections.abc import Collection, Sequence
from typing import TYPE_CHECKING, NamedTuple, TextIO, TypeAlias

import click

from evenflow.cli.texts import printable

if TYPE_CHECKING:
    from rich.console import Console


class Cell(NamedTuple):
    """A text that is worth a colour."""

    text: str
    colour: str | None = None


Row: TypeAlias = Sequence[Cell | str | int | None]
_GAP = "  "


def print_table(headers: Sequence[str], rows: Sequence[Row], *, right: Collection[str] = ()) -> None:
    """A table on standard output; whole numbers, and the columns named, are set to the right, None is left empty."""
    cells = [[_cell(value) for value in row] for row in rows]
    to_right = [
        header in right or (bool(rows) and all(isinstance(row[place], int) for row in rows))
        for place, header in enumerate(headers)
    ]
    if console := rich_console(sys.stdout):
        _print_rich(console, headers, cells, to_right)
        return
    widths = [
        max(len(line[place].text) for line in [_heads(headers), *cells]) for place in range(len(headers))
    ]
    for line in [_heads(headers), *cells]:
        places = zip(line, widths, to_right, strict=True)
        click.echo(_GAP.join(_padded(cell, width, right) for cell, width, right in places).rstrip())


def is_terminal(stream: TextIO) -> bool:
    """Whether somebody looks at this stream on a terminal that can move its cursor."""
    return stream.isatty() and os.environ.get("TERM") != "dumb"


def rich_console(stream: TextIO) -> "Console | None":
    """rich's console where it is installed and the stream is a terminal; it honours NO_COLOR by itself."""
    if not is_terminal(stream):
        return None
    try:
        from rich.console import Console
    except ImportError:
        return None
    return Console(file=stream, highlight=False)


def _cell(value: Cell | str | int | None) -> Cell:
    if isinstance(value, Cell):
        return Cell(printable(value.text), value.colour)
    if isinstance(value, int):
        return Cell(f"{value:,}")
    return Cell(printable(value or ""))


def _heads(headers: Sequence[str]) -> list[Cell]:
    return [Cell(header.upper()) for header in headers]


def _padded(cell: Cell, width: int, to_right: bool) -> str:
    text = click.style(cell.text, fg=cell.colour) if cell.colour and cell.text else cell.text
    blanks = " " * (width - len(cell.text))
    return blanks + text if to_right else text + blanks


def _print_rich(
    console: "Console", headers: Sequence[str], rows: Sequence[Sequence[Cell]], to_right: Sequence[bool]
) -> None:
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), header_style="bold")
    for place, header in enumerate(_heads(headers)):
        table.add_column(header.text, justify="right" if to_right[place] else "left", no_wrap=place == 0)
    for row in rows:
        # Text, not markup: a bracket in somebody's data must stay a bracket.
        table.add_row(*(Text(cell.text, style=cell.colour or "") for cell in row))
    console.print(table)
