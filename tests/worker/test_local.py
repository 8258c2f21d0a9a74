"""A worker in this process: its start, its loop, its end."""

import asyncio
import math
import os
import re
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import pytest

from evenflow import Evenflow, EvenflowError, Resilience, State
from evenflow.errors import ConfigError, StoreUnavailable
from evenflow.services.rescuer import Rescuer
from evenflow.store import leases
from evenflow.worker import local as local_module
from evenflow.worker.local import close_event_loop, enter_books, new_event_loop, new_worker_id
from evenflow.worker.outage import WorkerGaveUp
from tests.worker.command import Books
from tests.worker.conftest import MakeApp

QUICK = Resilience(db_retry_initial_ms=100, db_retry_max_ms=500)


def test_every_incarnation_has_an_identity_of_its_own() -> None:
    ids = [new_worker_id() for _ in range(1000)]
    assert len(set(ids)) == 1000
    assert all(0 < number < 2**63 for number in ids)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"concurrency": 0}, "concurrency: expected a whole number from 1 to 100,000, got 0"),
        ({"concurrency": 10**20}, "concurrency"),
        ({"concurrency": "4"}, "concurrency"),
        ({"max_claim_batch": -1}, "max_claim_batch: expected a whole number from 0"),
        ({"shutdown_timeout": math.nan}, "shutdown_timeout: expected a number of seconds"),
        ({"queues": "docs"}, "queues: expected a list of names, got 'docs'; write ['docs']"),
    ],
)
def test_a_worker_refuses_options_that_make_no_sense(
    sqlite_app: Evenflow, wrong: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        sqlite_app.run_worker(until_empty=True, **wrong)
    with pytest.raises(ConfigError, match=re.escape(said)):
        asyncio.run(sqlite_app.arun_worker(until_empty=True, **wrong))


def test_registering_may_be_repeated_when_its_answer_was_lost(app: Evenflow, books: Books) -> None:
    app.prepare()
    for _ in range(2):
        enter_books(app._producer.engine, 5, kind="worker", host="here", pid=7, lease_us=1)
    assert books.column("pid", "worker") == [7]


def test_a_registration_whose_answer_is_lost_is_repeated(
    make_app: MakeApp, engine_url: str, books: Books, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(engine_url, resilience=QUICK)
    register, calls = leases.register, []

    def lossy(*arguments: Any, **options: Any) -> None:
        register(*arguments, **options)
        calls.append(1)
        raise StoreUnavailable("the answer was lost")

    monkeypatch.setattr(leases, "register", lossy)
    assert app.task(name="one")(lambda: 1).enqueue() is not None
    app.run_worker(until_empty=True)
    assert calls == [1]
    assert books.states() == {"succeeded": 1}


def test_a_worker_is_in_the_books_while_it_serves_and_not_after(app: Evenflow, books: Books) -> None:
    found: list[Any] = []
    app.task(name="look")(lambda: found.extend(books.rows("select kind, pid from {worker}"))).enqueue()
    app.run_worker(until_empty=True)
    assert found == [("worker", os.getpid())]
    assert books.rows("select count(*) from {worker}") == [(0,)]


def test_a_worker_waits_for_a_database_that_is_not_there_yet(
    make_app: MakeApp, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(engine_url, resilience=QUICK)
    job = app.task(name="one")(lambda: 1).enqueue()
    make_ready, failures = app._producer.make_ready, iter([1, 1, 1])

    def not_yet() -> None:
        for _ in failures:
            raise StoreUnavailable("not yet")
        make_ready()

    monkeypatch.setattr(app._producer, "make_ready", not_yet)
    app.run_worker(until_empty=True)
    assert job.result(timeout=0) == 1


async def test_the_wait_for_a_database_can_be_cancelled(
    make_app: MakeApp, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(engine_url, resilience=Resilience(db_retry_initial_ms=60_000, db_retry_max_ms=300_000))

    def never() -> None:
        raise StoreUnavailable("not yet")

    monkeypatch.setattr(app._producer, "make_ready", never)
    before = threading.active_count()
    running = asyncio.create_task(app.arun_worker())
    await asyncio.sleep(0.2)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await asyncio.get_running_loop().shutdown_default_executor()
    assert threading.active_count() <= before, "no thread goes on waiting"


def test_patience_at_the_start_ends_where_the_settings_say_so(
    make_app: MakeApp, engine_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(
        engine_url,
        resilience=Resilience(db_retry_initial_ms=100, db_retry_max_ms=500, db_retry_max_attempts=2),
    )

    def never() -> None:
        raise StoreUnavailable("not yet")

    monkeypatch.setattr(app._producer, "make_ready", never)
    with pytest.raises(WorkerGaveUp, match="2 times in a row"):
        app.run_worker()


async def test_a_worker_beside_other_coroutines_stops_when_it_is_cancelled(app: Evenflow) -> None:
    task = app.task(name="one")(lambda: 1)
    running = asyncio.create_task(app.arun_worker())
    job = await task.aenqueue()
    assert await job.aresult(timeout=30) == 1
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running


async def test_a_worker_that_is_cancelled_twice_hurries_and_leaves_nothing_behind(app: Evenflow) -> None:
    began, let_go = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        let_go.wait(60)

    job = app.task(name="hold")(hold).enqueue()
    running = asyncio.create_task(app.arun_worker(shutdown_timeout=600))
    assert await asyncio.to_thread(began.wait, 30)
    running.cancel()
    await asyncio.sleep(0.1)
    assert not running.done(), "it waits for what runs"
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    let_go.set()
    assert (job.refresh().state, job.attempt) == (State.READY, 0)
    assert leases.workers(app._producer.engine) == []


def test_the_loop_of_coroutines_is_the_fast_one_where_there_is_one() -> None:
    loop = new_event_loop()
    assert type(loop).__module__ == "uvloop"
    close_event_loop(loop)


def test_without_the_fast_loop_the_usual_one_does(app: Evenflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(local_module, "new_event_loop", asyncio.new_event_loop)

    async def one() -> int:
        await asyncio.sleep(0)
        return 1

    job = app.task(name="one")(one).enqueue()
    app.run_worker(until_empty=True)
    assert job.result(timeout=0) == 1


TERM_AT_ONCE = """
import asyncio, os, signal, sys
from evenflow import Evenflow
from evenflow.worker import local
if sys.argv[2] == "asyncio":
    local.new_event_loop = asyncio.new_event_loop
app = Evenflow(sys.argv[1])
handled = local.signal.signal

def install(number, handler):
    # The worst moment: the handler is there, the loop does not turn yet.
    before = handled(number, handler)
    if number == signal.SIGTERM and callable(handler):
        os.kill(os.getpid(), number)
    return before

local.signal.signal = install
app.run_worker()
print("stopped")
"""


@pytest.mark.parametrize("loop", ["uvloop", "asyncio"])
def test_a_signal_that_comes_before_the_loop_turns_is_not_lost(
    make_app: MakeApp, sqlite_url: str, tmp_path: Path, loop: str
) -> None:
    make_app(sqlite_url).prepare()
    path = tmp_path / "script.py"
    path.write_text(TERM_AT_ONCE)
    ended = subprocess.run(
        [sys.executable, str(path), sqlite_url, loop], capture_output=True, text=True, timeout=30, check=False
    )
    assert (ended.returncode, ended.stdout) == (0, "stopped\n"), ended.stderr


def test_a_loop_that_is_closed_lets_coroutines_clean_up() -> None:
    loop = new_event_loop()
    told: list[str] = []

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            await asyncio.sleep(0.01)
            told.append("clean")

    task = loop.create_task(body())
    loop.run_until_complete(asyncio.sleep(0.01))
    close_event_loop(loop)
    assert told == ["clean"]
    assert task.cancelled()
    assert loop.is_closed()


def test_coroutines_of_two_jobs_share_one_loop(app: Evenflow) -> None:
    loops: set[int] = set()

    async def look() -> None:
        loops.add(id(asyncio.get_running_loop()))

    app.task(name="look")(look).enqueue_many([()] * 20)
    app.run_worker(until_empty=True)
    assert len(loops) == 1


def test_a_service_that_dies_stops_the_worker_and_is_told(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Rescuer) -> float:
        raise RuntimeError("a bug")

    monkeypatch.setattr(Rescuer, "step", broken)
    with pytest.raises(EvenflowError, match="a service of this worker died") as told:
        app.run_worker()
    assert str(told.value.__cause__) == "a bug"
