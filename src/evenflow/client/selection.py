"""Which jobs a list or an act is about: ids and filters as callers give them, checked, and read from the store in pages."""

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from evenflow.client.producer import Producer
from evenflow.client.task import LONGEST_NAME, AnyTask, Task
from evenflow.codec import check_text
from evenflow.ids import job_number
from evenflow.job import JobRecord, State
from evenflow.store import reads

_BATCH = 500

Ids = str | Iterable[str]


def filter_of(
    state: State | str | None = None, queue: str | None = None, task: str | AnyTask | None = None, group: str | None = None
) -> reads.Filter:  # fmt: skip
    """A filter as the store reads it; ValueError for a state that there is not."""
    if state is not None and state not in State.__members__.values():
        raise ValueError(f"state: expected one of {', '.join(State)}, got {state!r}")
    name = task.name if isinstance(task, Task) else task
    return reads.Filter(None if state is None else State(state), queue, name, group)


def records(producer: Producer, wanted: reads.Filter, before: int, limit: int | None) -> Iterator[JobRecord]:
    """Jobs that match, newest first, read page by page while somebody goes on asking."""
    producer.make_tables()
    left = reads.NEWEST if limit is None else limit
    while left and (page := reads.page(producer.engine, wanted, before=before, top=min(left, reads.PAGE))):
        yield from page
        left -= len(page)
        before = page[-1].id


def batches(producer: Producer, ids: Ids | None, filters: dict[str, Any]) -> Iterator[Sequence[int]]:
    """The ids that were named or that match, in batches; a filter is read before anything of its batch changes."""
    producer.make_ready()
    if (ids is None) == (not filters):
        raise TypeError("expected ids or a filter (state=, queue=, task=, group=), and not both")
    for name, value in filters.items():
        if name not in reads.Filter.__struct_fields__:
            raise TypeError(f"{name}: not a filter; expected state=, queue=, task= or group=")
        if value is None:  # a variable that was not set, perhaps: it would act on the jobs of all
            raise TypeError(
                f"{name}: expected whose jobs are meant, got None; leave {name}= out for those of all"
            )
    if ids is not None:
        numbers = [job_number(each) for each in ([ids] if isinstance(ids, str) else ids)]
        yield from (numbers[start : start + _BATCH] for start in range(0, len(numbers), _BATCH))
        return
    wanted = filter_of(**filters)
    before = reads.NEWEST
    while page := reads.page(producer.engine, wanted, before=before, top=_BATCH):
        before = page[-1].id
        yield [record.id for record in page]


def queue_or_task(queue: str | None, task: str | AnyTask | None) -> str:
    """The one name that was given, of a queue or of a task."""
    if (queue is None) == (task is None):
        raise TypeError("expected a queue or task=, and not both")
    if task is None:
        assert queue is not None
        return queue
    if not task:
        raise ValueError("task: expected the name of a task, got ''")
    return check_text("task", task.name if isinstance(task, Task) else task, LONGEST_NAME)
