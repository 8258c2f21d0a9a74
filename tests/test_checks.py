"""Single checks: one mistake or none, in one voice."""

import pytest

from evenflow.checks import instance, is_whole, one_of, true_or_false, whole


@pytest.mark.parametrize(
    ("value", "expected"), [(1, True), (0, True), (True, False), (1.0, False), ("1", False)]
)
def test_a_whole_number_is_an_int_and_no_bool(value: object, expected: bool) -> None:
    assert is_whole(value) is expected


@pytest.mark.parametrize("value", [1, 5, 10])
def test_a_number_in_its_range_is_no_mistake(value: int) -> None:
    assert whole("size", value, 1, 10) == []


@pytest.mark.parametrize("value", [0, 11, None, True, 5.0, "5"])
def test_anything_else_is_one_mistake(value: object) -> None:
    assert whole("size", value, 1, 10) == [f"size: expected a whole number from 1 to 10, got {value!r}"]


def test_a_range_may_be_open_and_a_value_missing() -> None:
    assert whole("size", 10**9, 1) == []
    assert whole("size", None, 1, optional=True) == []
    assert whole("size", 0, 1, None, "leave it out") == [
        "size: expected a whole number of 1 or more, got 0; leave it out"
    ]


@pytest.mark.parametrize(
    ("value", "mistakes"), [("a", 0), ("b", 0), ("c", 1), ("", 1), (None, 1), (["a"], 1)]
)
def test_a_word_is_in_its_list_or_a_mistake(value: object, mistakes: int) -> None:
    assert len(one_of("word", value, ("a", "b"))) == mistakes


@pytest.mark.parametrize(("value", "mistakes"), [(True, 0), (False, 0), (1, 1), (None, 1), ("yes", 1)])
def test_a_truth_is_a_bool_or_a_mistake(value: object, mistakes: int) -> None:
    assert len(true_or_false("flag", value)) == mistakes


def test_an_instance_is_of_its_class_or_missing() -> None:
    assert instance("rate", 5, int, "5") == instance("rate", None, int, "5") == []
    assert instance("rate", "x", int, "rate=5") == ["rate: expected int, got 'x'; write rate=5"]
