"""Tasks: functions with a policy. A plain call runs here; `enqueue` runs elsewhere, later."""

import functools
import hashlib
import inspect
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Generic, ParamSpec, Protocol, TypeVar, Unpack

import msgspec

from evenflow.client.handle import Job
from evenflow.client.keyed import KeyedLimits, lock_limit
from evenflow.client.options import CallOptions, Policy, When, changed_policy
from evenflow.clock import Clock, to_us
from evenflow.codec import TAG, CallSignature, check_text, encode_call, encode_template
from evenflow.context import Context
from evenflow.durations import duration_us
from evenflow.errors import ConfigError, EnqueueError, PayloadError
from evenflow.job import Limit, NewJob
from evenflow.module_names import module_of_file
from evenflow.rules.keys import Key, scope_key
from evenflow.settings import Settings
from evenflow.store.retention import kept_us
from evenflow.unique import Unique

P = ParamSpec("P")
R = TypeVar("R")
T = TypeVar("T")

LONGEST_NAME = 255
LONGEST_GROUP = 255
MOST_KNOWN_GROUPS = 10_000
_NOT_UNIQUE = Unique()
_encode = msgspec.json.Encoder().encode
_encode_sorted = msgspec.json.Encoder(order="sorted").encode


class Call(msgspec.Struct, Generic[T], frozen=True, gc=False, eq=False):
    """One call of a task, bound and encoded, for `app.enqueue_many`. Made by `task.job(...)`."""

    task: "Task[Any, Any, T]"
    new: NewJob

    def __repr__(self) -> str:
        return f"<Call of {self.new.task} for queue {self.new.queue!r}>"


class Sender(Protocol):
    """What a task needs to send its calls."""

    settings: Settings

    @property
    def clock(self) -> Clock: ...
    def declared(self, name: str) -> "AnyTask | None": ...
    def enqueue_one(self, call: "Call[Any]", connection: Any = None) -> Job[Any]: ...
    def enqueue(self, calls: "Sequence[Call[Any]]", connection: Any = None) -> list[Job[Any]]: ...
    async def aenqueue(self, calls: "Sequence[Call[Any]]", connection: Any = None) -> list[Job[Any]]: ...


