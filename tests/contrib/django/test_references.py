"""Model instances as arguments: references to rows, which are fetched when the job runs."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from django.core.management import call_command

from evenflow import PayloadError
from evenflow.contrib.django import RowReference, queue_app
from evenflow.contrib.django.compat import TaskResultStatus
from tests.contrib.django import project
from tests.contrib.django.conftest import Run
from tests.contrib.django.shop import tasks
from tests.contrib.django.shop.models import Customer, Order

pytestmark = pytest.mark.usefixtures("database")


@pytest.mark.parametrize("task", [tasks.greet, tasks.greet_async], ids=["function", "coroutine"])
def test_a_row_is_fetched_again_so_a_later_change_is_seen(run: Run, task: Any) -> None:
    customer = Customer.objects.create(name="Ada")
    result = task.enqueue(customer)
    Customer.objects.filter(pk=customer.pk).update(name="Grace")
    run()
    result.refresh()
    assert result.return_value == "hello Grace"


@pytest.mark.parametrize("task", [tasks.greet, tasks.greet_async], ids=["function", "coroutine"])
def test_a_row_that_is_gone_ends_the_job_with_a_deserialization_error(run: Run, task: Any) -> None:
    customer = Customer.objects.create(name="Ada")
    result = task.enqueue(customer)
    gone = RowReference("shop.customer", customer.pk)
    customer.delete()
    app = run()
    result.refresh()
    assert result.status == TaskResultStatus.FAILED
    [error] = result.errors
    assert error.exception_class_path == "evenflow.errors.DeserializationError"
    assert f"{gone} is gone" in error.traceback
    assert app.job(result.id).state == "failed"
    assert task.get_result(result.id).args == [gone]  # what is gone can still be shown


def test_a_missing_row_is_final_whatever_the_retries(run: Run) -> None:
    customer = Customer.objects.create(name="Ada")
    result = tasks.greet_with_retries.enqueue(customer)
    customer.delete()
    run()
    result.refresh()
    assert (result.status, result.attempts) == (TaskResultStatus.FAILED, 1)


def test_rows_are_found_inside_of_lists_dicts_and_dataclasses(run: Run) -> None:
    ada, grace = Customer.objects.create(name="Ada"), Customer.objects.create(name="Grace")
    listed = tasks.greet_all.enqueue([ada, grace], by_name={"last": ada})
    weighed = tasks.weigh.enqueue(tasks.Basket(grace, 3))
    run()
    listed.refresh()
    weighed.refresh()
    assert listed.return_value == ["Ada", "Grace", "Ada"]
    assert weighed.return_value == "Grace: 3"


def test_any_primary_key_will_do_and_results_may_be_rows(run: Run) -> None:
    customer = Customer.objects.create(name="Ada")
    order = Order.objects.create(customer=customer)
    sent, returned = tasks.note.enqueue(order), tasks.first_customer.enqueue()
    run()
    assert tasks.seen == [order]
    returned.refresh()
    assert returned.return_value == customer
    sent.refresh()
    assert sent.return_value == order


def test_what_was_never_saved_is_refused() -> None:
    with pytest.raises(
        PayloadError, match=r"shop\.customer has no primary key yet; save it before it is sent"
    ):
        tasks.greet.enqueue(Customer(name="Nobody"))
    assert list(queue_app().jobs()) == []


def test_a_row_of_another_database_is_fetched_from_there(run: Run, tmp_path: Path) -> None:
    project.point("other", f"sqlite:///{tmp_path}/other.db")
    call_command("migrate", database="other", run_syncdb=True, verbosity=0)
    there = Customer.objects.using("other").create(name="Over there")
    result = tasks.greet.enqueue(there)
    run()
    result.refresh()
    assert result.return_value == "hello Over there"


class Routed:
    """Reads from a replica, which knows nothing, and writes to the primary."""

    def db_for_read(self, model: type, **_: Any) -> str:
        return "other"

    def db_for_write(self, model: type, **_: Any) -> str:
        return "default"


def test_a_row_is_fetched_where_the_router_writes(
    run: Run, tmp_path: Path, route: Callable[[Any], None]
) -> None:
    project.point("other", f"sqlite:///{tmp_path}/replica.db")
    call_command("migrate", database="other", run_syncdb=True, verbosity=0)
    customer = Customer.objects.create(name="Ada")
    route(Routed())
    customer._state.db = "other"  # as if it had been read from the replica
    result = tasks.greet.enqueue(customer)
    run()
    result.refresh()
    assert result.return_value == "hello Ada"
