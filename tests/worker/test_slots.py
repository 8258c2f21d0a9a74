"""Slots: each run ends exactly once, whatever its body does; and many of them run at once without hindering each other."""

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from evenflow import Context, Evenflow
from evenflow.hooks import Hooks
from evenflow.job import End
from evenflow.worker import slots as slots_module
from evenflow.worker.local import close_event_loop, new_event_loop
from evenflow.worker.registry import Registry
from evenflow.worker.slots import Slots
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books
from tests.worker.test_outcome import error_of, job


class Bench:
    """Slots with a loop of their own, without a pump: ends stay where they are put."""

    def __init__(self, threads: int = 4) -> None:
        self.app = Evenflow("sqlite:///:memory:")
        self.loop = new_event_loop()
        self.wakes = 0
        self.slots = Slots(
            Registry(self.app.tasks, self.app.settings), self.app.settings, loop=self.loop, threads=threads, wake=self._wake,
            hooks=Hooks(),
        )  # fmt: skip
        self._thread = threading.Thread(target=self.loop.run_forever)
        self._thread.start()
        self._ids = iter(range(1, 1000))

    def start(self, function: Callable[..., Any], **options: Any) -> int:
        """Run a function or coroutine without arguments as a job: its id."""
        number = next(self._ids)
        name = f"task-{number}"
        self.app.task(name=name, **options)(function)
        self.slots.start([job(id=number, task=name, max_attempts=1)])
        return number

    def ends(self, count: int) -> dict[int, End]:
        """Wait for so many ends, tending as a pump does."""

        def are_there() -> bool:
            self.slots.tend()
            return len(self.slots.ended) >= count

        wait_until(are_there, f"{count} ends")
        assert len(self.slots.ended) == count
        found = {end.id: end for end in self.slots.ended}
        assert len(found) == count, "a run ended twice"
        return found

    def close(self) -> None:
        self.slots.close()
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        close_event_loop(self.loop)

    def _wake(self) -> None:
        self.wakes += 1


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


def test_each_run_ends_once_and_leaves_its_slot(bench: Bench) -> None:
    async def coroutine() -> str:
        return "c"

    for _ in range(50):
        bench.start(coroutine)
        bench.start(lambda: "f")
    ends = bench.ends(100)
    assert {end.result for end in ends.values()} == {'"c"', '"f"'}
    wait_until(lambda: not bench.slots.running, "the slots to be free")


@pytest.mark.parametrize("is_async", [False, True])
def test_a_rated_body_that_would_start_too_late_is_not_entered(bench: Bench, is_async: bool) -> None:
    entered: list[int] = []

    async def coroutine(number: int) -> None:
        entered.append(number)

    def function(number: int) -> None:
        entered.append(number)

    bench.app.task(name="rated")(coroutine if is_async else function)
    late, early, unrated = 1, 2, 3
    options = '{"start_us":50000}'
    minute_ago = time.monotonic() - 60
    bench.slots.start([job(id=late, task="rated", payload="[[1],{}]", options=options)], minute_ago)
    bench.slots.start([job(id=unrated, task="rated", payload="[[3],{}]")], minute_ago)
    bench.slots.start(
        [job(id=early, task="rated", payload="[[2],{}]", options=options)], time.monotonic() + 60
    )
    ends = bench.ends(3)
    assert sorted(entered) == [early, unrated]
    assert (ends[late].state, ends[late].refund, ends[late].unstarted) == ("ready", 1, 1)
    assert {ends[early].state, ends[unrated].state} == {"succeeded"}
    assert list(bench.slots.late) == ["default"]


def test_a_job_of_an_unknown_task_ends_at_once(bench: Bench) -> None:
    bench.slots.start([job(id=5, task="nobody")])
    assert error_of(bench.ends(1)[5]).code == "WORKER_RESOLUTION_ERROR"


def test_the_pump_is_woken_by_the_number_of_ends_it_waits_for(bench: Bench) -> None:
    bench.slots.wake_at = 3
    for _ in range(2):
        bench.start(lambda: None)
    bench.ends(2)
    assert bench.wakes == 0
    bench.start(lambda: None)
    bench.ends(3)
    wait_until(lambda: bench.wakes == 1, "the wake-up")


def test_the_pump_is_woken_once_until_it_says_anew_what_it_waits_for(bench: Bench) -> None:
    for number in range(1, 6):
        bench.start(lambda: None)
        bench.ends(number)
        wait_until(lambda: not bench.slots.running, "the slot to be free")
    bench.slots.wake_at = 6
    assert bench.wakes == 1
    bench.start(lambda: None)
    wait_until(lambda: bench.wakes == 2, "the next wake-up")


