"""Threads for plain functions: few while they flow, as many as needed when they block, never more than allowed."""

import threading
import time
from collections.abc import Callable, Iterator

import pytest

from evenflow.worker.threads import Threads
from tests.processes import wait_until

Piece = Callable[[], None]


class Pool:
    """Threads under test, with what ran, and the ticks that a pump would give."""

    def __init__(self, most: int) -> None:
        self.counts: list[int] = []
        self.threads: Threads[Piece] = Threads(lambda piece: piece(), most, self.counts.append)
        self.lock = threading.Lock()
        self.gate = threading.Event()
        self.running = self.greatest = self.done = 0
        self.used: set[int] = set()

    def blocking(self) -> None:
        self._count(1)
        self.gate.wait(30)
        self._count(-1)

    def quick(self) -> None:
        self._count(1)
        self._count(-1)

    def _count(self, change: int) -> None:
        with self.lock:
            self.used.add(threading.get_ident())
            self.running += change
            self.greatest = max(self.greatest, self.running)
            self.done += change < 0

    def tick_until(self, condition: Callable[[], bool], what: str) -> None:
        def is_true() -> bool:
            self.threads.grow()
            return condition()

        wait_until(is_true, what)


@pytest.fixture
def pool() -> Iterator[Pool]:
    made = Pool(8)
    yield made
    made.gate.set()
    made.threads.close()
    wait_until(lambda: made.threads._alive == 0, "the threads to end")


def test_pieces_that_block_all_get_a_thread(pool: Pool) -> None:
    pool.threads.submit([pool.blocking] * 8)
    pool.tick_until(lambda: pool.running == 8, "eight pieces at once")


def test_never_more_threads_than_allowed(pool: Pool) -> None:
    pool.threads.submit([pool.blocking] * 20)
    pool.tick_until(lambda: pool.running == 8, "eight pieces at once")
    for _ in range(50):
        pool.threads.grow()
    pool.gate.set()
    pool.tick_until(lambda: pool.done == 20, "all of them")
    assert pool.greatest == 8


def test_threads_that_are_stuck_for_good_are_made_up_for(pool: Pool) -> None:
    pool.threads.submit([pool.blocking] * 8)
    pool.tick_until(lambda: pool.running == 8, "eight pieces at once")
    pool.threads.allow_more(1)
    pool.threads.submit([pool.quick])
    pool.tick_until(lambda: pool.done == 1, "the piece on the ninth thread")


def test_quick_pieces_need_few_threads() -> None:
    used: list[int] = []

    def are_few() -> bool:
        """At the quietest of some times: where a thread is kept from running, another one is right to come."""
        pool = Pool(8)
        for _ in range(20):
            pool.threads.submit([pool.quick] * 50)
        pool.tick_until(lambda: pool.done == 1000, "all of them")
        pool.threads.close()
        used.append(len(pool.used))
        return used[-1] <= 4

    wait_until(are_few, "a thousand pieces to be done by few threads")
    assert len(used) <= 10, used


def test_work_is_begun_in_its_order() -> None:
    pool = Pool(1)
    order: list[int] = []
    pool.threads.submit([lambda number=number: order.append(number) for number in range(100)])  # type: ignore[misc]
    wait_until(lambda: len(order) == 100, "all of them")
    assert order == list(range(100))
    pool.threads.close()


def test_a_lone_piece_begins_at_once_without_a_tick(pool: Pool) -> None:
    for number in range(20):
        pool.threads.submit([pool.quick])
        wait_until(lambda number=number: pool.done == number + 1, "the piece")  # type: ignore[misc]


def test_a_piece_that_raises_does_not_end_the_others(pool: Pool, monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[object] = []
    monkeypatch.setattr(threading, "excepthook", told.append)

    def broken() -> None:
        raise RuntimeError("a bug of the worker itself")

    pool.threads.submit([broken, *[pool.quick] * 10])
    pool.tick_until(lambda: pool.done == 10, "the other pieces")
    wait_until(lambda: len(told) == 1, "the thread that broke to say so")


def test_nothing_waits_for_a_tick_when_nothing_waits(pool: Pool) -> None:
    assert pool.threads.grow() is None
    pool.threads.submit([pool.blocking, pool.blocking])
    wait_until(lambda: pool.running >= 1, "the first piece")
    assert pool.threads.grow() is not None


def test_idle_threads_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("evenflow.worker.threads.IDLE_THREAD_S", 0.05)
    pool = Pool(4)
    pool.threads.submit([pool.quick] * 10)
    wait_until(lambda: pool.done == 10, "all of them")
    wait_until(lambda: pool.threads._alive == 0, "the threads to end")
    assert pool.counts[0] == 1 and pool.counts[-1] == 0 and max(pool.counts) <= 4
    pool.threads.submit([pool.quick])
    wait_until(lambda: pool.done == 11, "a new thread for new work")
    pool.threads.close()


def test_n_pieces_of_one_length_take_about_that_long() -> None:
    pool = Pool(50)
    started = time.monotonic()

    def nap() -> None:
        time.sleep(0.5)
        pool.quick()

    pool.threads.submit([nap] * 50)
    pool.tick_until(lambda: pool.done == 50, "all of them")
    assert time.monotonic() - started < 15.0, "one after the other they would take 25 s"
    pool.threads.close()
