"""`app.history()` and `app.totals()`: what workers have reported, minute by minute and task by task."""

import itertools
import threading
from datetime import timedelta
from typing import Any

import pytest

from evenflow import ConfigError, Evenflow, Fail, Retry
from evenflow.client.history import MOST_MINUTES
from evenflow.store import statistics
from evenflow.store.engine import Engine
from evenflow.store.statistics import Statistic
from tests.client.serving import serving


@pytest.fixture
def busy(app: Evenflow) -> Evenflow:
    """An app that has run 20 additions, and a job that failed twice."""

    @app.task(name="add")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(name="refuse", queue="bank", retry=Retry(max_attempts=2, backoff=[0]))
    def refuse() -> None:
        raise Fail("NO", "no money")

    add.enqueue_many([(number, 1) for number in range(20)])
    refuse.enqueue()
    app.run_worker(until_empty=True)
    return app


def test_history_has_a_row_for_every_minute_and_the_counts_in_the_last_ones(busy: Evenflow) -> None:
    rows = busy.history(30)
    assert len(rows) in (30, 31)  # one more where a minute began meanwhile
    assert {later.at - row.at for row, later in itertools.pairwise(rows)} == {timedelta(minutes=1)}
    assert sum(row.started for row in rows) == 22
    assert sum(row.succeeded for row in rows) == 20
    assert sum(row.retried for row in rows) == sum(row.failed for row in rows) == 1
    assert sum(row.errors for row in rows) == 2
    assert sum(row.ended for row in rows) == 21
    assert rows[0].started == 0
    assert rows[0].wait_p95 is None


def test_history_tells_how_long_jobs_waited_and_took(busy: Evenflow) -> None:
    last = next(row for row in reversed(busy.history(5)) if row.started)
    assert last.wait_mean is not None and last.run_mean is not None
    assert last.wait_p50 is not None and last.wait_p95 is not None
    assert 0 <= last.wait_p50 <= last.wait_p95 < 60
    assert last.run_p50 is not None and last.run_p50 < 1


def test_history_of_a_queue_or_a_task_counts_only_that(busy: Evenflow) -> None:
    assert sum(row.started for row in busy.history(5, queue="bank")) == 2
    assert sum(row.started for row in busy.history(5, task="add")) == 20
    assert sum(row.started for row in busy.history(5, task=busy.tasks["refuse"], queue="bank")) == 2
    assert sum(row.started for row in busy.history(5, queue="none")) == 0


def test_totals_are_per_task_and_only_grow(busy: Evenflow) -> None:
    before = {(row.queue, row.task): row.started for row in busy.totals()}
    assert before == {("bank", "refuse"): 2, ("default", "add"): 20}
    busy.tasks["add"].enqueue(1, 2)
    busy.run_worker(until_empty=True)
    after = {(row.queue, row.task): row.started for row in busy.totals()}
    assert after == {("bank", "refuse"): 2, ("default", "add"): 21}
    assert {(row.queue, row.task): row.started for row in busy.totals(minutes=5)} == after


@pytest.mark.parametrize("minutes", [0, -1, MOST_MINUTES + 1, True])
def test_a_number_of_minutes_out_of_range_is_refused(app: Evenflow, minutes: int) -> None:
    with pytest.raises(ConfigError, match="minutes: expected"):
        app.history(minutes)


def test_a_worker_that_goes_on_reports_without_being_stopped(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evenflow.worker.saving.STATISTICS_EVERY_S", 0.05)
    reported = threading.Event()
    add = statistics.add

    def noted(engine: Engine, counted: list[Statistic], **given: Any) -> int | None:
        at = add(engine, counted, **given)
        if any(row.succeeded for row in counted):
            reported.set()
        return at

    @app.task(name="add")
    def plus(a: int, b: int) -> int:
        return a + b

    monkeypatch.setattr("evenflow.store.statistics.add", noted)
    with serving(app):
        plus.enqueue(1, 2)
        assert reported.wait(30)
        assert [row.succeeded for row in app.totals()] == [1]
