"""The body of a Django task's job: the function as a request of Django's would run it.

Around it the language and time zone of whoever enqueued it, fresh connections, its context and the signals. What ends a run
before its body (a timeout of a coroutine, a cancellation, a crash) sends no signal: nobody is there to send it.
"""

import asyncio
import contextlib
import functools
import inspect
from collections.abc import AsyncIterator, Callable, Iterator
from typing import Any

import msgspec
from asgiref.sync import SyncToAsync, ThreadSensitiveContext, sync_to_async
from django.db import connections, reset_queries
from django.utils import timezone

from evenflow.codec import encode_result
from evenflow.context import is_tested, performed
from evenflow.contrib.django import compat
from evenflow.contrib.django.headers import restored
from evenflow.contrib.django.references import IN_PAYLOAD, resolved
from evenflow.contrib.django.registry import known_tasks, path_of
from evenflow.contrib.django.results import fail, performed_result, running_result, succeed
from evenflow.errors import ResultError
from evenflow.job import JobError
from evenflow.signals import Signal
from evenflow.worker.calling import Run, current_run
from evenflow.worker.outcome import raised

Arguments = tuple[tuple[Any, ...], dict[str, Any]]
_BACK = ("ready", "scheduled", "waiting")


def body_of(function: Callable[..., Any], alias: str, *, takes_context: bool) -> Callable[..., Any]:
    """The body for the jobs of this function: with its signature, but for the context, which is no part of a call."""
    made = (_async_body if inspect.iscoroutinefunction(function) else _plain_body)(
        function, alias, takes_context
    )
    functools.update_wrapper(made, function)
    made.task_function = function
    if takes_context:
        signature = inspect.signature(function)
        made.__signature__ = signature.replace(parameters=list(signature.parameters.values())[1:])
    return made  # type: ignore[no-any-return]


def _plain_body(function: Callable[..., Any], alias: str, takes_context: bool) -> Any:
    def body(*args: Any, **kwargs: Any) -> Any:
        run = current_run.get()
        if run is None:
            args, kwargs = _performed(function, alias, takes_context, args, kwargs)
            return function(*args, **kwargs)
        with _fresh_connections(), restored(run.job.headers):
            args, kwargs = _with_rows(run, args, kwargs)
            result = running_result(run, known_tasks[run.job.task], alias, args, kwargs)
            _send(compat.task_started, result)
            placed = (compat.TaskContext(task_result=result), *args) if takes_context else args
            try:
                value = function(*placed, **kwargs)
            except BaseException as error:
                if _ends_with(run, error, result):
                    _send(compat.task_finished, result)
                raise
            if _ends_well(run, value, result):
                _send(compat.task_finished, result)
            return value

    return body


def _async_body(function: Callable[..., Any], alias: str, takes_context: bool) -> Any:
    async def body(*args: Any, **kwargs: Any) -> Any:
        run = current_run.get()
        if run is None and performed.get() is None:
            return await function(*args, **kwargs)
        async with _thread_of_its_own():
            if run is None:
                args, kwargs = await sync_to_async(_performed)(function, alias, takes_context, args, kwargs)
                return await function(*args, **kwargs)
            with restored(run.job.headers):
                if IN_PAYLOAD in run.job.payload:
                    args, kwargs = await sync_to_async(_with_rows)(run, args, kwargs)
                result = running_result(run, known_tasks[run.job.task], alias, args, kwargs)
                await _asend(compat.task_started, result)
                placed = (compat.TaskContext(task_result=result), *args) if takes_context else args
                try:
                    value = await function(*placed, **kwargs)
                except asyncio.CancelledError:
                    raise
                except BaseException as error:
                    if _ends_with(run, error, result):
                        await _asend(compat.task_finished, result)
                    raise
                if _ends_well(run, value, result):
                    await _asend(compat.task_finished, result)
                return value

    return body


