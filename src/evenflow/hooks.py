"""Lifecycle hooks: what users run when workers start and stop, and around every run of a body."""

import logging
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager
from typing import TypeVar

from evenflow.context import Context
from evenflow.events import Event

log = logging.getLogger("evenflow.worker")

Hook = Callable[[], object]
Around = Callable[[Context], Iterator[None]]
H = TypeVar("H", bound=Hook)
A = TypeVar("A", bound=Around)
L = TypeVar("L", bound=Callable[[Event], object])


class Hooks:
    """The hooks of an app, in the order in which they were added."""

    def __init__(self) -> None:
        self._start: list[Hook] = []
        self._stop: list[Hook] = []
        self._child_start: list[Hook] = []
        self._listeners: list[Callable[[Event], object]] = []
        self._around: list[Callable[[Context], AbstractContextManager[None]]] = []

    def on_worker_start(self, hook: H) -> H:
        """Call this in every process that runs bodies, before its first one. An error keeps the process from serving."""
        self._start.append(hook)
        return hook

    def on_worker_stop(self, hook: H) -> H:
        """Call this in every worker process after its last job has ended."""
        self._stop.append(hook)
        return hook

    def on_child_start(self, hook: H) -> H:
        """Call this in every process that runs isolated bodies (`run_in="process"`), before its first one."""
        self._child_start.append(hook)
        return hook

    def on_event(self, listener: L) -> L:
        """Call this with every `Event` of a worker process, on the thread where it happens: be quick. An error in it is
        logged and changes nothing.

        >>> hooks = Hooks()
        >>> @hooks.on_event
        ... def count(event: Event) -> None: ...
        """
        self._listeners.append(listener)
        return listener

    def around_run(self, around: A) -> A:
        """A generator function that yields once: what stands before runs before each body, what stands after, after it.

        >>> hooks = Hooks()
        >>> @hooks.around_run
        ... def timed(ctx: Context) -> Iterator[None]:
        ...     yield
        """
        self._around.append(contextmanager(around))
        return around

    def worker_start(self) -> None:
        for hook in self._start:
            hook()

    def child_start(self) -> None:
        for hook in self._child_start:
            hook()

    def worker_stop(self) -> None:
        for hook in self._stop:
            hook()

    @property
    def listens(self) -> bool:
        return bool(self._listeners)

    def emit(self, name: str, **fields: object) -> None:
        """Tell the listeners."""
        for listener in self._listeners:
            try:
                listener(Event(name, fields))
            except Exception:
                log.exception("a listener failed on %s", name)

    @property
    def surrounds(self) -> bool:
        return bool(self._around)

    @contextmanager
    def around(self, context: Context) -> Iterator[None]:
        """All `around_run` hooks, the first added outermost."""
        with ExitStack() as stack:
            for around in self._around:
                stack.enter_context(around(context))
            yield
