"""Waiting for ends: woken by the store and not by the fallback, without a thread per waiter, whoever ends the job."""

import asyncio
import gc
import logging
import os
import threading
import warnings
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import psycopg
import pytest

from evenflow import Evenflow, JobCancelled, Resilience, ResultTimeout, State
from evenflow.client import results
from evenflow.client.task import AnyTask
from evenflow.errors import StoreUnavailable
from evenflow.store import reads
from evenflow.store.open import AnyEngine
from evenflow.store.plain import advance_plainly
from evenflow.store.signals import watch_signals
from tests.client.conftest import MakeApp
from tests.client.serving import serving, worker_process
from tests.client.worker_process import build_app
from tests.processes import wait_until

# A wait that only the fallback would end fails the test by far, and a busy machine does not.
MUCH_LATER_S, SOONER_S = 60.0, 40.0


def echo(value: int) -> int:
    return value


def assert_quick(task: AnyTask) -> None:
    """Jobs are picked up and their results come back long before anybody would look by himself."""
    for value in range(4):
        assert task.enqueue(value).result(timeout=SOONER_S) == value


async def until(condition: Callable[[], bool]) -> None:
    """Let other coroutines run until the condition holds."""
    async with asyncio.timeout(30):
        while not condition():
            await asyncio.sleep(0.01)


