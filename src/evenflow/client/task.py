"""Tasks: functions with a policy. A plain call runs here; `enqueue` runs elsewhere, later."""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

import msgspec

from evenflow.client.handle import Job
from evenflow.client.options import CallOptions, Policy, When, changed_policy
from evenflow.clock import to_us, wall_us
from evenflow.codec import CallSignature, check_text, encode_call
from evenflow.context import Context
from evenflow.durations import duration_us
from evenflow.errors import ConfigError
from evenflow.job import NewJob
from evenflow.rules.keys import Key, scope_key
from evenflow.settings import Settings

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LONGEST_NAME = 255
LONGEST_GROUP = 255
_encode = msgspec.json.Encoder().encode


class Call(Generic[T]):
    """One call of a task, bound and encoded, for `app.enqueue_many`. Made by `task.job(...)`."""

    __slots__ = ("new", "task")

    def __init__(self, task: "Task[Any, Any, T]", new: NewJob) -> None:
        self.task = task
        self.new = new

    def __repr__(self) -> str:
        return f"<Call of {self.new.task} for queue {self.new.queue!r}>"


class Sender(Protocol):
    """What a task needs to send its calls."""

    settings: Settings

    def declared(self, name: str) -> "AnyTask | None": ...
    def enqueue(self, calls: "Sequence[Call[Any]]", connection: Any = None) -> list[Job[Any]]: ...
    async def aenqueue(self, calls: "Sequence[Call[Any]]", connection: Any = None) -> list[Job[Any]]: ...


