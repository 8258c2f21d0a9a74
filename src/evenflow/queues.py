"""What a queue is: its name and its rules, as one frozen value, and what can be wrong with it.

A `Queue` itself never raises. The app's settings collect its mistakes with all the others.
"""

import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Literal, TypeAlias, get_args

from evenflow.checks import instance, one_of, whole
from evenflow.limits import Breaker, Rate

Strategy: TypeAlias = Literal["fifo", "round-robin", "time"]
OnFull: TypeAlias = Literal["overflow", "reject"]

DEFAULT_QUEUE = "default"
_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True, slots=True)
class Queue:
    """A queue and its rules.

    `priority` orders queues (1 first, to 100). `max_concurrency=0` holds the queue, `rate=0` means no rate.
    `fair` says how turns are shared among groups, `weights` how large a group's share is (1 where not given).
    `group_concurrency` bounds the jobs of each group at once; `by_weight` makes it that many times the group's weight.
    `max_ready` bounds the ready jobs; what comes beyond it goes by `on_full`. `tasks` names the tasks that may run
    here, exactly or as `prefix*`; without it any may.

    >>> Queue("stripe", max_concurrency=3, rate=Rate("60/minute")).priority
    50
    """

    name: str
    priority: int = field(default=50, kw_only=True)
    max_concurrency: int | None = field(default=None, kw_only=True)
    rate: Rate | None = field(default=None, kw_only=True)
    fair: Strategy = field(default="round-robin", kw_only=True)
    group_concurrency: int | None = field(default=None, kw_only=True)
    by_weight: bool = field(default=False, kw_only=True)
    weights: Mapping[str, float] | None = field(default=None, kw_only=True)
    max_ready: int | None = field(default=None, kw_only=True)
    on_full: OnFull = field(default="overflow", kw_only=True)
    breaker: Breaker | None = field(default=None, kw_only=True)
    tasks: Sequence[str] | None = field(default=None, kw_only=True)

    def __post_init__(self) -> None:
        if _is_zero(self.rate):
            object.__setattr__(self, "rate", None)
        if isinstance(self.weights, Mapping):
            object.__setattr__(self, "weights", MappingProxyType(dict(self.weights)))
        if isinstance(self.tasks, list):
            object.__setattr__(self, "tasks", tuple(self.tasks))

    def takes(self, task: str) -> bool:
        """Whether jobs of this task may be here.

        >>> Queue("bank", tasks=["pay", "refund.*"]).takes("refund.all"), Queue("bank", tasks=["pay"]).takes("wipe")
        (True, False)
        """
        if self.tasks is None:
            return True
        return any(task.startswith(name[:-1]) if name.endswith("*") else task == name for name in self.tasks)

    def weight(self, group: str) -> float:
        """The group's share of turns, relative to 1.

        >>> Queue("docs", weights={"gold": 3}).weight("gold"), Queue("docs").weight("gold")
        (3, 1.0)
        """
        return self.weights.get(group, 1.0) if self.weights else 1.0


def name_mistakes(name: object) -> list[str]:
    """What is wrong with a queue's name.

    >>> name_mistakes("mail.eu"), len(name_mistakes("9 lives"))
    ([], 1)
    """
    if isinstance(name, str) and _NAME.fullmatch(name):
        return []
    expected = "expected a letter, then up to 62 letters, digits, '_', '.' or '-'"
    return [f"queue {name!r}: {expected}; rename it"]


def queue_mistakes(queue: Queue) -> list[str]:
    """Everything that is wrong with a queue, each mistake with the queue's name.

    >>> queue_mistakes(Queue("mail", priority=0))
    ["queue 'mail': priority: expected a whole number from 1 to 100, got 0"]
    """
    where = f"queue {queue.name!r}"
    return [
        *name_mistakes(queue.name),
        *whole(f"{where}: priority", queue.priority, 1, 100),
        *whole(
            f"{where}: max_concurrency", queue.max_concurrency, 0, None, "0 holds the queue", optional=True
        ),
        *whole(f"{where}: group_concurrency", queue.group_concurrency, 1, optional=True),
        *_flag_mistakes(f"{where}: by_weight", queue.by_weight),
        *whole(f"{where}: max_ready", queue.max_ready, 1, optional=True),
        *one_of(f"{where}: fair", queue.fair, get_args(Strategy)),
        *one_of(f"{where}: on_full", queue.on_full, get_args(OnFull)),
        *instance(f"{where}: rate", queue.rate, Rate, "rate=Rate('60/minute')"),
        *instance(f"{where}: breaker", queue.breaker, Breaker, "breaker=Breaker()"),
        *_key_mistakes(where, queue.rate),
        *_weight_mistakes(where, queue.weights),
        *_task_mistakes(where, queue.tasks),
    ]


def queue_warnings(queue: Queue, cluster_wide_cap: int | None) -> list[str]:
    """What works but has no effect, and so was probably meant otherwise.

    >>> queue_warnings(Queue("mail", on_full="reject"), None)
    ["queue 'mail': on_full='reject' has no effect without max_ready"]
    """
    found = []
    where = f"queue {queue.name!r}"
    cap = queue.max_concurrency
    if cap is not None and cluster_wide_cap is not None and cap > cluster_wide_cap:
        found.append(
            f"{where}: max_concurrency={cap} can never bind under cluster_wide_cap={cluster_wide_cap}"
        )
    if queue.weights and queue.fair == "fifo" and not queue.by_weight:
        found.append(f"{where}: weights have no effect with fair='fifo'")
    if queue.by_weight and (queue.group_concurrency is None or not queue.weights):
        found.append(f"{where}: by_weight has no effect without group_concurrency and weights")
    if queue.on_full == "reject" and queue.max_ready is None:
        found.append(f"{where}: on_full='reject' has no effect without max_ready")
    return found


def _is_zero(value: object) -> bool:
    return value == 0 and not isinstance(value, bool)


def _flag_mistakes(what: str, value: object) -> list[str]:
    return [] if isinstance(value, bool) else [f"{what}: expected True or False, got {value!r}"]


def _key_mistakes(where: str, rate: object) -> list[str]:
    if not isinstance(rate, Rate) or rate.key is None:
        return []
    return [f"{where}: rate: expected a Rate without key, got key={rate.key!r}; give that rate to the task"]


def _weight_mistakes(where: str, weights: object) -> list[str]:
    if weights is None:
        return []
    if not isinstance(weights, Mapping):
        return [f"{where}: weights: expected a dict from group to weight, got {weights!r}"]
    return [
        f"{where}: weights: expected a text and a number above 0, got {group!r}: {weight!r}"
        for group, weight in weights.items()
        if not isinstance(group, str) or not _is_weight(weight)
    ]


def _task_mistakes(where: str, tasks: object) -> list[str]:
    if tasks is None or (
        isinstance(tasks, tuple) and tasks and all(isinstance(name, str) and name for name in tasks)
    ):
        return []
    return [f"{where}: tasks: expected a list of names of tasks, or None for any, got {tasks!r}"]


def _is_weight(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf
