"""Durable bodies: steps that are done once, sleeps and waits without a slot. A body is entered again, and what it finds
in its journal is not done again. The journal is given; nothing here knows where it is stored."""

import asyncio
import inspect
import time
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

import msgspec

from evenflow.codec import check_text, decode_result, encode_result
from evenflow.codec.hints import resolved_hints
from evenflow.durations import Duration, duration_us
from evenflow.errors import EvenflowError, EventTimeout
from evenflow.job import NEVER_US
from evenflow.signals import Suspend

LONGEST_NAME = 255
"""Of a step, a sleep or an event."""
_encode = msgspec.json.Encoder().encode


class Journal(Protocol):
    """What one job has remembered. Every write is fenced: LeaseLost where the job has another owner."""

    def now(self) -> int: ...
    def recall(self, name: str) -> str | None: ...
    def remember(self, name: str, value: str) -> None: ...
    def next_event(self, name: str, after: int) -> tuple[int, str] | None:
        """Register the wait, then look: an event that comes between the two finds the wait."""

    def leave_event(self) -> None:
        """The wait is over, with an event or without."""

    def add_step(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None, after: Any
    ) -> str: ...
    def spread(self) -> int: ...


class _Event(msgspec.Struct, frozen=True):
    """How a wait ended: an event's number and payload, or no event."""

    number: int = 0
    payload: str | None = None


class Durable:
    """The durable acts of one run of a body: plain, or as coroutines where the body is one."""

    def __init__(self, journal: Journal | None, *, is_async: bool) -> None:
        self._journal = journal
        self._is_async = is_async
        self._used: Counter[str] = Counter()

    def step(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        if self._is_async:
            return self._astep(name, function, args, kwargs)
        key = self._step_key(name)
        text = self._recall(key)
        if text is None:
            value = function(*args, **kwargs)
            if inspect.isawaitable(value):
                if inspect.iscoroutine(value):
                    value.close()
                raise TypeError(
                    f"step {name!r}: expected a plain function in a plain body, got a coroutine; make the task async"
                )
            text = self._kept(key, value)
        return decode_result(text, _returns(function))

    async def _astep(
        self, name: str, function: Callable[..., Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> Any:
        key = self._step_key(name)
        text = await asyncio.to_thread(self._recall, key)
        if text is None:
            value = function(*args, **kwargs)
            value = await value if inspect.isawaitable(value) else value
            text = await asyncio.to_thread(self._kept, key, value)
        return decode_result(text, _returns(function))

    def sleep(self, span: Duration, name: str | None) -> Any:
        if self._journal is None:
            seconds = duration_us(span) / 1e6
            return asyncio.sleep(seconds) if self._is_async else time.sleep(seconds)
        # Names are kept apart from numbers: a sleep may be called "1".
        key = self._numbered("sleep") if name is None else self._once("sleep", name, "sleep:named:")
        return self._threaded(lambda: self._sleep(key, duration_us(span)))

    def _sleep(self, key: str, span_us: int) -> None:
        assert self._journal is not None
        text = self._recall(key)
        until = self._journal.now() + span_us if text is None else int(text)
        if text is None:
            self._journal.remember(key, str(until))
        if self._journal.now() < until:
            raise Suspend(until)

    def wait_event(self, name: str, timeout: Duration | None) -> Any:
        if self._journal is None:
            raise EvenflowError(f"event {name!r}: events can be waited for in jobs only, not in a plain call")
        check_text("event", name, LONGEST_NAME)
        self._used[f"event:{name}"] += 1
        number = self._used[f"event:{name}"]
        return self._threaded(
            lambda: self._wait_event(name, number, None if timeout is None else duration_us(timeout))
        )

    def _wait_event(self, name: str, turn: int, timeout_us: int | None) -> Any:
        assert self._journal is not None
        key = f"event:{name}:{turn}"
        known = self._recall(key)
        if known is None:
            known = self._new_event(name, turn, key, timeout_us)
        event = msgspec.json.decode(known, type=_Event)
        if event.payload is None:
            raise EventTimeout(f"no event {name!r} came in time")
        return decode_result(event.payload)

    def _new_event(self, name: str, turn: int, key: str, timeout_us: int | None) -> str:
        assert self._journal is not None
        until = self._deadline(f"{key}:until", timeout_us)
        before = self._recall(f"event:{name}:{turn - 1}")
        after = 0 if before is None else msgspec.json.decode(before, type=_Event).number
        found = self._journal.next_event(name, after)
        if found is None and self._journal.now() < until:
            raise Suspend(until, waits_for_event=True)
        known = _encode(_Event(after) if found is None else _Event(*found)).decode()
        self._journal.leave_event()  # before it is remembered: who dies in between waits anew
        self._journal.remember(key, known)
        return known

    def _deadline(self, key: str, timeout_us: int | None) -> int:
        assert self._journal is not None
        if timeout_us is None:
            return NEVER_US
        text = self._recall(key)
        if text is None:
            text = str(self._journal.now() + timeout_us)
            self._journal.remember(key, text)
        return int(text)

    def add_step(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None, after: Any
    ) -> Any:
        if self._journal is None:
            raise EvenflowError("steps can be added by a step of a workflow only, not in a plain call")
        journal = self._journal
        stem = name or str(getattr(task, "name", task)).rpartition(".")[2]
        self._used[f"add:{stem}"] += 1
        count = self._used[f"add:{stem}"]
        label = stem if count == 1 else f"{stem}-{count}"
        return self._threaded(lambda: journal.add_step(task, args, kwargs, label, after))

    def spread(self) -> int:
        """For the built-in task of a fan-out: turn its list into steps."""
        assert self._journal is not None
        return self._journal.spread()

    def _threaded(self, act: Callable[[], Any]) -> Any:
        return _as_coroutine(act) if self._is_async else act()

    def _recall(self, key: str) -> str | None:
        return None if self._journal is None else self._journal.recall(key)

    def _kept(self, key: str, value: Any) -> str:
        text = encode_result(value)
        if self._journal is not None:
            self._journal.remember(key, text)
        return text

    def _step_key(self, name: str) -> str:
        return self._once("step", name, "step:")

    def _once(self, kind: str, name: str, prefix: str) -> str:
        """The key of something with a name. A name that cannot be stored is refused before anything is done."""
        key = prefix + check_text(kind, str(name), LONGEST_NAME)
        self._used[key] += 1
        if self._used[key] > 1:
            raise ValueError(
                f"{kind} {name!r} is there twice in this body: it would be done once; give each a name of its own"
            )
        return key

    def _numbered(self, kind: str) -> str:
        self._used[kind] += 1
        return f"{kind}:{self._used[kind]}"


async def _as_coroutine(act: Callable[[], Any]) -> Any:
    # What is raised in the thread is carried as a value: asyncio's executors do not take a BaseException well.
    outcome, suspended = await asyncio.to_thread(_caught, act)
    if suspended is not None:
        raise suspended
    return outcome


def _caught(act: Callable[[], Any]) -> tuple[Any, Suspend | None]:
    try:
        return act(), None
    except Suspend as suspended:
        return None, suspended


def _returns(function: Callable[..., Any]) -> Any:
    try:
        return resolved_hints(function).get("return", Any)
    except Exception:  # a built-in, or a callable without annotations of its own
        return Any
