"""Histograms of durations over fixed buckets: how they are counted, added, and what quantiles they give."""

import bisect
from collections.abc import Sequence

# Upper bounds in seconds, each included; one more bucket holds what is longer. Stored rows depend on their number.
BOUNDS_S = (
    0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0,
    60.0, 120.0, 300.0, 600.0, 1800.0, 3600.0, 7200.0, 21600.0, 86400.0,
)  # fmt: skip
BOUNDS_US = tuple(round(bound * 1_000_000) for bound in BOUNDS_S)
BUCKETS = len(BOUNDS_S) + 1


def empty() -> list[int]:
    """A histogram of nothing."""
    return [0] * BUCKETS


def count_sorted(values: Sequence[float], bounds: Sequence[float]) -> list[int]:
    """The histogram of sorted values. Cheap for many: one search per bound, nothing per value.

    >>> count_sorted([0.5, 1.0, 3.0], (1.0, 2.0))
    [2, 0, 1]
    """
    reached = [bisect.bisect_right(values, bound) for bound in bounds]
    return [after - before for before, after in zip([0, *reached], [*reached, len(values)], strict=True)]


def added(first: Sequence[int], second: Sequence[int]) -> list[int]:
    """Two histograms as one.

    >>> added([1, 2], [3, 4])
    [4, 6]
    """
    return [one + other for one, other in zip(first, second, strict=True)]


def quantile(counts: Sequence[int], share: float) -> float | None:
    """The value below which this share lies, in seconds, as if values lay evenly within their bucket; None of nothing.

    What lies beyond the last bound counts as lying at it.

    >>> quantile([0] * 9 + [10] + [0] * 14, 0.5)
    0.75
    >>> quantile(empty(), 0.5) is None
    True
    """
    total = sum(counts)
    if not total:
        return None
    wanted, before = share * total, 0
    for place, count in enumerate(counts):
        if count and before + count >= wanted:
            low = BOUNDS_S[place - 1] if place else 0.0
            high = BOUNDS_S[min(place, len(BOUNDS_S) - 1)]
            return low + (high - low) * max(0.0, wanted - before) / count
        before += count
    return BOUNDS_S[-1]
