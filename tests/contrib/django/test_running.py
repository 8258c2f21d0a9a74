"""What surrounds a body: the language and time zone of whoever enqueued it, and connections that do not stay."""

from collections.abc import Callable
from datetime import timedelta
from datetime import timezone as fixed
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from django.db import connections, transaction
from django.utils import timezone, translation

from evenflow.contrib.django import evenflow_task, queue_app
from tests.contrib.django.conftest import Run
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Customer

pytestmark = pytest.mark.usefixtures("database")
BODIES = pytest.mark.parametrize(
    "task", [tasks.surroundings, tasks.surroundings_async], ids=["function", "coroutine"]
)


@BODIES
def test_the_language_and_time_zone_of_the_enqueuer_are_there_again(run: Run, task: Any) -> None:
    with translation.override("de"), timezone.override(ZoneInfo("Europe/Berlin")):
        there = task.enqueue()
    with timezone.override(fixed(timedelta(hours=5, minutes=30))):
        offset = task.enqueue()
    here = task.enqueue()
    run()
    for result, expected in (
        (there, ["de", "Europe/Berlin"]), (offset, ["en-us", "+0530"]), (here, ["en-us", "UTC"]),
    ):  # fmt: skip
        result.refresh()
        assert result.return_value == expected


def test_nothing_is_stored_of_what_the_settings_say_anyway() -> None:
    plain = tasks.surroundings.enqueue()
    with translation.override("fr"):
        other = tasks.surroundings.enqueue()
    app = queue_app()
    assert app.job(plain.id).record.headers is None
    assert app.job(other.id).record.headers == '{"django.language":"fr"}'


def test_what_is_sent_after_a_commit_has_what_was_active_at_the_call(
    run: Run, options: Callable[..., None], tmp_path: Path
) -> None:
    options(url=f"sqlite:///{tmp_path}/jobs.db")
    with translation.override("fr"), transaction.atomic():
        plain = tasks.surroundings.enqueue()
        with translation.override("de"):
            german = tasks.surroundings.enqueue()
    run()
    assert tasks.surroundings.get_result(german.id).return_value[0] == "de"
    assert tasks.surroundings.get_result(plain.id).return_value[0] == "fr"
    queue_app().close()


def test_the_task_of_evenflow_carries_them_as_well(run: Run) -> None:
    with translation.override("de"):
        job = evenflow_task(tasks.surroundings).enqueue()
    run()
    assert job.refresh().result(timeout=0) == ["de", "UTC"]


def test_connections_of_bodies_are_closed_after_each_job(run: Run) -> None:
    Customer.objects.create(name="Ada")
    results = [tasks.count_customers_async.enqueue(), tasks.count_customers_async.enqueue()]
    run()
    for result in results:
        result.refresh()
        assert result.return_value == 1
    used = tasks.seen
    assert len({id(each) for each in used}) == 2  # each job had one of its own
    assert all(each.connection is None for each in used)


def test_the_connection_of_a_thread_is_closed_after_its_job(
    run: Run, monkeypatch: pytest.MonkeyPatch
) -> None:
    closed: list[Any] = []

    def count() -> int:
        found: int = Customer.objects.count()
        closed.append(connections["default"])
        assert closed[-1].connection is not None
        return found

    monkeypatch.setattr(tasks, "counted", count)
    result = tasks.call_counted.enqueue()
    run()
    result.refresh()
    assert result.return_value == 0
    assert closed[0] is not connections["default"]
    assert closed[0].connection is None
