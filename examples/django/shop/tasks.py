"""What is done after the answer to the customer."""

from django.utils import timezone

from evenflow import Retry
from evenflow.contrib.django import limits_concurrency, policy, recurring

from .models import Order

try:
    from django.tasks import task
except ImportError:  # before Django 6
    from django_tasks import task


@limits_concurrency(to=1, key=lambda order: order.customer)
@policy(retry=Retry(max_attempts=5), timeout=30)
@task(queue_name="mail")
def confirm(order: Order) -> str:
    """Confirm an order. The row is fetched again when this runs; of one customer, one at a time."""
    order.confirmed_at = timezone.now()
    order.save(update_fields=["confirmed_at"])
    return f"Dear {order.customer}, thank you for order {order.pk}."


@recurring("0 3 * * *")
@task
def forget_unconfirmed() -> int:
    """Every night at three."""
    deleted: tuple[int, object] = Order.objects.filter(confirmed_at=None).delete()
    return deleted[0]