def test_the_pump_is_woken_when_it_took_an_end_before_the_slot_was_free(bench: Bench) -> None:
    class Hasty(dict[int, Any]):
        """The pump takes the end at the very moment between it and the freeing of its slot."""

        def pop(self, *args: Any) -> Any:
            bench.slots.ended.clear()
            return super().pop(*args)

    bench.slots.running = Hasty()
    bench.slots.wake_at = 1
    bench.start(lambda: None)
    wait_until(lambda: bench.wakes == 1, "the pump to be told to look again")
    assert bench.slots.running == {}


def test_a_run_that_is_given_back_is_not_heard_any_more(bench: Bench) -> None:
    gate = threading.Event()
    contexts: list[Context] = []
    cancelled: list[str] = []

    def function(ctx: Context) -> None:
        contexts.append(ctx)
        gate.wait(30)

    async def coroutine() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            cancelled.append("yes")
            raise

    first, second = bench.start(function), bench.start(coroutine)
    wait_until(lambda: bool(contexts) and bench.slots.running[second].task is not None, "both to run")
    returned = bench.slots.give_back()
    assert {(end.id, end.state, end.refund) for end in returned} == {
        (first, "ready", 1),
        (second, "ready", 1),
    }
    assert contexts[0].cancelled
    assert not bench.slots.running
    gate.set()
    wait_until(lambda: bool(cancelled), "the coroutine to be cancelled")
    wait_until(lambda: bench.slots.stuck_for() == 0.0, "both to let go")
    assert not bench.slots.ended


def test_only_the_run_of_that_epoch_is_cancelled(bench: Bench) -> None:
    async def coroutine() -> None:
        await asyncio.Event().wait()

    number = bench.start(coroutine)
    bench.slots.cancel(number, 99, "another epoch")
    bench.slots.cancel(number + 1, 3, "another job")
    assert bench.slots.running[number].cancel_why is None
    bench.slots.cancel(number, 3, "")
    end = bench.ends(1)[number]
    assert (end.state, error_of(end).message) == ("cancelled", "cancelled by request")


def test_a_wish_to_cancel_that_comes_before_the_start_keeps_the_body_from_running(bench: Bench) -> None:
    gate = threading.Event()
    ran: list[str] = []
    blockers = [bench.start(lambda: gate.wait(30)) for _ in range(4)]
    late = bench.start(lambda: ran.append("late"))
    bench.slots.cancel(late, 3, "too late")
    gate.set()
    ends = bench.ends(5)
    assert ends[late].state == "cancelled"
    assert all(ends[blocker].state == "succeeded" for blocker in blockers)
    assert ran == []


def test_a_function_past_its_timeout_is_counted_as_stuck_until_it_lets_go(bench: Bench) -> None:
    gate, began = threading.Event(), threading.Event()

    def hold() -> None:
        began.set()
        gate.wait(30)

    number = bench.start(hold, timeout=60.0)
    assert began.wait(30)
    bench.slots.running[number].started -= 60.0  # its time is over
    assert error_of(bench.ends(1)[number]).code == "TASK_TIMEOUT"
    wait_until(lambda: bench.slots.stuck_for() > 0.1, "it to be stuck for a while")
    gate.set()
    wait_until(lambda: bench.slots.stuck_for() == 0.0, "it to let go")


def test_functions_that_have_let_go_after_their_timeout_are_not_remembered(bench: Bench) -> None:
    for number in range(5):
        bench.start(lambda: time.sleep(0.02), timeout=0.005)
        bench.ends(number + 1)
        wait_until(lambda: all(run.is_returned for run in bench.slots.stuck), "it to let go")
    assert len(bench.slots.stuck) <= 1, "nobody has asked for how long they were stuck"


def test_a_function_whose_time_is_over_before_it_got_a_thread_is_not_stuck(bench: Bench) -> None:
    gate = threading.Event()
    blockers = [bench.start(lambda: gate.wait(30)) for _ in range(4)]
    wait_until(lambda: bench.slots.tend() is None and bench.slots._threads._busy == 4, "four busy threads")
    bench.start(lambda: None, timeout=0.05)
    bench.ends(1)
    gate.set()
    bench.ends(1 + len(blockers))
    wait_until(lambda: bench.slots.stuck_for() == 0.0, "nothing to be stuck")