class Task(Generic[P, R, T]):
    """A function with a policy. Made by `@app.task`. A plain call runs the function here.

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
        self.connection: Any = None
        self._producer = producer
        self._template: NewJob | None = None
        self._is_special = False
        mistakes = _run_in_mistakes(policy.run_in, self.is_async)
        self._group = self._key("group", policy.group, None, mistakes)
        # Where the group is an argument, texts that have passed for one are not looked at again: batches repeat them.
        self._group_place = self.signature.place_of(policy.group) if isinstance(policy.group, str) else None
        self._known_groups: set[str] = set()
        self._unique = self._unique_key(policy, mistakes)
        self.limits = KeyedLimits(name, policy.concurrency, policy.rate, self.signature, mistakes)
        if mistakes:
            raise ConfigError([f"task {name!r}: {mistake}" for mistake in mistakes])

    def __call__(self, /, *args: P.args, **kwargs: P.kwargs) -> R:
        """Run the function here and now; nothing is stored. Where it takes a Context and none is given, it gets one."""
        if self.signature.context is None or any(
            isinstance(each, Context) for each in (*args, *kwargs.values())
        ):
            return self.function(*args, **kwargs)
        context = Context(job_id="", task=self.name, attempt=1, fence=0, queue=self.policy.queue)
        placed, named = self.signature.inject(args, kwargs, context)
        call: Callable[..., R] = self.function
        return call(*placed, **named)

    def enqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """Store a call to be run by a worker. When this returns, the job is durable.

        With `connection=` (or `using(connection=…)`) it lives and dies with the transaction of that connection.
        """
        connection = self._given_connection(kwargs) if kwargs else None
        return self._producer.enqueue_one(self.job(*args, **kwargs), connection)

    async def aenqueue(self, /, *args: P.args, **kwargs: P.kwargs) -> Job[T]:
        """`enqueue`, awaited."""
        connection = self._given_connection(kwargs) if kwargs else None
        jobs = await self._producer.aenqueue([self.job(*args, **kwargs)], connection)
        return jobs[0]

    def enqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any]], *, connection: Any = None
    ) -> list[Job[T]]:
        """Store many calls in one transaction; each is a tuple of positional or a dict of named arguments.

        >>> add.enqueue_many([(1, 2), {"a": 3, "b": 4}])  # doctest: +SKIP
        """
        return self._producer.enqueue(self._bound(calls), connection)

    async def aenqueue_many(
        self, calls: Iterable[Sequence[Any] | Mapping[str, Any]], *, connection: Any = None
    ) -> list[Job[T]]:
        """`enqueue_many`, awaited."""
        return await self._producer.aenqueue(self._bound(calls), connection)

    def using(self, **options: Unpack[CallOptions]) -> "Task[P, R, T]":
        """The same task with other options, for the calls made through what is returned.

        `run_after` is a delay or a moment, `good_until` a span or a moment after which the job is not worth running.
        `group` and a `unique` text are taken as they are; `group=None` goes back to what the task declares.
        """
        twin: Task[P, R, T] = object.__new__(type(self))
        twin.__dict__.update(self.__dict__)
        twin.policy = changed_policy(self.name, self.policy, options)
        twin._template, twin._is_special = None, False
        twin.connection = options.get("connection", self.connection)
        if "unique" in options:
            mistakes: list[str] = []
            twin._unique = twin._unique_key(twin.policy, mistakes)
            if mistakes:
                raise ConfigError([f"task {self.name!r}: {mistake}" for mistake in mistakes])
        return twin

    def job(self, /, *args: P.args, **kwargs: P.kwargs) -> Call[T]:
        """Bind and encode a call without storing it: for `app.enqueue_many`. Raises what `enqueue` would raise."""
        payload = encode_call(self.signature, args, kwargs, self._producer.settings.max_payload_bytes)
        # Where nothing depends on the call but its payload and its group, it is worked out once.
        like = self._template
        if like is None:
            new = self._new_job(args, kwargs, payload)
            if not self._is_special:
                self._is_special = not self._depends_on_payload_and_group_alone()
                self._template = None if self._is_special else new
            return Call(self, new)
        group = like.group
        if self._group is not None and self.policy.group_value is None:
            group = self._group_text(args, kwargs)
        new = NewJob(
            like.task, payload, like.queue, like.priority, group, like.max_attempts, None, None, None, None,
            like.fails_on_crash, None, like.options,
        )  # fmt: skip
        return Call(self, new)

    def template(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> NewJob:
        """A call for a workflow: its arguments may be, or hold, references to results that are not there yet."""
        payload = encode_template(self.signature, args, kwargs, self._producer.settings.max_payload_bytes)
        return self._new_job(args, kwargs, payload)

    def _depends_on_payload_and_group_alone(self) -> bool:
        policy, queue = self.policy, self._producer.settings.queue(self.policy.queue)
        per_call = (
            policy.unique, policy.run_after, policy.good_until, queue.rate, queue.group_concurrency,
            lock_limit(self.name, policy),
        )  # fmt: skip
        return self.limits.is_empty and all(each is None for each in per_call)

    def _new_job(self, args: Sequence[Any], kwargs: Mapping[str, Any], payload: str) -> NewJob:
        policy = self.policy
        queue = self._producer.settings.queue(policy.queue)
        if not queue.takes(self.name):
            raise EnqueueError(
                f"task {self.name!r} may not run in queue {queue.name!r}; add it to tasks= of that queue, or choose another"
            )
        group = unique_key = None
        if policy.group_value is not None:
            group = check_text("group", policy.group_value, LONGEST_GROUP)
        elif self._group is not None:
            group = self._group_text(args, kwargs)
        unique = policy.unique
        if unique is not None:
            unique_key = self._unique_text(args, kwargs, payload)
        if unique is None or unique_key is None:
            unique = _NOT_UNIQUE
        delay_us = unique.debounce_us
        is_timed = policy.run_after is not None or policy.good_until is not None or delay_us
        now = self._producer.clock.wall_us() if is_timed else 0
        run_at = _due(policy.run_after, now)
        if delay_us is not None:
            run_at = max(run_at or 0, now + delay_us)
        lock = lock_limit(self.name, policy)
        limits = self.limits.of(args, kwargs, group, queue)
        return NewJob(
            self.name, payload, policy.queue, policy.priority, group, policy.retry.max_attempts,
            run_at, moment(policy.good_until, now), None, unique_key, policy.on_crash == "fail",
            None, self._options(limits), limits if lock is None else (*limits, lock), unique.ttl_us, unique.replaces,
            unique.max_wait_us,
        )  # fmt: skip

    def _group_text(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> str | None:
        assert self._group is not None
        place = self._group_place
        given = args[place] if place is not None and place < len(args) else None
        if type(given) is str and given in self._known_groups:
            return given
        text = self._group.text(self.signature.arguments(args, kwargs))
        if type(given) is str and len(self._known_groups) < MOST_KNOWN_GROUPS:
            self._known_groups.add(given)
        return text

    def call_options(self) -> dict[str, Any]:
        """What `using(...)` said, as plain data: for calls that are made later, elsewhere."""
        policy, now = self.policy, self._producer.clock.wall_us()
        when = policy.run_after
        return {
            "queue": policy.queue, "priority": policy.priority, "group": policy.group_value,
            "max_attempts": policy.retry.max_attempts, "options": self._options(),
            "fails_on_crash": policy.on_crash == "fail", "good_until": moment(policy.good_until, now),
            "not_before": to_us(when) if isinstance(when, datetime) else None,
            "delay_us": None if when is None or isinstance(when, datetime) else duration_us(when),
        }  # fmt: skip

    @property
    def has_other_unique(self) -> bool:
        """Whether `using(...)` has changed what its calls are unique by."""
        declared = self._producer.declared(self.name)
        return declared is not None and declared.policy.unique != self.policy.unique

    def belongs_to(self, sender: object) -> bool:
        """Whether its calls are sent by this one."""
        return self._producer is sender

    def _bound(self, calls: Iterable[Sequence[Any] | Mapping[str, Any]]) -> list[Call[T]]:
        bind: Callable[..., Call[T]] = self.job
        bound = []
        for call in calls:
            if isinstance(call, tuple | list):  # first: of an abstract class it is asked at length
                bound.append(bind(*call))
            elif isinstance(call, Mapping):
                bound.append(bind(**call))
            else:
                raise PayloadError(
                    f"task {self.name!r}: expected a tuple or a dict of arguments for each call, got {call!r}; "
                    "write [(1, 2), (3, 4)], and (1,) for a single argument"
                )
        return bound

    def _given_connection(self, kwargs: dict[str, Any]) -> Any:
        if "connection" in kwargs and "connection" not in self.signature.names:
            return kwargs.pop("connection")
        return None  # the call itself knows what using() said

    def _options(self, limits: Sequence[Limit] = ()) -> str | None:
        """What a worker must know beyond the declaration, because this call or its limits say so."""
        found: dict[str, Any] = {}
        start_us = min((limit.start_us for limit in limits if limit.start_us is not None), default=None)
        if start_us is not None:
            found["start_us"] = start_us
        if self.policy.single_instance is not False and self.policy.on_conflict != "snooze":
            found["lock"] = self.policy.on_conflict
        declared = self._producer.declared(self.name)
        if declared is None or declared.policy is self.policy:
            return _encode(found).decode() if found else None
        if self.policy.timeout_us != declared.policy.timeout_us:
            found["timeout_us"] = self.policy.timeout_us
        if self.policy.keep_us != declared.policy.keep_us:
            kept = self.policy.keep_us
            found["keep_us"] = (
                kept_us(self._producer.settings.retention, "succeeded") if kept is None else kept
            )
        if self.policy.retry != declared.policy.retry:
            found["retry"] = _plain_retry(self.name, self.policy)
        return _encode(found).decode() if found else None

    def _unique_key(self, policy: Policy, mistakes: list[str]) -> Key | None:
        source = policy.unique.key if isinstance(policy.unique, Unique) else None
        return self._key("unique", source, self.name, mistakes)

    def _unique_text(self, args: Any, kwargs: Any, payload: str) -> str | None:
        if self.policy.unique_value is not None:
            return f"{scope_key(self.name)}:{check_text('unique', self.policy.unique_value, LONGEST_GROUP)}"
        if self._unique is not None:
            return self._unique.text(self.signature.arguments(args, kwargs))
        return f"{scope_key(self.name)}#{hashlib.sha256(canonical_payload(payload)).hexdigest()}"

    def _key(self, option: str, source: Any, scope: str | None, mistakes: list[str]) -> Key | None:
        if source is None:
            return None
        try:
            return Key(source, parameters=self.signature.names, task=self.name, option=option, scope=scope)
        except ConfigError as wrong:
            mistakes += [mistake.removeprefix(f"task {self.name!r}: ") for mistake in wrong.mistakes]
            return None

    def __repr__(self) -> str:
        return f"<Task {self.name}>"


AnyTask = Task[Any, Any, Any]


def task_name(function: Callable[..., Any]) -> str:
    """The name a function is known by in the store. A script run as `__main__` is known by its file's name, so that a
    worker that imports the same file knows its jobs."""
    module, name = getattr(function, "__module__", None), getattr(function, "__qualname__", None)
    if not callable(function) or module is None or name is None:
        raise ConfigError(
            f"expected a function to make a task of, got {function!r}; write @app.task above a def"
        )
    if module == "__main__":
        path = getattr(sys.modules["__main__"], "__file__", None)
        module = module_of_file(Path(path))[1] if path else module
    return f"{module}.{name}".replace(".<locals>", "")


def _due(when: When | None, now: int) -> int | None:
    due = moment(when, now)
    return None if due is None or due <= now else due


def moment(when: When | None, now: int) -> int | None:
    """The stored time that is meant: a moment, or so long after now."""
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


def _run_in_mistakes(run_in: str, is_async: bool) -> list[str]:
    if is_async and run_in == "thread":
        return ["run_in='thread' is for plain functions; leave it out for a coroutine"]
    if not is_async and run_in == "async":
        return ["run_in='async' is for coroutines; write `async def`, or leave it out"]
    return []


def canonical_payload(payload: str) -> bytes:
    """The same bytes for equal arguments: dicts that differ only in the order of their keys are equal."""
    return _encode_sorted(_ordered(msgspec.json.decode(payload)))


def _ordered(wire: Any) -> Any:
    """Stored dicts with other keys than texts are lists of pairs: those in an order of their own, too."""
    if isinstance(wire, list):
        return [_ordered(each) for each in wire]
    if not isinstance(wire, dict):
        return wire
    ordered = {key: _ordered(value) for key, value in wire.items()}
    if ordered.get(TAG) == "dict":
        ordered["v"] = sorted(ordered["v"], key=_encode_sorted)
    return ordered