@pytest.fixture
def no_fallback(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nobody looks by himself: what does not wake a waiter leaves it waiting."""
    monkeypatch.setattr(results, "LOOK_AGAIN_S", MUCH_LATER_S)


@pytest.mark.process
@pytest.mark.usefixtures("no_fallback")
def test_a_waiter_is_woken_by_a_worker_in_another_process(engine_url: str) -> None:
    with worker_process(engine_url), build_app(engine_url) as app:
        assert_quick(app.tasks["echo"])


@pytest.mark.process
@pytest.mark.usefixtures("no_fallback")
async def test_coroutines_are_woken_by_a_worker_in_another_process(engine_url: str) -> None:
    with worker_process(engine_url), build_app(engine_url) as app:
        jobs = app.tasks["echo"].enqueue_many([(value,) for value in range(20)])
        async with asyncio.timeout(SOONER_S):
            assert await asyncio.gather(*(job.aresult() for job in jobs)) == list(range(20))


@pytest.mark.usefixtures("no_fallback")
def test_a_waiter_is_woken_by_a_worker_of_its_own_process(app: Evenflow) -> None:
    task = app.task(name="echo")(echo)
    with serving(app):
        assert_quick(task)


@pytest.mark.usefixtures("no_fallback")
def test_a_waiter_is_woken_in_memory(make_app: MakeApp) -> None:
    app = make_app("sqlite:///:memory:")
    task = app.task(name="echo")(echo)
    with serving(app):
        assert_quick(task)


@pytest.mark.usefixtures("no_fallback")
def test_the_end_between_the_first_look_and_the_listening_is_not_missed(
    postgres_app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    # The worst moment: the watcher has looked and does not listen yet. Its announcement goes to nobody.
    task = postgres_app.task(name="echo")(echo)
    job = task.enqueue(7)
    looked = reads.ended_among

    def look_then_finish(*arguments: object) -> set[int]:
        found = looked(*arguments)  # type: ignore[arg-type]
        monkeypatch.setattr(reads, "ended_among", looked)
        postgres_app.run_worker(until_empty=True)
        return found

    monkeypatch.setattr(reads, "ended_among", look_then_finish)
    assert job.result(timeout=30) == 7


def test_a_claim_that_meets_a_waiter_asking_is_made_again(
    postgres_url: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Whoever asks for the end of a job locks its row for a moment; a claim in that moment steps over it.
    app = make_app(postgres_url, resilience=Resilience(notify_poll_interval_ms=60_000))
    task = app.task(name="echo")(echo)
    asked = reads.await_job
    stepped_over = threading.Event()

    def noted(*arguments: Any, **options: Any) -> Any:
        answer = advance_plainly(*arguments, **options)
        if not answer.claimed:
            stepped_over.set()
        return answer

    def ask_slowly(engine: AnyEngine, job: int) -> bool:
        with psycopg.connect(postgres_url) as session:
            session.execute("update evenflow.job set awaited = true where id = %s", (job,))
            stepped_over.clear()
            app.resume("default")
            assert stepped_over.wait(30)
        return asked(engine, job)

    with serving(app, queues=["default"]):
        assert task.enqueue(1).result(timeout=30) == 1
        app.pause("default")
        job = task.enqueue(2)
        monkeypatch.setattr("evenflow.worker.rounds.advance_plainly", noted)
        monkeypatch.setattr(reads, "await_job", ask_slowly)
        assert job.result(timeout=SOONER_S) == 2


def test_a_wait_without_announcements_ends_by_looking_again(
    sqlite_app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_AGAIN_S", 0.05)
    monkeypatch.setattr("evenflow.store.signals.VersionWatch._version", lambda self: 0)
    task = sqlite_app.task(name="echo")(echo)
    with serving(sqlite_app):
        assert task.enqueue(3).result(timeout=30) == 3


async def test_200_waiting_coroutines_need_no_thread_each(app: Evenflow) -> None:
    jobs = app.task(name="echo")(echo).enqueue_many([(value,) for value in range(200)])
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(2))
    before = threading.active_count()
    waiting = [asyncio.create_task(job.aresult(timeout=60)) for job in jobs]
    await until(lambda: len(app._producer.results._waiting) == 200)
    assert threading.active_count() - before <= 6, "a handful for all of them"
    await app.arun_worker(until_empty=True)
    assert await asyncio.gather(*waiting) == list(range(200))


def test_many_threads_wait_for_one_job(app: Evenflow) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    found: list[int] = []
    threads = [threading.Thread(target=lambda: found.append(job.result(timeout=30))) for _ in range(8)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(app._producer.results._waiting.get(job._record.id, ())) == 8, "eight waiters")
    app.run_worker(until_empty=True)
    for thread in threads:
        thread.join(30)
    assert found == [7] * 8
    assert app._producer.results._waiting == {}


async def test_a_cancelled_wait_leaves_nothing_behind(app: Evenflow) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    waiter = asyncio.create_task(job.aresult())
    await until(lambda: bool(app._producer.results._waiting))
    waiter.cancel()
    with pytest.raises(asyncio.CancelledError):
        await waiter
    assert app._producer.results._waiting == {}
    assert job.refresh().state is State.READY


def test_close_ends_the_watching_thread(app: Evenflow) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    with pytest.raises(ResultTimeout):
        job.result(timeout=0.05)
    app.close()
    assert "evenflow-results" not in [thread.name for thread in threading.enumerate()]


def test_a_wait_goes_on_when_its_app_is_closed_and_used_again(app: Evenflow) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    found: list[int] = []
    waiter = threading.Thread(target=lambda: found.append(job.result(timeout=30)))
    waiter.start()
    wait_until(lambda: bool(app._producer.results._waiting), "the waiter to wait")
    app.close()
    app.run_worker(until_empty=True)
    waiter.join(30)
    assert found == [7]


def _echo_after(event: threading.Event) -> Callable[[int], int]:
    """A body that ends when this has happened, and not before it, however slow somebody is."""

    def body(value: int) -> int:
        assert event.wait(20)
        return value

    return body


def test_a_waiter_outlives_a_database_that_is_away_for_a_while(
    sqlite_app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(results, "LOOK_AGAIN_S", 0.02)
    looked, outages, is_back = reads.ended_among, iter(range(3)), threading.Event()

    def away(*arguments: object) -> set[int]:
        if next(outages, None) is not None:
            raise StoreUnavailable("the database is away")
        is_back.set()
        return looked(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(reads, "ended_among", away)
    task = sqlite_app.task(name="echo")(_echo_after(is_back))
    with serving(sqlite_app):
        assert task.enqueue(3).result(timeout=30) == 3


def test_a_watching_thread_that_dies_is_replaced(
    sqlite_app: Evenflow, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(results, "LOOK_AGAIN_S", 0.02)
    watch, failures, is_over = watch_signals, iter(range(2)), threading.Event()

    def out_of_descriptors(*arguments: object) -> object:
        if next(failures, None) is not None:
            raise OSError(24, "Too many open files")
        is_over.set()
        return watch(*arguments)  # type: ignore[arg-type]

    monkeypatch.setattr(results, "watch_signals", out_of_descriptors)
    task = sqlite_app.task(name="echo")(_echo_after(is_over))
    with caplog.at_level(logging.ERROR, "evenflow.client"), serving(sqlite_app):
        assert task.enqueue(3).result(timeout=30) == 3
    assert "waiting for results failed" in caplog.text


def test_a_job_that_an_operator_ends_is_told_to_its_waiter(app: Evenflow) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    ends: list[str] = []

    def wait() -> None:
        try:
            job.result(timeout=30)
        except JobCancelled as ended:
            ends.append(str(ended.job.state))

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: bool(app._producer.results._waiting), "the waiter to wait")
    app.discard(job.id)
    waiter.join(30)
    assert ends == ["discarded"]


@pytest.mark.process
def test_a_fork_waits_for_results_of_its_own(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url)
    task = app.task(name="echo")(echo)
    with pytest.raises(ResultTimeout):
        task.using(run_after=3600).enqueue(0).result(timeout=0.05)
    job = task.enqueue(7)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # threads and fork: exactly what is tested
        child = os.fork()
    if child == 0:
        gc.disable()
        status = 1
        try:
            status = 0 if job.result(timeout=30) == 7 else 2
        finally:
            os._exit(status)
    app.run_worker(until_empty=True)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
