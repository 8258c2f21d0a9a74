"""Fair turns: who waits for whom, with any number of groups, weights and returning jobs."""

from collections import Counter
from decimal import Decimal
from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.rules.fair import (
    TOLERANCE,
    Respacing,
    TurnLine,
    advanced,
    group_cap,
    grouped_turns,
    is_forgettable,
    is_misplaced,
    step_of,
    time_cost,
)

GROUPS = st.sampled_from(["ann", "bob", "cid", None])
# Powers of two add up without rounding, so that turns can be compared exactly.
STEPS = st.sampled_from([1.0, 0.25, 2.0, 2.0**-10])
# ("admit", group, jobs) or ("claim", None, jobs) or ("return", None, 0)
MOVES = st.lists(
    st.tuples(st.sampled_from(["admit", "admit", "claim", "return"]), GROUPS, st.integers(0, 6)), max_size=60
)


def play(
    line: TurnLine, moves: list[tuple[str, str | None, int]], *, step: float = 1.0, forgets: bool = False
) -> list[int]:
    ids, claimed = count(1), []
    for kind, group, jobs in moves:
        if kind == "admit":
            line.admit([next(ids) for _ in range(jobs)], group=group, now=0, step=step)
        elif kind == "claim":
            claimed += line.claim(jobs)
        elif claimed:
            line.readmit(claimed[-1], now=0)
        if forgets:
            line.forget_idle_groups(dict.fromkeys(line.tails, step))
    return claimed


def test_alice_is_served_in_the_next_round_and_not_after_bob_s_backlog() -> None:
    line = TurnLine()
    line.admit(range(10_000), group="bob", now=0)
    line.claim(50)
    line.admit([10_000], group="alice", now=0)
    assert 10_000 in line.claim(2)


@given(
    st.integers(1, 2**31 - 1),
    st.decimals("0.001", "1000", places=3),
    st.decimals("0.001", "1000", places=3),
)
def test_a_cap_by_weight_is_the_exact_product_rounded_down_and_grows_with_the_weight(
    most: int, weight: Decimal, other: Decimal
) -> None:
    cap = group_cap(most, float(weight))
    assert cap == min(max(1, int(most * weight)), 2**31 - 1)
    assert group_cap(most, 1.0) == group_cap(most, 1) == most
    assert (float(weight) <= float(other)) <= (cap <= group_cap(most, float(other)))


@pytest.mark.parametrize(("weight", "cap"), [(1e308, 2**31 - 1), (5e-324, 1), (0.29, 29), (1e-2, 1)])
def test_a_cap_by_any_weight_is_one_that_can_be_stored(weight: float, cap: int) -> None:
    assert group_cap(100, weight) == cap


def test_two_waiting_groups_alternate() -> None:
    line = TurnLine()
    line.admit([1, 2, 3], group="bob", now=0)
    line.admit([4, 5, 6], group="alice", now=0)
    assert line.claim(6) == [1, 4, 2, 5, 3, 6]


def test_inside_a_round_the_lowest_id_goes_first() -> None:
    line = TurnLine()
    line.admit([5], group="bob", now=0)
    line.admit([3], group="alice", now=0)
    line.admit([4], group=None, now=0)
    assert line.claim(3) == [3, 4, 5]


def test_a_stream_of_new_groups_leaves_bob_his_turn_in_every_round() -> None:
    line, ids = TurnLine(), count(1_000)
    line.admit(range(200), group="bob", now=0)
    bobs_by_round: Counter[float] = Counter()
    for _ in range(5_000):
        line.admit([next(ids)], group=f"new-{next(ids)}", now=0)
        (job,) = line.claim(1)
        bobs_by_round[line.v] += job < 200
    assert len(bobs_by_round) > 50
    assert set(bobs_by_round.values()) == {1}


def test_jobs_without_a_group_leave_a_backlog_its_turn_too() -> None:
    line, ids = TurnLine(), count(1_000)
    line.admit(range(100), group="bob", now=0)
    served = 0
    for _ in range(2_000):
        line.admit([next(ids)], group=None, now=0)
        served += line.claim(1)[0] < 100
    assert served > 30


