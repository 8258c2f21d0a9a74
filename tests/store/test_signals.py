"""What ends a wait: interruptions from other threads and from the handlers of signals, and commits of others."""

import os
import subprocess
import sys
import threading
import time

import pytest

from evenflow.database_url import parse_url
from evenflow.store import file_watch
from evenflow.store.leases import register
from evenflow.store.migrate import migrate
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import ARRIVAL, Interrupt, Waker, queue_mark, settle_wakers, watch_signals
from evenflow.store.sqlite import SqliteEngine
from tests.processes import wait_until

# A handler that begins while another one is inside of `set`, as when two children end at the same moment.
NESTED = """
import faulthandler, signal, time
from evenflow.store.signals import Interrupt
faulthandler.dump_traceback_later(60, exit=True)
interrupt, times = Interrupt(), [0]
def note(*_):
    times[0] += 1
    interrupt.set()
signal.signal(signal.SIGALRM, note)
signal.setitimer(signal.ITIMER_REAL, 0.0002, 0.0002)
while times[0] < 3000:
    interrupt.set()
    interrupt.clear()
signal.setitimer(signal.ITIMER_REAL, 0)
"""


def test_a_signal_s_handler_may_interrupt_what_is_being_interrupted() -> None:
    ended = subprocess.run(
        [sys.executable, "-c", NESTED], capture_output=True, text=True, timeout=90, check=False
    )
    assert ended.returncode == 0, ended.stderr


def test_an_interrupt_that_comes_while_one_is_taken_does_not_silence_those_after_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    interrupt = Interrupt()
    read = os.read

    def read_late(descriptor: int, most: int) -> bytes:
        interrupt.set()
        return read(descriptor, most)

    interrupt.set()
    with monkeypatch.context() as meanwhile:
        meanwhile.setattr(os, "read", read_late)
        assert interrupt.wait(0)
    assert not interrupt.wait(0), "who was woken looks at everything after it"
    interrupt.set()
    assert interrupt.wait(0)
    interrupt.close()


def test_an_interrupt_that_came_before_the_wait_ends_it_at_once() -> None:
    interrupt = Interrupt()
    interrupt.set()
    assert interrupt.wait(30)
    assert not interrupt.wait(0), "it counts once"
    interrupt.close()
    interrupt.set()  # after its end: nothing happens


@pytest.mark.parametrize(("most", "drains"), [(100, [25]), (10, [10, 10, 5])])
def test_notifications_that_come_together_are_one_wake_up_up_to_the_number_of_a_drain(
    postgres_store: PostgresEngine, most: int, drains: list[int]
) -> None:
    """S2-27"""
    heard: list[int] = []
    with watch_signals(postgres_store, "wake", most=most) as signals:
        wait_until(lambda: ARRIVAL in signals.wait(30), "the listener to hear")
        with postgres_store.connect() as other, other.transaction():
            for number in range(25):
                other.execute("select pg_notify('evenflow_wake', %s)", (f"queue {number}",))
        while sum(heard) < 25:
            found = signals.wait(30)
            assert found, "not all of them came"
            heard.append(len(found))
        assert signals.wait(0.05) == set(), "each was told once"
    assert heard == drains


def test_whoever_hears_of_other_things_sleeps_while_jobs_come(postgres_store: PostgresEngine) -> None:
    waker = Waker(postgres_store)
    with (
        watch_signals(postgres_store, "wake") as service,
        watch_signals(postgres_store, "work", "wake") as worker,
    ):
        wait_until(lambda: ARRIVAL in service.wait(30), "the service to hear")
        wait_until(lambda: ARRIVAL in worker.wait(30), "the worker to hear")
        waker.wake("mail")
        assert worker.wait(30) == {queue_mark("mail")}
        waker.wake_dispatchers()
        assert service.wait(30) == {ARRIVAL}, "and nothing of the job before"
        assert worker.wait(30) == {ARRIVAL}
    settle_wakers(postgres_store)


def test_commits_that_come_together_are_one_wake_up(sqlite_store: SqliteEngine) -> None:
    """S2-27"""
    other = SqliteEngine(sqlite_store.path)
    with watch_signals(sqlite_store, "wake") as signals:
        while signals.wait(0.3):  # what came before
            pass
        for number in range(25):
            register(other, number + 1, kind="worker", host="here", pid=1, lease_us=1)
        assert signals.wait(30) == {ARRIVAL}
        assert signals.wait(0.3) == set()
    other.close()


@pytest.mark.parametrize("is_told", [True, False])
def test_a_commit_of_another_connection_ends_the_wait_soon(
    sqlite_url: str, monkeypatch: pytest.MonkeyPatch, is_told: bool
) -> None:
    if not is_told:
        monkeypatch.setattr(file_watch, "_watched", lambda path: None)
    path = parse_url(sqlite_url).path
    mine, other = SqliteEngine(path), SqliteEngine(path)
    migrate(mine)
    delays = []
    with watch_signals(mine, "wake") as signals:
        while signals.wait(0.3):  # what the migration itself has told
            pass
        for number in range(20):
            committed: list[float] = []

            def commit(number: int = number, committed: list[float] = committed) -> None:
                register(other, number + 1, kind="worker", host="here", pid=1, lease_us=1)
                committed.append(time.monotonic())

            thread = threading.Timer(0.02, commit)
            thread.start()
            assert signals.wait(30) == {ARRIVAL}
            heard = time.monotonic()
            thread.join()
            delays.append(heard - committed[0])
    print(f"heard after {sorted(delays)[10] * 1000:.1f} ms, at most {max(delays) * 1000:.1f} ms")
    assert sorted(delays)[10] < 0.5
    mine.close()
    other.close()
