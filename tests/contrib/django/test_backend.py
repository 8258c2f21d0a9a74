"""The backend as Django's tasks framework sees it: what it can do, and what its results say."""

from collections.abc import Callable
from datetime import UTC, date, datetime, time, timedelta
from typing import Any

import pytest
from asgiref.sync import async_to_sync
from django.utils import timezone

from evenflow import Evenflow, JobCancelled, PayloadError
from evenflow.contrib.django import EvenflowBackend, evenflow_task, queue_app
from evenflow.contrib.django.compat import (
    InvalidTask,
    TaskResultDoesNotExist,
    TaskResultStatus,
    task_backends,
    task_enqueued,
    task_finished,
    task_started,
)
from tests.contrib.django.conftest import Run
from tests.contrib.django.shop import tasks

pytestmark = pytest.mark.usefixtures("database")


@pytest.fixture
def told() -> Any:
    """The signals, as (name, status, id)."""
    heard: list[tuple[str, str, str]] = []
    receivers = []
    for name, signal in (("enqueued", task_enqueued), ("started", task_started), ("finished", task_finished)):

        def note(sender: type, task_result: Any, name: str = name, **_: Any) -> None:
            assert sender is EvenflowBackend
            heard.append((name, str(task_result.status), task_result.id))

        signal.connect(note)
        receivers.append((signal, note))
    yield heard
    for signal, receiver in receivers:
        signal.disconnect(receiver)


def test_it_can_do_all_that_a_backend_can() -> None:
    backend = task_backends["default"]
    assert isinstance(backend, EvenflowBackend)
    assert all(
        (
            backend.supports_defer,
            backend.supports_async_task,
            backend.supports_get_result,
            backend.supports_priority,
        )
    )
    assert list(backend.check()) == []


def test_a_task_declared_by_django_and_sent_by_enqueue_is_run(run: Run) -> None:
    result = tasks.note.enqueue("hello")
    assert (result.status, result.args, result.kwargs, result.attempts) == (
        TaskResultStatus.READY,
        ["hello"],
        {},
        0,
    )
    assert not result.is_finished
    run()
    result.refresh()
    assert (result.status, result.return_value, result.attempts) == (TaskResultStatus.SUCCESSFUL, "hello", 1)
    assert result.is_finished
    assert result.enqueued_at <= result.started_at <= result.finished_at
    assert result.last_attempted_at == result.started_at
    assert tasks.seen == ["hello"]


def test_what_was_sent_and_what_is_read_are_equal() -> None:
    result = tasks.note.using(priority=7).enqueue("hello")
    assert tasks.note.get_result(result.id) == result
    assert task_backends["default"].get_result(result.id) == result


def test_coroutines_are_sent_and_run_and_awaited(run: Run) -> None:
    async def send() -> Any:
        return await tasks.note_later.aenqueue(3)

    result = async_to_sync(send)()
    run()
    assert async_to_sync(tasks.note_later.aget_result)(result.id).return_value == 3
    async_to_sync(result.arefresh)()
    assert result.return_value == 3
    assert result.task.queue_name == "mail"


def test_the_larger_priority_comes_first(run: Run) -> None:
    for priority in (0, -100, 50, 100, 1):
        tasks.note.using(priority=priority).enqueue(priority)
    app = queue_app()
    assert sorted(job.priority for job in app.jobs()) == [-100, -50, -1, 0, 100]
    app.run_worker(until_empty=True, concurrency=1)
    assert tasks.seen == [100, 50, 1, 0, -100]


def test_a_job_runs_after_its_time_and_not_before(run: Run) -> None:
    later = tasks.note.using(run_after=timezone.now() + timedelta(hours=1)).enqueue("later")
    tasks.note.using(run_after=timezone.now() - timedelta(hours=1)).enqueue("now")
    run()
    assert tasks.seen == ["now"]
    later.refresh()
    assert later.status == TaskResultStatus.READY
    assert later.started_at is None


def test_a_context_is_given_to_those_who_take_one(run: Run) -> None:
    plain, coroutine = tasks.about.enqueue(5), tasks.about_async.enqueue()
    run()
    plain.refresh()
    coroutine.refresh()
    assert plain.return_value == [plain.id, 1, "RUNNING", 5]
    assert coroutine.return_value == coroutine.id


def test_the_context_of_evenflow_can_be_asked_for_as_well(run: Run) -> None:
    result = tasks.progress.enqueue(9)
    app = run()
    assert app.job(result.id).result(timeout=0) == 1
    assert app.job(result.id).progress == {"done": 9, "total": 9, "note": None}


@pytest.mark.parametrize(
    ("task", "kind"),
    [(tasks.fails, ValueError), (tasks.fails_async, LookupError)],
    ids=["function", "coroutine"],
)
def test_an_error_is_told_by_its_class_and_its_traceback(run: Run, task: Any, kind: type) -> None:
    result = task.enqueue("no such thing")
    run()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    with pytest.raises(ValueError, match="Task failed"):
        _ = result.return_value
    [error] = result.errors
    assert error.exception_class is kind
    assert error.traceback.startswith("Traceback (most recent call last):")
    assert error.traceback.endswith(f"{kind.__name__}: no such thing\n")


