"""The cap and the bound of a queue, changed while the cluster runs."""

import enum

from evenflow.checks import whole
from evenflow.client.producer import Producer
from evenflow.errors import ConfigError
from evenflow.store import control


class Unset(enum.Enum):
    """What an argument is that was not given, where None says something of its own."""

    UNSET = "unset"


UNSET = Unset.UNSET


def set_limit(
    producer: Producer, queue: str, max_concurrency: int | Unset | None, max_ready: int | Unset | None
) -> None:
    """Set what is given, over what the code declares."""
    producer.settings.queue(queue)
    wrong = [] if max_concurrency is UNSET else whole("max_concurrency", max_concurrency, 0, optional=True)
    wrong += [] if max_ready is UNSET else whole("max_ready", max_ready, 1, optional=True)
    if max_concurrency is UNSET and max_ready is UNSET:
        wrong.append("expected max_concurrency= or max_ready=, got neither")
    if wrong:
        raise ConfigError([f"queue {queue!r}: {mistake}" for mistake in wrong])
    producer.make_ready()
    if not isinstance(max_concurrency, Unset):
        control.set_cap(producer.engine, queue, max_concurrency)
    if not isinstance(max_ready, Unset):
        control.set_bound(producer.engine, queue, max_ready)
    producer.waker.wake(queue)


def reset_limit(producer: Producer, queue: str) -> None:
    """Give the word back to the code."""
    declared = producer.settings.queue(queue)
    producer.make_ready()
    control.set_cap(producer.engine, queue, declared.max_concurrency, is_set=False)
    control.set_bound(producer.engine, queue, declared.max_ready, is_set=False)
    producer.waker.wake(queue)
