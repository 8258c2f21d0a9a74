"""Wake-ups: few notifications for many enqueues, idle workers that start at once, and polling where nothing is heard."""

import contextlib
import os
import resource
import secrets
import threading
import time
from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from evenflow import Evenflow, Resilience
from evenflow.store import signals
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import (
    ARRIVAL,
    Interrupt,
    Waker,
    queue_mark,
    readable,
    settle_wakers,
    watch_signals,
)
from evenflow.store.sqlite import SqliteEngine
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.client.transactions import path_of, with_psycopg
from tests.processes import wait_until

SOON_S = 20.0  # far above what a wake-up takes on a crowded machine, far below the minute for which others would wait


def echo(value: int) -> int:
    return value


@pytest.fixture
def postgres_engine(postgres_url: str) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(postgres_url)
    yield engine
    settle_wakers(engine)
    engine.close()


@pytest.fixture
def sqlite_engine(sqlite_url: str) -> Iterator[SqliteEngine]:
    engine = SqliteEngine(path_of(sqlite_url))
    yield engine
    engine.close()


@contextlib.contextmanager
def listening(url: str, channel: str) -> Iterator["psycopg.Connection[tuple[object, ...]]"]:
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f'listen "{channel}"'.encode())
        yield connection


def heard(connection: "psycopg.Connection[tuple[object, ...]]") -> list[str]:
    """Everything that was notified until now: it comes in the order of commits, so what we tell ourselves is the end of it."""
    end, payloads = secrets.token_hex(8), list[str]()
    connection.execute("select pg_notify(each, %s) from pg_listening_channels() each", (end,))
    for notify in connection.notifies(timeout=30):
        if notify.payload == end:
            return payloads
        payloads.append(notify.payload)
    raise TimeoutError("what the listener told itself did not come")


