"""Breakers: open at the threshold, closed by one probe alone, and never stuck."""

from dataclasses import dataclass

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from evenflow.limits import Breaker
from evenflow.rules.breaker import (
    SILENT_CODES,
    BreakerState,
    Circuit,
    allow,
    breaker_name,
    circuit,
    counts,
    declared,
    extend_probe,
    record_failure,
    record_idle,
    record_success,
    release_probe,
)

BREAKER = Breaker(failure_threshold=3, cooldown_s=1, probe_lease_s=0.5)
COOLDOWN, LEASE = BREAKER.cooldown_us, BREAKER.probe_lease_us
OPEN = BreakerState(failures=3, opened_at=1_000)
HALF_OPEN_AT = 1_000 + COOLDOWN


def probing(token: str = "one") -> BreakerState:
    return allow(BREAKER, OPEN, HALF_OPEN_AT, token).state


def test_a_new_breaker_is_closed_and_lets_everything_pass() -> None:
    assert circuit(BREAKER, BreakerState(), 0) is Circuit.CLOSED
    assert allow(BREAKER, BreakerState(), 0, "one").answer == "pass"


def test_the_failure_that_reaches_the_threshold_opens_and_stamps_the_time() -> None:
    state = BreakerState()
    for at in (5, 6):
        state = record_failure(BREAKER, state, at)
        assert circuit(BREAKER, state, at) is Circuit.CLOSED
    state = record_failure(BREAKER, state, 7)
    assert (circuit(BREAKER, state, 7), state.opened_at, state.failures) == (Circuit.OPEN, 7, 3)


def test_a_success_in_between_starts_the_count_again() -> None:
    state = record_failure(BREAKER, record_failure(BREAKER, BreakerState(), 1), 2)
    state = record_failure(BREAKER, record_success(state), 3)
    assert (circuit(BREAKER, state, 3), state.failures) == (Circuit.CLOSED, 1)


def test_an_empty_poll_does_not_hide_failing_writes() -> None:
    state = record_failure(BREAKER, record_failure(BREAKER, BreakerState(), 1), 2)
    assert record_idle(state) is state


def test_while_open_everything_is_refused_until_the_cooldown_has_passed() -> None:
    verdict = allow(BREAKER, OPEN, HALF_OPEN_AT - 1, "one")
    assert (verdict.answer, verdict.retry_at, verdict.state) == ("refuse", HALF_OPEN_AT, OPEN)
    assert circuit(BREAKER, OPEN, HALF_OPEN_AT - 1) is Circuit.OPEN
    assert circuit(BREAKER, OPEN, HALF_OPEN_AT) is Circuit.HALF_OPEN


def test_half_open_gives_exactly_one_probe() -> None:
    first = allow(BREAKER, OPEN, HALF_OPEN_AT, "one")
    second = allow(BREAKER, first.state, HALF_OPEN_AT, "two")
    assert (first.answer, second.answer, second.retry_at) == ("probe", "refuse", HALF_OPEN_AT + LEASE)


def test_a_probe_that_shows_no_life_is_followed_by_one_other() -> None:
    late = HALF_OPEN_AT + LEASE
    second = allow(BREAKER, probing(), late, "two")
    assert (second.answer, second.state.probe) == ("probe", "two")
    assert allow(BREAKER, second.state, late, "three").answer == "refuse"


def test_a_sign_of_life_extends_the_probe() -> None:
    extended = extend_probe(BREAKER, probing(), HALF_OPEN_AT + LEASE - 1, "one")
    assert allow(BREAKER, extended, HALF_OPEN_AT + LEASE, "two").answer == "refuse"
    assert extend_probe(BREAKER, probing(), HALF_OPEN_AT + 1, "other") == probing()


def test_a_successful_probe_closes_and_clears() -> None:
    assert record_success(probing(), "one") == BreakerState()


def test_a_probe_that_reached_the_backend_and_found_nothing_closes_too() -> None:
    assert record_idle(probing(), "one") == BreakerState()


def test_a_failed_probe_opens_for_a_full_cooldown() -> None:
    state = record_failure(BREAKER, probing(), HALF_OPEN_AT + 9, "one")
    assert allow(BREAKER, state, HALF_OPEN_AT + 9 + COOLDOWN - 1, "two").answer == "refuse"
    assert allow(BREAKER, state, HALF_OPEN_AT + 9 + COOLDOWN, "two").answer == "probe"


def test_a_probe_without_a_verdict_makes_room_for_the_next() -> None:
    released = release_probe(probing(), "one")
    assert allow(BREAKER, released, HALF_OPEN_AT + 1, "two").answer == "probe"
    assert release_probe(probing(), "other") == probing()


@pytest.mark.parametrize("state", [OPEN, probing("one")])
@pytest.mark.parametrize("token", [None, "two"])
def test_runs_from_before_the_opening_change_nothing(state: BreakerState, token: str | None) -> None:
    assert record_failure(BREAKER, state, HALF_OPEN_AT, token) is state
    assert record_success(state, token) is state
    assert record_idle(state, token) is state


def test_a_late_verdict_counts_as_long_as_nobody_took_the_probe() -> None:
    assert record_success(probing(), "one") == BreakerState()
    replaced = allow(BREAKER, probing(), HALF_OPEN_AT + LEASE, "two").state
    assert record_success(replaced, "one") is replaced


