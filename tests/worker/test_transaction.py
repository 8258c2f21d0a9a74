"""Effects and end in one commit: exactly once, whatever happens between them."""

import sqlite3
import threading
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from evenflow import Concurrency, Context, Evenflow, EvenflowError, State
from evenflow.store import leases
from evenflow.testing import manual
from evenflow.worker.stopping import Stop
from evenflow.worker.transaction import RunTransaction
from tests.client.conftest import MakeApp
from tests.client.transactions import path_of
from tests.processes import wait_until
from tests.worker.conftest import StartWorker
from tests.worker.transaction_jobs import declared, insert

both_bodies = pytest.mark.parametrize("name", ["book", "abook"])


def run_sql(url: str, text: str) -> list[Any]:
    if url.startswith("sqlite"):
        connection = sqlite3.connect(path_of(url))
        with connection:
            rows = connection.execute(text).fetchall()
        connection.close()
        return rows
    with psycopg.connect(url) as session:
        cursor = session.execute(text.encode())
        return cursor.fetchall() if cursor.description else []


def effects(url: str) -> list[Any]:
    return run_sql(url, "select name, attempt from effect order by name, attempt")


@pytest.fixture
def app(engine_url: str, make_app: MakeApp) -> Evenflow:
    app = declared(make_app(engine_url))
    app.migrate()
    run_sql(engine_url, "create table effect (name text, attempt integer)")
    return app


@both_bodies
def test_what_a_body_does_is_committed_with_its_end(app: Evenflow, engine_url: str, name: str) -> None:
    jobs = app.tasks[name].enqueue_many([(str(number),) for number in range(5)])
    app.run_worker(until_empty=True)
    assert [job.result(timeout=0) for job in jobs] == [str(number) for number in range(5)]
    assert effects(engine_url) == [(str(number), 1) for number in range(5)]


@both_bodies
def test_a_body_that_raises_has_done_nothing_and_is_tried_again(
    app: Evenflow, engine_url: str, name: str
) -> None:
    job = app.tasks[name].enqueue("x", "raise")

    def has_ended() -> bool:
        app.run_worker(until_empty=True)
        return job.refresh().state.is_end

    wait_until(has_ended, "the second attempt", 30)
    assert job.result(timeout=0) == "x" and job.attempt == 2
    assert effects(engine_url) == [("x", 2)]


