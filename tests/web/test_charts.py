"""Charts: what their axes say must fit beside them and be read at a glance."""

from datetime import UTC, datetime

import pytest

from evenflow.web import charts
from evenflow.web.shapes import Point

WIDEST = 7.7
"""Pixels of a digit of 12 px in the widest of the fonts that pages ask for."""


def minute(wait_s: float, succeeded: int = 0) -> Point:
    return Point(
        at=datetime(2026, 1, 1, tzinfo=UTC), succeeded=succeeded, failed=0, retried=0, wait_p50_s=wait_s, wait_p95_s=wait_s,
        run_p50_s=None, run_p95_s=None,
    )  # fmt: skip


@pytest.mark.parametrize(
    ("longest_s", "top"),
    [
        (0.0004, "0.4 ms"), (0.15, "200 ms"), (3, "4 s"), (59, "1 m"), (61, "2 m"), (100, "2 m"), (1500, "30 m"),
        (3601, "2 h"), (61_000, "24 h"), (80_000, "24 h"), (100_000, "2 d"), (700_000, "10 d"), (40 * 86_400, "40 d"),
    ],
)  # fmt: skip
def test_an_axis_ends_at_a_round_length_of_time(longest_s: float, top: str) -> None:
    assert charts.latency([minute(longest_s)], "wait").up[-1].text == top


@pytest.mark.parametrize(
    "longest_s", [0.00015, 0.015, 0.15, 1.5, 15, 61, 150, 900, 3700, 40_000, 90_000, 1e7]
)
def test_what_an_axis_says_fits_beside_it(longest_s: float) -> None:
    drawn = charts.latency([minute(longest_s)], "wait")
    room = drawn.left - 6
    assert [mark.text for mark in drawn.up if len(mark.text) * WIDEST > room or "e+" in mark.text] == []


@pytest.mark.parametrize("most", [1, 9_999, 10_001, 1_234_567, 12_345_678])
def test_what_an_axis_counts_fits_beside_it(most: int) -> None:
    drawn = charts.throughput([minute(0, most)])
    assert [
        mark.text for mark in drawn.up if len(mark.text) * WIDEST > drawn.left - 6 or "e+" in mark.text
    ] == []


def test_the_words_of_a_chart_say_long_waits_in_words() -> None:
    assert "at most 16.7 h " in charts.latency([minute(60_000)], "wait").summary
