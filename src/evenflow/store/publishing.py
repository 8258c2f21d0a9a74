"""Publishing: which tasks programs in other languages may enqueue by SQL, and by which rules."""

from collections.abc import Sequence

import msgspec

from evenflow.store.engine import Engine, as_json


class Published(msgspec.Struct, frozen=True):
    """A published task, with its rules as the SQL function reads them."""

    task: str
    rules: str
    published_at: int


def publish(engine: Engine, rules: dict[str, str], *, now: int | None = None) -> None:
    """Let these tasks be enqueued by SQL, by these rules; what they were before is replaced."""
    tasks = [{"task": name, "rules": text} for name, text in rules.items()]
    engine.run("publish_tasks", {"tasks": as_json(tasks), "now": now})


def withdraw(engine: Engine, names: Sequence[str]) -> list[str]:
    """Let these tasks no longer be enqueued by SQL; those that could be."""
    return [task for (task,) in engine.run("withdraw_tasks", {"names": as_json(names)})]


def published(engine: Engine) -> list[Published]:
    """All tasks that can be enqueued by SQL."""
    return [Published(*row) for row in engine.run("list_published", {})]
