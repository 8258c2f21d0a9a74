"""What a condition of a workflow's step is told. A plain value."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class Conditional:
    """The step that a condition decides about: how its parents ended, and what they returned, by their names.

    >>> def big_enough(ctx: Conditional) -> bool:
    ...     return len(ctx.results["fetch"]) > 100
    """

    run_id: str
    workflow: str
    step: str
    states: Mapping[str, str]
    results: Mapping[str, Any]
