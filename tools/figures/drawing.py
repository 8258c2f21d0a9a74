"""SVG as text: shapes, a scale, and a sheet with its own paper, so that it can be read on a light and on a dark page."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from html import escape

# Class -> (on light paper, on dark paper). The first four are tenants; no two of them differ in hue alone.
COLOURS = {
    "one": ("#2563b8", "#7fb2ff"),
    "two": ("#e08a00", "#ffb648"),
    "three": ("#12866a", "#4fd1a9"),
    "four": ("#8b3fb0", "#d09bf0"),
    "alarm": ("#c0262d", "#ff7b7b"),
    "ink": ("#1d2530", "#e8ecf2"),
    "soft": ("#5b6675", "#a5b0bf"),
    "rule": ("#d4dae2", "#3a4553"),
    "panel": ("#f3f6fa", "#222b37"),
    "paper": ("#ffffff", "#161c25"),
}
Point = tuple[float, float]


def _style() -> str:
    def rules(side: int) -> str:
        return "".join(
            f".{name}{{fill:{both[side]}}}.line-{name}{{stroke:{both[side]}}}"
            for name, both in COLOURS.items()
        )

    return (
        "text{font-family:system-ui,-apple-system,'Segoe UI',sans-serif;font-size:13px}"
        ".head{font-size:15px;font-weight:600}.small{font-size:12px}.code{font-family:ui-monospace,monospace;font-size:12.5px}"
        f".open{{fill:none}}{rules(0)}@media (prefers-color-scheme:dark){{{rules(1)}}}"
    )


@dataclass
class Sheet:
    """A picture that is being drawn. `text()` gives the finished file."""

    width: int
    height: int
    title: str
    description: str
    parts: list[str] = field(default_factory=list)

    def rect(
        self, x: float, y: float, width: float, height: float, *classes: str, round_by: float = 0
    ) -> None:
        self.parts.append(
            f'<rect x="{_n(x)}" y="{_n(y)}" width="{_n(width)}" height="{_n(height)}" rx="{_n(round_by)}"{_class(classes)}/>'
        )

    def line(
        self, points: Sequence[Point], *classes: str, wide: float = 1.5, dash: str = "", arrow: bool = False
    ) -> None:
        text = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        extra = (f' stroke-dasharray="{dash}"' if dash else "") + (' marker-end="url(#tip)"' if arrow else "")
        self.parts.append(
            f'<polyline points="{text}" stroke-width="{wide}" stroke-linejoin="round"{extra}{_class(("open", *classes))}/>'
        )

    def area(self, points: Sequence[Point], *classes: str) -> None:
        text = " ".join(f"{_n(x)},{_n(y)}" for x, y in points)
        self.parts.append(f'<polygon points="{text}"{_class(classes)}/>')

    def path(self, d: str, *classes: str, wide: float = 1.5, arrow: bool = True) -> None:
        tip = ' marker-end="url(#tip)"' if arrow else ""
        self.parts.append(f'<path d="{d}" stroke-width="{wide}"{tip}{_class(("open", *classes))}/>')

    def dot(self, x: float, y: float, radius: float, *classes: str) -> None:
        self.parts.append(f'<circle cx="{_n(x)}" cy="{_n(y)}" r="{_n(radius)}"{_class(classes)}/>')

    def write(self, x: float, y: float, text: str, *classes: str, at: str = "start") -> None:
        anchor = "" if at == "start" else f' text-anchor="{at}"'
        self.parts.append(
            f'<text x="{_n(x)}" y="{_n(y)}"{anchor}{_class(classes or ("ink",))}>{escape(text)}</text>'
        )

    def text(self) -> str:
        """The file: its title and description are what a screen reader reads."""
        tip = (
            '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="8" markerHeight="8" '
            'markerUnits="userSpaceOnUse" orient="auto"><path d="M0 0L8 4L0 8z" class="soft"/></marker></defs>'
        )
        size = f'viewBox="0 0 {self.width} {self.height}" width="{self.width}" height="{self.height}"'
        return "\n".join(
            [
                f'<svg xmlns="http://www.w3.org/2000/svg" {size} role="img" aria-labelledby="title description">',
                f'<title id="title">{escape(self.title)}</title>',
                f'<desc id="description">{escape(self.description)}</desc>',
                f"<style>{_style()}</style>{tip}",
                f'<rect width="{self.width}" height="{self.height}" rx="8" class="paper"/>',
                *self.parts,
                "</svg>\n",
            ]
        )


@dataclass(frozen=True)
class Plot:
    """A rectangle of a sheet in which numbers have places; (0, 0) of the numbers is at the lower left."""

    sheet: Sheet
    left: float
    top: float
    width: float
    height: float
    x_most: float
    y_most: float

    def x(self, value: float) -> float:
        return self.left + self.width * value / self.x_most

    def y(self, value: float) -> float:
        return self.top + self.height * (1 - value / self.y_most)

    def at(self, points: Iterable[Point]) -> list[Point]:
        return [(self.x(x), self.y(y)) for x, y in points]

    def axes(
        self, x_marks: Sequence[float], y_marks: Sequence[float], x_unit: str = "", percent: bool = False
    ) -> None:
        """The paper of the plot, with rules at the marks and their numbers."""
        self.rules(y_marks, percent=percent)
        for mark in x_marks:
            self.mark(mark, f"{mark:g}{x_unit}")

    def rules(self, y_marks: Sequence[float], y_unit: str = "", percent: bool = False) -> None:
        """The paper, and rules across it with their numbers."""
        self.sheet.rect(self.left, self.top, self.width, self.height, "panel")
        for mark in y_marks:
            self.sheet.line(
                [(self.left, self.y(mark)), (self.left + self.width, self.y(mark))], "line-rule", wide=1
            )
            label = f"{mark:.0%}" if percent else f"{mark:,.0f}{y_unit}"
            self.sheet.write(self.left - 8, self.y(mark) + 4, label, "soft", "small", at="end")

    def mark(self, x: float, label: str) -> None:
        """A label below the plot."""
        self.sheet.write(self.x(x), self.top + self.height + 17, label, "soft", "small", at="middle")


def stairs(points: Sequence[Point], until: float) -> list[Point]:
    """A curve that keeps its height until the next point changes it."""
    corners: list[Point] = []
    for (x, y), (next_x, _) in zip(points, [*points[1:], (until, 0.0)], strict=True):
        corners += [(x, y), (next_x, y)]
    return corners


def marks_up_to(most: float, about: int = 6) -> list[float]:
    """Round numbers from 0 up, some six of them."""
    steps = [base * 10.0**power for power in range(-3, 7) for base in (1, 2, 5)]
    step = next(each for each in steps if most / each <= about)
    return [round(step * number, 6) for number in range(int(most / step) + 1)]


def _class(classes: Iterable[str]) -> str:
    return f' class="{" ".join(classes)}"'


def _n(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")
