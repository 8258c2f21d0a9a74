"""What deserves a look: alarms of the overview, and advice about the database. No I/O."""

from collections.abc import Iterable, Sequence

from evenflow.store import dashboard
from evenflow.web import shapes
from evenflow.web.texts import number, span

OLD_READY_S = 300.0
OLD_TRANSACTION_S = 300.0
MANY_DEAD = 100_000
NOTIFY_FULL = 0.5


def alarms(
    pulse: shapes.Pulse, queues: Sequence[shapes.QueueShape], breakers: Iterable[shapes.BreakerShape]
) -> list[shapes.Advice]:
    """What deserves a look now, most urgent first."""
    found = []
    waits = pulse.ready.jobs or pulse.held.jobs or pulse.scheduled.jobs
    if waits and not pulse.workers:
        found.append(shapes.Advice(level="bad", text="Jobs wait and no worker is alive."))
    for breaker in breakers:
        if breaker.state != "closed":
            text = f"Breaker {breaker.name} is {breaker.state.replace('_', ' ')}. Jobs behind it: {breaker.waiting:,}."
            found.append(shapes.Advice(level="bad", text=text))
    for queue in queues:
        if queue.paused_at is not None and queue.ready.jobs:
            text = f"Queue {queue.name} is paused. Ready jobs in it: {number(queue.ready)}."
            found.append(shapes.Advice(level="warn", text=text))
        elif (queue.oldest_ready_s or 0) > OLD_READY_S and pulse.workers:
            text = f"Queue {queue.name}: its oldest ready job has waited for {span((queue.oldest_ready_s or 0) * 1e6)}."
            found.append(shapes.Advice(level="warn", text=text))
    return found


def database_advice(
    facts: dashboard.Facts, oldest_s: float | None, tables: Sequence[shapes.TableShape]
) -> list[shapes.Advice]:
    """What to do about a database in this state; `oldest_s` is the age of its oldest transaction."""
    found = []
    if oldest_s is not None and oldest_s > OLD_TRANSACTION_S:
        text = (
            f"A transaction has been open for {span(oldest_s * 1e6)}: dead rows cannot be removed meanwhile. "
            "Find who holds it and end it."
        )
        found.append(shapes.Advice(level="warn", text=text))
    for row in tables:
        if (row.dead_rows or 0) > MANY_DEAD and (row.dead_rows or 0) > (row.live_rows or 0):
            text = f"Table {row.name} holds more dead rows than live ones ({row.dead_rows:,}): is autovacuum running?"
            found.append(shapes.Advice(level="warn", text=text))
    if (facts.notify_usage or 0) > NOTIFY_FULL:
        text = "The queue of notifications is more than half full: some session listens and never reads."
        found.append(shapes.Advice(level="bad", text=text))
    if (facts.log_bytes or 0) > 4 * max(facts.bytes, 1) and (facts.log_bytes or 0) > 256_000_000:
        text = "The write-ahead log is far larger than the file: a reader that never ends keeps it from being taken over."
        found.append(shapes.Advice(level="warn", text=text))
    return found
