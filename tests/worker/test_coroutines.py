"""Coroutines that share a task: none of them can tell, and none of them is delayed or ended by another."""

import asyncio
import contextvars
import itertools
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from evenflow.job import End
from evenflow.worker import coroutines as coroutines_module
from evenflow.worker.calling import current_run
from tests.processes import wait_until
from tests.worker.test_outcome import error_of, job
from tests.worker.test_slots import Bench

shop = contextvars.ContextVar("shop", default="nobody")
Body = Callable[[], Coroutine[Any, Any, Any]]


class Batch:
    """Bodies that are started together, in the order of their numbers: 1, 2, ..."""

    def __init__(self, bench: Bench) -> None:
        self.bench = bench

    def start(self, *bodies: Body, **options: Any) -> None:
        jobs = []
        for number, body in enumerate(bodies, start=1):
            self.bench.app.task(name=f"task-{number}", **options)(body)
            jobs.append(job(id=number, task=f"task-{number}", max_attempts=1))
        self.bench.slots.start(jobs)

    def run(self, *bodies: Body, **options: Any) -> dict[int, End]:
        self.start(*bodies, **options)
        return self.bench.ends(len(bodies))


@pytest.fixture
def bench() -> Iterator[Bench]:
    made = Bench()
    yield made
    made.close()