@pytest.mark.parametrize(
    ("kind", "path"),
    [
        ("fail", "evenflow.signals.Fail"),
        ("lambda", "evenflow.errors.ResultError"),
        ("exit", "builtins.SystemExit"),
    ],
)
def test_other_ends_are_failures_whose_class_can_be_imported(run: Run, kind: str, path: str) -> None:
    result = tasks.gives.enqueue(kind)
    run()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert result.errors[0].exception_class_path == path
    assert issubclass(result.errors[0].exception_class, BaseException)


def test_a_cancelled_job_has_failed_and_says_so() -> None:
    result = tasks.note.enqueue("never")
    assert queue_app().cancel(result.id, "not needed") == 1
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    assert [error.exception_class for error in result.errors] == [JobCancelled]


def test_a_snoozed_job_is_ready_again(run: Run) -> None:
    result = tasks.gives.enqueue("snooze")
    run()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.READY, 0)


def test_results_are_what_json_gives_back_where_json_can_say_them(run: Run) -> None:
    plain, dated = tasks.gives.enqueue("pair"), tasks.gives.enqueue("date")
    run()
    plain.refresh()
    dated.refresh()
    assert plain.return_value == [1, 2]
    assert dated.return_value == (1, date(2026, 1, 2))


def test_dates_times_and_spans_are_arguments_and_results(run: Run) -> None:
    values = [datetime(2026, 5, 6, 7, 8, tzinfo=UTC), date(2026, 5, 6), time(7, 8), timedelta(minutes=90)]
    results = [tasks.note.enqueue(value) for value in values]
    assert [result.args for result in results] == [[value] for value in values]
    run()
    assert sorted(map(repr, tasks.seen)) == sorted(map(repr, values))
    for result, value in zip(results, values, strict=True):
        result.refresh()
        assert (result.return_value, result.args) == (value, [value])


def test_what_cannot_be_stored_is_refused_before_anything_is_written() -> None:
    with pytest.raises(PayloadError, match=r"argument 'value'.*cannot be stored"):
        tasks.note.enqueue(object())
    with pytest.raises(PayloadError, match="argument 'text' is missing"):
        tasks.fails.enqueue()
    assert list(queue_app().jobs()) == []


def test_queues_are_checked_where_they_are_named(options: Callable[..., None]) -> None:
    with pytest.raises(InvalidTask, match="Queue 'nowhere' is not valid for backend"):
        tasks.note.using(queue_name="nowhere")
    options(QUEUES=[])
    assert tasks.note.using(queue_name="nowhere").enqueue(1).task.queue_name == "nowhere"


def test_queues_with_rules_are_queues_of_the_backend(options: Callable[..., None]) -> None:
    options(QUEUES=["mail"], cluster_wide_cap=5)
    assert queue_app().settings.cluster_wide_cap == 5
    assert [queue.name for queue in queue_app().settings.queues] == ["mail"]


def test_a_missing_result_is_said_to_be_missing() -> None:
    for id in ("123", "0000000000000"):
        with pytest.raises(TaskResultDoesNotExist):
            task_backends["default"].get_result(id)


def test_signals_tell_of_every_job(run: Run, told: list[tuple[str, str, str]]) -> None:
    for task in (tasks.note, tasks.note_later):
        told.clear()
        id = task.enqueue(1).id
        run()
        assert told == [("enqueued", "READY", id), ("started", "RUNNING", id), ("finished", "SUCCESSFUL", id)]
    for task in (tasks.fails, tasks.fails_async):
        told.clear()
        id = task.enqueue("no").id
        run()
        assert told[1:] == [("started", "RUNNING", id), ("finished", "FAILED", id)]


def test_a_job_that_is_tried_again_finishes_once(run: Run, told: list[tuple[str, str, str]]) -> None:
    result = tasks.third_time.enqueue("again")
    run()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.SUCCESSFUL, 3)
    assert [error.exception_class for error in result.errors] == [ConnectionError, ConnectionError]
    assert [name for name, _, _ in told] == ["enqueued", "started", "started", "started", "finished"]


def test_a_receiver_that_raises_harms_no_job(run: Run) -> None:
    def broken(**_: Any) -> None:
        raise RuntimeError("broken receiver")

    task_started.connect(broken)
    task_finished.connect(broken)
    try:
        result = tasks.note.enqueue("hello")
        run()
    finally:
        task_started.disconnect(broken)
        task_finished.disconnect(broken)
    result.refresh()
    assert result.return_value == "hello"


def test_the_task_of_evenflow_is_there_for_what_django_has_no_word_for(run: Run) -> None:
    native = evenflow_task(tasks.note)
    assert isinstance(queue_app(), Evenflow)
    jobs = native.using(group="bob").enqueue_many([(1,), (2,)])
    assert [job.group for job in jobs] == ["bob", "bob"]
    run()
    assert tasks.note.get_result(jobs[0].id).return_value == 1
