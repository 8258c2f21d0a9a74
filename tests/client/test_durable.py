"""Durable bodies: steps that are done once, sleeps and waits without a slot, events."""

import asyncio
import contextlib
import threading
from typing import Any

import pytest

from evenflow import Context, Evenflow, EventTimeout, JobFailed, Retry
from tests.client.serving import serving
from tests.processes import wait_until


class Counting:
    """Functions that know how often they were called."""

    def __init__(self) -> None:
        self.calls: list[Any] = []

    def note(self, value: int) -> int:
        self.calls.append(value)
        return value * 10

    async def anote(self, value: int) -> int:
        self.calls.append(value)
        return value * 10


@pytest.fixture
def counting() -> Counting:
    return Counting()


class TestAStep:
    def test_is_not_done_again_by_a_later_attempt(self, app: Evenflow, counting: Counting) -> None:
        @app.task(name="body", retry=Retry(max_attempts=3, base=0))
        def body(ctx: Context) -> int:
            one: int = ctx.step("one", counting.note, 1)
            two: int = ctx.step("two", counting.note, value=2)
            if ctx.attempt < 3:
                raise ValueError("again")
            return one + two

        job = body.enqueue()
        app.run_worker(until_empty=True)
        assert job.result() == 30
        assert counting.calls == [1, 2]

    def test_works_in_coroutines_with_both_kinds_of_functions(
        self, app: Evenflow, counting: Counting
    ) -> None:
        @app.task(name="body", retry=Retry(max_attempts=2, base=0))
        async def body(ctx: Context) -> int:
            one = await ctx.step("one", counting.anote, 1)
            two = await ctx.step("two", counting.note, 2)
            if ctx.attempt == 1:
                raise ValueError("again")
            return int(one + two)

        job = body.enqueue()
        app.run_worker(until_empty=True)
        assert job.result() == 30
        assert counting.calls == [1, 2]

    def test_that_failed_is_tried_again_and_comes_back_by_its_annotation(self, app: Evenflow) -> None:
        tried = []

        def pair() -> tuple[int, str]:
            tried.append(1)
            if len(tried) == 1:
                raise ValueError("first")
            return 1, "x"

        @app.task(name="body", retry=Retry(max_attempts=3, base=0))
        def body(ctx: Context) -> str:
            found = ctx.step("pair", pair)
            if ctx.attempt == 2:
                raise ValueError("second")
            return repr(found)

        job = body.enqueue()
        app.run_worker(until_empty=True)
        assert job.result() == "(1, 'x')"
        assert len(tried) == 2

    def test_is_remembered_when_a_failed_job_is_put_back_to_work(
        self, app: Evenflow, counting: Counting
    ) -> None:
        mended: list[int] = []

        @app.task(name="body")
        def body(ctx: Context) -> int:
            one: int = ctx.step("one", counting.note, 1)
            if not mended:
                raise ValueError("not yet")
            return one

        job = body.enqueue()
        app.run_worker(until_empty=True)
        mended.append(1)
        app.retry(job.id)
        app.run_worker(until_empty=True)
        assert job.result() == 10
        assert counting.calls == [1]

    def test_with_a_name_that_is_there_twice_is_an_error(self, app: Evenflow, counting: Counting) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> None:
            for number in range(2):
                ctx.step("same", counting.note, number)

        job = body.enqueue()
        app.run_worker(until_empty=True)
        with pytest.raises(JobFailed, match="step 'same' is there twice"):
            job.result()

    @pytest.mark.parametrize("name", ["n" * 256, "a\0b"])
    def test_with_a_name_that_cannot_be_stored_is_not_begun(
        self, app: Evenflow, counting: Counting, name: Any
    ) -> None:
        @app.task(name="body", retry=Retry(max_attempts=2, base=0))
        def body(ctx: Context) -> None:
            ctx.step(name, counting.note, 1)

        job = body.enqueue()
        app.run_worker(until_empty=True)
        assert (job.refresh().state, counting.calls) == ("failed", [])
        assert job.error is not None
        assert job.error.message.startswith("step: ")

    def test_of_a_coroutine_in_a_plain_body_is_an_error(self, app: Evenflow, counting: Counting) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> None:
            ctx.step("one", counting.anote, 1)

        job = body.enqueue()
        app.run_worker(until_empty=True)
        with pytest.raises(JobFailed, match="expected a plain function in a plain body"):
            job.result()

    def test_in_a_plain_call_simply_calls(self, app: Evenflow, counting: Counting) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> int:
            ctx.sleep(0)
            return int(ctx.step("one", counting.note, 1))

        call: Any = body
        assert call() == 10


