"""The kit: what was enqueued, running it, both modes, and what is put back afterwards."""

import sqlite3
import threading
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from unittest import mock

import psycopg
import pytest

from evenflow import (
    Concurrency,
    Context,
    Evenflow,
    EvenflowError,
    Fail,
    JobFailed,
    Queue,
    Retry,
    Snooze,
    State,
)
from evenflow.errors import StoreError
from evenflow.testing import Kit, inline, manual
from tests.client.conftest import MakeApp


@pytest.fixture
def mail(app: Evenflow) -> Any:
    @app.task(name="mail", queue="mail")
    def mail(to: str, text: str = "hello", **more: Any) -> str:
        return f"{to}: {text}"

    return mail


class TestWhatWasEnqueued:
    def test_is_found_by_task_and_a_part_of_the_arguments_by_name(self, kit: Kit, mail: Any) -> None:
        job = mail.enqueue("bob", text="hi", user={"id": 1, "name": "Bob"})
        assert kit.assert_enqueued(mail) == job
        assert kit.assert_enqueued(mail, {"to": "bob"}) == job
        assert kit.assert_enqueued("mail", {"text": "hi", "more": {"user": {"id": 1}}}) == job
        assert kit.assert_enqueued(mail, {"to": lambda to: to.startswith("b")}) == job
        assert kit.assert_enqueued(mail, {"to": mock.ANY}, count=1) == job
        kit.refute_enqueued(mail, {"to": "alice"})

    def test_is_not_looked_for_by_what_no_job_can_have(self, kit: Kit, mail: Any) -> None:
        with pytest.raises(TypeError, match="task 'mail' has no argument 'unknown'; it has to, "):
            kit.refute_enqueued(mail, {"unknown": 1})
        with pytest.raises(TypeError, match="expected a task or its name, got 5"):
            kit.refute_enqueued(5)  # type: ignore[arg-type]
        with pytest.raises(TypeError, match="perform: expected a task of Evenflow, got 'mail'"):
            kit.perform("mail", "bob")  # type: ignore[arg-type]

    def test_is_found_by_the_first_arguments_in_order(self, kit: Kit, mail: Any) -> None:
        mail.enqueue("bob", "hi")
        kit.assert_enqueued(mail, ("bob",))
        kit.assert_enqueued(mail, ["bob", "hi"])
        kit.refute_enqueued(mail, ("bob", "hi", 3))
        with pytest.raises(TypeError, match="expected a mapping or a sequence of arguments, got 'bob'"):
            kit.assert_enqueued(mail, "bob")

    def test_is_found_by_queue_priority_and_group(self, kit: Kit, mail: Any) -> None:
        mail.using(queue="slow", priority=-5, group="acme").enqueue("bob")
        kit.assert_enqueued(mail, queue="slow", priority=-5, group="acme")
        for other in ({"queue": "mail"}, {"priority": 0}, {"group": "other"}):
            kit.refute_enqueued(mail, **other)

    def test_is_found_by_the_time_at_which_it_is_to_run(self, kit: Kit, mail: Any) -> None:
        mail.using(run_after=3600).enqueue("bob")
        kit.assert_enqueued(mail, run_at=timedelta(hours=1))
        kit.assert_enqueued(mail, run_at=kit.clock.now + timedelta(hours=1))
        kit.assert_enqueued(mail, run_at=(60, 7200), state="scheduled")
        kit.refute_enqueued(mail, run_at=0)
        kit.refute_enqueued(mail, run_at=(0, 60))

    def test_is_open_unless_another_state_is_asked_for(self, kit: Kit, mail: Any) -> None:
        job = mail.enqueue("bob")
        kit.drain()
        kit.refute_enqueued(mail)
        assert kit.assert_enqueued(mail, state="succeeded") == job
        assert kit.all_enqueued(mail, state="any") == [job]

    def test_is_listed_by_an_assertion_that_fails(self, kit: Kit, mail: Any) -> None:
        with pytest.raises(AssertionError, match="found 0; nothing was enqueued"):
            kit.assert_enqueued(mail)
        mail.enqueue("bob", text="hi")
        with pytest.raises(AssertionError) as missing:
            kit.assert_enqueued(mail, {"to": "alice"}, queue="mail")
        assert "expected a job with task mail, arguments {'to': 'alice'}, queue 'mail'" in str(missing.value)
        assert "mail('bob', 'hi'): ready, queue 'mail', priority 0, run_at " in str(missing.value)
        with pytest.raises(AssertionError, match="expected no job with task mail"):
            kit.refute_enqueued(mail)
        with pytest.raises(AssertionError, match=r"expected 2 jobs with task mail.*; found 1"):
            kit.assert_enqueued(mail, count=2)

    def test_of_earlier_tests_on_the_same_database_is_not_seen(
        self, app: Evenflow, mail: Any, sqlite_url: str
    ) -> None:
        for _ in range(2):
            with manual(app, url=sqlite_url) as kit:
                kit.refute_enqueued(mail)
                mail.enqueue("bob")
                assert len(kit.all_enqueued()) == 1