@pytest.fixture
def batch(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> Batch:
    monkeypatch.setattr(coroutines_module, "STINT_S", 60.0)  # nothing but what a body does parts these
    return Batch(bench)


def task_now() -> asyncio.Task[Any]:
    task = asyncio.current_task()
    assert task is not None
    return task


def noted(tasks: list[int]) -> Body:
    """A body that notes which task it runs on, by number: who kept the task itself would have it for good."""

    async def body() -> None:
        tasks.append(id(task_now()))

    return body


def test_bodies_that_do_not_wait_share_a_task_in_their_order(batch: Batch) -> None:
    tasks: list[int] = []
    seen: list[int] = []

    async def body() -> None:
        tasks.append(id(task_now()))
        run = current_run.get()
        assert run is not None
        seen.append(run.job.id)

    ends = batch.run(*[body] * 50)
    assert seen == list(range(1, 51))
    assert len(set(tasks)) == 1
    assert {end.state for end in ends.values()} == {"succeeded"}


def test_what_a_body_sets_among_its_context_variables_is_not_seen_by_the_next(batch: Batch) -> None:
    seen: list[str] = []

    async def set_and_leave() -> None:
        seen.append(shop.get())
        shop.set("mine")

    async def set_and_reset() -> None:
        token = shop.set("mine")
        shop.reset(token)

    tasks: list[int] = []
    batch.run(set_and_leave, set_and_leave, noted(tasks), set_and_reset, noted(tasks), set_and_leave)
    assert seen == ["nobody"] * 3
    assert len(set(tasks)) == 1, "what was taken back is no difference"


def test_a_variable_of_the_loop_that_a_body_changes_is_as_before_for_the_next(batch: Batch) -> None:
    seen: list[list[str]] = []
    ours: list[str] = []
    things: contextvars.ContextVar[list[str]] = contextvars.ContextVar("things")

    async def replace() -> None:
        seen.append(things.get())
        things.set([])  # equal to what was there, and another one

    context = contextvars.copy_context()
    context.run(things.set, ours)
    context.run(batch.run, replace, replace, replace)
    assert all(each is ours for each in seen) and len(seen) == 3


def test_tasks_that_a_body_starts_and_leaves_know_their_own_run(batch: Batch) -> None:
    seen: dict[int, int] = {}
    kept: list[asyncio.Task[None]] = []

    async def later(number: int) -> None:
        await asyncio.sleep(0)
        run = current_run.get()
        assert run is not None
        seen[number] = run.job.id

    async def body() -> None:
        run = current_run.get()
        assert run is not None
        kept.append(asyncio.create_task(later(run.job.id)))

    batch.run(*[body] * 5)
    wait_until(lambda: len(seen) == 5, "what they have left")
    assert seen == {number: number for number in range(1, 6)}


def test_a_body_that_waits_delays_no_other(batch: Batch) -> None:
    gate = asyncio.Event()
    ran: list[int] = []

    async def wait() -> None:
        await gate.wait()

    async def body() -> None:
        ran.append(1)

    batch.start(body, wait, body, wait, body, body)
    batch.bench.ends(4)
    assert len(ran) == 4
    batch.bench.loop.call_soon_threadsafe(gate.set)
    assert {end.state for end in batch.bench.ends(6).values()} == {"succeeded"}


def test_a_task_on_which_a_body_has_waited_is_not_used_again(batch: Batch) -> None:
    tasks: dict[str, asyncio.Task[Any]] = {}

    def body(name: str) -> Body:
        async def inner() -> None:
            await asyncio.sleep(0)
            tasks[name] = task_now()

        return inner

    batch.run(*map(body, "abcdef"))
    assert len(set(tasks.values())) == 6


def keep(task: asyncio.Task[Any]) -> None:
    kept.append(task)


def keep_weakly(task: asyncio.Task[Any]) -> None:
    sessions[task] = "a session of this task"


def rename(task: asyncio.Task[Any]) -> None:
    task.set_name("mine")


def add_callback(task: asyncio.Task[Any]) -> None:
    task.add_done_callback(lambda _: kept.append(None))


def cancel(task: asyncio.Task[Any]) -> None:
    task.cancel()


def cancel_and_take_back(task: asyncio.Task[Any]) -> None:
    task.cancel()
    task.uncancel()


def attach(task: asyncio.Task[Any]) -> None:
    task.mine = "a note"  # type: ignore[attr-defined]


kept: list[Any] = []
sessions: "weakref.WeakKeyDictionary[asyncio.Task[Any], str]" = weakref.WeakKeyDictionary()


@pytest.mark.parametrize(
    "act", [keep, keep_weakly, rename, add_callback, cancel, cancel_and_take_back, attach]
)
def test_a_task_on_which_a_body_has_left_something_is_not_used_again(
    batch: Batch, act: Callable[[asyncio.Task[Any]], None]
) -> None:
    kept.clear()
    names: list[str] = []

    async def touch() -> None:
        act(task_now())

    async def look() -> None:
        task = task_now()
        names.append(task.get_name())
        assert task not in sessions and task not in kept
        assert not task.cancelling() and not hasattr(task, "mine")
        await asyncio.sleep(0)  # here a cancellation that is due would come
        assert act is not add_callback or kept == [None], "it is called when the body has ended"

    ends = batch.run(touch, look, look)
    assert {end.state for end in ends.values()} == {"succeeded"}
    assert "mine" not in names


def test_a_wish_to_cancel_reaches_one_body_alone(batch: Batch) -> None:
    entered = threading.Event()
    gates = asyncio.Event()

    async def wait() -> None:
        entered.set()
        await gates.wait()

    async def body() -> None:
        await asyncio.sleep(0)

    batch.start(body, body, wait, wait, wait)
    assert entered.wait(30)
    wait_until(lambda: all(run.task for run in list(batch.bench.slots.running.values())), "all to wait")
    batch.bench.slots.cancel(4, 3, "no longer wanted")
    ends = batch.bench.ends(3)
    assert error_of(ends[4]).message == "no longer wanted"
    batch.bench.loop.call_soon_threadsafe(gates.set)
    ends = batch.bench.ends(5)
    assert [ends[number].state for number in range(1, 6)] == [
        "succeeded",
        "succeeded",
        "succeeded",
        "cancelled",
        "succeeded",
    ]


def test_a_wish_to_cancel_that_comes_after_its_body_does_not_reach_the_next_on_the_task(batch: Batch) -> None:
    """The wish is under way to the loop while the first body runs, and the second one waits on the same task."""
    gate = asyncio.Event()

    async def first() -> None:
        batch.bench.slots.cancel(1, 3, "too late for it")

    async def second() -> None:
        await gate.wait()

    batch.start(first, second)
    wait_until(lambda: 2 in batch.bench.slots.running and 1 not in batch.bench.slots.running, "the second")
    passed = threading.Event()
    batch.bench.loop.call_soon_threadsafe(passed.set)
    assert passed.wait(30)
    batch.bench.loop.call_soon_threadsafe(gate.set)
    assert [end.state for _, end in sorted(batch.bench.ends(2).items())] == ["succeeded", "succeeded"]


def test_a_body_that_was_given_back_before_its_turn_is_not_entered(batch: Batch) -> None:
    ran: list[int] = []
    began, gate = threading.Event(), threading.Event()

    async def block() -> None:
        began.set()
        gate.wait(30)

    async def body() -> None:
        ran.append(1)

    batch.start(block, body, body)
    assert began.wait(30)
    assert {end.id for end in batch.bench.slots.give_back()} == {1, 2, 3}
    gate.set()
    wait_until(lambda: batch.bench.slots.stuck_for() == 0.0, "the first to let go")
    assert ran == [] and not batch.bench.slots.ended


def test_timeouts_and_groups_of_tasks_work_on_a_shared_task(batch: Batch) -> None:
    async def timed() -> str:
        try:
            async with asyncio.timeout(0.01):
                await asyncio.Event().wait()
        except TimeoutError:
            return "timed"
        return ""

    async def grouped() -> str:
        async with asyncio.TaskGroup() as group:
            made = group.create_task(asyncio.sleep(0, "grouped"))
        return made.result()

    async def plain() -> str:
        async with asyncio.timeout(30):  # noqa: ASYNC100 - it does not wait: that is the case
            return "plain"

    ends = batch.run(plain, plain, timed, grouped, plain, timed, grouped)
    results = [ends[number].result for number in range(1, 8)]
    assert results == ['"plain"', '"plain"', '"timed"', '"grouped"', '"plain"', '"timed"', '"grouped"']


def test_a_body_past_its_timeout_ends_alone(batch: Batch) -> None:
    async def forever() -> None:
        await asyncio.Event().wait()

    async def plain() -> None: ...

    ends = batch.run(plain, forever, plain, forever, timeout=0.05)
    assert [ends[number].state for number in range(1, 5)] == ["succeeded", "failed", "succeeded", "failed"]
    assert error_of(ends[2]).code == "TASK_TIMEOUT"


@pytest.mark.parametrize(
    "error", [SystemExit, KeyboardInterrupt, asyncio.CancelledError, GeneratorExit, ValueError]
)
def test_whatever_a_body_raises_the_next_one_runs(batch: Batch, error: type[BaseException]) -> None:
    async def fail() -> None:
        raise error

    async def plain() -> None: ...

    ends = batch.run(plain, fail, plain, fail, plain)
    assert [ends[number].state for number in range(1, 6)] == [
        "succeeded",
        "failed",
        "succeeded",
        "failed",
        "succeeded",
    ]


def test_bodies_that_never_wait_leave_the_loop_its_turns(bench: Bench) -> None:
    turns = itertools.count()
    at_turn: set[int] = set()
    is_over = threading.Event()
    turn_now = 0

    def turn() -> None:
        nonlocal turn_now
        turn_now = next(turns)
        if not is_over.is_set():
            bench.loop.call_soon(turn)

    async def body() -> None:
        at_turn.add(turn_now)
        time.sleep(coroutines_module.STINT_S)  # noqa: ASYNC251 - it does what it should not

    bench.app.task(name="busy")(body)
    bench.loop.call_soon_threadsafe(turn)
    bench.slots.start([job(id=number, task="busy", max_attempts=1) for number in range(1, 51)])
    bench.ends(50)
    is_over.set()
    assert len(at_turn) == 50, "each of them uses up the time of a task"