def test_a_group_that_was_idle_gets_no_credit() -> None:
    line = TurnLine()
    line.admit([1], group="alice", now=0)
    line.admit(range(100, 200), group="bob", now=0)
    line.claim(80)
    line.admit([2, 3, 4], group="alice", now=0)
    assert [job for job in line.claim(6) if job < 100] == [2, 3, 4]
    served = line.claim(2)
    assert all(job >= 100 for job in served)


def test_after_an_empty_queue_rounds_go_on_from_the_greatest() -> None:
    line = TurnLine()
    line.admit([1, 2, 3], group="bob", now=0)
    line.claim(9)
    line.forget_idle_groups({})
    assert line.tails == {}
    line.admit([4], group="alice", now=0)
    assert (line.v, line.turns[4]) == (3.0, 4.0)


@given(MOVES, STEPS)
def test_v_never_falls(moves: list[tuple[str, str | None, int]], step: float) -> None:
    line, before = TurnLine(), 0.0
    for move in moves:
        play(line, [move], step=step)
        assert line.v >= before
        before = line.v


@given(MOVES, STEPS)
def test_the_same_moves_give_the_same_order(moves: list[tuple[str, str | None, int]], step: float) -> None:
    assert play(TurnLine(), moves, step=step) == play(TurnLine(), moves, step=step)


@given(MOVES, STEPS)
def test_forgetting_idle_groups_changes_no_turn(
    moves: list[tuple[str, str | None, int]], step: float
) -> None:
    kept, forgot = TurnLine(), TurnLine()
    assert play(kept, moves, step=step) == play(forgot, moves, step=step, forgets=True)
    assert kept.turns == forgot.turns


@given(MOVES, STEPS)
def test_no_job_is_lost_or_claimed_twice(moves: list[tuple[str, str | None, int]], step: float) -> None:
    line = TurnLine()
    claimed = play(line, [move for move in moves if move[0] != "return"], step=step)
    admitted = sum(jobs for kind, _, jobs in moves if kind == "admit")
    assert sorted([*claimed, *line.turns]) == list(range(1, admitted + 1))


@given(st.integers(0, 10**9), st.one_of(st.none(), st.integers(0, 10**9)), STEPS, st.integers(1, 20))
def test_a_batch_gets_the_turns_of_its_jobs_one_by_one(
    v: int, tail: int | None, step: float, jobs: int
) -> None:
    one_by_one: list[float] = []
    last: float | None = tail
    for _ in range(jobs):
        turns, last = grouped_turns(v, last, step, 1)
        one_by_one += turns
    assert grouped_turns(v, tail, step, jobs) == (one_by_one, last)


@given(st.integers(0, 10**9), st.integers(0, 10**9), st.floats(0.01, 100), st.integers(1, 500))
def test_a_group_s_turns_start_at_the_later_of_round_and_tail(
    v: int, tail: int, step: float, jobs: int
) -> None:
    turns, last = grouped_turns(v, tail, step, jobs)
    assert turns[0] == pytest.approx(max(v + 1, tail + step), abs=1e-3)
    assert turns[-1] == pytest.approx(last, abs=1e-3)
    assert turns == sorted(turns)
    assert min(turns) > v


@given(
    st.lists(st.sampled_from([0.5, 1, 2, 3, 10]), min_size=2, max_size=5),
    st.sampled_from([0.1, 1.0, 10.0]),
    st.integers(1, 400),
)
def test_waiting_groups_get_turns_in_proportion_to_their_weights(
    weights: list[float], cost: float, claims: int
) -> None:
    line, owner = TurnLine(), dict[int, int]()
    steps = [step_of(weight, cost) for weight in weights]
    for group, step in enumerate(steps):
        jobs = range(group * 10_000, group * 10_000 + 500)
        line.admit(jobs, group=str(group), now=0, step=step)
        owner |= dict.fromkeys(jobs, group)
    served = Counter(owner[job] for job in line.claim(claims))
    progress = [served[group] * step for group, step in enumerate(steps)]
    assert max(progress) - min(progress) <= 2 * max(steps)