@both_bodies
def test_a_run_that_has_lost_its_job_is_rolled_back(
    app: Evenflow, engine_url: str, name: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lease ran out and another worker owns the job: here, because its epoch has moved on."""
    table = "evenflow_job" if engine_url.startswith("sqlite") else "evenflow.job"

    @app.hooks.around_run
    def lose(ctx: Context) -> Iterator[None]:
        run_sql(engine_url, f"update {table} set epoch = epoch + 1, worker = worker + 1")
        yield

    job = app.tasks[name].enqueue("x")
    with app._local_worker(app._served(None), app._pump_options(1, 0, 0.1, False), False) as worker:
        thread = threading.Thread(target=worker.run)
        thread.start()
        wait_until(lambda: "its result is dropped" in caplog.text, "the end that is refused", 30)
        worker.stop(Stop.AT_ONCE)
        thread.join(30)
    assert effects(engine_url) == [] and job.refresh().state is State.RUNNING


@both_bodies
def test_a_run_whose_transaction_cannot_be_rolled_back_ends_all_the_same(
    app: Evenflow, name: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    undo, aundo, troubles = RunTransaction.roll_back, RunTransaction.aroll_back, [OSError("the disk is gone")]

    def roll_back(transaction: RunTransaction) -> None:
        undo(transaction)
        if name == "book" and troubles:
            raise troubles.pop()

    async def aroll_back(transaction: RunTransaction) -> None:
        await aundo(transaction)
        if troubles:
            raise troubles.pop()

    monkeypatch.setattr(RunTransaction, "roll_back", roll_back)
    monkeypatch.setattr(RunTransaction, "aroll_back", aroll_back)
    job = app.tasks[name].enqueue("x", "raise")
    app.run_worker(until_empty=True)
    assert job.refresh().state is not State.RUNNING
    assert "could not be rolled back" in caplog.text


@both_bodies
def test_it_frees_keys_ends_steps_and_wakes_who_waits(app: Evenflow, name: str) -> None:
    @app.task(name="keyed", concurrency=Concurrency(1))
    def keyed(ctx: Context, name: str) -> str:
        with ctx.transaction() as connection:
            insert(ctx, connection, name)
        return name

    wf = app.workflow("two")
    wf.step(keyed, wf.step(app.tasks[name], "first").output)
    run = wf.start()
    jobs = keyed.enqueue_many([("a",), ("b",), ("c",)])
    app.run_worker(until_empty=True)
    assert sorted(job.result(timeout=10) for job in jobs) == ["a", "b", "c"]
    assert run.result(timeout=10) == "first"


def test_jobs_are_enqueued_in_it(app: Evenflow, engine_url: str) -> None:
    @app.task(name="spawn")
    def spawn(ctx: Context) -> str:
        with ctx.transaction() as connection:
            child: str = app.tasks["book"].using(connection=connection).enqueue("child").id
        return child

    job = spawn.enqueue()
    app.run_worker(until_empty=True)
    assert app.job(job.result(timeout=10)).result(timeout=10) == "child"


def test_a_body_that_commits_by_itself_fails(app: Evenflow) -> None:
    @app.task(name="hasty")
    def hasty(ctx: Context) -> None:
        with ctx.transaction() as connection:
            connection.execute("commit")

    job = hasty.enqueue()
    app.run_worker(until_empty=True)
    error = job.refresh().error
    assert error is not None and "leave commit and rollback to the worker" in error.message


@pytest.mark.slow
@pytest.mark.process
def test_an_isolated_body_has_it(engine_url: str, start_worker: StartWorker, app: Evenflow) -> None:
    job = app.tasks["isolated"].enqueue("x")
    worker = start_worker(engine_url, "--processes", "1", locator="tests.worker.transaction_jobs:app").ready()
    assert job.result(timeout=60) == "x"
    assert worker.stop() == 0
    assert effects(engine_url) == [("x", 1)]


def test_there_is_none_in_a_plain_call(app: Evenflow) -> None:
    with pytest.raises(EvenflowError, match="not in a plain call"):
        app.tasks["book"]("x")


def test_the_testing_kit_has_it(app: Evenflow, engine_url: str) -> None:
    with manual(app, url=engine_url) as kit:
        app.tasks["book"].enqueue("x", "raise")
        app.tasks["abook"].enqueue("y")
        assert kit.run_for(seconds=1) == {"scheduled": 1, "succeeded": 2}
    assert effects(engine_url) == [("x", 2), ("y", 1)]


@pytest.mark.slow
@pytest.mark.process
def test_a_kill_between_effect_and_commit_leaves_the_effect_exactly_once(
    app: Evenflow, engine_url: str, start_worker: StartWorker
) -> None:
    jobs = app.tasks["book"].enqueue_many([(f"die-{number}", "die") for number in range(3)])
    jobs += app.tasks["book"].enqueue_many([(f"fine-{number}",) for number in range(5)])
    options = ("--processes", "1", "--concurrency", "1")  # a death is no neighbour's
    worker = start_worker(engine_url, *options, locator="tests.worker.transaction_jobs:app").ready()
    assert sorted(job.result(timeout=60) for job in jobs) == sorted(job.args[0] for job in jobs)
    assert worker.stop() == 0
    names = [name for name, _ in effects(engine_url)]
    assert sorted(names) == sorted(job.args[0] for job in jobs)
    assert [job.refresh().crashes for job in jobs[:3]] == [1, 1, 1]
    assert leases.workers(app._producer.engine) == []
