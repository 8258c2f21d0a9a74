"""Queues: a value with rules, and everything that can be wrong with it."""

from typing import Any

import pytest

from evenflow.limits import Breaker, Rate
from evenflow.queues import Queue, name_mistakes, queue_mistakes, queue_warnings


def test_a_plain_queue_has_the_documented_defaults() -> None:
    queue = Queue("mail")
    assert queue == Queue(
        "mail", priority=50, max_concurrency=None, rate=None, fair="round-robin", group_concurrency=None,
        weights=None, max_ready=None, on_full="overflow", breaker=None,
    )  # fmt: skip
    assert queue_mistakes(queue) == []


def test_a_full_queue_has_no_mistakes() -> None:
    queue = Queue(
        "stripe", priority=1, max_concurrency=0, rate=Rate("60/minute"), fair="time", group_concurrency=2_048,
        weights={"gold": 2, "free": 0.5}, max_ready=10, on_full="reject", breaker=Breaker(),
    )  # fmt: skip
    assert queue_mistakes(queue) == []


@pytest.mark.parametrize("name", ["a", "Mail", "docs.eu-1_x", "a" * 63])
def test_good_names(name: str) -> None:
    assert name_mistakes(name) == []


@pytest.mark.parametrize(
    "name", ["", "1a", "_a", "a b", "a*", "a" * 64, "ä", "a\n", "a\0", None, 7, "a;drop"]
)
def test_bad_names(name: object) -> None:
    assert len(name_mistakes(name)) == 1


@pytest.mark.parametrize(
    "rules",
    [
        {"priority": 0}, {"priority": 101}, {"priority": True}, {"priority": 1.5},
        {"max_concurrency": -1}, {"max_concurrency": "3"},
        {"group_concurrency": 0}, {"by_weight": 1}, {"by_weight": None}, {"max_ready": 0},
        {"fair": "random"}, {"fair": None}, {"on_full": "drop"},
        {"rate": "60/minute"}, {"rate": 60}, {"rate": Rate("5/s", key="tenant")}, {"rate": False},
        {"breaker": 5}, {"weights": ["gold"]}, {"weights": {"gold": 0}}, {"weights": {"gold": -1}},
        {"weights": {"gold": float("nan")}}, {"weights": {"gold": float("inf")}}, {"weights": {7: 1}},
        {"weights": {"gold": True}},
    ],
)  # fmt: skip
def test_each_wrong_rule_is_one_mistake_that_names_the_queue_and_the_rule(rules: dict[str, Any]) -> None:
    found = queue_mistakes(Queue("mail", **rules))
    assert len(found) == 1
    assert found[0].startswith(f"queue 'mail': {next(iter(rules))}: expected ")


def test_all_mistakes_of_a_queue_come_together() -> None:
    assert len(queue_mistakes(Queue("1", priority=0, max_ready=0, weights={"a": 0, "b": 0}))) == 5


def test_a_rate_of_zero_means_no_rate() -> None:
    queue = Queue("mail", rate=0)  # type: ignore[arg-type]
    assert queue.rate is None
    assert queue_mistakes(queue) == []


def test_a_group_without_a_weight_has_weight_one() -> None:
    queue = Queue("mail", weights={"gold": 3})
    assert (queue.weight("gold"), queue.weight("free"), Queue("docs").weight("gold")) == (3, 1.0, 1.0)


def test_weights_cannot_be_changed_behind_the_queue_s_back() -> None:
    weights = {"gold": 3.0}
    queue = Queue("mail", weights=weights)
    weights["gold"] = 0
    assert queue.weight("gold") == 3
    assert queue.weights is not None
    with pytest.raises(TypeError):
        queue.weights["gold"] = 0  # type: ignore[index]


@pytest.mark.parametrize(
    ("queue", "text"),
    [
        (Queue("mail", max_concurrency=30), "can never bind under cluster_wide_cap=20"),
        (Queue("mail", fair="fifo", weights={"gold": 2}), "weights have no effect"),
        (Queue("mail", on_full="reject"), "no effect without max_ready"),
        (Queue("mail", by_weight=True, group_concurrency=2), "by_weight has no effect"),
        (Queue("mail", by_weight=True, weights={"gold": 2}), "by_weight has no effect"),
    ],
)
def test_rules_without_effect_are_warned_about(queue: Queue, text: str) -> None:
    (warning,) = queue_warnings(queue, 20)
    assert text in warning
    assert queue_mistakes(queue) == []