@given(st.integers(1, 10**12))
def test_a_clock_that_steps_back_keeps_it_open_for_one_cooldown_at_most(step: int) -> None:
    now = OPEN.opened_at - step if OPEN.opened_at is not None else 0
    verdict = allow(BREAKER, OPEN, now, "one")
    assert (verdict.answer, verdict.retry_at) == ("refuse", now + COOLDOWN)
    assert allow(BREAKER, verdict.state, now + COOLDOWN, "one").answer == "probe"


@given(st.integers(1, 10**12))
def test_a_clock_that_steps_back_keeps_a_dead_probe_for_cooldown_and_lease_at_most(step: int) -> None:
    now = HALF_OPEN_AT - step
    state = allow(BREAKER, probing(), now, "two").state
    assert allow(BREAKER, state, now + COOLDOWN + LEASE, "three").answer == "probe"


def test_a_state_survives_json() -> None:
    for state in (BreakerState(), OPEN, probing()):
        assert msgspec.json.decode(msgspec.json.encode(state), type=BreakerState) == state


def test_a_breaker_has_the_name_of_what_it_guards_or_its_own() -> None:
    assert breaker_name(Breaker(), queue="mail") == "queue_mail"
    assert breaker_name(Breaker(), task="charge") == "task_charge"
    assert breaker_name(Breaker(name="bank"), queue="mail") == "bank"


@dataclass
class Run:
    token: str
    is_probe: bool


class ManyWorkers(RuleBasedStateMachine):
    """Workers start and end runs in any order against one breaker; the machine keeps its own books."""

    def __init__(self) -> None:
        super().__init__()
        self.state = BreakerState()
        self.now = 0
        self.runs: list[Run] = []
        self.asked = 0
        self.failures_in_a_row = 0
        self.opened_at: int | None = None
        self.probe: Run | None = None
        self.probe_until = 0

    @rule(step=st.integers(0, 2 * COOLDOWN))
    def time_passes(self, step: int) -> None:
        self.now += step

    @rule()
    def a_run_asks_to_start(self) -> None:
        self.asked += 1
        verdict = allow(BREAKER, self.state, self.now, f"run-{self.asked}")
        self.state = verdict.state
        if self.opened_at is None:
            assert verdict.answer == "pass"
        elif self.now < self.opened_at + COOLDOWN or (self.probe and self.now < self.probe_until):
            assert verdict.answer == "refuse"
            assert allow(BREAKER, self.state, verdict.retry_at, "again").answer == "probe"
        else:
            assert verdict.answer == "probe"
        if verdict.answer != "refuse":
            self.runs.append(Run(f"run-{self.asked}", verdict.answer == "probe"))
        if verdict.answer == "probe":
            self.probe, self.probe_until = self.runs[-1], self.now + LEASE

    @precondition(lambda self: self.runs)
    @rule(data=st.data(), succeeds=st.booleans())
    def a_run_ends(self, data: st.DataObject, succeeds: bool) -> None:
        run = self.runs.pop(data.draw(st.integers(0, len(self.runs) - 1)))
        token = run.token if run.is_probe else None
        if succeeds:
            self.state = record_success(self.state, token)
        else:
            self.state = record_failure(BREAKER, self.state, self.now, token)
        self._book(run, succeeds)

    def _book(self, run: Run, succeeds: bool) -> None:
        decides = self.opened_at is not None and run is self.probe
        if self.opened_at is not None and not decides:
            return
        self.failures_in_a_row = 0 if succeeds else self.failures_in_a_row + 1
        opens = not succeeds and (decides or self.failures_in_a_row >= BREAKER.failure_threshold)
        self.opened_at = self.now if opens else None
        self.probe = None

    @precondition(lambda self: self.probe in self.runs)
    @rule()
    def the_probe_shows_life(self) -> None:
        assert self.probe is not None
        self.state = extend_probe(BREAKER, self.state, self.now, self.probe.token)
        self.probe_until = self.now + LEASE

    @rule()
    def a_worker_polls_and_finds_nothing(self) -> None:
        assert record_idle(self.state) is self.state

    @invariant()
    def the_word_agrees_with_the_books(self) -> None:
        word = Circuit.CLOSED
        if self.opened_at is not None:
            word = Circuit.OPEN if self.now < self.opened_at + COOLDOWN else Circuit.HALF_OPEN
        assert circuit(BREAKER, self.state, self.now) is word


test_many_workers_and_one_breaker = ManyWorkers.TestCase


def test_only_the_kinds_that_are_named_count_and_ignored_ones_never_do() -> None:
    picky = Breaker(on=(OSError, "BUSY"), ignore=TimeoutError)
    assert counts(picky, ConnectionError(), "UNHANDLED_ERROR")
    assert counts(picky, Exception(), "BUSY")
    assert not counts(picky, TimeoutError(), "UNHANDLED_ERROR")
    assert not counts(picky, ValueError(), "UNHANDLED_ERROR")


@pytest.mark.parametrize("code", sorted(SILENT_CODES))
def test_what_says_nothing_about_the_downstream_never_counts(code: str) -> None:
    assert not counts(Breaker(), Exception(), code)


def test_one_name_has_one_set_of_numbers() -> None:
    said = declared(
        {"a": Breaker(name="x"), "b": Breaker(3, name="x"), "c": None},
        {"q": Breaker(name="x", ignore=OSError)},
    )
    assert said.guards == {("queue", "q"): "x", ("task", "a"): "x", ("task", "b"): "x"}
    assert said.free == [("task", "c")]
    assert said.mistakes == [
        "task 'b': breaker 'x' has other numbers at queue 'q'; share one Breaker, or rename one"
    ]
