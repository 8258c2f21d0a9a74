"""Rates: in no window more starts than the limit, whatever the schedule, and little less where work waits."""

from itertools import pairwise

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.limits import Rate
from evenflow.rules.rate import (
    SLICES,
    RateState,
    admit,
    admit_all,
    charge,
    charged_us,
    next_at,
    room,
    start_within_us,
    used,
)

WINDOW_US = 1_000


@st.composite
def rates(draw: st.DrawFn) -> Rate:
    count = draw(st.one_of(st.integers(1, 8), st.integers(1, 300)))
    return Rate(f"{count}/{WINDOW_US}us", burst=draw(st.one_of(st.none(), st.integers(1, count))))


# (time since the last question, how many starts are wanted); steps back of the clock are tested apart.
PAUSES = st.one_of(
    st.integers(0, 40), st.integers(WINDOW_US - 40, WINDOW_US + 40), st.integers(0, 2 * WINDOW_US)
)
ASKS = st.lists(st.tuples(PAUSES, st.one_of(st.integers(0, 12), st.integers(0, 400))), max_size=80)


def most_in_a_window(starts: list[tuple[int, int]], window_us: int = WINDOW_US) -> int:
    """The greatest number of starts in any [t, t + window); `starts` are in the order of time."""
    most = inside = first = 0
    for at, started in starts:
        inside += started
        while starts[first][0] + window_us <= at:
            inside -= starts[first][1]
            first += 1
        most = max(most, inside)
    return most


def run(rate: Rate, asks: list[tuple[int, int]]) -> list[tuple[int, int]]:
    state, now, starts = RateState(), 0, []
    for pause, wanted in asks:
        now += pause
        admission = admit(rate, state, now, wanted)
        assert 0 <= admission.granted <= wanted
        state = admission.state
        starts.append((now, admission.granted))
    return starts


@given(rates(), ASKS)
def test_no_window_holds_more_starts_than_the_limit(rate: Rate, asks: list[tuple[int, int]]) -> None:
    assert most_in_a_window(run(rate, asks)) <= rate.count


@given(rates(), st.lists(st.tuples(st.integers(0, 20), st.integers(1, 400)), min_size=1, max_size=80))
def test_starts_as_early_as_allowed_do_not_break_the_limit_either(
    rate: Rate, asks: list[tuple[int, int]]
) -> None:
    state, now, starts = RateState(), 0, []
    for delay, wanted in asks:
        now = next_at(rate, state, now) + delay
        admission = admit(rate, state, now, wanted)
        state = admission.state
        starts.append((now, admission.granted))
        assert admission.granted > 0
    assert most_in_a_window(starts) <= rate.count


@given(rates(), ASKS)
def test_never_more_start_at_once_than_the_burst(rate: Rate, asks: list[tuple[int, int]]) -> None:
    assert most_in_a_window(run(rate, asks), window_us=1) <= rate.at_once


@given(rates())
def test_waiting_work_gets_nearly_the_whole_limit_and_never_more(rate: Rate) -> None:
    state, now, starts = RateState(), 0, []
    while now < 20 * WINDOW_US:
        admission = admit(rate, state, now, 10_000)
        starts.append((now, admission.granted))
        assert admission.next_at > now
        state, now = admission.state, admission.next_at
    total = sum(started for _, started in starts)
    assert most_in_a_window(starts) <= rate.count
    # Up to a 64th, and up to a microsecond per start where times are rounded up to whole ones.
    lost = 1 + 2 / SLICES + rate.count / WINDOW_US
    assert total >= rate.count * 20 / lost - rate.count


@given(rates(), ASKS)
def test_one_more_has_room_at_next_at_and_not_before(rate: Rate, asks: list[tuple[int, int]]) -> None:
    state, now = RateState(), 0
    for pause, wanted in asks:
        now += pause
        admission = admit(rate, state, now, wanted)
        state = admission.state
        assert admission.next_at >= now
        assert room(rate, state, admission.next_at) > 0
        if admission.next_at > now:
            assert room(rate, state, admission.next_at - 1) == 0
            assert room(rate, state, now) == 0
        else:
            assert admission.granted == wanted


@given(rates(), ASKS)
def test_a_state_stays_small_and_survives_json(rate: Rate, asks: list[tuple[int, int]]) -> None:
    state, now = RateState(), 0
    for pause, wanted in asks:
        now += pause
        state = admit(rate, state, now, wanted).state
        assert len(state.log) <= SLICES + 2
        assert msgspec.json.decode(msgspec.json.encode(state), type=RateState) == state


@given(
    rates(), st.lists(st.tuples(st.integers(-3 * WINDOW_US, 2 * WINDOW_US), st.integers(0, 400)), max_size=60)
)
def test_a_clock_that_steps_back_never_adds_room(rate: Rate, asks: list[tuple[int, int]]) -> None:
    state, clock, real, starts = RateState(), 10**6, 0, []
    for step, wanted in asks:
        clock += step
        real += max(step, 0)
        admission = admit(rate, state, clock, wanted)
        assert admission.state.last >= state.last
        state = admission.state
        assert list(state.log) == sorted(state.log)
        starts.append((real, admission.granted))
    assert most_in_a_window(starts) <= rate.count


@given(rates(), st.integers(1, 5 * WINDOW_US))
def test_a_step_back_freezes_no_longer_than_the_step(rate: Rate, step: int) -> None:
    now = 10**6
    state = admit(rate, RateState(), now, rate.count).state
    assert next_at(rate, state, now - step) == next_at(rate, state, now)
    assert room(rate, state, next_at(rate, state, now)) > 0


