"""A workflow as a drawing: the text of DOT (Graphviz) or Mermaid. From rows of steps; draws nothing itself."""

import re
from collections.abc import Sequence
from typing import Protocol

COLOURS = {
    "succeeded": "#8bc78b",
    "running": "#8fc1e3",
    "failed": "#e39a9a",
    "quarantined": "#e39a9a",
    "expired": "#e3cf8f",
    "cancelled": "#e3cf8f",
    "skipped": "#dddddd",
    "discarded": "#dddddd",
}


class Drawn(Protocol):
    """What a drawing needs of a step."""

    @property
    def name(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def parents(self) -> tuple[str, ...]: ...


def dot(title: str, steps: Sequence[Drawn]) -> str:
    """The graph for Graphviz: `evenflow workflow ID --dot | dot -Tsvg`.

    >>> print(dot("empty", []))
    digraph "empty" {
      rankdir=LR;
      node [shape=box, style="rounded,filled", fillcolor=white];
    }
    """
    lines = [f"digraph {_quoted(title)} {{", "  rankdir=LR;"]
    lines.append('  node [shape=box, style="rounded,filled", fillcolor=white];')
    for step in steps:
        colour = COLOURS.get(step.state)
        look = f', fillcolor="{colour}"' if colour else ""
        label = _quoted(f"{step.name}\n{step.state}").replace("\n", "\\n")
        lines.append(f"  {_quoted(step.name)} [label={label}{look}];")
    lines += [f"  {_quoted(parent)} -> {_quoted(step.name)};" for step in steps for parent in step.parents]
    return "\n".join([*lines, "}"])


def mermaid(steps: Sequence[Drawn]) -> str:
    """The graph for Mermaid, as Markdown pages show it.

    >>> print(mermaid([]))
    flowchart LR
    """
    place = {step.name: f"s{number}" for number, step in enumerate(steps)}
    lines = ["flowchart LR"]
    for step in steps:
        lines.append(f'  {place[step.name]}["{_entities(step.name)}<br/>{step.state}"]')
        if colour := COLOURS.get(step.state):
            lines.append(f"  style {place[step.name]} fill:{colour}")
    lines += [
        f"  {place[parent]} --> {place[step.name]}"
        for step in steps
        for parent in step.parents
        if parent in place
    ]
    return "\n".join(lines)


def _quoted(text: str) -> str:
    escaped = text.replace("\\", "\\\\").replace('"', '\\"')
    return f'"{escaped}"'


def _entities(text: str) -> str:
    return re.sub(r"[^\w ./:\[\]-]", lambda found: f"#{ord(found[0])};", text)
