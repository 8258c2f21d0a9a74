"""A workflow as a drawing: steps in layers from left to right, edges as curves. Pure; the template writes the elements."""

from collections.abc import Sequence
from dataclasses import dataclass

from evenflow.web.shapes import StepShape

MOST_DRAWN = 150
BOX_WIDTH, BOX_HEIGHT = 168, 44
GAP_X, GAP_Y = 56, 14
MARGIN = 8
LONGEST_NAME = 22


@dataclass(frozen=True, slots=True)
class Box:
    """One step."""

    x: int
    y: int
    name: str
    label: str
    state: str
    job_id: str | None


@dataclass(frozen=True, slots=True)
class Edge:
    """From a step to one that waits for it."""

    path: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """The graph, and how many steps were left out because nobody could see them."""

    width: int
    height: int
    boxes: list[Box]
    edges: list[Edge]
    left_out: int
    box_width: int = BOX_WIDTH
    box_height: int = BOX_HEIGHT


def drawing(steps: Sequence[StepShape]) -> Drawing:
    """Layers by the longest way from a first step; inside a layer, near to where the parents stand."""
    shown = [step for step in steps if step.kind != "begin"][:MOST_DRAWN]
    known = {step.name: step for step in shown}
    depth = _depths(known)
    layers: dict[int, list[str]] = {}
    for step in shown:
        layers.setdefault(depth[step.name], []).append(step.name)
    rows: dict[str, float] = {}
    for level in sorted(layers):
        names = sorted(
            layers[level], key=lambda name: (_middle(known[name], rows), layers[level].index(name))
        )
        layers[level] = names
        rows |= {name: float(place) for place, name in enumerate(names)}
    tallest = max((len(names) for names in layers.values()), default=0)
    places = {
        name: _place(level, row, len(names), tallest)
        for level, names in layers.items()
        for row, name in enumerate(names)
    }
    boxes = [Box(*places[step.name], step.name, _short(step.name), step.state, step.job_id) for step in shown]
    edges = [
        _edge(places[parent], places[step.name])
        for step in shown
        for parent in step.parents
        if parent in places
    ]
    return Drawing(
        MARGIN * 2 + len(layers) * BOX_WIDTH + max(0, len(layers) - 1) * GAP_X,
        MARGIN * 2 + tallest * BOX_HEIGHT + max(0, tallest - 1) * GAP_Y,
        boxes,
        edges,
        sum(step.kind != "begin" for step in steps) - len(shown),
    )


def _depths(known: dict[str, StepShape]) -> dict[str, int]:
    found: dict[str, int] = {}
    # Steps come in the order in which they were added, parents mostly first; a few rounds settle the rest.
    for _ in range(len(known)):
        before = dict(found)
        for name, step in known.items():
            found[name] = max(
                (found.get(parent, -1) + 1 for parent in step.parents if parent in known), default=0
            )
        if found == before:
            break
    return found


def _middle(step: StepShape, rows: dict[str, float]) -> float:
    placed = [rows[parent] for parent in step.parents if parent in rows]
    return sum(placed) / len(placed) if placed else 0.0


def _place(level: int, row: int, rows: int, tallest: int) -> tuple[int, int]:
    spare = (tallest - rows) * (BOX_HEIGHT + GAP_Y) // 2
    return MARGIN + level * (BOX_WIDTH + GAP_X), MARGIN + spare + row * (BOX_HEIGHT + GAP_Y)


def _edge(parent: tuple[int, int], child: tuple[int, int]) -> Edge:
    x1, y1 = parent[0] + BOX_WIDTH, parent[1] + BOX_HEIGHT // 2
    x2, y2 = child[0], child[1] + BOX_HEIGHT // 2
    bend = max(GAP_X // 2, (x2 - x1) // 2)
    return Edge(f"M{x1},{y1} C{x1 + bend},{y1} {x2 - bend},{y2} {x2},{y2}")


def _short(name: str) -> str:
    return name if len(name) <= LONGEST_NAME else f"{name[: LONGEST_NAME - 1]}…"