@given(st.sampled_from([10, 30, 100]), st.integers(1, 5))
def test_under_time_groups_with_long_and_short_jobs_get_equal_time(ratio: int, scale: int) -> None:
    line = TurnLine("time")
    long_us, short_us = ratio * scale * 1_000, scale * 1_000
    mean_us = (long_us + short_us) / 2
    line.admit(range(1_000), group="long", now=0, step=step_of(cost=time_cost(long_us, mean_us)))
    line.admit(range(1_000, 51_000), group="short", now=0, step=step_of(cost=time_cost(short_us, mean_us)))
    claimed = line.claim(20 * ratio)
    longs = sum(job < 1_000 for job in claimed)
    assert longs * long_us == pytest.approx((len(claimed) - longs) * short_us, rel=0.25)


def test_a_job_that_returns_again_and_again_does_not_keep_others_waiting() -> None:
    line = TurnLine()
    line.admit([1], group=None, now=0)
    line.admit(range(10, 20), group="bob", now=0)
    served = []
    for _ in range(25):
        (job,) = line.claim(1)
        served.append(job)
        if job == 1:
            line.readmit(1, now=0)
    assert set(range(10, 20)) <= set(served)


def test_a_returning_job_does_not_wait_behind_its_group_s_backlog() -> None:
    line = TurnLine()
    line.admit(range(1, 1_000), group="bob", now=0)
    (first,) = line.claim(1)
    line.readmit(first, now=0)
    assert first in line.claim(2)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(1, 3), GROUPS), max_size=30))
def test_fifo_is_the_order_of_admission_then_of_id(batches: list[tuple[int, int, str | None]]) -> None:
    line, ids, now, expected = TurnLine("fifo"), count(1), 0, []
    for pause, jobs, group in batches:
        now += pause
        admitted = [next(ids) for _ in range(jobs)]
        line.admit(admitted, group=group, now=now)
        expected += admitted
    assert line.claim(1_000) == expected
    assert line.tails == {}


def test_fifo_puts_a_returning_job_behind_what_is_already_there() -> None:
    line = TurnLine("fifo")
    line.admit([1, 2], group=None, now=5)
    line.claim(1)
    line.readmit(1, now=9)
    assert line.claim(2) == [2, 1]


@pytest.mark.parametrize(("group", "queue"), [(None, 5.0), (5.0, None), (None, None), (0, 5.0), (5.0, 0)])
def test_before_anything_was_measured_a_job_costs_one(group: float | None, queue: float | None) -> None:
    assert time_cost(group, queue) == 1.0


def test_a_row_is_kept_while_it_pushes_the_next_job_back() -> None:
    assert is_forgettable(v=1.0, tail=1.0, step=1.0)
    assert not is_forgettable(v=1.0, tail=1.0, step=1.5)
    assert not is_forgettable(v=1.0, tail=2.0, step=1.0)


def test_v_stays_when_older_turns_are_claimed() -> None:
    assert (advanced(5.0, []), advanced(5.0, [3.0]), advanced(5.0, [3.0, 9.0])) == (5.0, 5.0, 9.0)


COSTS = st.sampled_from([0.1, 0.5, 1.0, 3.0, 10.0])
# ("admit", group, jobs), ("claim", _, jobs), ("learn", group, cost), ("respace", group, jobs of one batch)
SPACED = st.lists(
    st.one_of(
        st.tuples(st.just("admit"), st.sampled_from("abc"), st.integers(1, 8)),
        st.tuples(st.just("claim"), st.just("a"), st.integers(1, 6)),
        st.tuples(st.just("learn"), st.sampled_from("abc"), COSTS),
        st.tuples(st.just("respace"), st.sampled_from("abc"), st.integers(1, 5)),
    ),
    max_size=60,
)


