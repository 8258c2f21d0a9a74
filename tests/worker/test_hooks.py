"""Lifecycle hooks: when they run, in which order, and what their errors do."""

import asyncio
import contextlib
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from evenflow import Context, Evenflow, State
from evenflow.hooks import Hooks
from evenflow.store import leases


@pytest.fixture
def told() -> list[str]:
    return []


def context() -> Context:
    return Context(job_id="j", task="t", attempt=1, fence=1, queue="default")


def test_hooks_run_in_the_order_in_which_they_were_added(told: list[str]) -> None:
    hooks = Hooks()
    hooks.on_worker_start(lambda: told.append("start 1"))
    hooks.on_worker_start(lambda: told.append("start 2"))
    hooks.on_worker_stop(lambda: told.append("stop"))
    hooks.worker_start()
    hooks.worker_stop()
    assert told == ["start 1", "start 2", "stop"]


def test_what_is_added_is_returned_so_that_hooks_are_decorators() -> None:
    hooks = Hooks()

    def note() -> None: ...
    def around(ctx: Context) -> Iterator[None]:
        yield

    assert hooks.on_worker_start(note) is note
    assert hooks.on_worker_stop(note) is note
    assert hooks.around_run(around) is around


def test_the_first_surrounding_is_the_outermost(told: list[str]) -> None:
    assert not Hooks().surrounds
    hooks = Hooks()
    for name in ("outer", "inner"):

        def around(ctx: Context, name: str = name) -> Iterator[None]:
            told.append(f"before {name}")
            yield
            told.append(f"after {name}")

        hooks.around_run(around)
    assert hooks.surrounds
    with hooks.around(context()):
        told.append("body")
    assert told == ["before outer", "before inner", "body", "after inner", "after outer"]


def test_a_worker_starts_and_stops_with_its_hooks(app: Evenflow, told: list[str]) -> None:
    app.hooks.on_worker_start(lambda: told.append("start"))
    app.hooks.on_worker_stop(lambda: told.append("stop"))
    app.task(name="note")(lambda: told.append("body")).enqueue()
    app.run_worker(until_empty=True)
    assert told == ["start", "body", "stop"]


def test_an_error_of_a_start_hook_keeps_the_worker_from_serving(app: Evenflow, told: list[str]) -> None:
    @app.hooks.on_worker_start
    def broken() -> None:
        raise RuntimeError("the model is missing")

    job = app.task(name="note")(lambda: told.append("body")).enqueue()
    with pytest.raises(RuntimeError, match="the model is missing"):
        app.run_worker(until_empty=True)
    assert told == []
    assert job.refresh().state is State.READY


def test_an_error_of_a_stop_hook_leaves_no_worker_in_the_books(app: Evenflow) -> None:
    @app.hooks.on_worker_stop
    def broken() -> None:
        raise RuntimeError("the pool will not close")

    job = app.task(name="note")(lambda: 5).enqueue()
    with pytest.raises(RuntimeError, match="the pool will not close"):
        app.run_worker(until_empty=True)
    assert job.refresh().state is State.SUCCEEDED
    assert leases.workers(app._producer.engine) == []


def test_a_body_is_surrounded_with_its_context(app: Evenflow, told: list[str]) -> None:
    @app.hooks.around_run
    def around(ctx: Context) -> Iterator[None]:
        told.append(f"before {ctx.task} {ctx.attempt}")
        try:
            yield
        finally:
            told.append(f"after {ctx.task}")

    async def anote() -> None:
        await asyncio.sleep(0)
        told.append("coroutine")

    app.task(name="function")(lambda: told.append("function")).enqueue()
    app.run_worker(until_empty=True)
    app.task(name="coroutine")(anote).enqueue()
    app.run_worker(until_empty=True)
    assert told == [
        "before function 1",
        "function",
        "after function",
        "before coroutine 1",
        "coroutine",
        "after coroutine",
    ]


def test_a_body_with_context_and_one_without_are_both_called_rightly(app: Evenflow) -> None:
    @app.hooks.around_run
    def around(ctx: Context) -> Iterator[None]:
        yield

    def plain(a: int, b: int = 2) -> int:
        return a + b

    def knowing(ctx: Context, a: int) -> tuple[str, int]:
        return ctx.job_id, a

    first, second = app.task(name="plain")(plain).enqueue(1), app.task(name="knowing")(knowing).enqueue(3)
    app.run_worker(until_empty=True)
    assert first.result(timeout=0) == 3
    assert second.result(timeout=0) == (second.id, 3)


def test_an_error_before_the_body_fails_the_job_without_running_it(app: Evenflow, told: list[str]) -> None:
    @app.hooks.around_run
    def around(ctx: Context) -> Iterator[None]:
        if ctx.task == "note":
            raise PermissionError("not here")
        yield

    job = app.task(name="note")(lambda: told.append("body")).enqueue()
    app.run_worker(until_empty=True)
    assert job.refresh().error is not None and job.error is not None
    assert (job.state, job.error.class_name, told) == (State.FAILED, "PermissionError", [])


def test_an_error_of_the_body_passes_through_its_surroundings(app: Evenflow, told: list[Any]) -> None:
    @app.hooks.around_run
    def around(ctx: Context) -> Iterator[None]:
        try:
            yield
        except ValueError as error:
            told.append(str(error))
            raise

    def explode() -> None:
        raise ValueError("from the body")

    job = app.task(name="explode")(explode).enqueue()
    app.run_worker(until_empty=True)
    assert told == ["from the body"]
    assert job.refresh().state is State.FAILED


def test_a_surrounding_that_swallows_the_error_makes_the_run_a_success(app: Evenflow) -> None:
    @app.hooks.around_run
    def swallow(ctx: Context) -> Iterator[None]:
        with contextlib.suppress(ValueError):
            yield

    def explode() -> int:
        raise ValueError("never mind")

    async def aexplode() -> int:
        raise ValueError("never mind")

    jobs = [app.task(name="f")(explode).enqueue(), app.task(name="c")(aexplode).enqueue()]
    app.run_worker(until_empty=True)
    assert [job.result(timeout=0) for job in jobs] == [None, None]


def test_surroundings_of_functions_run_on_the_bodys_thread(app: Evenflow, told: list[Any]) -> None:
    @app.hooks.around_run
    def around(ctx: Context) -> Iterator[None]:
        told.append(threading.get_ident())
        yield

    app.task(name="note")(lambda: told.append(threading.get_ident())).enqueue()
    app.run_worker(until_empty=True)
    assert told[0] == told[1]
