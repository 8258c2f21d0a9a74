"""One run of one body: what it is given, what belongs to it, and what is not left behind for the next."""

import asyncio
import contextvars
import io
import logging
import threading
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest

from evenflow import Context, Evenflow, Snooze
from evenflow.worker.calling import Run, current_run
from evenflow.worker.logs import JobFilter
from tests.worker.test_outcome import job

shop = contextvars.ContextVar("shop", default="nobody")


@pytest.fixture
def lines() -> Iterator[io.StringIO]:
    """What is logged under `shop`, as a worker process writes it."""
    written = io.StringIO()
    handler = logging.StreamHandler(written)
    handler.addFilter(JobFilter())
    handler.setFormatter(logging.Formatter("%(message)s%(job)s"))
    logger = logging.getLogger("shop")
    logger.addHandler(handler)
    yield written
    logger.removeHandler(handler)


def test_only_the_first_decides_how_a_run_ends() -> None:
    run = Run(job(), None)
    assert not run.is_over
    assert [run.settle(), run.settle(), run.settle()] == [True, False, False]
    assert run.is_over


def test_a_context_knows_its_job(app: Evenflow) -> None:
    found: list[Context] = []

    def look(ctx: Context, a: int) -> None:
        found.append(ctx)

    task = app.task(name="look", queue="docs", timeout=30)(look)
    handle = task.using(group="bob").enqueue(5)
    before = datetime.now(UTC)
    app.run_worker(until_empty=True)
    (ctx,) = found
    assert (ctx.job_id, ctx.task, ctx.queue, ctx.group, ctx.attempt) == (handle.id, "look", "docs", "bob", 1)
    assert ctx.fence == 1
    assert ctx.deadline is not None
    assert timedelta(seconds=25) < ctx.deadline - before < timedelta(seconds=40)


def test_the_fence_grows_with_every_claim(app: Evenflow) -> None:
    fences: list[int] = []

    def look(ctx: Context) -> Snooze | None:
        fences.append(ctx.fence)
        return Snooze(0) if len(fences) < 3 else None

    app.task(name="look")(look).enqueue()
    app.run_worker(until_empty=True)
    assert fences == [1, 2, 3]


def test_a_log_line_below_a_body_names_its_job(app: Evenflow, lines: io.StringIO) -> None:
    def function() -> None:
        logging.getLogger("shop").warning("sold")

    async def coroutine() -> None:
        await asyncio.sleep(0)
        logging.getLogger("shop").warning("sold")

    jobs = [app.task(name="function")(function).enqueue(), app.task(name="coroutine")(coroutine).enqueue()]
    app.run_worker(until_empty=True)
    assert sorted(lines.getvalue().splitlines()) == sorted(f"sold [job {each.id}]" for each in jobs)


def test_a_log_line_of_the_context_names_its_job_also_from_a_thread_of_the_bodys_own(
    app: Evenflow, lines: io.StringIO
) -> None:
    async def coroutine(ctx: Context) -> None:
        await asyncio.to_thread(logging.getLogger("shop").warning, "copied")
        ctx.log.logger = logging.getLogger("shop")
        await asyncio.get_running_loop().run_in_executor(None, ctx.log.warning, "told")

    handle = app.task(name="coroutine")(coroutine).enqueue()
    app.run_worker(until_empty=True)
    assert lines.getvalue().splitlines() == [f"copied [job {handle.id}]", f"told [job {handle.id}]"]


def test_a_thread_forgets_the_run_that_is_over(app: Evenflow, lines: io.StringIO) -> None:
    runs: list[Run | None] = []
    app.task(name="look")(lambda: runs.append(current_run.get())).enqueue_many([()] * 3)
    app.run_worker(until_empty=True, concurrency=1)
    assert len({run.job.id for run in runs if run is not None}) == 3
    logging.getLogger("shop").warning("outside")
    assert lines.getvalue() == "outside\n"


def test_context_variables_of_one_function_do_not_reach_the_next_on_its_thread(app: Evenflow) -> None:
    threads: set[int] = set()

    def visit(name: str) -> str:
        threads.add(threading.get_ident())
        before = shop.get()
        shop.set(name)
        return before

    jobs = app.task(name="visit")(visit).enqueue_many([("a",), ("b",), ("c",)])
    app.run_worker(until_empty=True, concurrency=1)
    assert len(threads) == 1
    assert [job.result(timeout=0) for job in jobs] == ["nobody"] * 3


def test_context_variables_of_one_coroutine_do_not_reach_another(app: Evenflow) -> None:
    both = asyncio.Event()
    seen: dict[str, str] = {}

    async def visit(name: str) -> None:
        before = shop.get()
        shop.set(name)
        if len(seen) == 1:
            both.set()
        seen[name] = before
        await both.wait()
        assert shop.get() == name

    jobs = app.task(name="visit")(visit).enqueue_many([("a",), ("b",)])
    app.run_worker(until_empty=True)
    for each in jobs:
        each.result(timeout=0)
    assert seen == {"a": "nobody", "b": "nobody"}