class Spaced:
    """A line under `time` whose groups are respaced in batches, with anything between them."""

    def __init__(self) -> None:
        self.line = TurnLine("time")
        self.steps: dict[str, float] = {}
        self.under_way: dict[str, Respacing] = {}
        self.claimed: list[int] = []
        self._ids = count(1)

    def act(self, kind: str, group: str, number: float) -> None:
        match kind:
            case "admit":
                jobs = [next(self._ids) for _ in range(int(number))]
                self.line.admit(jobs, group=group, now=0, step=self.steps.get(group, 1.0))
            case "claim":
                self.claimed += self.line.claim(int(number))
            case "learn":
                self.steps[group] = number
            case _:
                self.respace(group, int(number))

    def respace(self, group: str, top: int) -> None:
        begun = self.under_way.pop(group, None)
        if begun is None and group in self.line.steps:
            begun = self.line.begin_respacing(group, self.steps.get(group, 1.0))
        if begun is not None and (left := self.line.respace(group, begun, top)) is not None:
            self.under_way[group] = left


@given(SPACED)
def test_respacing_keeps_the_order_inside_a_group_whatever_comes_between_its_batches(
    acts: list[tuple[str, str, float]],
) -> None:
    spaced, owner = Spaced(), dict[int, str]()
    for act in acts:
        spaced.act(*act)
        owner |= spaced.line.groups
    spaced.act("claim", "a", 10_000)
    for group in "abc":
        mine = [job for job in spaced.claimed if owner[job] == group]
        assert mine == sorted(mine)


@given(SPACED)
def test_respacing_puts_no_job_into_the_past_and_the_tail_behind_the_last_one(
    acts: list[tuple[str, str, float]],
) -> None:
    spaced = Spaced()
    for kind, group, number in acts:
        before = dict(spaced.line.turns)
        spaced.act(kind, group, number)
        line = spaced.line
        assert all(turn > line.v for job, turn in line.turns.items() if turn != before.get(job))
        for job, turn in line.turns.items():
            assert turn <= line.tails[line.groups[job]] * (1 + 1e-9)


@given(
    st.lists(st.sampled_from([1, 2, 5, 10, 30, 100]), min_size=2, max_size=5),
    st.integers(0, 40),
    st.integers(1, 400),
    st.integers(1, 7),
)
def test_groups_of_a_backlog_from_before_get_equal_time_once_it_is_respaced(
    costs: list[int], claimed_before: int, top: int, claims: int
) -> None:
    """From the moment at which the costs are known: what is claimed while batches run is made up for."""
    line, owner, mean = TurnLine("time"), dict[int, int](), sum(costs) / len(costs)
    for group in range(len(costs)):
        jobs = range(group * 10_000, group * 10_000 + 160)
        line.admit(jobs, group=str(group), now=0)
        owner |= dict.fromkeys(jobs, group)
    line.claim(claimed_before)
    steps = [step_of(cost=time_cost(cost, mean)) for cost in costs]
    for group, step in enumerate(steps):
        left = line.begin_respacing(str(group), step)
        while left is not None:
            left = line.respace(str(group), left, top)
    spent: Counter[int] = Counter()
    while min(160 - spent[group] // cost for group, cost in enumerate(costs)) > 50:
        for job in line.claim(claims):
            spent[owner[job]] += costs[owner[job]]
    shares = [spent[group] for group in range(len(costs))]
    assert max(shares) - min(shares) <= 3 * max(costs) + TOLERANCE * mean + (TOLERANCE - 1) * max(shares)


@given(st.floats(0.001, 1000), st.floats(0.001, 1000))
def test_what_is_misplaced_is_so_in_both_directions(placed: float, step: float) -> None:
    ratio = max(placed / step, step / placed)
    if ratio > TOLERANCE * 1.001:
        assert is_misplaced(placed, step)
    elif ratio < TOLERANCE / 1.001:
        assert not is_misplaced(placed, step)
