"""Django's TestCase with the testing kit and the backend: jobs live and run in the transaction of the test."""

import unittest
from collections.abc import Callable
from pathlib import Path

import pytest
from django.db import connection, connections, transaction
from django.test import TestCase

from evenflow.contrib.django import evenflow_task, queue_app
from evenflow.contrib.django.compat import TaskResultStatus
from evenflow.testing import manual
from evenflow.testing.django import EvenflowTestMixin
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Customer


class GreetingTests(EvenflowTestMixin, TestCase):
    __test__ = False  # run below, on both engines

    @classmethod
    def setUpClass(cls) -> None:
        cls.evenflow_app = queue_app()
        super().setUpClass()

    def test_what_was_enqueued_runs_when_it_is_told_to(self) -> None:
        result = tasks.greet.enqueue(Customer.objects.create(name="Ada"))
        assert result.status == TaskResultStatus.READY
        self.evenflow.drain()
        result.refresh()
        assert result.return_value == "hello Ada"

    def test_a_task_of_django_names_its_jobs(self) -> None:
        tasks.note.enqueue("hi")
        self.evenflow.assert_enqueued(tasks.note, count=1)
        with pytest.raises(AssertionError, match="expected no job with task tests"):
            self.evenflow.refute_enqueued(tasks.note)

    def test_a_coroutine_sees_the_rows_of_the_test(self) -> None:
        greeted = tasks.greet_async.enqueue(Customer.objects.create(name="Ada"))
        counted = tasks.count_customers_async.enqueue()
        assert self.evenflow.drain() == {"succeeded": 2}
        greeted.refresh()
        counted.refresh()
        assert (greeted.return_value, counted.return_value) == ("hello Ada", 1)
        assert connection.connection is not None  # and the test goes on with its connection
        assert Customer.objects.count() == 1

    def test_one_body_alone_gets_rows_and_django_s_context(self) -> None:
        ada = Customer.objects.create(name="Ada")
        for task in (tasks.greet, tasks.greet_async):
            assert self.evenflow.perform(evenflow_task(task), ada) == "hello Ada"
        about = self.evenflow.context(attempt=3, job_id="06w9t52wxxh90")
        assert self.evenflow.perform(evenflow_task(tasks.about), 5, ctx=about) == [
            "06w9t52wxxh90",
            3,
            "RUNNING",
            5,
        ]
        assert self.evenflow.perform(evenflow_task(tasks.about_async), ctx=about) == "06w9t52wxxh90"

    def test_nothing_is_left_of_the_other_test(self) -> None:
        assert Customer.objects.count() == 0
        assert len(self.evenflow.all_enqueued()) == 0


class OwnDatabaseTests(EvenflowTestMixin, TestCase):
    __test__ = False  # run below

    @classmethod
    def setUpClass(cls) -> None:
        cls.evenflow_app = queue_app()
        super().setUpClass()

    def test_what_waits_for_a_commit_is_sent_when_the_test_says_so(self) -> None:
        with self.captureOnCommitCallbacks(execute=True):
            result = tasks.greet.enqueue(Customer.objects.create(name="Ada"))
            self.evenflow.refute_enqueued()
        self.evenflow.assert_enqueued(tasks.greet, count=1)
        self.evenflow.drain()
        assert queue_app().job(result.id).result(timeout=0) == "hello Ada"


@pytest.mark.usefixtures("database")
def test_jobs_with_a_database_of_their_own_are_the_kit_s_after_the_commit_that_they_wait_for(
    options: Callable[..., None], tmp_path: Path
) -> None:
    options(url=f"sqlite:///{tmp_path}/jobs.db")
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(OwnDatabaseTests).run(result)
    assert (result.testsRun, result.failures, result.errors) == (1, [], [])
    assert list(queue_app().jobs()) == []
    queue_app().close()


@pytest.mark.usefixtures("database")
def test_a_kit_on_django_s_connection_needs_no_test_case() -> None:
    """As a fixture of pytest-django's users makes it, whose `db` is such a transaction."""
    with transaction.atomic():
        with manual(queue_app(), connection=connections["default"]) as kit:
            result = tasks.greet.enqueue(Customer.objects.create(name="Ada"))
            kit.assert_enqueued(tasks.greet, count=1)
            assert kit.drain() == {"succeeded": 1}
            result.refresh()
            assert result.return_value == "hello Ada"
        transaction.set_rollback(True)
    assert list(queue_app().jobs()) == []


@pytest.mark.usefixtures("database")
def test_jobs_run_inside_of_a_test_case_s_transaction() -> None:
    result = unittest.TestResult()
    unittest.defaultTestLoader.loadTestsFromTestCase(GreetingTests).run(result)
    assert (result.testsRun, result.failures, result.errors) == (5, [], [])
    assert Customer.objects.count() == 0
    assert list(queue_app().jobs()) == []


@pytest.mark.usefixtures("postgres_database")
def test_a_test_database_that_jobs_were_sent_to_can_be_copied_and_dropped() -> None:
    creation, name = connection.creation, connection.settings_dict["NAME"]
    creation.create_test_db(verbosity=0, autoclobber=True)
    try:
        creation.clone_test_db("1", verbosity=0, autoclobber=True)
        creation.destroy_test_db(verbosity=0, suffix="1")
        tasks.note.enqueue("outside of a transaction: on a connection of Evenflow's own")
        assert len(list(queue_app().jobs())) == 1
    finally:
        creation.destroy_test_db(name, verbosity=0)
