"""One call of a task as a worker would make it, without a job: arguments and result travel as they would be stored."""

import asyncio
import functools
import inspect
from collections.abc import Callable, Mapping, Sequence
from contextlib import nullcontext
from typing import Any

from evenflow import Context, Evenflow, EvenflowError, Task
from evenflow.codec import decode_call, decode_result, encode_call, encode_result
from evenflow.context import performed
from evenflow.signals import Signal, Suspend
from evenflow.testing.draining import apart_from_loops

AnyTask = Task[Any, Any, Any]


class MemoryJournal:
    """What a performed body remembers. Its sleeps are over at once: the body goes on when it is entered again."""

    def __init__(self, now: Callable[[], int]) -> None:
        self._now = now
        self._known: dict[str, str] = {}
        self.slept_until = 0

    def now(self) -> int:
        return max(self._now(), self.slept_until)

    def recall(self, name: str) -> str | None:
        return self._known.get(name)

    def remember(self, name: str, value: str) -> None:
        self._known.setdefault(name, value)

    def next_event(self, name: str, after: int) -> tuple[int, str] | None:
        raise EvenflowError(
            f"event {name!r}: nothing comes to a performed body; enqueue it, app.emit(...), kit.drain()"
        )

    def leave_event(self) -> None:
        """Nobody waits here."""

    def add_step(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None, after: Any
    ) -> str:
        raise EvenflowError("steps are added to a run of a workflow; start one, then kit.drain()")

    def spread(self) -> int:
        raise EvenflowError("a fan-out belongs to a run of a workflow; start one, then kit.drain()")


def perform(
    app: Evenflow, task: AnyTask, journal: MemoryJournal, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    """The stored form of what the body returns, read back as its annotation says."""
    prepared, context = _prepared(app, task, journal, args, kwargs)
    while True:
        try:
            value = apart_from_loops(functools.partial(_called, app, task, context, *prepared))
            return value if isinstance(value, Signal) else _stored(app, task, value)
        except Suspend as sleep:
            journal.slept_until = sleep.until_us
            context = _again(task, context, journal)
            prepared = _injected(task, prepared, context)


def _prepared(
    app: Evenflow, task: AnyTask, journal: MemoryJournal, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> tuple[tuple[tuple[Any, ...], dict[str, Any]], Context]:
    given = [each for each in (*args, *kwargs.values()) if isinstance(each, Context)]
    placed = tuple(each for each in args if not isinstance(each, Context))
    named = {name: each for name, each in kwargs.items() if not isinstance(each, Context)}
    payload = encode_call(task.signature, placed, named, app.settings.max_payload_bytes)
    context = _again(task, given[0] if given else None, journal)
    return _injected(task, decode_call(payload, task.signature), context), context


def _injected(
    task: AnyTask, call: tuple[tuple[Any, ...], dict[str, Any]], context: Context
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    if task.signature.context is None:
        return call
    placed = tuple(each for each in call[0] if not isinstance(each, Context))
    named = {name: each for name, each in call[1].items() if not isinstance(each, Context)}
    return task.signature.inject(placed, named, context)


def _again(task: AnyTask, context: Context | None, journal: MemoryJournal) -> Context:
    """A context for entering the body, with nothing used of its names yet, and all else as in the one before."""
    like = context or Context(job_id="", task=task.name, attempt=1, fence=1, queue=task.policy.queue)
    made = Context(
        job_id=like.job_id, task=like.task or task.name, attempt=like.attempt, fence=like.fence, queue=like.queue,
        group=like.group, deadline=like.deadline, run_id=like.run_id, step_name=like.step_name, headers=like.headers,
        journal=journal, is_async=task.is_async,
    )  # fmt: skip
    if like.cancel_reason is not None:
        made.cancel(like.cancel_reason)
    return made


def _called(
    app: Evenflow, task: AnyTask, context: Context, args: Sequence[Any], kwargs: Mapping[str, Any]
) -> Any:
    token = performed.set(context)
    try:
        with app.hooks.around(context) if app.hooks.surrounds else nullcontext():
            value = task.function(*args, **kwargs)
            return asyncio.run(_awaited(value)) if inspect.isawaitable(value) else value
    finally:
        performed.reset(token)


async def _awaited(value: Any) -> Any:
    return await value


def _stored(app: Evenflow, task: AnyTask, value: Any) -> Any:
    text = encode_result(value, app.settings.max_payload_bytes)
    return decode_result(text, task.signature.return_annotation)