class TestASleep:
    def test_frees_the_slot_and_uses_no_attempt(self, app: Evenflow, counting: Counting) -> None:
        has_begun, has_run = threading.Event(), threading.Event()

        @app.task(name="body")
        def body(ctx: Context) -> int:
            ctx.step("before", counting.note, 1)
            has_begun.set()
            while not has_run.is_set():  # nobody else has the slot before it sleeps, however long it tries
                ctx.sleep(0.1)
            ctx.step("after", counting.note, 2)
            return ctx.attempt

        @app.task(name="other")
        def other() -> None:
            has_run.set()

        with serving(app, concurrency=1):
            job = body.enqueue()
            assert has_begun.wait(30)
            other.enqueue()
            assert job.result(timeout=30) == 1
        assert counting.calls == [1, 2]

    def test_with_a_name_is_none_of_those_that_are_told_apart_by_their_order(self, app: Evenflow) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> None:
            ctx.sleep(0)
            ctx.sleep("1 hour", name="1")

        job = body.enqueue()
        app.run_worker(until_empty=True)
        assert job.refresh().state == "scheduled"

    def test_cannot_be_taken_for_an_error_by_the_body(self, app: Evenflow) -> None:
        @app.task(name="body")
        async def body(ctx: Context) -> str:
            try:
                await ctx.sleep(0.1)
            except Exception:
                return "caught"
            return "slept"

        with serving(app):
            assert body.enqueue().result(timeout=30) == "slept"

    def test_can_be_cancelled(self, app: Evenflow) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> None:
            ctx.sleep("1 hour", name="long")

        job = body.enqueue()
        app.run_worker(until_empty=True)
        assert job.refresh().state == "scheduled"
        assert job.cancel()
        assert job.refresh().state == "cancelled"


class TestAnEvent:
    @pytest.mark.parametrize("is_async", [False, True])
    def test_wakes_who_waits_for_it_with_its_payload(self, app: Evenflow, is_async: bool) -> None:
        if is_async:

            @app.task(name="body")
            async def abody(ctx: Context) -> Any:
                return await ctx.wait_event("paid")
        else:

            @app.task(name="body")
            def body(ctx: Context) -> Any:
                return ctx.wait_event("paid")

        with serving(app, concurrency=1):
            job = app.tasks["body"].enqueue()
            wait_until(lambda: job.refresh().state == "scheduled", "the body to wait")
            assert app.emit("other") == 0
            assert app.emit("paid", {"amount": 5}) == 1
            assert job.result(timeout=30) == {"amount": 5}

    def test_that_came_before_the_wait_but_after_the_job_is_found(self, app: Evenflow) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> Any:
            return [ctx.wait_event("tick"), ctx.wait_event("tick")]

        app.emit("tick", "old")
        job = body.enqueue()
        app.emit("tick", 1)
        app.emit("tick", 2)
        app.run_worker(until_empty=True)
        assert job.result(timeout=0) == [1, 2]

    def test_that_does_not_come_in_time_is_an_error_that_can_be_caught(self, app: Evenflow) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> str:
            try:
                ctx.wait_event("paid", timeout=0.2)
            except EventTimeout:
                ctx.sleep(0.05)
                return "late"
            return "paid"

        with serving(app):
            job = body.enqueue()
            assert job.result(timeout=30) == "late"

    def test_that_comes_while_the_body_goes_to_sleep_is_not_missed(self, app: Evenflow) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> Any:
            return ctx.wait_event(f"paid-{ctx.job_id}")

        with serving(app, concurrency=8):
            jobs = [body.enqueue() for _ in range(30)]
            for job in jobs:
                app.emit(f"paid-{job.id}", job.id)
            assert [job.result(timeout=30) for job in jobs] == [job.id for job in jobs]

    @pytest.mark.parametrize("payload", ["an event", None])
    def test_wakes_nobody_whose_wait_is_over(self, app: Evenflow, payload: str | None) -> None:
        @app.task(name="sleeper")
        def sleeper(ctx: Context) -> None:
            with contextlib.suppress(EventTimeout):
                ctx.wait_event("go", timeout=0)
            ctx.sleep("1 hour")

        @app.task(name="failing", retry=Retry(max_attempts=3, base=3600))
        def failing(ctx: Context) -> None:
            with contextlib.suppress(EventTimeout):
                ctx.wait_event("go", timeout=0)
            raise ConnectionError

        jobs = [sleeper.enqueue(), failing.enqueue()]
        if payload is not None:
            app.emit("go", payload)
        app.run_worker(until_empty=True)
        assert app.emit("go", "another") == 0
        app.run_worker(until_empty=True)
        assert [(job.refresh().state, job.attempt) for job in jobs] == [("scheduled", 0), ("scheduled", 1)]

    @pytest.mark.parametrize("timeout", [None, "1 hour"])
    @pytest.mark.parametrize("comes_meanwhile", [True, False])
    def test_is_waited_for_again_after_the_run_was_paused(
        self, app: Evenflow, timeout: str | None, comes_meanwhile: bool
    ) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> Any:
            return ctx.wait_event("go", timeout)

        wf = app.workflow("waits")
        wf.step(body)
        run = wf.start()
        app.run_worker(until_empty=True)
        run.pause()
        if comes_meanwhile:
            assert app.emit("go", 5) == 0
        run.resume()
        app.run_worker(until_empty=True)
        if not comes_meanwhile:
            assert [step.state for step in run.steps()] == ["scheduled"]
            assert app.emit("go", 5) == 1
            app.run_worker(until_empty=True)
        assert run.result(timeout=0) == 5

    def test_may_have_the_longest_name_that_can_be_emitted(self, app: Evenflow) -> None:
        @app.task(name="body")
        def body(ctx: Context) -> Any:
            return ctx.wait_event("e" * 255, timeout="1 hour")

        job = body.enqueue()
        app.emit("e" * 255, 5)
        app.run_worker(until_empty=True)
        assert job.result(timeout=0) == 5

    def test_cannot_be_waited_for_outside_of_a_job(self, app: Evenflow) -> None:
        @app.task(name="body")
        async def body(ctx: Context) -> None:
            await ctx.wait_event("paid")

        call: Any = body
        with pytest.raises(Exception, match="in jobs only"):
            asyncio.run(call())
