"""Which queues a worker serves, in which order, and where its claims begin."""

from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest

from evenflow.errors import ConfigError
from evenflow.store.advance import Bound
from evenflow.store.reads import QueueRow
from evenflow.store.signals import queue_mark
from evenflow.worker import serving
from evenflow.worker.serving import BOUND_AGE_S, SWEEP_SHARE, Bounds, QueueList, Serving
from tests.worker.test_outcome import job


def row(name: str, priority: int = 50) -> QueueRow:
    return QueueRow(name, priority, "round-robin", None, None, "overflow", None, None, None)


def known(queues: list[str], *rows: QueueRow) -> Serving:
    served = Serving(QueueList.parse(queues))
    served.learn(rows)
    return served


def limited(
    name: str, *, fair: str = "round-robin", cap: int | None = None, bound: int | None = None
) -> QueueRow:
    return QueueRow(name, 50, fair, cap, bound, "overflow", None, None, None)


def order(served: Serving, top: int = 10) -> list[str]:
    return [want.queue for want in sorted(served.wants(top), key=lambda want: want.place)]


@pytest.mark.parametrize(
    ("listed", "queue", "is_served"),
    [
        (["mail"], "mail", True),
        (["mail"], "mail2", False),
        (["*"], "anything", True),
        (["docs-*"], "docs-eu", True),
        (["docs-*"], "docs", False),
        (["docs-*"], "other-docs-eu", False),
        (["mail", "docs*"], "docs", True),
        (["mail.e*"], "mailxeu", False),
    ],
)
def test_a_list_holds_exact_names_and_prefixes(listed: list[str], queue: str, is_served: bool) -> None:
    assert QueueList.parse(listed).serves(queue) is is_served


@pytest.mark.parametrize("listed", [["9lives"], ["a b"], ["mail", "*x"], [""], ["a**"], ["[ab]*"]])
def test_a_malformed_name_is_refused(listed: list[str]) -> None:
    with pytest.raises(ConfigError, match="--queues"):
        QueueList.parse(listed)


def test_an_empty_list_is_refused() -> None:
    with pytest.raises(ConfigError, match="leave it out to serve all"):
        QueueList.parse([])


def test_every_mistake_of_a_list_is_told() -> None:
    with pytest.raises(ConfigError) as refused:
        QueueList.parse(["9", "ok", "8"])
    assert len(refused.value.mistakes) == 2


def test_an_exact_queue_is_served_before_the_store_knows_it() -> None:
    served = Serving(QueueList.parse(["mail", "mail"]))
    assert order(served) == ["mail"]
    served.learn([])
    assert order(served) == ["mail"]


def test_queues_come_in_the_order_of_their_priority() -> None:
    served = known(["*"], row("low", 100), row("urgent", 1), row("usual", 50))
    for _ in range(5):
        assert order(served) == ["urgent", "usual", "low"]


def test_queues_of_equal_priority_take_turns_at_the_front() -> None:
    served = known(["*"], row("a"), row("b"), row("c"), row("first", 1))
    fronts = Counter(order(served)[1] for _ in range(300))
    assert fronts == {"a": 100, "b": 100, "c": 100}


def test_only_served_queues_are_asked_for() -> None:
    assert sorted(order(known(["mail*"], row("mail"), row("mail-eu"), row("docs")))) == ["mail", "mail-eu"]
    assert set(known(["mail*"], row("mail"), row("docs")).names) == {"mail"}


def test_a_queue_that_appears_later_is_learnt() -> None:
    served = known(["*"], row("a"))
    served.learn([row("a"), row("b")])
    assert set(served.names) == {"a", "b"}


def test_each_queue_is_asked_for_as_much_as_there_is_room() -> None:
    assert {want.top for want in known(["*"], row("a"), row("b")).wants(7)} == {7}


