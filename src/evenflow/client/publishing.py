"""What a task's declaration says to the SQL function `evenflow.enqueue`, and what that function cannot do for it."""

from datetime import datetime
from typing import Any

import msgspec

from evenflow.client.keyed import lock_limit
from evenflow.client.task import AnyTask
from evenflow.clock import to_us
from evenflow.durations import duration_us
from evenflow.queues import Queue
from evenflow.rules.keys import scope_key
from evenflow.settings import Settings


def rules_of(task: AnyTask, settings: Settings) -> str:
    """The rules of one task, as JSON."""
    policy, signature = task.policy, task.signature
    good_until = policy.good_until
    said: dict[str, Any] = {
        "queue": policy.queue, "priority": policy.priority, "max_attempts": policy.retry.max_attempts,
        "fails_on_crash": policy.on_crash == "fail", "scope": scope_key(task.name), "group": _group(task),
        "good_until": to_us(good_until) if isinstance(good_until, datetime) else None,
        "good_for_us": None if good_until is None or isinstance(good_until, datetime) else duration_us(good_until),
        "names": signature.positional_names, "keyword_only": signature.keyword_only_names,
        "required": [name for name in signature.names if signature.is_required(name)],
        "takes_rest": signature.takes_rest, "takes_extra": signature.takes_extra,
        "queues": {queue.name: _refusal_of_queue(queue) for queue in settings.queues},
        "is_open": settings.queue_mode == "open", "max_bytes": settings.max_payload_bytes,
        "refusal": _refusal(task, settings),
    }  # fmt: skip
    return msgspec.json.encode(said).decode()


def refusal_of(rules: str) -> str | None:
    """Why the function refuses a task with these rules, or None."""
    refusal: str | None = msgspec.json.decode(rules)["refusal"]
    return refusal


def _group(task: AnyTask) -> str | None:
    """The argument that is the group; an empty text where only Python can tell the group."""
    group = task.policy.group
    if group is None:
        return None
    return group if isinstance(group, str) and group in task.signature.names else ""


def _refusal(task: AnyTask, settings: Settings) -> str | None:
    policy = task.policy
    if settings.signing_keys:
        return "the jobs of this app are signed, and the database has no key"
    if policy.concurrency or policy.rate or lock_limit(task.name, policy) is not None:
        return "it has a concurrency key, a rate or a lock, which are worked out in Python"
    if policy.unique is not None:
        return "it is declared unique, which is worked out in Python"
    return None


def _refusal_of_queue(queue: Queue) -> str | None:
    if queue.rate is not None or queue.group_concurrency is not None:
        return "it has a rate or a limit for groups, which are worked out in Python"
    return None