def test_a_coroutine_that_swallows_its_cancellation_ends_without_its_consent(
    bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(slots_module, "UNWILLING_S", 0.2)
    gate = threading.Event()

    async def stubborn() -> None:
        while not gate.is_set():
            try:
                await asyncio.sleep(0.01)
            except asyncio.CancelledError:
                continue

    number = bench.start(stubborn, timeout=0.05)
    assert error_of(bench.ends(1)[number]).code == "TASK_TIMEOUT"
    assert bench.slots.stuck_for() > 0
    gate.set()
    wait_until(lambda: bench.slots.stuck_for() == 0.0, "it to let go")
    assert len(bench.slots.ended) == 1


def test_timeouts_and_ends_at_the_same_moment_give_one_end_each(bench: Bench) -> None:
    numbers = [bench.start(lambda: time.sleep(0.02), timeout=0.02) for _ in range(100)]
    ends = bench.ends(100)
    assert sorted(ends) == numbers
    wait_until(lambda: bench.slots.stuck_for() == 0.0, "all to let go")
    assert len(bench.slots.ended) == 100


def test_nothing_is_tended_while_nothing_waits(bench: Bench) -> None:
    assert bench.slots.tend() is None
    gate = threading.Event()
    bench.start(lambda: gate.wait(30), timeout=30)
    wait_until(lambda: bench.slots._threads._taken == 1, "the function to begin")
    left = bench.slots.tend()
    assert left is not None and 20 < left <= 30
    gate.set()
    bench.ends(1)


@pytest.mark.slow
def test_two_thousand_coroutines_wait_together_while_the_heart_beats(
    make_app: Any, engine_url: str, books: Books
) -> None:
    # A lease that no load can break: what is given back runs again, and this is not about that.
    app = make_app(engine_url, heartbeat_ms=100, lease_ms=100_000)
    inside = most = 0
    all_met: asyncio.Event | None = None

    async def gather() -> None:
        nonlocal inside, most, all_met
        all_met = all_met or asyncio.Event()
        inside += 1
        most = max(most, inside)
        try:
            if inside == 2000:
                first = books.column("beat", "worker")
                while books.column("beat", "worker")[0] < first[0] + 3:
                    await asyncio.sleep(0.05)
                all_met.set()
            await all_met.wait()
        finally:
            inside -= 1

    app.task(name="gather", keep_result=0)(gather).enqueue_many([()] * 2000)
    app.run_worker(until_empty=True, concurrency=2000, services=False)
    assert most == 2000
    assert books.states() == {}


@pytest.mark.slow
def test_jobs_of_a_second_on_as_many_slots_take_about_a_second(app: Evenflow) -> None:
    app.task(name="nap")(lambda: time.sleep(1.0)).enqueue_many([()] * 30)
    started = time.monotonic()
    app.run_worker(until_empty=True, concurrency=30)
    assert time.monotonic() - started < 20.0, "one after the other they would take 30 s"


@pytest.mark.slow
def test_functions_that_block_stall_neither_the_loop_nor_the_heart(
    make_app: Any, engine_url: str, books: Books
) -> None:
    app = make_app(engine_url, heartbeat_ms=100, lease_ms=60_000)
    gate = threading.Event()
    lags: list[float] = []

    async def measure() -> None:
        first = books.column("beat", "worker")[0]
        while len(lags) < 30 or books.column("beat", "worker")[0] < first + 3:
            before = time.monotonic()
            await asyncio.sleep(0.01)
            lags.append(time.monotonic() - before - 0.01)
        gate.set()

    def busy() -> None:
        while not gate.is_set():
            sum(range(1000))

    jobs = app.task(name="block")(lambda: gate.wait(60)).enqueue_many([()] * 4)
    jobs += [app.task(name="busy")(busy).enqueue(), app.task(name="measure")(measure).enqueue()]
    with serving(app):
        for each in jobs:
            each.result(timeout=60)
    assert sorted(lags)[len(lags) // 2] < 1.0, "the functions go on until the loop has done its part"


def test_a_process_never_runs_more_than_its_slots(app: Evenflow) -> None:
    lock = threading.Lock()
    counts = {"now": 0, "most": 0}

    def enter() -> None:
        with lock:
            counts["now"] += 1
            counts["most"] = max(counts["most"], counts["now"])

    def leave() -> None:
        with lock:
            counts["now"] -= 1

    def function() -> None:
        enter()
        time.sleep(0.01)
        leave()

    async def coroutine() -> None:
        enter()
        await asyncio.sleep(0.01)
        leave()

    app.task(name="function")(function).enqueue_many([()] * 60)
    app.task(name="coroutine")(coroutine).enqueue_many([()] * 60)
    app.run_worker(until_empty=True, concurrency=7)
    assert counts == {"now": 0, "most": 7}
