"""What bodies remember between their attempts, and events that they wait for."""

from evenflow.job import FOREVER_US
from evenflow.settings import Retention
from evenflow.store.engine import Engine
from evenflow.store.retention import kept_us

EVENT_KEPT_US = 7 * 86_400 * 1_000_000
YOUNG_US = 300 * 1_000_000
BATCH = 500


def recall(engine: Engine, job: int) -> dict[str, str]:
    """Everything that a job has remembered."""
    return dict(engine.run("recall", {"id": job}))


def remember(
    engine: Engine,
    job: int,
    epoch: int,
    name: str,
    value: str,
    retention: Retention,
    *,
    now: int | None = None,
) -> bool:
    """Remember something for later attempts; False where this attempt no longer owns the job. The first value stays."""
    keep_us = min(kept_us(retention, "failed"), FOREVER_US)
    values = {"id": job, "epoch": epoch, "name": name, "value": value, "keep_us": keep_us, "now": now}
    return bool(engine.run("remember", values))


def emit(engine: Engine, name: str, payload: str, *, now: int | None = None) -> int:
    """Store an event, and wake who waits for it; how many."""
    engine.run("add_event", {"name": name, "payload": payload, "keep_us": EVENT_KEPT_US, "now": now})
    return len(rouse(engine, name, now=now))


def await_event(engine: Engine, job: int, epoch: int, name: str, after: int) -> bool:
    """Note that a job waits for an event behind number `after`; False where this attempt no longer owns the job."""
    return bool(engine.run("await_event", {"id": job, "epoch": epoch, "name": name, "after": after}))


def leave_event(engine: Engine, job: int, epoch: int) -> None:
    """The job waits no more, as far as this attempt owns it."""
    engine.run("leave_event", {"id": job, "epoch": epoch})


def next_event(engine: Engine, name: str, *, after: int, since: int) -> tuple[int, str] | None:
    """The first event of a name behind number `after`, from the moment `since` on."""
    rows = engine.run("next_event", {"name": name, "after": after, "since": since})
    return (rows[0][0], rows[0][1]) if rows else None


def rouse(engine: Engine, name: str | None = None, *, now: int | None = None) -> list[int]:
    """Jobs that wait for an event of the last minutes are due now. For those that went to sleep while it came."""
    rows = engine.run("rouse", {"name": name, "ahead_us": EVENT_KEPT_US - YOUNG_US, "now": now})
    return [job for (job,) in rows]


def prune(engine: Engine, *, top: int = BATCH, now: int | None = None) -> int:
    """Forget old events, and what ended jobs remembered and waited for."""
    pruned = [
        len(engine.run("prune_events", {"top": top, "now": now})),
        len(engine.run("prune_memos", {"top": top, "now": now})),
        len(engine.run("forget_waits", {"top": top})),
    ]
    return max(pruned)