class Clock:
    """A clock that stands still until it is told."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now = 1000.0
        monkeypatch.setattr(serving, "time", SimpleNamespace(monotonic=lambda: self.now))


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def mark(bounds: Bounds, turn: float, *, queue: str = "mail", **fields: Any) -> None:
    bounds.current()
    bounds.note([job(queue=queue, turn=turn, **fields)], {(queue, 0): turn}, took_s=0.0)


def bound_of(bounds: Bounds) -> tuple[float, int]:
    (bound,) = bounds.current()
    assert (bound.queue, bound.priority) == ("mail", 0)
    return bound.turn, bound.id


def swept() -> Bounds:
    """After a claim without bounds that took long."""
    bounds = Bounds()
    bounds.current()
    bounds.note([], {}, took_s=1.0)
    return bounds


def test_a_claim_begins_behind_what_was_claimed_a_while_ago(clock: Clock) -> None:
    bounds = swept()
    mark(bounds, 5.0, id=11)
    assert bounds.current() == []
    clock.now += BOUND_AGE_S
    mark(bounds, 9.0, id=12)
    assert bound_of(bounds) == (5.0, 11)


def test_the_bound_moves_on(clock: Clock) -> None:
    bounds = swept()
    for turn in range(4):
        mark(bounds, float(turn), id=1)
        clock.now += BOUND_AGE_S * 0.6
    assert bound_of(bounds) == (2.0, 1)


def test_the_bound_moves_on_within_a_turn_that_v_has_reached(clock: Clock) -> None:
    bounds = swept()
    mark(bounds, 1.0, id=1)
    for number in (2, 3):
        clock.now += BOUND_AGE_S
        bounds.current()
        bounds.note([job(queue="mail", turn=1.0, id=number)], {}, took_s=0.0)
    clock.now += BOUND_AGE_S
    assert bound_of(bounds) == (1.0, 3)


def test_the_bound_stays_at_v_when_claims_run_ahead_of_it(clock: Clock) -> None:
    bounds = swept()
    mark(bounds, 1.0, id=1)
    for turn in (2.0, 3.0):
        clock.now += BOUND_AGE_S
        bounds.current()
        bounds.note([job(queue="mail", turn=turn, id=7)], {}, took_s=0.0)
    clock.now += BOUND_AGE_S
    assert bound_of(bounds)[0] == 1.0


@pytest.mark.parametrize(("took_s", "sweeps"), [(0.0001, 200), (0.01, 40), (0.1, 4)])
def test_a_claim_without_bounds_sweeps_for_stragglers_the_more_seldom_the_longer_it_takes(
    clock: Clock, took_s: float, sweeps: int
) -> None:
    bounds, seen = Bounds(), 0
    mark(bounds, 1.0)
    clock.now += 1.0
    for _ in range(200):
        clock.now += 0.1
        is_sweep = bounds.current() == []
        seen += is_sweep
        bounds.note([], {}, took_s=took_s if is_sweep else 0.0)
    assert seen == sweeps


def test_a_claim_behind_a_sweep_that_is_not_answered_is_not_another_one(clock: Clock) -> None:
    bounds = swept()
    mark(bounds, 5.0, id=5)
    clock.now += SWEEP_SHARE
    assert bounds.current() == []
    assert bound_of(bounds) == (5.0, 5)
    clock.now += SWEEP_SHARE
    assert bounds.current() == [], "the answer was lost: it is made up for"


def test_where_a_sweep_finds_a_straggler_the_claims_go_on_from_there(clock: Clock) -> None:
    bounds = swept()
    mark(bounds, 5.0, id=5)
    clock.now += SWEEP_SHARE
    assert bounds.current() == []
    bounds.note([job(queue="mail", turn=2.0, id=9)], {("mail", 0): 5.0}, took_s=1.0)
    assert bounds.current() == []
    clock.now += BOUND_AGE_S
    assert bound_of(bounds) == (2.0, 9)


@pytest.mark.parametrize("is_sweep", [True, False])
def test_the_answer_to_an_earlier_claim_counts_as_what_that_one_was(clock: Clock, is_sweep: bool) -> None:
    bounds = swept()
    mark(bounds, 5.0, id=5)
    clock.now += SWEEP_SHARE if not is_sweep else BOUND_AGE_S
    assert bounds.is_sweep is False
    bounds.current()
    assert bounds.is_sweep is not is_sweep, "the next claim is of the other kind"
    bounds.note([job(queue="mail", turn=2.0, id=9)], {}, took_s=1.0, is_sweep=is_sweep)
    clock.now += BOUND_AGE_S
    # Only what a sweep finds before the bound turns it back; the one that is under way need not be followed by another.
    assert bounds.current() == [Bound("mail", 0, 2.0, 9) if is_sweep else Bound("mail", 0, 5.0, 5)]


def test_a_band_whose_v_is_unknown_has_no_bound(clock: Clock) -> None:
    bounds = swept()
    bounds.current()
    bounds.note([job(queue="mail", turn=3.0)], {}, took_s=0.0)
    clock.now += 1.0
    assert bounds.current() == []


def test_the_limits_of_served_queues_are_known_and_only_theirs() -> None:
    rows = [
        limited("a", cap=3), limited("b", bound=5), limited("c", fair="time"), limited("x", fair="time", cap=1, bound=1),
    ]  # fmt: skip
    served = known(["a", "b", "c", "new"], *rows)
    assert (served.capped, served.bounded, served.timed) == ({"a"}, {"b"}, {"c"})
    assert served.marks == {queue_mark(name) for name in ("a", "b", "c", "new")}


def test_under_a_cap_of_the_cluster_every_served_queue_is_capped() -> None:
    served = Serving(QueueList.parse(["a", "new"]), has_cluster_cap=True)
    served.learn([limited("a"), limited("x", cap=1)])
    assert served.capped == {"a", "new"}
