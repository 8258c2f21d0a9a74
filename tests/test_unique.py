"""The declaration of uniqueness: its defaults and what it refuses. How it is kept is tested with the client."""

import dataclasses
from typing import Any

import pytest

from evenflow import ConfigError, Unique


def test_without_anything_all_arguments_are_the_key_and_the_open_job_is_given() -> None:
    assert (Unique().key, Unique().on_conflict) == (None, "existing")


def test_the_key_may_stand_alone() -> None:
    assert Unique("tenant") == Unique(key="tenant", on_conflict="existing")


@pytest.mark.parametrize("on_conflict", ["existing", "error"])
def test_both_ways_to_answer_a_conflict_are_taken(on_conflict: Any) -> None:
    assert Unique(on_conflict=on_conflict).on_conflict == on_conflict


@pytest.mark.parametrize("on_conflict", ["ignore", "", None, True])
def test_another_answer_is_refused_with_those_that_exist(on_conflict: Any) -> None:
    with pytest.raises(ConfigError, match=r"Unique: on_conflict: expected .*existing.*error"):
        Unique(on_conflict=on_conflict)


def test_it_does_not_change() -> None:
    with pytest.raises(dataclasses.FrozenInstanceError):
        Unique().key = "tenant"  # type: ignore[misc]
