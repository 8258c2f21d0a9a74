"""The tasks of the tests' project. `seen` is what bodies note, in the order in which they run."""

import dataclasses
import datetime
from typing import Any

from asgiref.sync import sync_to_async
from django.db import connections
from django.utils import timezone, translation

from evenflow import Context, Fail, Retry, Snooze
from evenflow.contrib.django import limits_concurrency, limits_rate, policy, recurring
from evenflow.contrib.django.compat import task
from tests.contrib.django.shop.models import Customer

seen: list[Any] = []


@task
def note(value: Any) -> Any:
    seen.append(value)
    return value


@task(priority=10, queue_name="mail")
async def note_later(value: Any) -> Any:
    seen.append(value)
    return value


@task(takes_context=True)
def about(context: Any, add: int) -> list[Any]:
    result = context.task_result
    return [result.id, context.attempt, result.status, add]


@task(takes_context=True)
async def about_async(context: Any) -> str:
    found: str = context.task_result.id
    return found


@task
def progress(ctx: Context, total: int) -> int:
    ctx.progress(total, total)
    return ctx.attempt


@task
def fails(text: str) -> None:
    raise ValueError(text)


@task
async def fails_async(text: str) -> None:
    raise LookupError(text)


@task
def gives(kind: str) -> Any:
    if kind == "fail":
        return Fail("NO_STOCK", "none left")
    if kind == "snooze":
        return Snooze(60)
    if kind == "lambda":
        return lambda: None
    if kind == "exit":
        raise SystemExit("leaving")
    return (1, datetime.date(2026, 1, 2)) if kind == "date" else (1, 2)


@policy(retry=Retry(max_attempts=3, backoff="fixed", base=0))
@task
def third_time(text: str) -> str:
    seen.append(text)
    if seen.count(text) < 3:
        raise ConnectionError(text)
    return text


@dataclasses.dataclass
class Basket:
    customer: Customer
    count: int


@task
def greet(customer: Customer) -> str:
    return f"hello {customer.name}"


@task
async def greet_async(customer: Customer) -> str:
    return f"hello {customer.name}"


@task
def greet_all(customers: list[Customer], by_name: dict[str, Customer]) -> list[str]:
    return [each.name for each in (*customers, *by_name.values())]


@task
def weigh(basket: Basket) -> str:
    return f"{basket.customer.name}: {basket.count}"


@task
def first_customer() -> Customer:
    found: Customer = Customer.objects.get()
    return found


@task
def surroundings() -> list[str]:
    return [translation.get_language() or "", timezone.get_current_timezone_name()]


@task
async def surroundings_async() -> list[str]:
    return [translation.get_language() or "", timezone.get_current_timezone_name()]


@task
async def count_customers_async() -> int:
    found: int = await sync_to_async(Customer.objects.count)()
    seen.append(await sync_to_async(lambda: connections["default"])())
    return found


@limits_concurrency(to=1, key="tenant", duration=60, group="reports")
@limits_rate("100/minute")
@task(queue_name="mail")
def report(tenant: str) -> str:
    return tenant


@limits_concurrency(key="tenant", group="reports")
@task
def other_report(tenant: str) -> str:
    return tenant


@limits_concurrency(key="tenant", group="invoices")
@task
def invoice(tenant: str) -> str:
    return tenant


@recurring("30 2 * * *", key="nightly", kwargs={"tenant": "all"}, priority=5)
@recurring(every=datetime.timedelta(minutes=5), key="often", args=["all"])
@task(queue_name="mail", priority=2)
def sweep(tenant: str) -> str:
    return tenant


@task
@policy(timeout=30, group="tenant")
def below(tenant: str) -> str:
    return tenant


@policy(retry=Retry(max_attempts=5, backoff="fixed", base=0))
@task
def greet_with_retries(customer: Customer) -> str:
    return f"hello {customer.name}"


def counted() -> int:
    """Put in its place by a test."""
    raise NotImplementedError


@task
def call_counted() -> int:
    return counted()
