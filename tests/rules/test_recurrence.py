"""Recurrence: slots follow from the pattern alone; what fires after a delay is bounded; jitter is the same for all."""

from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.durations import DAY_US, SECOND_US
from evenflow.rules.recurrence import LATE_US, MOST_CAUGHT_UP, Due, Pattern, due, jitter_us

MINUTE_US = 60 * SECOND_US
START = 1_800_000_000_000_000
EVERY_MINUTE = Pattern("* * * * *", None)
TEN = Pattern(None, 10 * SECOND_US, anchor=START)


def test_an_interval_counts_from_its_anchor_and_not_from_who_asks() -> None:
    assert TEN.next_after(START) == START + 10 * SECOND_US
    assert TEN.next_after(START + 9_999_999) == START + 10 * SECOND_US
    assert TEN.next_after(START + 10_000_000) == START + 20 * SECOND_US
    assert TEN.next_after(START + 7 * DAY_US + 1) == START + 7 * DAY_US + 10 * SECOND_US


def test_before_its_anchor_an_interval_has_no_slot_but_the_anchor() -> None:
    assert TEN.next_after(START - 5 * DAY_US) == START


@given(st.integers(0, 40 * DAY_US), st.integers(0, 40 * DAY_US), st.integers(1, 20))
def test_the_latest_slots_are_the_end_of_all_slots(first: int, length: int, most: int) -> None:
    pattern = Pattern("17 */5 * * *", None, "Europe/Berlin")
    begin, until = START + first, START + first + length
    everything = []
    slot = pattern.next_after(begin - 1)
    while slot <= until:
        everything.append(slot)
        slot = pattern.next_after(slot)
    assert pattern.latest(begin, until, most) == everything[-most:]


def test_years_without_a_scheduler_cost_no_walk_through_every_slot(monkeypatch: pytest.MonkeyPatch) -> None:
    asked = 0
    real = Pattern.next_after

    def counted(pattern: Pattern, moment: int) -> int:
        nonlocal asked
        asked += 1
        return real(pattern, moment)

    monkeypatch.setattr(Pattern, "next_after", counted)
    found = Pattern("* * * * * *", None).latest(START, START + 3650 * DAY_US, MOST_CAUGHT_UP)
    assert (len(found), found[-1]) == (MOST_CAUGHT_UP, START + 3650 * DAY_US)
    assert asked < 20 * MOST_CAUGHT_UP


def test_a_slot_on_time_fires_whatever_is_said_about_missed_ones() -> None:
    for catch_up in ("skip", "one", "all"):
        assert due(TEN, START, START + LATE_US // 100, catch_up) == Due(
            [START], START + 10 * SECOND_US, False
        )


def test_skip_passes_missed_slots_over() -> None:
    late = START + 86_400 * SECOND_US
    daily = Pattern(None, DAY_US, anchor=START)
    assert due(daily, START, late - 1, "skip") == Due([], START + DAY_US, True)


def test_skip_fires_the_latest_slot_where_only_that_one_is_on_time() -> None:
    found = due(EVERY_MINUTE, START, START + 600 * SECOND_US + SECOND_US, "skip")
    assert found == Due([START + 600 * SECOND_US], START + 660 * SECOND_US, True)


def test_one_fires_the_latest_missed_slot() -> None:
    found = due(EVERY_MINUTE, START, START + DAY_US + 59 * SECOND_US, "one")
    assert found == Due([START + DAY_US], START + DAY_US + MINUTE_US, True)


def test_all_fires_every_missed_slot_up_to_a_hundred_of_the_latest() -> None:
    few = due(EVERY_MINUTE, START, START + 5 * MINUTE_US, "all")
    assert few == Due([START + number * MINUTE_US for number in range(6)], START + 6 * MINUTE_US, False)
    many = due(EVERY_MINUTE, START, START + DAY_US, "all")
    assert (len(many.slots), many.slots[-1], many.passed) == (MOST_CAUGHT_UP, START + DAY_US, True)
    assert {later - sooner for sooner, later in pairwise(many.slots)} == {MINUTE_US}


@pytest.mark.parametrize("catch_up", ["skip", "one", "all"])
def test_the_next_slot_follows_the_last_one_and_lies_ahead(catch_up: str) -> None:
    now = START + 12_345 * SECOND_US
    assert due(EVERY_MINUTE, START, now, catch_up).next_run == now // MINUTE_US * MINUTE_US + MINUTE_US


def test_a_row_whose_pattern_has_no_slot_between_fires_nothing() -> None:
    assert due(TEN, START + 1, START + 2, "all") == Due([], START + 10 * SECOND_US, False)


@given(st.text(min_size=1, max_size=20), st.integers(0, 2**60), st.integers(0, DAY_US))
def test_jitter_is_within_its_bounds_and_the_same_for_everybody(key: str, slot: int, most: int) -> None:
    assert 0 <= jitter_us(key, slot, most) <= most
    assert jitter_us(key, slot, most) == jitter_us(key, slot, most)


def test_jitter_differs_between_keys_and_between_slots() -> None:
    assert len({jitter_us(f"key-{number}", START, DAY_US) for number in range(50)}) == 50
    assert len({jitter_us("key", START + number, DAY_US) for number in range(50)}) == 50


@pytest.mark.parametrize(
    ("pattern", "words"),
    [
        (Pattern("30 2 * * *", None, "Europe/Berlin"), "At 02:30 every day (Europe/Berlin)"),
        (Pattern(None, SECOND_US), "Every second"),
        (Pattern(None, 90 * MINUTE_US), "Every 90 minutes"),
        (Pattern(None, 1_500_000), "Every 1500 milliseconds"),
        (Pattern(None, 14 * DAY_US), "Every 2 weeks"),
    ],
)
def test_a_pattern_is_told_in_words(pattern: Pattern, words: str) -> None:
    assert pattern.in_words() == words
