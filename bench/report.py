"""What a benchmark found: a table whose ratios come first, as Markdown for people and as plain values for JSON."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

Cell = str | int | float | None


@dataclass(frozen=True, slots=True)
class Report:
    """One table. `columns` maps each heading to the format of its numbers.

    >>> print(Report("x", "X", {"engine": "", "ratio": ".2f"}, [("SQLite", 1.5)]).markdown())
    ## X
    <BLANKLINE>
    | engine | ratio |
    |---|--:|
    | SQLite | 1.50 |
    """

    name: str
    title: str
    columns: dict[str, str]
    rows: Sequence[tuple[Cell, ...]]
    notes: Sequence[str] = field(default=())

    def markdown(self) -> str:
        formats = list(self.columns.values())
        lines = [
            f"## {self.title}", "",
            _line(self.columns), "|" + "|".join("--:" if form else "---" for form in formats) + "|",
            *(_line(_shown(cell, form) for cell, form in zip(row, formats, strict=True)) for row in self.rows),
        ]  # fmt: skip
        if self.notes:
            lines += ["", *(f"- {note}" for note in self.notes)]
        return "\n".join(lines)

    def values(self) -> dict[str, object]:
        """The same for JSON: rows by heading, numbers unrounded."""
        rows = [dict(zip(self.columns, row, strict=True)) for row in self.rows]
        return {"name": self.name, "title": self.title, "rows": rows, "notes": list(self.notes)}


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _shown(cell: Cell, form: str) -> str:
    if cell is None:
        return "–"
    return cell if isinstance(cell, str) else format(cell, form)
