"""Charts as numbers: from minutes of the past to the coordinates of an SVG drawing. Pure; templates write the elements."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import datetime

from evenflow.web.shapes import Point

WIDTH, HEIGHT = 440, 160
MINUTE, HOUR, DAY = 60, 3600, 86_400
_LENGTHS = (
    2, 4, 10, 20, 40, MINUTE, 2 * MINUTE, 4 * MINUTE, 10 * MINUTE, 20 * MINUTE, 30 * MINUTE, HOUR, 2 * HOUR, 4 * HOUR, 8 * HOUR,
    12 * HOUR, DAY, 2 * DAY, 4 * DAY, 10 * DAY,
)  # fmt: skip
LEFT, RIGHT, TOP, BOTTOM = 54, 6, 10, 24


@dataclass(frozen=True, slots=True)
class Bar:
    """One bar of a stack."""

    x: float
    y: float
    width: float
    height: float
    kind: str
    title: str


@dataclass(frozen=True, slots=True)
class Line:
    """One line; `pieces` are drawn apart where minutes without a value lie between."""

    kind: str
    label: str
    pieces: list[str]
    dots: list[tuple[float, float]]
    """Minutes that stand alone: a line of one point cannot be seen."""


@dataclass(frozen=True, slots=True)
class Mark:
    """A label on an axis."""

    at: float
    text: str


@dataclass(frozen=True, slots=True)
class Chart:
    """A drawing of the past."""

    title: str
    summary: str
    """For those who do not see it."""
    bars: list[Bar]
    lines: list[Line]
    across: list[Mark]
    up: list[Mark]
    legend: list[tuple[str, str]]
    is_empty: bool
    width: int = WIDTH
    height: int = HEIGHT
    left: int = LEFT
    bottom: float = HEIGHT - BOTTOM


def throughput(points: Sequence[Point]) -> Chart:
    """Jobs that ended in each minute: succeeded and failed, stacked."""
    most = max((point.succeeded + point.failed for point in points), default=0)
    top = nice_top(most)
    step = (WIDTH - LEFT - RIGHT) / max(len(points), 1)
    bars = []
    for place, point in enumerate(points):
        base = float(HEIGHT - BOTTOM)
        for kind, value in (("good", point.succeeded), ("bad", point.failed)):
            height = value / top * (HEIGHT - TOP - BOTTOM) if top else 0
            base -= height
            if value:
                title = f"{point.at:%H:%M} UTC: {value:,} {'succeeded' if kind == 'good' else 'failed'}"
                bars.append(
                    Bar(
                        _r(LEFT + place * step + step * 0.12),
                        _r(base),
                        _r(step * 0.76),
                        _r(height),
                        kind,
                        title,
                    )
                )
    done, failed = sum(point.succeeded for point in points), sum(point.failed for point in points)
    summary = (
        f"{done:,} succeeded and {failed:,} failed in {len(points)} minutes; {most:,} in the busiest minute."
    )
    return Chart(
        "Throughput", summary, bars, [], _times(points), _levels(top, _count), [("good", "succeeded"), ("bad", "failed")],
        not most,
    )  # fmt: skip


def latency(points: Sequence[Point], which: str) -> Chart:
    """How long jobs waited, or ran: half of them, and nearly all of them."""
    halves = [getattr(point, f"{which}_p50_s") for point in points]
    most_of = [getattr(point, f"{which}_p95_s") for point in points]
    known = [value for value in (*halves, *most_of) if value is not None]
    top = nice_length(max(known, default=0.0))
    lines = [_line("second", "95 %", most_of, top), _line("first", "half", halves, top)]
    title = {"wait": "Wait before start", "run": "Run time"}[which]
    last = next((value for value in reversed(most_of) if value is not None), None)
    summary = (
        f"95 % took at most {_seconds(last)} in the last minute with jobs."
        if last is not None
        else "No jobs."
    )
    return Chart(
        title, summary, [], lines, _times(points), _levels(top, _seconds),
        [("first", "half of the jobs"), ("second", "95 % of the jobs")], not known,
    )  # fmt: skip


def nice_top(value: float) -> float:
    """The end of an axis: a round number at or above the value.

    >>> nice_top(0), nice_top(3), nice_top(42), nice_top(0.13)
    (1.0, 4.0, 50.0, 0.2)
    """
    if value <= 0:
        return 1.0
    size = 10.0 ** math.floor(math.log10(value))
    for step in (1.0, 2.0, 4.0, 5.0, 10.0):
        if value <= step * size * (1 + 1e-9):
            return round(step * size, 9)
    return 10.0 * size


def nice_length(seconds: float) -> float:
    """The end of an axis of time: a round number of the unit that it is written in.

    >>> nice_length(0.13), nice_length(61), nice_length(61_000)
    (0.2, 120.0, 86400.0)
    """
    if seconds <= 1:
        return nice_top(seconds)
    return next((float(top) for top in _LENGTHS if seconds <= top), nice_top(seconds / DAY) * DAY)


def _line(kind: str, label: str, values: Sequence[float | None], top: float) -> Line:
    step = (WIDTH - LEFT - RIGHT) / max(len(values), 1)
    pieces: list[list[tuple[float, float]]] = [[]]
    for place, value in enumerate(values):
        if value is None:
            pieces.append([])
            continue
        y = HEIGHT - BOTTOM - value / top * (HEIGHT - TOP - BOTTOM)
        pieces[-1].append((_r(LEFT + (place + 0.5) * step), _r(y)))
    drawn = [" ".join(f"{x},{y}" for x, y in piece) for piece in pieces if len(piece) > 1]
    return Line(kind, label, drawn, [piece[0] for piece in pieces if len(piece) == 1])


def _times(points: Sequence[Point]) -> list[Mark]:
    step = (WIDTH - LEFT - RIGHT) / max(len(points), 1)
    every = max(1, len(points) // 6)
    return [
        Mark(_r(LEFT + (place + 0.5) * step), _clock(point.at))
        for place, point in enumerate(points)
        if place % every == 0
    ]


def _levels(top: float, said: Callable[[float], str]) -> list[Mark]:
    return [
        Mark(_r(HEIGHT - BOTTOM - part * (HEIGHT - TOP - BOTTOM)), said(top * part))
        for part in (0.0, 0.5, 1.0)
    ]


def _count(value: float) -> str:
    if value >= 1_000_000:
        return f"{value / 1_000_000:.3g}M"
    if value >= 10_000:
        return f"{value / 1000:.3g}k"
    return f"{value:,.0f}" if value >= 10 or value == int(value) else f"{value:g}"


def _seconds(value: float) -> str:
    if value > DAY:
        return f"{value / DAY:.3g} d"
    for size, name in ((HOUR, "h"), (MINUTE, "m"), (1, "s")):
        if value >= size:
            return f"{value / size:.3g} {name}"
    return f"{value * 1000:.3g} ms" if value else "0 s"


def _clock(at: datetime) -> str:
    return f"{at:%H:%M}"


def _r(value: float) -> float:
    return round(value, 1)