class TestADrain:
    def test_runs_everything_and_counts_by_end(self, kit: Kit, app: Evenflow) -> None:
        @app.task(retry=Retry(max_attempts=2, base=60))
        def shaky(way: str) -> Any:
            if way == "raise":
                raise ValueError("no")
            return {"fail": Fail("BAD"), "snooze": Snooze(60), "fine": 1}[way]

        for way in ("fine", "fine", "raise", "snooze", "fail"):
            shaky.enqueue(way)
        assert kit.drain() == {"succeeded": 2, "scheduled": 3}
        kit.clock.advance(seconds=200)
        assert kit.drain() == {"failed": 2, "scheduled": 1}

    def test_runs_on_this_thread_and_coroutines_too(self, kit: Kit, app: Evenflow) -> None:
        threads = []

        @app.task
        def plain() -> None:
            threads.append(threading.get_ident())

        @app.task
        async def awaited() -> None:
            threads.append(threading.get_ident())

        @app.task(run_in="process")
        def isolated() -> None:
            threads.append(threading.get_ident())

        for task in (plain, awaited, isolated):
            task.enqueue()
        kit.drain()
        assert threads == [threading.get_ident()] * 3

    def test_runs_what_bodies_enqueue_unless_it_is_told_not_to(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        def count_down(left: int) -> None:
            if left:
                count_down.enqueue(left - 1)

        count_down.enqueue(3)
        count_down.enqueue(0)
        assert kit.drain(until_empty=False) == {"succeeded": 2}
        kit.assert_enqueued(count_down, (2,), count=1)
        assert kit.drain() == {"succeeded": 3}

    def test_can_be_of_one_queue(self, kit: Kit, mail: Any) -> None:
        mail.enqueue("bob")
        mail.using(queue="other").enqueue("alice")
        assert kit.drain("other") == {"succeeded": 1}
        kit.assert_enqueued(mail, ("bob",), count=1)
        assert kit.drain(["mail", "other"]) == {"succeeded": 1}

    def test_raises_what_a_body_raised_where_that_is_wanted(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        def broken() -> None:
            raise ValueError("no")

        job = broken.enqueue()
        with pytest.raises(ValueError, match="no"):
            kit.drain(raises=True)
        assert job.refresh().state is State.FAILED

    def test_finds_that_a_function_took_too_long(self, kit: Kit, app: Evenflow) -> None:
        @app.task(timeout=0.01)
        def slow() -> None:
            time.sleep(0.02)

        job = slow.enqueue()
        assert kit.drain() == {"failed": 1}
        assert [error.code for error in job.refresh().errors] == ["TASK_TIMEOUT"]

    def test_keeps_limits_priorities_and_workflows(self, app: Evenflow, engine_url: str) -> None:
        order = []

        @app.task(name="note", concurrency=Concurrency(1, key="name"))
        def note(name: str) -> str:
            order.append(name)
            return name

        @app.task(name="same")
        def same(name: str) -> str:
            return name

        with manual(app, url=engine_url) as kit:
            note.enqueue("second")
            note.using(priority=-5).enqueue("first")
            note.enqueue("second")
            wf = app.workflow("two")
            wf.step(same, wf.step(note, "step").output)
            run = wf.start()
            assert kit.drain() == {"succeeded": 5}
            assert order[0] == "first" and order.count("second") == 2
            assert run.result(timeout=0) == "step"

    async def test_works_beside_a_running_event_loop(self, kit: Kit, mail: Any) -> None:
        await mail.aenqueue("bob")
        assert kit.drain() == {"succeeded": 1}
        await mail.aenqueue("bob")
        assert await kit.adrain() == {"succeeded": 1}


class TestInlineMode:
    def test_runs_a_job_before_enqueue_returns(self, app: Evenflow, mail: Any, engine_url: str) -> None:
        with inline(app, url=engine_url) as kit:
            job = mail.enqueue("bob")
            assert job.state is State.SUCCEEDED and job.result(timeout=0) == "bob: hello"
            kit.assert_enqueued(mail, {"to": "bob"})
            assert [each.state for each in mail.enqueue_many([("a",), ("b",)])] == [State.SUCCEEDED] * 2

    def test_leaves_what_is_to_run_later_for_later(self, app: Evenflow, mail: Any) -> None:
        with inline(app) as kit:
            job = mail.using(run_after=60).enqueue("bob")
            assert job.state is State.SCHEDULED
            kit.clock.advance(60)
            assert kit.drain() == {"succeeded": 1}

    def test_nests(self, app: Evenflow) -> None:
        @app.task
        async def inner() -> int:
            return 2

        @app.task
        async def outer() -> int:
            return 1 + (await inner.aenqueue()).result(timeout=0)

        @app.task
        def plain() -> int:
            return 1 + outer.enqueue().result(timeout=0)

        with inline(app):
            assert plain.enqueue().result(timeout=0) == 4

    def test_does_not_raise_what_the_job_raised(self, app: Evenflow) -> None:
        @app.task
        def broken() -> None:
            raise ValueError("no")

        with inline(app):
            job = broken.enqueue()
            with pytest.raises(JobFailed, match="no"):
                job.result(timeout=0)

    def test_runs_a_job_inside_of_the_caller_s_transaction(
        self, app: Evenflow, mail: Any, make_app: MakeApp, sqlite_url: str
    ) -> None:
        make_app(sqlite_url).migrate()
        with inline(app, url=sqlite_url) as kit:
            connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
            connection.execute("begin")
            job = mail.enqueue("bob", connection=connection)
            assert connection.execute("select state from evenflow_history").fetchall() == [("succeeded",)]
            connection.rollback()
            connection.close()
            assert kit.all_enqueued(mail, state="any") == []
            with pytest.raises(LookupError):
                job.refresh()


class TestInsideOfATransaction:
    def test_everything_goes_with_its_rollback_on_postgres(
        self, app: Evenflow, mail: Any, postgres_url: str
    ) -> None:
        with psycopg.connect(postgres_url) as connection:
            with manual(app, connection=connection) as kit:
                job = mail.enqueue("bob")
                wf = app.workflow("two")
                wf.step(mail, wf.step(mail, "alice").output)
                run = wf.start()
                assert kit.drain() == {"succeeded": 3}
                assert job.result(timeout=0) == "bob: hello"
                assert run.result(timeout=0) == "alice: hello: hello"
            connection.rollback()
            for table in ("job", "history", "worker", "queue"):
                assert connection.execute(f"select count(*) from evenflow.{table}".encode()).fetchone() == (
                    0,
                )

    def test_everything_goes_with_its_rollback_on_sqlite(
        self, app: Evenflow, make_app: MakeApp, sqlite_url: str
    ) -> None:
        make_app(sqlite_url).migrate()

        @app.task(concurrency=Concurrency(1, key="name"), retry=Retry(2, base=60))
        def note(ctx: Context, name: str) -> int:
            if ctx.attempt == 1:
                raise ValueError
            return ctx.attempt

        connection = sqlite3.connect(sqlite_url.removeprefix("sqlite:///"))
        connection.execute("begin")
        with manual(app, connection=connection) as kit:
            note.enqueue_many([("a",), ("a",)])
            assert kit.run_for(minutes=10)["succeeded"] == 2
        connection.rollback()
        for table in ("job", "history", "hold", "queue"):
            assert connection.execute(f"select count(*) from evenflow_{table}").fetchone() == (0,)
        connection.close()


class TestThePerformedCall:
    def test_gets_and_gives_what_would_be_stored(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        def pair(path: Path, point: tuple[int, int]) -> tuple[int, ...]:
            assert isinstance(path, Path) and isinstance(point, tuple)
            return point

        assert kit.perform(pair, Path("x"), point=(1, 2)) == (1, 2)
        with pytest.raises(EvenflowError, match=r"cannot be stored|expected"):
            kit.perform(pair, object(), (1, 2))

        @app.task
        def unstorable() -> Any:
            return object()

        with pytest.raises(EvenflowError):
            kit.perform(unstorable)
        assert kit.all_enqueued(state="any") == []

    def test_gets_a_context(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        def attempts(ctx: Context, more: int = 0) -> int:
            ctx.progress(1, 2)
            return ctx.attempt + more

        assert kit.perform(attempts) == 1
        assert kit.perform(attempts, ctx=kit.context(attempt=3), more=1) == 4
        assert kit.perform(attempts, kit.context(attempt=2)) == 2

    def test_sleeps_without_waiting_and_does_its_steps_once(self, kit: Kit, app: Evenflow) -> None:
        done: list[str] = []

        @app.task
        def nap(ctx: Context) -> str:
            ctx.step("before", done.append, "before")
            ctx.sleep(timedelta(days=1))
            ctx.step("after", done.append, "after")
            return "rested"

        @app.task
        async def anap(ctx: Context) -> str:
            await ctx.sleep(timedelta(days=1))
            return "rested"

        assert kit.perform(nap) == kit.perform(anap) == "rested"
        assert done == ["before", "after"]
        assert kit.perform(anap, kit.context(attempt=2)) == "rested"

    def test_can_be_told_to_stop(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        def patient(ctx: Context) -> str | None:
            return ctx.cancel_reason

        context = kit.context()
        context.cancel("enough")
        assert kit.perform(patient, context) == "enough"

    async def test_is_awaited_in_coroutines(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        async def answer() -> int:
            return 42

        assert await kit.aperform(answer) == kit.perform(answer) == 42

    def test_raises_what_the_body_raises(self, kit: Kit, app: Evenflow) -> None:
        @app.task
        def broken() -> None:
            raise KeyError("x")

        with pytest.raises(KeyError):
            kit.perform(broken)


def test_afterwards_the_app_is_what_it_was(app: Evenflow, mail: Any) -> None:
    engine = app._producer.engine
    with manual(app, now=datetime(2030, 1, 1, tzinfo=UTC)):
        mail.enqueue("bob")
    assert (
        app._producer.engine is engine and app._producer.on_enqueued is None and engine.clock.set_us is None
    )
    with pytest.raises(StoreError, match="/nowhere"):
        mail.enqueue("bob")


def test_on_the_app_s_own_database_the_clock_is_let_go_afterwards(make_app: MakeApp, engine_url: str) -> None:
    app = make_app(engine_url, queues=[Queue("default")])

    @app.task
    def nothing() -> None: ...

    with manual(app, url=None, now=datetime(2030, 1, 1, tzinfo=UTC)) as kit:
        assert nothing.enqueue().refresh().created_at.year == 2030
        assert kit.drain() == {"succeeded": 1}
    assert nothing.enqueue().refresh().created_at.year != 2030


def test_a_kit_whose_block_has_ended_leaves_the_app_s_own_database_alone(sqlite_url: str) -> None:
    app = Evenflow(sqlite_url)
    hello = app.task(name="hello")(lambda: "hello")
    with manual(app, url=None) as kit:
        job = hello.enqueue()
    for ask in (kit.drain, kit.all_enqueued, lambda: kit.run_for(5), lambda: kit.refute_enqueued(hello)):
        with pytest.raises(RuntimeError, match="the block of this kit has ended"):
            ask()
    assert job.refresh().state is State.READY
    app.close()
