"""Breakers as operators see them: their state in one row, and opening and closing them by hand."""

import difflib
from datetime import datetime

import msgspec

from evenflow.client.producer import Producer
from evenflow.clock import from_us
from evenflow.errors import UnknownBreaker
from evenflow.ids import id_text
from evenflow.rules.breaker import Declared, declared
from evenflow.store import gates
from evenflow.store.gates import BreakerRow


class BreakerStatus(msgspec.Struct, frozen=True):
    """A breaker now. `opens_at` is when a probe may run (None: it is closed, or was opened by hand until it is closed by
    hand), `probe` the job that may, or does, run as the probe, `waiting` how many jobs stand behind it."""

    name: str
    state: str
    failures: int
    failure_threshold: int
    opened_at: datetime | None
    opens_at: datetime | None
    opened_by: str | None
    opened_why: str | None
    probe: str | None
    waiting: int
    guards: tuple[str, ...]


class BreakerControl:
    """One breaker, by its name: `app.breaker("bank").open(why="the bank moves house")`."""

    def __init__(self, producer: Producer, name: str) -> None:
        self._producer = producer
        self.name = name

    def open(self, *, who: str | None = None, why: str | None = None) -> None:
        """Let nothing pass until `close` or `reset`; what runs goes on. No cooldown ends this, and no probe."""
        declare_breakers(self._producer)
        if not gates.open_breaker(self._producer.engine, self.name, who=who, why=why):
            raise self._unknown()

    def close(self) -> bool:
        """Let everybody pass again, at once; False if it was not open. Jobs that waited go on in their order."""
        return self._close(forgets=False)

    def reset(self) -> bool:
        """Closed, and no failures counted, whatever it was; False if it was not open."""
        return self._close(forgets=True)

    def status(self) -> BreakerStatus:
        """The breaker now, or UnknownBreaker."""
        declare_breakers(self._producer)
        rows = gates.breakers(self._producer.engine, self.name)
        if not rows:
            raise self._unknown()
        return status_of(rows[0])

    def _close(self, *, forgets: bool) -> bool:
        declare_breakers(self._producer)
        was_open = gates.close_breaker(self._producer.engine, self.name, forgets=forgets)
        if was_open is None:
            raise self._unknown()
        if was_open:
            guards = gates.guards(self._producer.engine).items()
            self._producer.waker.wake_dispatchers()
            self._producer.waker.wake(
                *(name for (kind, name), to in guards if kind == "queue" and to == self.name)
            )
        return was_open

    def _unknown(self) -> UnknownBreaker:
        names = [row.name for row in gates.breakers(self._producer.engine)]
        near = difflib.get_close_matches(self.name, names, n=1)
        advice = (
            f"did you mean {near[0]!r}?"
            if near
            else "declare it with a task or a queue: breaker=Breaker(name=…)"
        )
        return UnknownBreaker(f"no breaker {self.name!r} is known here; {advice}")


def declared_breakers(producer: Producer) -> Declared:
    """What the app's tasks and queues say about breakers."""
    tasks = {name: task.policy.breaker for name, task in producer.tasks.items()}
    return declared(tasks, producer.settings.queue_breakers)


def declare_breakers(producer: Producer) -> None:
    """Make the app's breakers known to the store, as its workers do when they start."""
    producer.make_ready()
    gates.declare(producer.engine, declared_breakers(producer))


def status_of(row: BreakerRow) -> BreakerStatus:
    """A stored breaker as people read it."""
    return BreakerStatus(
        row.name,
        row.state.value,
        row.failures,
        row.failure_threshold,
        None if row.opened_at is None else from_us(row.opened_at),
        None if row.opens_at is None else from_us(row.opens_at),
        row.opened_by,
        row.opened_why,
        None if row.probe_job is None else id_text(row.probe_job),
        row.waiting,
        row.guards,
    )