def test_the_wake_up_of_a_lone_enqueue_comes_with_its_commit(
    postgres_app: Evenflow, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    task = postgres_app.task(name="echo")(echo)
    postgres_app.migrate()
    units: list[str] = []
    run = PostgresEngine.run

    def noted(engine: PostgresEngine, name: str, *arguments: Any, **options: Any) -> Any:
        units.append(name)
        return run(engine, name, *arguments, **options)

    monkeypatch.setattr(PostgresEngine, "run", noted)
    monkeypatch.setattr(signals, "COALESCE_S", 0.0)  # each is a lone one, however soon it follows
    with listening(postgres_url, "evenflow_work") as listener:
        task.enqueue(1)
        assert heard(listener) == [queue_mark("default")]
        task.enqueue(2)  # its queue is known by now
        assert heard(listener) == [queue_mark("default")]
    assert [name for name in units if name.startswith("enqueue")] == [
        "enqueue_aloud",
        "enqueue",
        "enqueue_aloud",
    ]
    assert "wake" not in units


def test_a_burst_of_enqueues_sends_few_notifications_and_one_after_the_last(
    postgres_app: Evenflow, postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "COALESCE_S", 0.5)  # many enqueues fall into it also where each takes long
    task = postgres_app.task(name="echo")(echo)
    postgres_app.migrate()
    with listening(postgres_url, "evenflow_work") as listener:
        began = time.monotonic()
        for number in range(200):
            task.enqueue(number)
        settle_wakers(postgres_app._producer.engine)
        took = time.monotonic() - began
        payloads = heard(listener)
    assert set(payloads) == {queue_mark("default")}
    assert 2 <= len(payloads) <= took / signals.COALESCE_S + 3
    assert len(payloads) < 100


def test_the_last_wake_up_of_a_burst_comes_after_its_last_commit(
    postgres_engine: PostgresEngine, postgres_url: str
) -> None:
    waker = Waker(postgres_engine)
    with listening(postgres_url, "evenflow_work") as listener:
        waker.wake("mail")
        assert heard(listener) == [queue_mark("mail")]
        began = time.monotonic()
        for _ in range(50):
            waker.wake("mail")
        asked = time.monotonic()
        waker.settle()
        settled = time.monotonic()
        assert settled - asked < SOON_S
        assert 1 <= len(heard(listener)) <= (settled - began) / signals.COALESCE_S + 2


def test_each_queue_is_woken_by_a_mark_that_hides_its_name(
    postgres_engine: PostgresEngine, postgres_url: str
) -> None:
    with listening(postgres_url, "evenflow_work") as listener:
        Waker(postgres_engine).wake("mail", "docs")
        payloads = heard(listener)
    assert sorted(payloads) == sorted([queue_mark("mail"), queue_mark("docs")])
    assert not any("mail" in payload for payload in payloads)


def test_a_batch_sends_one_notification_per_queue(postgres_app: Evenflow, postgres_url: str) -> None:
    task = postgres_app.task(name="echo")(echo)
    postgres_app.migrate()
    with listening(postgres_url, "evenflow_work") as listener:
        task.enqueue_many([(number,) for number in range(500)])
        settle_wakers(postgres_app._producer.engine)
        assert heard(listener) == [queue_mark("default")]


@pytest.mark.parametrize("wakes", [True, False])
def test_a_caller_s_commit_brings_its_wake_up_unless_told_not_to(
    postgres_url: str, make_app: MakeApp, wakes: bool
) -> None:
    app = make_app(postgres_url, wake_in_transaction=wakes)
    task = app.task(name="echo")(echo)
    with listening(postgres_url, "evenflow_wake") as listener, with_psycopg()(postgres_url) as caller:
        task.using(connection=caller.connection).enqueue(1)
        assert heard(listener) == []
        caller.commit()
        assert heard(listener) == ([ARRIVAL] if wakes else [])


def test_a_worker_that_lets_in_what_it_does_not_serve_tells_those_who_do(
    postgres_url: str, make_app: MakeApp
) -> None:
    """They have looked before it was in."""
    app = make_app(postgres_url, wake_in_transaction=True)
    task = app.task(name="echo")(echo)
    app.migrate()
    with (
        listening(postgres_url, "evenflow_work") as listener,
        serving(app, queues=["other"], concurrency=1, services=False),
        with_psycopg()(postgres_url) as caller,
    ):
        task.using(connection=caller.connection).enqueue(1)
        caller.commit()
        wait_until(lambda: queue_mark("default") in heard(listener), "those who serve it to be told")


def test_a_worker_that_takes_what_it_has_released_wakes_nobody(
    engine_url: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    app = make_app(engine_url)
    task = app.task(name="echo")(echo)
    run = app.chain(task.job(1), task, task).start()
    woken: list[str] = []
    monkeypatch.setattr(Waker, "wake", lambda waker, *queues: woken.extend(queues))
    app.run_worker(until_empty=True)
    assert run.refresh().state == "succeeded"
    assert woken == []


def test_a_wake_up_never_fails(make_app: MakeApp) -> None:
    app = make_app("postgresql://127.0.0.1:1/jobs")
    app._producer.waker.wake("mail")
    app._producer.waker.announce_ends()


def test_an_idle_worker_picks_a_job_up_long_before_it_would_poll(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url, resilience=Resilience(notify_poll_interval_ms=60_000))
    task = app.task(name="echo")(echo)
    with serving(app, queues=["default"]):
        for value in range(4):
            assert task.enqueue(value).result(timeout=40) == value


def _listeners(session: "psycopg.Connection[tuple[object, ...]]") -> set[object]:
    found = session.execute(
        "select pid from pg_stat_activity where datname = current_database() and query ilike 'listen%wake%'"
    )
    return {pid for (pid,) in found.fetchall()}


def test_a_worker_whose_listener_was_ended_finds_work_by_polling_and_listens_again(
    postgres_url: str, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals, "RECONNECT_S", 2.0)
    app = make_app(postgres_url, resilience=Resilience(notify_poll_interval_ms=1_000))
    task = app.task(name="echo")(echo)
    with (
        psycopg.connect(postgres_url, autocommit=True) as session,
        serving(app, queues=["default"], services=False),
    ):
        assert task.enqueue(0).result(timeout=30) == 0
        wait_until(lambda: bool(_listeners(session)), "the listener")
        killed = _listeners(session)
        for pid in killed:
            session.execute("select pg_terminate_backend(%s)", (pid,))
        assert task.enqueue(1).result(timeout=30) == 1
        wait_until(lambda: bool(_listeners(session) - killed), "a new listener")
        assert task.enqueue(2).result(timeout=30) == 2


def test_a_listener_begins_with_a_hint_and_then_stays_connected(postgres_engine: PostgresEngine) -> None:
    with watch_signals(postgres_engine, "wake") as watch:
        assert isinstance(watch, signals.Listener)
        assert watch.wait(SOON_S) == {ARRIVAL}
        assert watch.is_listening
        connection = watch._connection
        assert watch.wait(0.05) == set()
        assert watch._connection is connection


def test_a_listener_that_heard_its_canary_is_not_replaced(
    postgres_engine: PostgresEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    # What a session is told along with the answer to a statement makes no socket readable; it was once overlooked.
    # One that is overlooked ends the connection after this time, and no other is sent before.
    monkeypatch.setattr(signals, "CANARY_WITHIN_S", 10.0)
    monkeypatch.setattr(signals, "CANARY_EVERY_S", 0.02)
    asked_at: set[float] = set()
    with watch_signals(postgres_engine, "wake") as watch:
        assert isinstance(watch, signals.Listener)
        assert watch.wait(SOON_S) == {ARRIVAL}
        connection = watch._connection

        def has_heard_many() -> bool:
            watch.wait(0.03)
            assert watch._connection is connection
            asked_at.add(watch._asked_at)
            return len(asked_at) >= 8

        wait_until(has_heard_many, "canaries, each sent when the one before was heard")
        assert watch.is_listening


def test_a_listener_hears_its_own_kind_alone(postgres_engine: PostgresEngine) -> None:
    waker = Waker(postgres_engine)
    with watch_signals(postgres_engine, "done") as watch:
        assert watch.wait(SOON_S) == {ARRIVAL}
        waker.wake("mail")
        assert watch.wait(0.2) == set()
        waker.announce_ends()
        assert watch.wait(SOON_S) == {""}


@pytest.mark.parametrize("kind", ["sqlite_engine", "postgres_engine"])
def test_a_wait_is_ended_from_another_thread(request: pytest.FixtureRequest, kind: str) -> None:
    engine: AnyEngine = request.getfixturevalue(kind)
    with watch_signals(engine, "wake") as watch:
        if isinstance(watch, signals.Listener):
            assert watch.wait(SOON_S) == {ARRIVAL}  # it begins to hear
        timer = threading.Timer(0.05, watch.interrupt)
        timer.start()
        began = time.monotonic()
        assert watch.wait(60) == set()
        assert time.monotonic() - began < SOON_S
        timer.join()
    watch.interrupt()  # after its end: does nothing


def test_a_commit_of_another_connection_is_seen(
    sqlite_engine: SqliteEngine, sqlite_url: str, make_app: MakeApp
) -> None:
    app = make_app(sqlite_url)
    task = app.task(name="echo")(echo)
    app.prepare()
    with watch_signals(sqlite_engine, "wake") as watch:
        task.enqueue(1)
        assert watch.wait(SOON_S) == {ARRIVAL}
        assert watch.wait(0.05) == set()


def test_who_shares_the_connection_is_given_a_hint(sqlite_engine: SqliteEngine) -> None:
    waker = Waker(sqlite_engine)
    with watch_signals(sqlite_engine, "wake") as watch:
        waker.wake("mail")
        assert watch.wait(SOON_S) == {ARRIVAL}
        waker.wake_dispatchers()
        assert watch.wait(SOON_S) == {ARRIVAL}
        waker.announce_ends()
        began = time.monotonic()
        assert watch.wait(60) == set()
        assert time.monotonic() - began < SOON_S


def test_an_interrupt_that_is_closed_writes_to_nobody() -> None:
    interrupt = Interrupt()
    interrupt.close()
    reader, writer = os.pipe()  # takes the descriptors that have just become free
    try:
        interrupt.set()
        assert readable([reader], 0) == set()
    finally:
        os.close(reader)
        os.close(writer)


def test_an_interrupt_is_written_once_until_somebody_has_heard_it() -> None:
    interrupt = Interrupt()
    for _ in range(2):
        for _ in range(100):
            interrupt.set()
        assert os.read(interrupt.reader, 4096) == b"!"
        interrupt.clear()
    interrupt.set()
    assert (interrupt.wait(SOON_S), interrupt.wait(0)) == (True, False)
    interrupt.close()


def test_interrupts_from_many_threads_are_never_lost() -> None:
    interrupt, done = Interrupt(), [0] * 4

    def work(place: int) -> None:
        for _ in range(2_000):
            done[place] += 1
            interrupt.set()

    threads = [threading.Thread(target=work, args=(place,)) for place in range(4)]
    for thread in threads:
        thread.start()
    while sum(done) < 8_000:
        assert interrupt.wait(60), "the wait for what was done before a set"
    for thread in threads:
        thread.join()
    interrupt.close()


def test_an_interrupt_works_beyond_descriptor_1023() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = 1_200
    assert hard == resource.RLIM_INFINITY or hard >= wanted
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, wanted), hard))
    taken = [os.open(os.devnull, os.O_RDONLY) for _ in range(1_030)]
    try:
        interrupt = Interrupt()
        assert interrupt.reader > 1023
        interrupt.set()
        assert interrupt.wait(SOON_S) is True
        assert interrupt.wait(0) is False
        interrupt.close()
    finally:
        for descriptor in taken:
            os.close(descriptor)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
