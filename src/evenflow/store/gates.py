"""Gates: pauses of tasks, breakers of tasks and queues. Who is shut out, who may probe, and what verdicts change.

The state of a breaker is one row, changed under its lock; claims read only what is shut.
"""

from collections.abc import Iterable, Sequence
from typing import Any, Literal

import msgspec

from evenflow.codec import remark
from evenflow.job import End, JudgedEnd
from evenflow.limits import Breaker
from evenflow.rules.breaker import Circuit, Declared, Kind, Target
from evenflow.store.engine import Engine, Row, as_json

BATCH = 500
EVERYBODY = 2**31 - 1


class Turned(msgspec.Struct, frozen=True):
    """A breaker that has changed its state: `opened_at` is None where it is closed now."""

    name: str
    opened_at: int | None
    failures: int


class OpenBreaker(msgspec.Struct, frozen=True):
    """A breaker that has to be tended; `now` is the store's clock at the look."""

    name: str
    on_open: str
    opens_at: int | None
    probe_job: int | None
    probe_until: int | None
    now: int

    @property
    def election_at(self) -> int | None:
        """When the next probe may be chosen; None while it stays open until somebody closes it."""
        if self.opens_at is None or self.probe_until is None:
            return self.opens_at
        return max(self.opens_at, self.probe_until)


class BreakerRow(msgspec.Struct, frozen=True):
    """A breaker as the store knows it."""

    name: str
    failure_threshold: int
    failures: int
    cooldown_us: int
    on_open: str
    opened_at: int | None
    opens_at: int | None
    opened_by: str | None
    opened_why: str | None
    probe_job: int | None
    probe_until: int | None
    waiting: int
    guards: tuple[str, ...]
    now: int

    @property
    def state(self) -> Circuit:
        if self.opened_at is None:
            return Circuit.CLOSED
        return Circuit.OPEN if self.opens_at is None or self.now < self.opens_at else Circuit.HALF_OPEN


class Gate(msgspec.Struct, frozen=True):
    """Something that is shut: a task or a queue, by a pause or by its breaker."""

    kind: Kind
    name: str
    cause: Literal["pause", "breaker"]
    shut_at: int
    shut_by: str | None
    shut_why: str | None
    breaker: str | None


def declare(engine: Engine, said: Declared) -> None:
    """Store what the code says: breakers by name, which of them guards which task or queue, and who has none.

    A declared breaker keeps its state. One that guards nothing any more shuts nothing any more.
    """
    known = guards(engine)
    free = [target for target in said.free if target in known]
    if said.guards or free:
        engine.run("declare_guards", _declaration(said, free))
    if free:
        release(engine)


def guards(engine: Engine) -> dict[Target, str]:
    """Which breaker guards which task or queue."""
    return {(kind, name): breaker for kind, name, breaker in engine.run("list_guards", {})}


def verdict_unit(ends: Sequence[End], worker: int, now: int | None) -> tuple[str, dict[str, Any]] | None:
    """What the ends say to breakers, as a unit for the transaction that writes them; None where they say nothing."""
    said = [
        {"place": place, "id": end.id, "epoch": end.epoch, "breaker": each.breaker, "outcome": each.outcome}
        for place, end in enumerate(ends)
        if isinstance(end, JudgedEnd)
        for each in end.verdicts
    ]
    if not said:
        return None
    return "record_verdicts", {"verdicts": as_json(said), "worker": worker, "now": now}


def turned(rows: Iterable[Row]) -> list[Turned]:
    """Which breakers a recording of verdicts has opened or closed."""
    before: dict[str, int | None] = {}
    found = []
    for kind, name, opened_at, failures in rows:
        if kind == "before":
            before[name] = opened_at
        elif opened_at != before.get(name):
            found.append(Turned(name, opened_at, failures))
    return found


def open_breakers(engine: Engine, *, now: int | None = None) -> list[OpenBreaker]:
    """The breakers that are open or half open."""
    return [OpenBreaker(*row) for row in engine.run("open_breakers", {"now": now})]


