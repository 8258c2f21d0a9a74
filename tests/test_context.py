"""The context of a run, seen by itself: what it says and what it passes on."""

import logging
from collections.abc import Mapping
from datetime import UTC, datetime
from typing import Any

import pytest

from evenflow import Context


def context(**given: Any) -> Context:
    return Context(**{"job_id": "j1", "task": "parse", "attempt": 2, "fence": 7, "queue": "docs", **given})


def test_it_says_which_run_this_is() -> None:
    deadline = datetime(2030, 1, 1, tzinfo=UTC)
    ctx = context(group="bob", deadline=deadline)
    assert (ctx.job_id, ctx.task, ctx.attempt, ctx.fence, ctx.queue) == ("j1", "parse", 2, 7, "docs")
    assert (ctx.group, ctx.deadline) == ("bob", deadline)


def test_without_a_group_or_a_timeout_it_has_neither() -> None:
    assert (context().group, context().deadline) == (None, None)


def test_a_wish_to_cancel_turns_it_on_with_its_reason() -> None:
    ctx = context()
    assert (ctx.cancelled, ctx.cancel_reason) == (False, None)
    ctx.cancel("not wanted")
    assert (ctx.cancelled, ctx.cancel_reason) == (True, "not wanted")


def test_cancelled_cannot_be_set_by_a_body() -> None:
    with pytest.raises(AttributeError):
        context().cancelled = True  # type: ignore[misc]


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((3, 10), {"done": 3, "total": 10, "note": None}),
        ((0.5,), {"done": 0.5, "total": None, "note": None}),
        ((1, 2, "reading"), {"done": 1, "total": 2, "note": "reading"}),
    ],
)
def test_progress_is_passed_on(given: tuple[Any, ...], said: dict[str, Any]) -> None:
    reports: list[Mapping[str, Any]] = []
    context(report=reports.append).progress(*given)
    assert reports == [said]


def test_progress_without_a_listener_goes_nowhere() -> None:
    context().progress(1, 2)


def test_log_lines_carry_the_run(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO, "evenflow.task"):
        context().log.info("half way")
    (record,) = caplog.records
    assert record.getMessage() == "half way"
    values = [getattr(record, name) for name in ("job_id", "task", "attempt", "queue")]
    assert values == ["j1", "parse", 2, "docs"]


def test_it_has_room_for_nothing_else() -> None:
    with pytest.raises(AttributeError):
        context().tenant = "bob"  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("given", "kept"),
    [
        (("%d of %d", 1, 2), "1 of 2"),
        (("%(done)d done", {"done": 3}), "3 done"),
        (("100 %",), "100 %"),
        (("%d %s", 1), "%d %s (1,)"),
    ],
)
def test_a_log_line_is_kept_as_loggers_write_it_and_never_fails_the_body(
    given: tuple[Any, ...], kept: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(logging.getLogger("evenflow.task"), "disabled", True)
    lines: list[tuple[str, str]] = []
    context(say=lambda level, line: lines.append((level, line))).log.info(*given)
    assert lines == [("INFO", kept)]
