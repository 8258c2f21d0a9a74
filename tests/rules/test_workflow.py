"""The rules of workflows: joins, ends of runs and containers, what a retry opens again, and the model of a whole graph."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from evenflow.job import ENDS, State
from evenflow.rules.workflow import (
    BAD,
    Fate,
    Join,
    Node,
    container_end,
    cycle,
    fate,
    resolved,
    run_end,
    steps_to_reopen,
)

OK, FAILED, SKIPPED = State.SUCCEEDED, State.FAILED, State.SKIPPED
counts = st.integers(0, 5)


class TestAJoin:
    @given(counts, counts, counts)
    def test_of_all_waits_for_the_last_and_needs_every_success(self, open: int, ok: int, bad: int) -> None:
        expected = Fate.WAIT if open else Fate.SKIP if bad else Fate.RELEASE
        assert fate(Join(), open=open, ok=ok, bad=bad) is expected

    @given(counts, counts, counts)
    def test_that_allows_failures_waits_for_the_last_and_goes_on(self, open: int, ok: int, bad: int) -> None:
        expected = Fate.WAIT if open else Fate.RELEASE
        assert fate(Join(allow_failed=True), open=open, ok=ok, bad=bad) is expected

    @given(counts, counts, counts, st.integers(1, 5), st.booleans())
    def test_of_some_goes_on_when_enough_count_and_gives_up_when_they_cannot(
        self, open: int, ok: int, bad: int, needs: int, allow_failed: bool
    ) -> None:
        counted = ok + bad if allow_failed else ok
        found = fate(Join(needs, allow_failed), open=open, ok=ok, bad=bad)
        assert (found is Fate.RELEASE) == (counted >= needs)
        assert (found is Fate.SKIP) == (counted + open < needs)


def test_a_run_fails_with_any_bad_end_and_not_with_a_skip() -> None:
    for state in ENDS:
        expected = FAILED if state in BAD else OK
        assert run_end({"a": OK, "b": state}) is expected
    assert State.SKIPPED not in BAD


def test_a_run_with_cases_succeeds_where_one_of_them_did() -> None:
    states = {"a": FAILED, "b": OK, "c": OK}
    assert run_end(states, [["a"], ["b", "c"]]) is OK
    assert run_end(states, [["a", "b"]]) is FAILED
    assert run_end(states, [["missing"]]) is FAILED


def test_a_container_ends_with_its_beginning_where_that_did_not_succeed() -> None:
    assert container_end({}, begin=SKIPPED) is SKIPPED
    assert container_end({}, begin=State.CANCELLED) is FAILED
    assert container_end({}) is OK
    assert container_end({"a": SKIPPED, "b": SKIPPED}) is SKIPPED
    assert container_end({"a": OK, "b": FAILED}) is FAILED
    assert container_end({"a": OK, "b": FAILED}, needs=1) is OK
    assert container_end({"a": FAILED}, needs=1) is FAILED


def test_a_retry_opens_failures_and_what_was_skipped_below_them_but_no_success() -> None:
    states = {1: OK, 2: FAILED, 3: SKIPPED, 4: SKIPPED, 5: OK, 6: SKIPPED}
    parents = {2: [1], 3: [2], 4: [3], 5: [2], 6: [1]}
    assert steps_to_reopen(states, parents) == {2, 3, 4}


class TestTheModel:
    def test_skips_in_cascade_below_a_failure(self) -> None:
        nodes = {"a": Node(body=FAILED), "b": Node(("a",)), "c": Node(("b",))}
        assert resolved(nodes) == {"a": FAILED, "b": SKIPPED, "c": SKIPPED}

    def test_lets_a_step_that_allows_failures_run_below_a_skip(self) -> None:
        nodes = {"a": Node(is_skipped=True), "b": Node(("a",), Join(allow_failed=True))}
        assert resolved(nodes) == {"a": SKIPPED, "b": OK}

    def test_needs_only_some_parents_where_the_join_says_so(self) -> None:
        nodes = {
            "a": Node(body=FAILED),
            "b": Node(),
            "c": Node(("a", "b"), Join(1)),
            "d": Node(("a", "b"), Join(2)),
        }
        assert resolved(nodes)["c"] is OK
        assert resolved(nodes)["d"] is SKIPPED

    def test_refuses_a_circle(self) -> None:
        with pytest.raises(ValueError, match="wait for each other: a, b"):
            resolved({"a": Node(("b",)), "b": Node(("a",))})


@given(
    st.dictionaries(st.sampled_from("abcdef"), st.lists(st.sampled_from("abcdef"), max_size=3), max_size=6)
)
def test_a_circle_is_found_exactly_where_there_is_one(parents: dict[str, list[str]]) -> None:
    complete = {name: parents.get(name, []) for name in "abcdef"}
    found = cycle(complete)
    left = dict(complete)
    while free := [name for name, above in left.items() if not any(each in left for each in above)]:
        for name in free:
            del left[name]
    assert (found is not None) == bool(left)
    if found is not None:
        assert found[0] == found[-1]
        assert all(above in complete[name] for name, above in zip(found, found[1:], strict=False))
