"""Why is this job not running? The reasons, with numbers and holders, from the facts that decide."""

from datetime import datetime

import msgspec

from evenflow.clock import from_us
from evenflow.ids import id_text
from evenflow.job import JobRecord, State
from evenflow.store import leases, limits, reads, runs
from evenflow.store.engine import Engine
from evenflow.store.reads import QueueRow

MOST_COUNTED = 1000
_HELD = 2


class Reason(msgspec.Struct, frozen=True):
    """One thing that keeps a job from running: the rule, what it says, until when (if known), and who holds it up."""

    rule: str
    text: str
    until: datetime | None = None
    holders: tuple[str, ...] = ()


def reasons(engine: Engine, job: JobRecord) -> list[Reason]:
    """Everything that keeps this job from running now; empty where nothing does and it is simply its turn."""
    if job.state.is_end:
        return [Reason("ended", f"it has ended {job.state}", _moment(job.finished_at))]
    if job.state.is_in_flight:
        return [
            Reason("running", f"it is {job.state}, attempt {job.attempt}, since {_moment(job.started_at)}")
        ]
    found = _of_state(engine, job)
    if job.good_until is not None:
        found.append(_expiry(engine, job.good_until))
    return found


def _of_state(engine: Engine, job: JobRecord) -> list[Reason]:
    match job.state:
        case State.ARRIVING:
            return [
                Reason("arriving", "it was committed and waits to be admitted by a worker or a dispatcher")
            ]
        case State.SCHEDULED:
            return [_scheduled(job)]
        case State.WAITING:
            return _waiting(engine, job)
        case State.BLOCKED:
            return _blocked(engine, job)
        case State.READY:
            return _ready(engine, job)
        case _:
            return [Reason(str(job.state), f"it is {job.state}")]


def _scheduled(job: JobRecord) -> Reason:
    due = from_us(job.run_at)
    what = "it is tried again" if job.attempt else "it is due"
    return Reason("scheduled", f"{what} at {due:%Y-%m-%d %H:%M:%S} UTC", due)


def _waiting(engine: Engine, job: JobRecord) -> list[Reason]:
    place = runs.place_of(engine, job.id)
    run = None if place is None else runs.find(engine, place[0])
    if run is not None and run.state == "paused":
        why = f": {run.paused_why}" if run.paused_why else ""
        return [Reason("workflow", f"run {id_text(run.id)} of workflow {run.name!r} is paused{why}")]
    open = runs.open_parents(engine, job.id)
    names = ", ".join(repr(name) for _, name in open[:3]) + (
        f" and {len(open) - 3} more" if len(open) > 3 else ""
    )
    text = (
        f"it waits for step {names}" if open else "its steps before have ended: the next look lets it go on"
    )
    return [Reason("workflow", text, None, tuple(id_text(each) for each, _ in open))]


def _blocked(engine: Engine, job: JobRecord) -> list[Reason]:
    found = []
    for hold in limits.holds(engine, job.id):
        if hold.phase == _HELD:
            continue
        row = next(
            (each for each in limits.limiters(engine, prefix=hold.limiter) if each.name == hold.limiter), None
        )
        held, spent = (row.held, row.spent) if row else (0, 0)
        if hold.limiter.startswith("rate:"):
            until = _moment(row.free_at) if row else None
            text = f"rate {hold.limiter.removeprefix('rate:')!r} is used up: {held + spent}/{hold.most} in this window"
            found.append(Reason("rate", text, until))
        else:
            names = tuple(id_text(each) for each in limits.holders(engine, hold.limiter))
            text = f"key {hold.limiter.partition(':')[2]!r} is full: {held}/{hold.most} held"
            found.append(Reason("concurrency", text, None, names))
    return found or [Reason("blocked", "its key has room: the next sweep makes it ready")]


def _ready(engine: Engine, job: JobRecord) -> list[Reason]:
    rows = {row.name: row for row in reads.queues(engine)}
    found = _paused(rows.get(job.queue))
    found += _capped(engine, job.queue, rows.get(job.queue))
    if not _is_served(engine, job.queue):
        found.append(
            Reason(
                "worker",
                f"no worker that is alive serves queue {job.queue!r}; start one: evenflow worker MODULE:APP",
            )
        )
    before = reads.ready_before(engine, job.id, top=MOST_COUNTED)
    if before or not found:
        many = f"{before} or more" if before >= MOST_COUNTED else str(before)
        found.append(Reason("turn", f"{many} ready jobs of queue {job.queue!r} have their turn before it"))
    return found


def _paused(queue: QueueRow | None) -> list[Reason]:
    if queue is None or queue.paused_at is None:
        return []
    who = f" by {queue.paused_by}" if queue.paused_by else ""
    why = f": {queue.paused_why}" if queue.paused_why else ""
    return [
        Reason(
            "pause",
            f"queue {queue.name!r} was paused{who} at {_moment(queue.paused_at):%Y-%m-%d %H:%M:%S} UTC{why}",
        )
    ]


def _capped(engine: Engine, name: str, queue: QueueRow | None) -> list[Reason]:
    found = []
    running = reads.in_flight(engine)
    cap = None if queue is None else queue.max_concurrency
    if cap == 0:
        found.append(Reason("queue cap", f"queue {name!r} is held: max_concurrency is 0"))
    elif cap is not None and running.get(name, 0) >= cap:
        holders = tuple(map(id_text, reads.in_flight_ids(engine, name)))
        found.append(
            Reason(
                "queue cap", f"queue {name!r} is at its cap: {running[name]}/{cap} in flight", None, holders
            )
        )
    total = reads.cluster_cap(engine)
    if total is not None and sum(running.values()) >= total:
        holders = tuple(map(id_text, reads.in_flight_ids(engine)))
        found.append(
            Reason(
                "cluster cap",
                f"the cluster is at its cap: {sum(running.values())}/{total} in flight",
                None,
                holders,
            )
        )
    return found


def _is_served(engine: Engine, queue: str) -> bool:
    for worker in leases.workers(engine):
        if worker.kind != "worker":
            continue
        served = msgspec.json.decode(worker.about).get("queues")
        if served is None or any(
            queue == name or (name.endswith("*") and queue.startswith(name[:-1])) for name in served
        ):
            return True
    return False


def _expiry(engine: Engine, good_until: int) -> Reason:
    moment = from_us(good_until)
    if good_until <= reads.now_us(engine):
        return Reason("expiry", f"it expired at {moment:%Y-%m-%d %H:%M:%S} UTC and will not run", moment)
    return Reason("expiry", f"it must start before {moment:%Y-%m-%d %H:%M:%S} UTC", moment)


def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else from_us(stored)
