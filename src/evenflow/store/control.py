"""Control: what operators and the dispatcher do to jobs and queues. Batches are bounded and go in id order."""

from collections.abc import Iterable, Mapping, Sequence

import msgspec

from evenflow.codec import remark, storable_text
from evenflow.errors import Code
from evenflow.job import JobError
from evenflow.rules import fair
from evenflow.settings import Queue, Retention
from evenflow.store import bounds, statistics
from evenflow.store.engine import Engine, Row, as_json
from evenflow.store.limits import promote, release
from evenflow.store.retention import kept_us

ADMITTED_AT_ONCE = 1000
KEPT_BY_DEFAULT = Retention()
TOO_LATE = JobError(Code.TASK_EXPIRED, "good_until passed before the start")


class Admission(msgspec.Struct):
    """What an admission came to: queue -> how many became ready, the keys at which jobs lined up, the bounded queues that
    jobs wait for, and the jobs that must not wait for their keys."""

    queues: dict[str, int] = {}
    lined_up: set[str] = set()
    bounded: set[str] = set()
    impatient: list[int] = []


def admit(
    engine: Engine,
    retention: Retention = KEPT_BY_DEFAULT,
    *,
    top: int = ADMITTED_AT_ONCE,
    now: int | None = None,
) -> dict[str, int]:
    """Admit arrivals and due jobs, at most `top` of each, at the current round; queue -> how many became ready.

    Jobs with concurrency keys line up at them and are ready, or blocked, by what the keys have room for; those of bounded
    queues are ready, or wait as overflow, by what the queue has room for. Jobs that must not wait for their keys are
    discarded where they would have to, whoever admits them.
    """
    admission = read_admission(engine.run("admit", {"top": top, "now": now}))
    admitted = admission.queues
    for queue in promote(engine, admission.lined_up, now=now) | bounds.fill(engine, admission.bounded):
        admitted[queue] = admitted.get(queue, 0) + 1
    discard_blocked(engine, admission.impatient, retention, now=now)
    return admitted


def read_admission(rows: Iterable[Row]) -> Admission:
    """The answer of the unit."""
    admission = Admission()
    for kind, name, count in rows:
        if kind == "queue":
            admission.queues[name] = admission.queues.get(name, 0) + count
        elif kind == "limiter":
            admission.lined_up.add(name)
        elif kind == "bounded":
            admission.bounded.add(name)
        elif kind == "impatient":
            admission.impatient.append(int(name))
    return admission


def discard_blocked(
    engine: Engine, ids: Sequence[int], retention: Retention, *, now: int | None = None
) -> None:
    """End those of these jobs `discarded` that wait for their keys."""
    if ids and (blocked := [job for (job,) in engine.run("still_blocked", {"ids": as_json(ids)})]):
        withdraw(engine, blocked, "discarded", retention, flags=False, now=now)


class Ahead(msgspec.Struct, frozen=True):
    """What lies ahead of a dispatcher, in stored time: when the next scheduled job is due (0 if something has arrived), and
    when the next job that waits for a rate can go, None where nothing waits; whether steps of workflows have ended untold."""

    now: int
    due: int | None
    free: int | None
    has_untold: bool


def ahead(engine: Engine, *, now: int | None = None) -> Ahead:
    """All that a dispatcher without work has to know, at one look."""
    ((now, due, free, has_untold),) = engine.run("ahead", {"now": now})
    return Ahead(now, due, free, bool(has_untold))


def expire(engine: Engine, retention: Retention, *, top: int = 1000, now: int | None = None) -> list[int]:
    """End jobs as `expired` whose good_until passed before they started. A job in flight is the worker's to judge."""
    parameters = {
        "top": top,
        "keep_us": kept_us(retention, "expired"),
        "error": as_json(TOO_LATE),
        "now": now,
    }
    rows = engine.run("expire", parameters)
    expired = [row[0] for row in rows]
    _make_room(engine, expired, now)
    statistics.add_ends(engine, [(queue, task, ["expired"]) for _, queue, task in rows], now=now)
    return expired


def withdraw(
    engine: Engine, ids: Sequence[int], state: str, retention: Retention, *, error: JobError | None = None,
    why: str | None = None,
    flags: bool = True, now: int | None = None,
) -> dict[int, str]:  # fmt: skip
    """End open jobs by hand. Returns id -> "ended", or "flagged" where a worker runs it and will be told.

    Jobs that have ended already, or do not exist, are left out of the answer. Without `flags` running jobs are left alone.
    """
    rows = engine.run(
        "withdraw",
        {
            "ids": as_json(ids), "state": state, "keep_us": kept_us(retention, state), "why": why, "flags": flags, "now": now,
            "error": None if error is None else as_json(error),
        },
    )  # fmt: skip
    outcomes: dict[int, str] = {job: outcome for job, outcome, _, _ in rows}
    _make_room(engine, [job for job, outcome in outcomes.items() if outcome == "ended"], now)
    ended = [(queue, task, [state]) for _, outcome, queue, task in rows if outcome == "ended"]
    statistics.add_ends(engine, ended, now=now)
    return outcomes


