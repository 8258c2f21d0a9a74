"""The concurrency keys, locks and rates of a task's calls: compiled at declaration, turned into limits at each enqueue."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, TypeAlias

from msgspec.structs import replace

from evenflow.checks import whole
from evenflow.client.options import Policy
from evenflow.codec import CallSignature
from evenflow.errors import ConfigError, EnqueueError
from evenflow.job import Limit
from evenflow.limits import Concurrency, Rate
from evenflow.queues import Queue
from evenflow.rules.fair import group_cap
from evenflow.rules.keys import Arguments, Key, called_by_name, scope_key
from evenflow.rules.rate import charged_us, start_within_us

GROUP_PLACE_KEPT_US = 180_000_000
LOCK_KEPT_US = 120_000_000
LOCK_MARGIN_US = 60_000_000
# How many share a limit; a name has the same breadth wherever it is used, or jobs could wait for each other.
ONE_KEY, ONE_TASK, ONE_SCOPE, ONE_QUEUE = range(4)
_Call: TypeAlias = Callable[[Arguments], object]


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
        self._rules: list[tuple[Concurrency | Rate, Key | None, _Call | None]] = []
        rules = [
            rule for rule in (*declared, *rates) if isinstance(rule, Concurrency | Rate)
        ]  # the others are told of
        for rule in rules:
            try:
                self._rules.append((rule, self._compiled(rule), self._callable(rule)))
            except ConfigError as wrong:
                mistakes += [mistake.removeprefix(f"task {task!r}: ") for mistake in wrong.mistakes]
        mistakes += _twice(task, rules)

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
            found += started_limits(f"rate:queue:{queue.name}", queue.rate, ONE_QUEUE)
        if self._rules:
            arguments = self._signature.arguments(args, kwargs)
            for rule, key, to in self._rules:
                found += self._limits(rule, key, to, arguments)
        return tuple(found) if len(found) < 2 else _without_twins(found)

    def _compiled(self, rule: Concurrency | Rate) -> Key | None:
        if rule.key is None:
            return None
        option = "concurrency" if isinstance(rule, Concurrency) else "rate"
        return Key(rule.key, parameters=self._signature.names, task=self._task, option=option)

    def _callable(self, rule: Concurrency | Rate) -> _Call | None:
        """The `to` of a rule, where it is computed for each call."""
        if not isinstance(rule, Concurrency) or not callable(rule.to):
            return None
        names = self._signature.names
        return called_by_name(rule.to, parameters=names, task=self._task, option="concurrency: to")

    def _limits(
        self, rule: Concurrency | Rate, key: Key | None, to: _Call | None, arguments: dict[str, Any]
    ) -> list[Limit]:
        if isinstance(rule, Concurrency):
            limit = self._limit(rule, key, to, arguments)
            return [] if limit is None else [limit]
        value = None if key is None else key.text(arguments)
        if key is not None and value is None:
            return []
        name = f"rate:task:{scope_key(self._task)}"
        if value is None:
            return started_limits(name, rule, ONE_TASK)
        return started_limits(f"{name}:{value}", rule, ONE_KEY)

    def _limit(
        self, rule: Concurrency, key: Key | None, to: _Call | None, arguments: dict[str, Any]
    ) -> Limit | None:
        name = f"key:{scope_key(rule.scope or self._task)}"
        value = None if key is None else key.text(arguments)
        if key is not None and value is None:
            return None
        return Limit(
            name if value is None else f"{name}:{value}",
            self._most(rule, value) if to is None else self._called(to, arguments),
            rule.duration_us,
            discards=rule.on_conflict == "discard",
            breadth=ONE_SCOPE if value is None else ONE_KEY,
        )

    def _most(self, rule: Concurrency, value: str | None) -> int:
        if not isinstance(rule.to, Mapping):
            assert isinstance(rule.to, int)
            return rule.to
        found = rule.to.get(value or "", rule.to.get("*"))
        if found is None:
            raise EnqueueError(
                f"task {self._task!r}: concurrency: no limit for key {value!r}; add it, or '*', to the table"
            )
        return found

    def _called(self, to: _Call, arguments: dict[str, Any]) -> int:
        try:
            most = to(arguments)
        except Exception as wrong:
            raise EnqueueError(
                f"task {self._task!r}: concurrency: to() raised {type(wrong).__name__}: {wrong}"
            ) from wrong
        if mistakes := whole("to()", most, 1):
            raise EnqueueError(f"task {self._task!r}: concurrency: {mistakes[0]}")
        assert isinstance(most, int)
        return most


def _twice(task: str, rules: Sequence[Concurrency | Rate]) -> list[str]:
    """Rules that count the same thing: of two numbers one would never bind, or they contradict each other."""
    keys = [(rule.scope or task, rule.key) for rule in rules if isinstance(rule, Concurrency)]
    rates = [rule for rule in rules if isinstance(rule, Rate)]
    return [
        *(
            f"concurrency: two rules for scope {each[0]!r} and key {each[1]!r}; keep one"
            for place, each in enumerate(keys)
            if each in keys[:place]
        ),
        *(
            f"rate: {other.limit!r} and {each.limit!r} for one window and key {each.key!r}; keep one"
            for place, each in enumerate(rates)
            for other in rates[:place]
            if (other.window_us, other.key) == (each.window_us, each.key)
        ),
    ]


def _without_twins(found: list[Limit]) -> tuple[Limit, ...]:
    """One place at each name, the tightest: a call whose keys turn out equal (`sender` is `receiver`) would wait for itself."""
    tightest: dict[str, Limit] = {}
    for limit in found:
        known = tightest.get(limit.name)
        if known is None or limit.most < known.most or (limit.most == known.most and limit.discards):
            tightest[limit.name] = limit
    return tuple(tightest.values())


def lock_limit(task: str, policy: Policy) -> Limit | None:
    """The lock of a single-instance job, by its own name or the task's; it outlives the timeout by a minute."""
    if policy.single_instance is False:
        return None
    name = task if policy.single_instance is True else policy.single_instance
    kept_us = max(LOCK_KEPT_US, (policy.timeout_us or 0) + LOCK_MARGIN_US)
    return Limit(
        f"lock:{scope_key(name)}", 1, kept_us, at_start=policy.on_conflict != "snooze", breadth=ONE_SCOPE
    )


def _group_limit(queue: Queue, group: str) -> Limit:
    assert queue.group_concurrency is not None
    weight = queue.weight(group) if queue.by_weight else 1
    most = group_cap(queue.group_concurrency, weight)
    return Limit(f"group:{queue.name}:{group}", most, GROUP_PLACE_KEPT_US, breadth=ONE_KEY)


def rate_limits(name: str, rate: Rate) -> list[Limit]:
    """A rate as limits: its window, and where a burst is given a shorter one that spreads the starts."""
    found = [Limit(f"{name}/{rate.limit}", rate.count, GROUP_PLACE_KEPT_US, rate.window_us)]
    if rate.burst is not None and rate.burst < rate.count:
        window_us = -(-rate.window_us * rate.burst // rate.count)
        found.append(
            Limit(f"{name}/{rate.limit} burst {rate.burst}", rate.burst, GROUP_PLACE_KEPT_US, window_us)
        )
    return found


def started_limits(name: str, rate: Rate, breadth: int) -> list[Limit]:
    """A rate as limits of jobs, whose bodies start a little later than they are charged. Spacing is not stretched by it."""
    whole_window, *spacing = (replace(each, breadth=breadth) for each in rate_limits(name, rate))
    charged = charged_us(rate.window_us)
    return [replace(whole_window, window_us=charged, start_us=start_within_us(rate.window_us)), *spacing]
