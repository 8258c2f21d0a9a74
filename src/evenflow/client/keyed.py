"""The concurrency keys, locks and rates of a task's calls: compiled at declaration, turned into limits at each enqueue."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from evenflow.checks import whole
from evenflow.client.options import Policy
from evenflow.codec import CallSignature
from evenflow.errors import ConfigError, EnqueueError
from evenflow.job import Limit
from evenflow.limits import Concurrency, Rate
from evenflow.queues import Queue
from evenflow.rules.keys import Key, scope_key
from evenflow.rules.rate import charged_us, start_within_us

GROUP_PLACE_KEPT_US = 180_000_000
LOCK_KEPT_US = 120_000_000
LOCK_MARGIN_US = 60_000_000


class KeyedLimits:
    """The `concurrency=` of a task. `of` gives the limits of one call; the store keeps them."""

    def __init__(
        self,
        task: str,
        declared: Sequence[Concurrency],
        rates: Sequence[Rate],
        signature: CallSignature,
        mistakes: list[str],
    ) -> None:
        self._task = task
        self._signature = signature
        self._rules: list[tuple[Concurrency | Rate, Key | None]] = []
        rules: list[Concurrency | Rate] = [*declared, *rates]
        for rule in rules:
            try:
                self._rules.append((rule, self._compiled(rule)))
            except ConfigError as wrong:
                mistakes += [mistake.removeprefix(f"task {task!r}: ") for mistake in wrong.mistakes]

    @property
    def discards(self) -> bool:
        return any(isinstance(rule, Concurrency) and rule.on_conflict == "discard" for rule, _ in self._rules)

    @property
    def is_empty(self) -> bool:
        """Whether the task itself has no limits."""
        return not self._rules

    def of(
        self, args: Sequence[Any], kwargs: Mapping[str, Any], group: str | None, queue: Queue
    ) -> tuple[Limit, ...]:
        """The limits of a call; a rule whose key is None does not apply to it."""
        found = [] if queue.group_concurrency is None or group is None else [_group_limit(queue, group)]
        if queue.rate is not None:
            found += started_limits(f"rate:queue:{queue.name}", queue.rate)
        if self._rules:
            arguments = self._signature.arguments(args, kwargs)
            for rule, key in self._rules:
                found += self._limits(rule, key, arguments)
        return tuple(found)

    def _compiled(self, rule: Concurrency | Rate) -> Key | None:
        if rule.key is None:
            return None
        option = "concurrency" if isinstance(rule, Concurrency) else "rate"
        return Key(rule.key, parameters=self._signature.names, task=self._task, option=option)

    def _limits(self, rule: Concurrency | Rate, key: Key | None, arguments: dict[str, Any]) -> list[Limit]:
        if isinstance(rule, Concurrency):
            limit = self._limit(rule, key, arguments)
            return [] if limit is None else [limit]
        value = None if key is None else key.text(arguments)
        if key is not None and value is None:
            return []
        name = f"rate:task:{scope_key(self._task)}"
        return started_limits(name if value is None else f"{name}:{value}", rule)

    def _limit(self, rule: Concurrency, key: Key | None, arguments: dict[str, Any]) -> Limit | None:
        name = f"key:{scope_key(rule.scope or self._task)}"
        value = None if key is None else key.text(arguments)
        if key is not None and value is None:
            return None
        return Limit(
            name if value is None else f"{name}:{value}", self._most(rule, value, arguments), rule.duration_us
        )

    def _most(self, rule: Concurrency, value: str | None, arguments: dict[str, Any]) -> int:
        if isinstance(rule.to, Mapping):
            found = rule.to.get(value or "", rule.to.get("*"))
            if found is None:
                raise EnqueueError(
                    f"task {self._task!r}: concurrency: no limit for key {value!r}; add it, or '*', to the table"
                )
            return found
        return self._called(rule.to, arguments) if callable(rule.to) else rule.to

    def _called(self, to: Callable[..., int], arguments: dict[str, Any]) -> int:
        try:
            most = to(**arguments)
        except Exception as wrong:
            raise EnqueueError(
                f"task {self._task!r}: concurrency: to() raised {type(wrong).__name__}: {wrong}"
            ) from wrong
        if mistakes := whole("to()", most, 1):
            raise EnqueueError(f"task {self._task!r}: concurrency: {mistakes[0]}")
        return most


def lock_limit(task: str, policy: Policy) -> Limit | None:
    """The lock of a single-instance job, by its own name or the task's; it outlives the timeout by a minute."""
    if policy.single_instance is False:
        return None
    name = task if policy.single_instance is True else policy.single_instance
    kept_us = max(LOCK_KEPT_US, (policy.timeout_us or 0) + LOCK_MARGIN_US)
    return Limit(f"lock:{scope_key(name)}", 1, kept_us, at_start=policy.on_conflict != "snooze")


def _group_limit(queue: Queue, group: str) -> Limit:
    assert queue.group_concurrency is not None
    return Limit(f"group:{queue.name}:{group}", queue.group_concurrency, GROUP_PLACE_KEPT_US)


def rate_limits(name: str, rate: Rate) -> list[Limit]:
    """A rate as limits: its window, and where a burst is given a shorter one that spreads the starts."""
    found = [Limit(f"{name}/{rate.limit}", rate.count, GROUP_PLACE_KEPT_US, rate.window_us)]
    if rate.burst is not None and rate.burst < rate.count:
        window_us = -(-rate.window_us * rate.burst // rate.count)
        found.append(
            Limit(f"{name}/{rate.limit} burst {rate.burst}", rate.burst, GROUP_PLACE_KEPT_US, window_us)
        )
    return found


def started_limits(name: str, rate: Rate) -> list[Limit]:
    """A rate as limits of jobs, whose bodies start a little later than they are charged. Spacing is not stretched by it."""
    whole_window, *spacing = rate_limits(name, rate)
    charged = charged_us(rate.window_us)
    return [replace(whole_window, window_us=charged, start_us=start_within_us(rate.window_us)), *spacing]
