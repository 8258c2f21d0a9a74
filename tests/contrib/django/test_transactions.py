"""Enqueue inside of Django's transactions: in the database of the jobs, beside it, and in memory."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from django.core.exceptions import ImproperlyConfigured
from django.core.management import call_command
from django.db import connections, transaction

from evenflow import Evenflow, JobNotFound, Unique
from evenflow.contrib.django import policy, queue_app
from evenflow.contrib.django.compat import TaskResultDoesNotExist, TaskResultStatus, task, task_enqueued
from tests.contrib.django import project
from tests.contrib.django.conftest import Run
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Customer


class Undone(Exception):
    """Ends a transaction."""


@policy(unique=Unique("key", on_conflict="replace"))
@task
def replaced(key: str, value: int) -> int:
    return value


def others_see(app: Evenflow, result: Any) -> bool:
    """Whether the job can be seen from a connection of its own."""
    try:
        app.job(result.id)
    except JobNotFound:
        return False
    return True


@pytest.fixture
def beside(tmp_path: Path, options: Callable[..., None], database: str) -> Iterator[Callable[..., None]]:
    """The jobs have a database of their own: SQLite beside whatever the project has."""

    def move(**more: Any) -> None:
        options(url=f"sqlite:///{tmp_path}/jobs.db", **more)

    yield move
    queue_app().close()


@pytest.mark.usefixtures("database")
class TestInTheSameDatabase:
    def test_a_job_is_seen_after_the_commit_with_the_row_it_is_about(self, run: Run) -> None:
        app = queue_app()
        app.prepare()
        with transaction.atomic():
            customer = Customer.objects.create(name="Ada")
            result = tasks.greet.enqueue(customer)
            assert not others_see(app, result)
        assert others_see(app, result)
        run()
        result.refresh()
        assert result.return_value == "hello Ada"

    def test_a_job_is_gone_with_a_rollback(self, run: Run) -> None:
        with pytest.raises(Undone), transaction.atomic():
            result = tasks.note.enqueue("never")
            raise Undone
        run()
        assert tasks.seen == []
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()

    def test_a_savepoint_takes_its_jobs_along(self, run: Run) -> None:
        with transaction.atomic():
            tasks.note.enqueue("outer")
            with pytest.raises(Undone), transaction.atomic():
                tasks.note.enqueue("inner")
                raise Undone
        run()
        assert tasks.seen == ["outer"]

    def test_a_job_can_be_read_in_the_transaction_that_makes_it(self) -> None:
        with transaction.atomic():
            result = tasks.note.enqueue("soon")
            assert tasks.note.get_result(result.id) == result
            result.refresh()
            assert result.status == TaskResultStatus.READY

    def test_on_commit_enqueues_one_job_after_a_commit_and_none_after_a_rollback(self, run: Run) -> None:
        with transaction.atomic():
            transaction.on_commit(lambda: tasks.note.enqueue("committed"))
        with pytest.raises(Undone), transaction.atomic():
            transaction.on_commit(lambda: tasks.note.enqueue("rolled back"))
            raise Undone
        run()
        assert tasks.seen == ["committed"]

    def test_a_job_follows_a_transaction_that_was_begun_by_hand(self) -> None:
        app = queue_app()
        app.prepare()
        transaction.set_autocommit(False)
        try:
            Customer.objects.create(name="Ada")
            undone = tasks.note.enqueue("never")
            transaction.rollback()
            kept = tasks.note.enqueue("committed")
            assert not others_see(app, kept)
            assert tasks.note.get_result(kept.id) == kept
            transaction.commit()
        finally:
            transaction.rollback()
            transaction.set_autocommit(True)
        assert others_see(app, kept)
        assert not others_see(app, undone)

    def test_a_job_that_replaces_another_waits_for_the_commit(self, run: Run) -> None:
        first = replaced.enqueue("a", 1)
        with transaction.atomic():
            second = replaced.enqueue("a", 2)
            assert second.enqueued_at is None
        assert second.id == first.id
        run()
        first.refresh()
        assert first.return_value == 2


class TestInADatabaseOfTheirOwn:
    def test_a_job_is_stored_after_the_commit_under_the_id_that_was_told_before(
        self, beside: Callable[..., None], run: Run
    ) -> None:
        beside()
        heard: list[str] = []

        def note(task_result: Any, **_: Any) -> None:
            heard.append(task_result.id)

        task_enqueued.connect(note)
        try:
            with transaction.atomic():
                result = tasks.note.enqueue("committed")
                assert not others_see(queue_app(), result)
                assert (result.enqueued_at, heard) == (None, [])
                told = result.id
            assert heard == [told] == [result.id]
        finally:
            task_enqueued.disconnect(note)
        assert others_see(queue_app(), result)
        run()
        assert tasks.note.get_result(told).return_value == "committed"
        assert result.enqueued_at is not None

    def test_no_job_is_stored_after_a_rollback(self, beside: Callable[..., None], run: Run) -> None:
        beside()
        with pytest.raises(Undone), transaction.atomic():
            tasks.note.enqueue("never")
            raise Undone
        assert list(queue_app().jobs()) == []

    def test_a_job_is_seen_at_once_where_it_need_not_wait(self, beside: Callable[..., None]) -> None:
        beside(on_commit=False)
        with pytest.raises(Undone), transaction.atomic():
            result = tasks.note.enqueue("at once")
            assert others_see(queue_app(), result)
            raise Undone
        assert others_see(queue_app(), result)

    def test_on_commit_enqueues_one_job_after_a_commit_and_none_after_a_rollback(
        self, beside: Callable[..., None], run: Run
    ) -> None:
        beside(on_commit=False)
        with transaction.atomic():
            transaction.on_commit(lambda: tasks.note.enqueue("committed"))
        with pytest.raises(Undone), transaction.atomic():
            transaction.on_commit(lambda: tasks.note.enqueue("rolled back"))
            raise Undone
        run()
        assert tasks.seen == ["committed"]

    def test_the_transaction_of_another_alias_can_be_waited_for(
        self, beside: Callable[..., None], tmp_path: Path
    ) -> None:
        project.point("other", f"sqlite:///{tmp_path}/other.db")
        beside(on_commit="other")
        with transaction.atomic():
            at_once = tasks.note.enqueue("default is not waited for")
            assert others_see(queue_app(), at_once)
        with transaction.atomic(using="other"):
            later = tasks.note.enqueue("other is")
            assert not others_see(queue_app(), later)
        assert others_see(queue_app(), later)


def test_jobs_can_live_in_another_alias_and_follow_its_transactions(
    database: str, options: Callable[..., None], tmp_path: Path
) -> None:
    project.point("other", f"sqlite:///{tmp_path}/other.db")
    options(database="other")
    call_command("migrate", database="other", run_syncdb=True, verbosity=0)
    app = queue_app()
    assert app.settings.database.path == str(tmp_path / "other.db")
    with transaction.atomic(using="other"):
        inside = tasks.note.enqueue(1)
        assert not others_see(app, inside)
    with transaction.atomic():
        after = tasks.note.enqueue(2)  # cannot be a part of it, so it waits for it
        assert not others_see(app, after)
    assert others_see(app, inside)
    assert others_see(app, after)
    app.close()


def test_a_project_on_a_database_that_jobs_cannot_live_in_gives_them_one_and_waits_for_its_commits(
    sqlite_database: str, options: Callable[..., None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(connections["default"], "vendor", "mysql")  # all that we ask of it
    with pytest.raises(ImproperlyConfigured, match=r"'default' is mysql, and jobs live in SQLite or Postgre"):
        options(database="default")
        tasks.note.enqueue("nowhere")
    options(url=f"sqlite:///{tmp_path}/jobs.db")
    app = queue_app()
    app.prepare()
    with transaction.atomic():
        kept = tasks.note.enqueue("committed")
        assert not others_see(app, kept)
    with pytest.raises(Undone), transaction.atomic():
        undone = tasks.note.enqueue("never")
        raise Undone
    assert others_see(app, kept)
    assert not others_see(app, undone)
    app.close()


def test_in_a_database_in_memory_django_s_own_connection_makes_the_tables_and_stores_the_jobs() -> None:
    project.point("default", "sqlite:///file:memory_of_a_test?mode=memory&cache=shared")
    try:
        call_command("migrate", run_syncdb=True, verbosity=0)
        plain = tasks.note.enqueue(1)
        with transaction.atomic():
            result = tasks.note.enqueue(2)
            assert tasks.note.get_result(result.id) == result
            transaction.set_rollback(True)
        with pytest.raises(TaskResultDoesNotExist):
            result.refresh()
        plain.refresh()
        assert plain.status == TaskResultStatus.READY
        with connections["default"].cursor() as cursor:
            cursor.execute("select count(*) from evenflow_job")
            assert cursor.fetchone() == (1,)
    finally:
        held = connections["default"]
        held.connection.close()  # Django's own `close` keeps what is in memory
        held.connection = None