@given(rates(), rates(), ASKS)
def test_several_rates_hold_together(one: Rate, two: Rate, asks: list[tuple[int, int]]) -> None:
    two = Rate(f"{two.count}/{3 * WINDOW_US}us", burst=two.burst)
    states, now, starts = [RateState(), RateState()], 0, []
    for pause, wanted in asks:
        now += pause
        granted, states, opens = admit_all([(one, states[0]), (two, states[1])], now, wanted)
        assert min(room(one, states[0], opens), room(two, states[1], opens)) > 0
        starts.append((now, granted))
    assert most_in_a_window(starts) <= one.count
    assert most_in_a_window(starts, 3 * WINDOW_US) <= two.count


@given(rates(), st.integers(0, 10 * WINDOW_US))
def test_asking_or_charging_nothing_changes_nothing(rate: Rate, now: int) -> None:
    state = admit(rate, RateState(), 0, 3).state
    assert charge(rate, state, now, 0) is state
    assert admit(rate, state, now, 0).state is state


@given(rates(), ASKS)
def test_what_is_used_lies_between_nothing_and_the_limit(rate: Rate, asks: list[tuple[int, int]]) -> None:
    state, now = RateState(), 0
    for pause, wanted in asks:
        now += pause
        state = admit(rate, state, now, wanted).state
        assert 0 <= used(rate, state, now) <= rate.count
    assert used(rate, state, now + 3 * WINDOW_US) == 0


def test_without_a_burst_the_whole_count_starts_at_once_and_then_a_window_later() -> None:
    rate = Rate("3/minute")
    first = admit(rate, RateState(), 0, 10)
    assert (first.granted, first.next_at) == (3, 60_000_000)
    assert admit(rate, first.state, 59_999_999, 10).granted == 0
    assert admit(rate, first.state, 60_000_000, 10).granted == 3


def test_a_burst_of_one_spaces_starts_evenly() -> None:
    rate = Rate("4/s", burst=1)
    state, now, starts = RateState(), 0, []
    for _ in range(6):
        admission = admit(rate, state, now, 10)
        starts.append(now)
        state, now = admission.state, admission.next_at
    assert {after - before for before, after in pairwise(starts)} == {250_000}


def test_a_plain_gcra_would_break_the_promise() -> None:
    """Why there is a log: 10 at once, then one each tenth of the window, are 19 in one window."""
    interval, arrival, starts = WINDOW_US // 10, 0, []
    for now in [0] * 10 + list(range(interval, WINDOW_US, interval)):
        if arrival - 9 * interval <= now:
            arrival = max(arrival, now) + interval
            starts.append((now, 1))
    assert most_in_a_window(starts) == 19
    assert most_in_a_window(run(Rate(f"10/{WINDOW_US}us"), [(0, 10)] + [(interval, 1)] * 9)) == 10


@pytest.mark.parametrize("before", ["100/s", "50/s", "1000/s"])
@pytest.mark.parametrize("after", ["10/s", "200/s", "3/s", "5/30s"])
def test_a_rate_may_change_under_its_state(before: str, after: str) -> None:
    state = admit(Rate(before), RateState(), 1_234, 1_000).state
    changed = Rate(after)
    assert room(changed, state, 1_234) >= 0
    opens = next_at(changed, state, 1_234)
    assert room(changed, state, opens) > 0
    admission = admit(changed, state, opens, 1)
    assert admission.granted == 1
    assert list(admission.state.log) == sorted(admission.state.log)


def test_entries_stay_in_order_when_a_change_of_rate_makes_them_finer() -> None:
    coarse = charge(Rate("100/64ms"), RateState(), 1, 50)
    assert coarse.log == ((1_000, 50),)
    assert charge(Rate("60/64ms"), coarse, 2, 1).log == ((1_000, 51),)


@given(
    st.integers(1, 12),
    st.integers(1, 3_000_000),
    st.lists(st.tuples(st.integers(0, 2_000_000), st.integers(1, 20), st.floats(0, 1)), max_size=60),
)
def test_bodies_that_start_late_keep_the_window_where_claims_are_charged_for_longer(
    count: int, window_us: int, asks: list[tuple[int, int, float]]
) -> None:
    within = start_within_us(window_us)
    claims: list[tuple[int, int]] = []
    bodies: list[int] = []
    now = 0
    for pause, wanted, lateness in asks:
        now += pause
        spent = sum(starts for at, starts in claims if at + charged_us(window_us) > now)
        granted = min(wanted, count - spent)
        claims.append((now, granted))
        # The first of a claim is as late as it may be, the others are at once: the worst order for a window.
        bodies += [now + int(lateness * within)] * min(granted, 1) + [now] * max(granted - 1, 0)
    assert most_in_a_window([(body, 1) for body in sorted(bodies)], window_us) <= count


def test_a_charge_of_the_bare_window_would_not_keep_it_for_bodies() -> None:
    """Why there is a margin: late at first and early the next time, two bodies of 1/s are 0.95 s apart."""
    late, early = start_within_us(1_000_000), 1_000_000
    assert most_in_a_window([(late, 1), (early, 1)], 1_000_000) == 2
    assert most_in_a_window([(late, 1), (charged_us(1_000_000), 1)], 1_000_000) == 1


@pytest.mark.parametrize(("window_us", "within_us"), [(1, 5_000), (10**6, 50_000), (86_400 * 10**6, 100_000)])
def test_a_body_has_a_twentieth_of_the_window_within_bounds(window_us: int, within_us: int) -> None:
    assert start_within_us(window_us) == within_us
