"""Turns at Python's lock: short ones for the pump, longer ones among many threads, and never against what the app wants."""

import sys
from collections.abc import Iterator

import pytest

from evenflow.worker import turns
from evenflow.worker.turns import SHORTEST_S, USUAL_S, share_turns, take_short_turns


@pytest.fixture(autouse=True)
def usual(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(turns, "_said_s", None)
    before = sys.getswitchinterval()
    sys.setswitchinterval(USUAL_S)
    yield
    sys.setswitchinterval(before)


def now_s() -> float:
    return pytest.approx(sys.getswitchinterval(), abs=1e-6)  # type: ignore[return-value]


def test_they_are_the_longer_the_more_threads_there_are() -> None:
    take_short_turns()
    assert now_s() == SHORTEST_S
    for threads, seconds in [
        (1, SHORTEST_S),
        (10, 10 * SHORTEST_S),
        (100, USUAL_S),
        (2, 2 * SHORTEST_S),
        (0, SHORTEST_S),
    ]:
        share_turns(threads)
        assert now_s() == seconds


def test_a_worker_inside_of_another_program_leaves_them_alone() -> None:
    share_turns(3)
    assert now_s() == USUAL_S


def test_what_the_app_has_set_before_is_left_alone() -> None:
    sys.setswitchinterval(0.003)
    take_short_turns()
    share_turns(3)
    assert now_s() == 0.003


def test_what_a_body_sets_later_is_left_alone() -> None:
    take_short_turns()
    sys.setswitchinterval(0.003)
    share_turns(3)
    assert now_s() == 0.003
