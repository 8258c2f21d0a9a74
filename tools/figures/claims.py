"""The measurements behind the chart of the claim: the benchmark's own stores and claims, at several sizes of backlog."""

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass

from bench.claim import BATCH, Fill, Scale, claim_in_turns, filled
from bench.stores import ENGINES, Stores

BACKLOGS = (1_000, 10_000, 100_000, 1_000_000)
READY_PER_BLOCKED = 10


@dataclass(frozen=True)
class ClaimCost:
    """What a claim takes on one engine: (ready jobs in the store, milliseconds at the median)."""

    engine: str
    points: list[tuple[int, float]]


@dataclass(frozen=True)
class ClaimCosts:
    """What a claim takes on each engine, and how it was measured."""

    engines: list[ClaimCost]
    groups: int
    rounds: int
    batch: int = BATCH
    ready_per_blocked: int = READY_PER_BLOCKED


def claim_costs(
    stores: Stores, backlogs: Sequence[int] = BACKLOGS, groups: int = 1_000, rounds: int = 200
) -> ClaimCosts:
    """One store for each backlog; on each engine they take turns."""
    engines = [
        ClaimCost(name, _points(stores, kind, backlogs, groups, rounds)) for kind, name in ENGINES.items()
    ]
    return ClaimCosts(engines, groups, rounds)


def _points(
    stores: Stores, kind: str, backlogs: Sequence[int], groups: int, rounds: int
) -> list[tuple[int, float]]:
    with contextlib.ExitStack() as stack:
        scales: list[Scale] = []
        for ready in backlogs:
            fill = Fill(groups=groups, ready=ready, blocked=ready // READY_PER_BLOCKED)
            scales.append(stack.enter_context(filled(stores, kind, f"{ready:,} ready jobs", fill)))
        claim_in_turns(scales, rounds)
        return [(ready, scale.samples.median_s * 1000) for ready, scale in zip(backlogs, scales, strict=True)]
