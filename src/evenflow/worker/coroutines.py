"""Coroutines: bodies on an event loop. Those that never wait share a task, one after the other; all others have their own.

Most of what a short coroutine costs is its task. A body that left something on its task or among its context variables is
the last one there: whatever runs after it finds a task as new.
"""

import asyncio
import collections
import contextvars
import gc
import sys
import time
import weakref
from collections.abc import Callable, Coroutine, Sequence
from typing import Any

from evenflow.job import End
from evenflow.worker.calling import Run, current_run
from evenflow.worker.registry import Entry

# Bodies that do not wait let others on the loop have their turn after so long.
STINT_S = 0.002
_ABSENT = object()


class Coroutines:
    """Runs coroutine bodies on a loop, in order: `call` gives the end of a body, `over` hears of it."""

    def __init__(
        self,
        loop: asyncio.AbstractEventLoop,
        call: Callable[[Run, Entry], Coroutine[Any, Any, End]],
        over: Callable[[Run, End], None],
    ) -> None:
        self._loop = loop
        self._call = call
        self._over = over

    def submit(self, runs: Sequence[Run]) -> None:
        """Run these soon. Safe from any thread."""
        self._loop.call_soon_threadsafe(self._begin, collections.deque(runs))

    def cancel(self, run: Run) -> None:
        """Cancel the body of this run, if it is under way. Safe from any thread."""
        if run.task is not None:
            self._loop.call_soon_threadsafe(_cancel, run)

    def _begin(self, waiting: collections.deque[Run]) -> None:
        task = self._loop.create_task(self.serve(waiting))
        # Follows upon the first step of the task, before anything that its body may wait for.
        self._loop.call_soon(self._go_on, waiting, task)

    def _go_on(self, waiting: collections.deque[Run], task: asyncio.Task[None]) -> None:
        """Runs that a task has left over get another one; those behind a body that waits, one for each."""
        if not waiting:
            return
        if task.done():
            self._begin(waiting)
            return
        while waiting:
            self._loop.create_task(self.serve(collections.deque((waiting.popleft(),))))

    async def serve(self, waiting: collections.deque[Run]) -> None:
        """One stint: runs until one of them waits, or leaves something behind, or the time is up."""
        task = asyncio.current_task()
        assert task is not None
        if len(waiting) > 1:  # with nobody behind it, it does not matter what a body leaves
            current_run.set(None)  # every run sets it: it is no difference
            before, marks = contextvars.copy_context(), _marks(task)
        until = time.monotonic() + STINT_S
        while waiting:
            run = waiting.popleft()
            if run.is_over:  # given back, or timed out, while it waited for the loop
                run.is_returned = True
                continue
            assert run.entry is not None
            run.task, run.began = task, time.monotonic()
            try:
                end = await self._call(run, run.entry)
            finally:
                run.task, run.is_returned = None, True
            self._over(run, end)
            if not waiting or _marks(task) != marks or not _is_as(before) or time.monotonic() >= until:
                return


def _cancel(run: Run) -> None:
    # On the loop, where runs begin and end: on its task there may be another one by now.
    if run.task is not None:
        run.task.cancel()


def _marks(task: asyncio.Task[None]) -> tuple[object, ...]:
    """What shows that a body did something to its task, or that somebody knows the task by it (such as a session per task)."""
    return (
        sys.getrefcount(task),
        weakref.getweakrefcount(task),
        task.cancelling(),
        task._callbacks,
        task.get_name(),
        getattr(task, "_must_cancel", False),
        len(gc.get_referents(task)),  # one more where it has got attributes
    )


def _is_as(before: contextvars.Context) -> bool:
    """Whether the context variables are those of then, apart from the run."""
    now = contextvars.copy_context()
    if len(now) != len(before):
        return False
    return len(now) == 1 or all(
        now.get(variable, _ABSENT) is value
        for variable, value in before.items()
        if variable is not current_run
    )
