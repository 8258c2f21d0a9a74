"""Reading the environment: strict, and a mistake names its variable."""

from collections.abc import Callable
from typing import Any

import pytest

from evenflow.environment import kept_for, key_ring, read_environment, truth, whole_number


def test_an_unset_variable_is_left_out() -> None:
    assert read_environment({}, "X_", {"size": whole_number}, []) == {}


def test_a_malformed_variable_is_named_and_left_out() -> None:
    mistakes: list[str] = []
    assert read_environment({"X_SIZE": "big"}, "X_", {"size": whole_number}, mistakes) == {}
    assert mistakes == ["X_SIZE: expected a whole number, got 'big'; change the variable or unset it"]


@pytest.mark.parametrize(
    ("reader", "text", "value"),
    [
        (whole_number, "12", 12), (whole_number, "-3", -3),
        (truth, "true", True), (truth, "No", False), (truth, "1", True), (truth, "off", False),
        (kept_for, "3600", 3600), (kept_for, "7 days", "7 days"), (kept_for, "forever", None),
        (key_ring, "new:s3cret,old:s:x", {"new": "s3cret", "old": "s:x"}),
    ],
)  # fmt: skip
def test_readers_read(reader: Callable[[str], Any], text: str, value: object) -> None:
    assert reader(text) == value


@pytest.mark.parametrize(
    ("reader", "text"),
    [
        (whole_number, ""), (whole_number, "1.5"), (whole_number, " 1"), (whole_number, "1_0"),
        (whole_number, "٣"),        (truth, ""), (truth, "maybe"), (kept_for, "long"), (kept_for, "-1"),
        (key_ring, ""), (key_ring, "secret"), (key_ring, "a:x,a:y"), (key_ring, "a:"),
    ],
)  # fmt: skip
def test_readers_refuse(reader: Callable[[str], Any], text: str) -> None:
    with pytest.raises(ValueError, match="expected"):
        reader(text)


def test_a_refused_key_ring_is_not_shown() -> None:
    mistakes: list[str] = []
    read_environment({"X_KEYS": "hunter2"}, "X_", {"keys": key_ring}, mistakes)
    assert len(mistakes) == 1
    assert "hunter2" not in mistakes[0]