def elect_probe(
    engine: Engine, breaker: str, queues: Sequence[str], *, now: int | None = None
) -> tuple[int, str] | None:
    """Choose the one job that may pass a breaker whose cooldown is over, among those of these queues: (id, queue).

    None where it is too early, a probe is under way, or nobody waits. Of many callers one chooses, once.
    """
    rows = engine.run("elect_probe", {"breaker": breaker, "queues": as_json(list(queues)), "now": now})
    return next(((job, queue) for job, queue in rows if job is not None), None)


def waiting_at(engine: Engine, breaker: str, *, top: int = BATCH) -> list[int]:
    """Jobs that wait behind a breaker, but for its probe; at most `top`."""
    return [job for (job,) in engine.run("waiting_at", {"breaker": breaker, "top": top})]


def set_aside(engine: Engine, queues: Sequence[str], *, top: int = BATCH) -> tuple[int, set[str]]:
    """Take jobs of shut tasks out of the way of claims, where they stand among the first `top` of their queue and
    priority: how many, and the keys that they have let go of."""
    rows = engine.run("set_aside", {"queues": as_json(list(queues)), "top": top})
    freed = {name for kind, name in rows if kind == "limiter"}
    return sum(kind == "job" for kind, _ in rows), freed


def release(engine: Engine, *, top: int = BATCH) -> int:
    """Jobs that were set aside and whose task is open again become due, at most `top`; how many. Admission gives them
    their turns, and the dispatcher that does so releases the next ones: nobody waits for a hundred thousand of them."""
    return len(engine.run("release_gated", {"top": top}))


def pause_task(
    engine: Engine, task: str, *, who: str | None = None, why: str | None = None, now: int | None = None
) -> None:
    """Start no more jobs of this task, in any queue; what runs goes on. Lasts over restarts."""
    engine.run(
        "pause_task",
        {"name": task, "who": remark("who", who), "why": remark("why", why), "now": now},
    )


def resume_task(engine: Engine, task: str) -> bool:
    """Run the task's jobs again; False if it was not paused. Those that were set aside are due, the first of them at once."""
    resumed = bool(engine.run("resume_task", {"name": task}))
    release(engine)
    return resumed


def open_breaker(
    engine: Engine, name: str, *, who: str | None = None, why: str | None = None, now: int | None = None
) -> bool:
    """Open a breaker until it is closed by hand; False if there is none of this name."""
    return bool(
        engine.run(
            "open_breaker",
            {"name": name, "who": remark("who", who), "why": remark("why", why), "now": now},
        )
    )


def close_breaker(engine: Engine, name: str, *, forgets: bool = True) -> bool | None:
    """Close a breaker; whether it was open, None if there is none of this name. The failures of one that is closed are
    forgotten only where `forgets` is set."""
    rows = engine.run("close_breaker", {"name": name, "forgets": forgets})
    if not rows:
        return None
    release(engine)
    return rows[0][1] is not None


def breakers(
    engine: Engine, name: str | None = None, *, counted: int = EVERYBODY, now: int | None = None
) -> list[BreakerRow]:
    """Every breaker that was ever declared, or the one of this name. Counts who waits, up to `counted`."""
    decode = msgspec.json.Decoder(tuple[str, ...]).decode
    return [
        BreakerRow(*(*row[:-2], decode(row[-2]), row[-1]))
        for row in engine.run("list_breakers", {"name": name, "counted": counted, "now": now})
    ]


def gates(engine: Engine, *, task: str | None = None, queue: str | None = None) -> list[Gate]:
    """What is shut: everything, or what stands before jobs of one task in one queue."""
    return [Gate(*row) for row in engine.run("list_gates", {"task": task, "queue": queue})]


def _declaration(said: Declared, free: Sequence[Target]) -> dict[str, str]:
    guarded = [
        {"kind": kind, "name": name, "breaker": to} for (kind, name), to in sorted(said.guards.items())
    ]
    return {
        "breakers": as_json([_stored(name, breaker) for name, breaker in sorted(said.breakers.items())]),
        "guards": as_json(guarded),
        "free": as_json([{"kind": kind, "name": name} for kind, name in sorted(free)]),
    }


def _stored(name: str, breaker: Breaker) -> dict[str, object]:
    return {
        "name": name,
        "failure_threshold": breaker.failure_threshold,
        "cooldown_us": breaker.cooldown_us,
        "probe_lease_us": breaker.probe_lease_us,
        "on_open": breaker.on_open,
    }
