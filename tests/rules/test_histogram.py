"""Histograms of durations: counted without loss, quantiles within the bucket where the value lies."""

import math

from hypothesis import given
from hypothesis import strategies as st

from evenflow.rules.histogram import BOUNDS_S, BUCKETS, added, count_sorted, empty, quantile

seconds = st.lists(st.floats(0, 200_000, allow_nan=False), min_size=1, max_size=50)


@given(seconds)
def test_every_value_is_counted_once_in_the_bucket_whose_bound_includes_it(values: list[float]) -> None:
    counts = count_sorted(sorted(values), BOUNDS_S)
    expected = empty()
    for value in values:
        expected[next((n for n, bound in enumerate(BOUNDS_S) if value <= bound), BUCKETS - 1)] += 1
    assert counts == expected


@given(seconds, seconds)
def test_adding_histograms_is_counting_both(first: list[float], second: list[float]) -> None:
    both = count_sorted(sorted(first + second), BOUNDS_S)
    assert added(count_sorted(sorted(first), BOUNDS_S), count_sorted(sorted(second), BOUNDS_S)) == both


@given(seconds, st.sampled_from([0.5, 0.95, 0.99]))
def test_a_quantile_lies_in_the_bucket_of_the_exact_one(values: list[float], share: float) -> None:
    exact = sorted(values)[math.ceil(share * len(values)) - 1]
    place = next((n for n, bound in enumerate(BOUNDS_S) if exact <= bound), BUCKETS - 1)
    found = quantile(count_sorted(sorted(values), BOUNDS_S), share)
    assert found is not None
    assert (BOUNDS_S[place - 1] if place else 0.0) <= found <= BOUNDS_S[min(place, len(BOUNDS_S) - 1)]


def test_nothing_has_no_quantile() -> None:
    assert quantile(empty(), 0.95) is None