class Task(Generic[P, R, T]):
    """A function with a policy. Made by `@app.task`.

    `R` is what a plain call returns, `T` what the job's result is (the same, but for coroutines).

    >>> @app.task(queue="mail")                        # doctest: +SKIP
    ... def send(to: str, text: str) -> None: ...
    >>> send("bob@example.org", "hello")               # doctest: +SKIP
    >>> send.enqueue("bob@example.org", "hello")       # doctest: +SKIP
    >>> send.using(priority=-5, run_after=60).enqueue("bob@example.org", "hello")  # doctest: +SKIP
    """

    def __init__(self, function: Callable[P, R], name: str, policy: Policy, producer: Sender) -> None:
        functools.update_wrapper(self, function)
        self.name = name
        self.function = function
        self.policy = policy
        self.signature = CallSignature(function, task=name, context_type=Context)
        self.is_async = inspect.iscoroutinefunction(function)
        self._producer = producer
        self._connection: Any = None
        _check_run_in(name, policy.run_in, self.is_async)
        self._group = self._key("group", policy.group, None) if policy.group is not None else None
        self._unique = self._unique_key(policy)

    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now; nothing is stored."""
        return self.function(*args, **kwargs)

    def enqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Store a call to be run by a worker. When this returns, the job is durable.

        With `connection=` (or `using(connection=…)`) it lives and dies with the transaction of that connection.
        """
        connection = self._taken_connection(kwargs)
        return self._producer.enqueue([self.job(*args, **kwargs)], connection)[0]

    async def aenqueue(self, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """`enqueue`, awaited."""
        connection = self._taken_connection(kwargs)
        jobs = await self._producer.aenqueue([self.job(*args, **kwargs)], connection)
        return jobs[0]

    def enqueue_many(
        self, calls: Iterable[tuple[Any, ...] | dict[str, Any]], *, connection: Any = None
    ) -> list[Job[T]]:
        """Store many calls in one transaction; each is a tuple of positional or a dict of named arguments.

        >>> add.enqueue_many([(1, 2), (3, 4)])  # doctest: +SKIP
        """
        return self._producer.enqueue(self._bound(calls), connection or self._connection)

    async def aenqueue_many(
        self, calls: Iterable[tuple[Any, ...] | dict[str, Any]], *, connection: Any = None
    ) -> list[Job[T]]:
        """`enqueue_many`, awaited."""
        return await self._producer.aenqueue(self._bound(calls), connection or self._connection)

    def using(self, **options: Unpack[CallOptions]) -> "Task[P, R, T]":
        """The same task with other options, for the calls made through what is returned.

        `run_after` is a delay or a moment, `good_until` a span or a moment after which the job is not worth running.
        """
        twin: Task[P, R, T] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.policy = changed_policy(self.name, self.policy, options)
        twin._connection = options.get("connection", self._connection)
        if "unique" in options:
            twin._unique = twin._unique_key(twin.policy)
        return twin

    def job(self, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """Bind and encode a call without storing it: for `app.enqueue_many`. Raises what `enqueue` would raise."""
        policy = self.policy
        payload = encode_call(self.signature, args, kwargs, self._producer.settings.max_payload_bytes)
        self._producer.settings.queue(policy.queue)
        group = unique_key = None
        if policy.group_value is not None:
            group = check_text("group", policy.group_value, LONGEST_GROUP)
        elif self._group is not None:
            group = self._group.text(self.signature.arguments(args, kwargs))
        if policy.unique is not None:
            unique_key = self._unique_text(args, kwargs, payload)
        now = wall_us() if policy.run_after is not None or policy.good_until is not None else 0
        new = NewJob(
            self.name, payload, policy.queue, policy.priority, group, policy.retry.max_attempts,
            _due(policy.run_after, now), _moment(policy.good_until, now), None, unique_key, policy.on_crash == "fail",
            None, self._options(),
        )  # fmt: skip
        return Call(self, new)

    def _bound(self, calls: Iterable[tuple[Any, ...] | dict[str, Any]]) -> list[Call[T]]:
        bind: Callable[..., Call[T]] = self.job
        return [bind(**call) if isinstance(call, dict) else bind(*call) for call in calls]

    def _taken_connection(self, kwargs: dict[str, Any]) -> Any:
        if "connection" in kwargs and "connection" not in self.signature.names:
            return kwargs.pop("connection")
        return self._connection

    def _options(self) -> str | None:
        """What a worker must know beyond the declaration, because this call says otherwise."""
        declared = self._producer.declared(self.name)
        if declared is None or declared.policy is self.policy:
            return None
        found: dict[str, Any] = {}
        if self.policy.timeout_us != declared.policy.timeout_us:
            found["timeout_us"] = self.policy.timeout_us
        if self.policy.keep_us != declared.policy.keep_us:
            found["keep_us"] = self.policy.keep_us
        if self.policy.retry != declared.policy.retry:
            found["retry"] = _plain_retry(self.name, self.policy)
        return _encode(found).decode() if found else None

    def _unique_key(self, policy: Policy) -> Key | None:
        if policy.unique is None or policy.unique.key is None:
            return None
        return self._key("unique", policy.unique.key, self.name)

    def _unique_text(self, args: Any, kwargs: Any, payload: str) -> str | None:
        if self.policy.unique_value is not None:
            return f"{scope_key(self.name)}:{check_text('unique', self.policy.unique_value, LONGEST_GROUP)}"
        if self._unique is not None:
            return self._unique.text(self.signature.arguments(args, kwargs))
        return f"{scope_key(self.name)}#{hashlib.sha256(payload.encode()).hexdigest()}"

    def _key(self, option: str, source: Any, scope: str | None) -> Key:
        return Key(source, parameters=self.signature.names, task=self.name, option=option, scope=scope)

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


AnyTask = Task[Any, Any, Any]


def task_name(function: Callable[..., Any]) -> str:
    """The name a function is known by in the store. A script run as `__main__` is known by its file's name, so that a
    worker that imports the same file knows its jobs."""
    module = function.__module__
    if module == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        module = Path(path).stem if path else module
    return f"{module}.{function.__qualname__}".replace(".<locals>", "")


def _due(when: When | None, now: int) -> int | None:
    due = _moment(when, now)
    return None if due is None or due <= now else due


def _moment(when: When | None, now: int) -> int | None:
    if when is None:
        return None
    return to_us(when) if isinstance(when, datetime) else now + duration_us(when)


def _plain_retry(name: str, policy: Policy) -> dict[str, Any]:
    retry = policy.retry
    if retry.on or retry.give_up_on:
        raise ConfigError(
            f"task {name!r}: retry: on and give_up_on belong to the declaration; using() takes numbers and shapes"
        )
    shape = (
        retry.backoff
        if isinstance(retry.backoff, str)
        else [duration_us(delay) / 1e6 for delay in retry.backoff]
    )
    return {
        "backoff": shape,
        "base": duration_us(retry.base) / 1e6,
        "max": None if retry.max is None else duration_us(retry.max) / 1e6,
        "jitter": retry.jitter,
    }


def _check_run_in(name: str, run_in: str, is_async: bool) -> None:
    if is_async and run_in == "thread":
        raise ConfigError(
            f"task {name!r}: run_in='thread' is for plain functions; leave it out for a coroutine"
        )
    if not is_async and run_in == "async":
        raise ConfigError(
            f"task {name!r}: run_in='async' is for coroutines; write `async def`, or leave it out"
        )