def cancel(engine: Engine, ids: Sequence[int], retention: Retention, reason: str = "") -> dict[int, str]:
    """`withdraw` as cancelled; the reason is kept with jobs that end now, and told to the workers of the others."""
    why = storable_text(reason)
    error = JobError(Code.TASK_CANCELLED, why or "cancelled by request")
    return withdraw(engine, ids, "cancelled", retention, error=error, why=why)


def retry(engine: Engine, ids: Sequence[int], *, now: int | None = None) -> list[int]:
    """Failed, quarantined, cancelled, expired or discarded jobs go back to work under their id, with all attempts anew.

    A scheduled job becomes due at once. A job whose unique key is taken stays where it is.
    """
    revived = engine.run("revive", {"ids": as_json(ids), "now": now})
    hastened = engine.run("hasten", {"ids": as_json(ids), "now": now})
    return [job for (job,) in [*revived, *hastened]]


def discard(engine: Engine, ids: Sequence[int], retention: Retention, *, now: int | None = None) -> list[int]:
    """Open jobs end `discarded`, and so do failed ones in history. Running jobs are left alone."""
    ended = withdraw(engine, ids, "discarded", retention, flags=False, now=now)
    return [*ended, *(job for (job,) in engine.run("forget", {"ids": as_json(ids)}))]


def declare_queue(engine: Engine, queue: Queue) -> None:
    """Store what the code says about a queue. Pauses, and limits that were set at run time, stay."""
    engine.run(
        "declare_queue",
        {
            "name": queue.name,
            "priority": queue.priority,
            "fair": queue.fair,
            "max_concurrency": queue.max_concurrency,
            "max_ready": queue.max_ready,
            "on_full": queue.on_full,
        },
    )
    set_weights(engine, queue.name, queue.weights or {})


def set_cap(engine: Engine, queue: str, max_concurrency: int | None, *, is_set: bool = True) -> None:
    """Cap a queue at run time (None: no cap). Lasts until it is set again; without `is_set` the code decides again."""
    engine.run("set_cap", {"name": queue, "max_concurrency": max_concurrency, "is_set": is_set})


def set_bound(engine: Engine, queue: str, max_ready: int | None, *, is_set: bool = True) -> set[str]:
    """Bound the ready jobs of a queue at run time (None: no bound), and let in what now fits; queues with ready jobs.

    Lasts until it is set again; without `is_set` the code decides again. What is ready already stays ready.
    """
    engine.run("set_bound", {"name": queue, "max_ready": max_ready, "is_set": is_set})
    found: set[str] = set()
    while more := bounds.fill(engine, [queue]):
        found |= more
    return found


def declare_cluster(engine: Engine, cap: int | None) -> None:
    """How many jobs may be in flight in the whole cluster; None is no cap."""
    engine.run("declare_cluster", {"cap": cap})


def set_weights(engine: Engine, queue: str, weights: Mapping[str, float]) -> None:
    """The weights of a queue's groups; a group that is not named has weight 1."""
    listed = [{"group_key": group, "weight": float(weight)} for group, weight in sorted(weights.items())]
    engine.run("set_weights", {"queue": queue, "weights": as_json(listed)})


def pause(
    engine: Engine, queue: str, *, who: str | None = None, why: str | None = None, now: int | None = None
) -> None:
    """No new claims from this queue until it is resumed; what runs goes on. Lasts over restarts."""
    engine.run(
        "pause_queue",
        {"name": queue, "who": remark("who", who), "why": remark("why", why), "now": now},
    )


def resume(engine: Engine, queue: str) -> bool:
    """Serve the queue again; False if it was not paused."""
    return bool(engine.run("resume_queue", {"name": queue}))


def learn_costs(
    engine: Engine, costs: Mapping[tuple[str, str], tuple[int, int]], *, now: int | None = None
) -> None:
    """Report (queue, group) -> (runs, microseconds spent), for queues that are fair by time.

    Groups whose waiting jobs stand elsewhere than these costs say are noted for `spacing.respace`.
    """
    listed = [
        {"queue": queue, "group_key": group, "runs": runs, "spent_us": float(spent)}
        for (queue, group), (runs, spent) in sorted(costs.items())
    ]
    rules = {"memory": fair.COST_MEMORY, "drift": fair.UNIT_DRIFT, "tolerance": fair.TOLERANCE}
    engine.run("learn_costs", {"costs": as_json(listed), "now": now, **rules})


def _make_room(engine: Engine, ended: Sequence[int], now: int | None) -> None:
    """Jobs that ended outside of a worker let go of their keys and of their places in bounded queues."""
    if ended:
        release(engine, ended, now=now)
        bounds.fill_all(engine)