@contextlib.contextmanager
def _fresh_connections() -> Iterator[None]:
    """As around a request: broken and aged connections are closed before and after, and no log of queries grows. Those in a
    transaction of whoever runs the job, as a test case is, are left alone."""
    reset_queries()
    outer = {each.alias for each in connections.all(initialized_only=True) if each.in_atomic_block}
    _close_old(outer)
    try:
        yield
    finally:
        _close_old(outer)


def _close_old(outer: set[str]) -> None:
    for each in connections.all(initialized_only=True):
        if each.alias not in outer:
            each.close_if_unusable_or_obsolete()


@contextlib.asynccontextmanager
async def _thread_of_its_own() -> AsyncIterator[None]:
    """As around a request of ASGI: what this coroutine does in `sync_to_async` has a thread, and connections, of its own.
    They end with it. A coroutine that never asks for a thread gets none. In a test that is a transaction its connections are
    lent to that thread: its rows are nowhere else."""
    is_a_test = is_tested.get() or performed.get() is not None
    lent, context = _outer_connections() if is_a_test else [], ThreadSensitiveContext()
    async with context:
        if lent:
            await sync_to_async(_lend)(lent)
        try:
            yield
        finally:
            if context in SyncToAsync.context_to_thread_executor:
                await sync_to_async(_give_back)(lent)


def _outer_connections() -> list[Any]:
    """Connections of this very thread that are in a transaction; from inside of a coroutine Django does not show them."""
    loop = asyncio.get_running_loop()
    asyncio._set_running_loop(None)
    try:
        return [each for each in connections.all(initialized_only=True) if each.in_atomic_block]
    finally:
        asyncio._set_running_loop(loop)


def _lend(lent: list[Any]) -> None:
    for each in lent:
        each.inc_thread_sharing()
        connections[each.alias] = each


def _give_back(lent: list[Any]) -> None:
    for each in lent:
        del connections[each.alias]
        each.dec_thread_sharing()
    connections.close_all()


def _with_rows(run: Run, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return _rows(args, kwargs) if IN_PAYLOAD in run.job.payload else (args, kwargs)


def _rows(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Arguments:
    return tuple(map(resolved, args)), {name: resolved(value) for name, value in kwargs.items()}


def _performed(
    function: Callable[..., Any],
    alias: str,
    takes_context: bool,
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Arguments:
    """What the body gets where a test performs it without a job; what it was given where it is simply called."""
    if (about := performed.get()) is None:
        return args, kwargs
    args, kwargs = _rows(args, kwargs)
    if not takes_context:
        return args, kwargs
    result = performed_result(about, known_tasks[path_of(function)], alias, args, kwargs)
    return (compat.TaskContext(task_result=result), *args), kwargs


def _ends_with(run: Run, error: BaseException, result: Any) -> bool:
    """Whether this error ends the job; one that is tried again has not finished."""
    assert run.entry is not None
    end = raised(run.job, error, run.entry.rules, run.now(), 0.5)
    if run.is_over or end.state in _BACK or end.error is None:
        return False
    fail(result, msgspec.json.decode(end.error, type=JobError), timezone.now())
    return True


def _ends_well(run: Run, value: Any, result: Any) -> bool:
    """Whether what the body returned ends the job: it may also be a wish, or something that cannot be stored."""
    if run.is_over:
        return False
    if isinstance(value, Signal):
        return _ends_with(run, value, result)
    try:
        shown = compat.normalized(value)
    except (TypeError, ValueError):
        try:
            encode_result(value)
        except ResultError as error:
            return _ends_with(run, error, result)
        shown = value
    succeed(result, shown, timezone.now())
    return True


def _send(signal: Any, result: Any) -> None:
    """What a receiver raises is logged by Django; the job is not to blame for it."""
    signal.send_robust(sender=_sender(result), task_result=result)


async def _asend(signal: Any, result: Any) -> None:
    """As `_send`. Django's own receiver only logs: where it is alone, no thread has to be asked for."""
    if len(signal.receivers) <= 1:
        _send(signal, result)
    else:
        await signal.asend_robust(sender=_sender(result), task_result=result)


def _sender(result: Any) -> type:
    return type(compat.task_backends[result.backend])
