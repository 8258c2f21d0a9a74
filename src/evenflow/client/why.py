"""Why is this job not running? The reasons, with numbers and holders, from the facts that decide."""

from datetime import datetime
from typing import Any

import msgspec

from evenflow.clock import from_us
from evenflow.ids import id_text
from evenflow.job import JobError, JobRecord, State
from evenflow.rules.breaker import Circuit
from evenflow.store import bounds, gates, leases, limits, reads, runs
from evenflow.store.engine import Engine
from evenflow.store.gates import BreakerRow
from evenflow.store.leases import Worker
from evenflow.store.limits import Hold
from evenflow.store.reads import QueueRow

MOST_COUNTED = 1000
HOLDERS_SHOWN = 10
_WAITING, _HELD = 1, 2
_errors = msgspec.json.Decoder(list[JobError])


class Reason(msgspec.Struct, frozen=True):
    """One thing that keeps a job from running: the rule, what it says, until when (if known), and who holds it up."""

    rule: str
    text: str
    until: datetime | None = None
    holders: tuple[str, ...] = ()


_PASSED = Reason("blocked", "nothing is in its way any more: the next sweep makes it ready")


def reasons(engine: Engine, job: JobRecord) -> list[Reason]:
    """Everything that keeps this job from running now; empty where nothing does and it is simply its turn."""
    if job.state.is_end:
        return [Reason("ended", f"it has ended {job.state}{_cause(job)}", _moment(job.finished_at))]
    if job.state is State.RUNNING:
        return [Reason("running", f"it is running, attempt {job.attempt}, since {_moment(job.started_at)}")]
    found = _of_state(engine, job)
    if job.good_until is not None:
        found.append(_expiry(engine, job.good_until))
    return found


def _cause(job: JobRecord) -> str:
    """Why it has ended so, as far as anybody has said."""
    if job.state is State.SUCCEEDED:
        return ""
    if job.state is State.EXPIRED and job.good_until is not None:
        return f": it had to start before {_moment(job.good_until):%Y-%m-%d %H:%M:%S} UTC"
    errors = _errors.decode(job.errors) if job.errors else []
    counts = f" after {job.crashes} crashes" if job.crashes and job.state is State.QUARANTINED else ""
    return f"{counts}: {errors[-1].code}, {errors[-1].message}" if errors else counts


def _of_state(engine: Engine, job: JobRecord) -> list[Reason]:
    match job.state:
        case State.ARRIVING:
            return [
                Reason("arriving", "it was committed and waits to be admitted by a worker or a dispatcher")
            ]
        case State.SCHEDULED:
            return [_scheduled(job), *_shut(engine, job), *_stopped(engine, job.queue)]
        case State.WAITING:
            return _waiting(engine, job)
        case State.BLOCKED:
            found = [*_keyed(engine, job), *_shut(engine, job)]
            return [*(found or [_PASSED]), *_stopped(engine, job.queue)]
        case State.CLAIMED:
            return [_claimed(job), *_shut(engine, job), *_stopped(engine, job.queue)]
        case State.READY:
            return [*_shut(engine, job), *_ready(engine, job)]
        case State.OVERFLOW:
            return [*_overflow(engine, job), *_shut(engine, job), *_unserved(engine, job.queue)]
        case _:
            return [Reason(str(job.state), f"it is {job.state}")]


def _scheduled(job: JobRecord) -> Reason:
    due = from_us(job.run_at)
    what = "it is tried again" if job.attempt else "it is due"
    return Reason("scheduled", f"{what} at {due:%Y-%m-%d %H:%M:%S} UTC", due)


def _claimed(job: JobRecord) -> Reason:
    since = f"attempt {job.attempt}, since {_moment(job.started_at)}"
    return Reason("claimed", f"a worker has prefetched it and starts it when a slot is free there, {since}")


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


def _keyed(engine: Engine, job: JobRecord) -> list[Reason]:
    """Keys, locks and rates that this job waits for, and those that it will have to wait for next."""
    return [
        _held_up(engine, hold)
        for hold in limits.holds(engine, job.id, top=MOST_COUNTED)
        if hold.phase == _WAITING or (hold.phase != _HELD and not hold.has_room)
    ]


def _held_up(engine: Engine, hold: Hold) -> Reason:
    kind, _, name = hold.limiter.partition(":")
    line = f", {_many(hold.before)} before it in line" if hold.before else ""
    holders = _holders(engine, hold.limiter)
    if kind == "rate":
        verb = "has room again" if hold.has_room else "is used up"
        text = f"rate {name!r} {verb}: {hold.held + hold.spent}/{hold.most} in this window{line}"
        return Reason("rate", text, None if hold.has_room else _moment(hold.free_at), holders)
    if kind == "lock":
        text = f"single instance {name!r} is held by {_one_of(holders)}"
        return Reason("single instance", text + line, None, holders)
    count = f"{hold.held}/{hold.most} held"
    if kind == "group":
        queue, _, group = name.partition(":")
        verb = "has room again" if hold.has_room else "is at its cap"
        return Reason("group", f"group {group!r} {verb} in queue {queue!r}: {count}{line}", None, holders)
    verb = "has room again" if hold.has_room else "is full"
    return Reason("concurrency", f"key {name!r} {verb}: {count}{line}", None, holders)


def _many(count: int) -> str:
    return f"{count} or more" if count >= MOST_COUNTED else str(count)


def _shut(engine: Engine, job: JobRecord) -> list[Reason]:
    """The gates that this job stands before: a pause of its task, breakers of its task and of its queue."""
    found = []
    for gate in gates.gates(engine, task=job.task, queue=job.queue):
        if gate.cause == "pause":
            found.append(_pause(f"task {gate.name!r}", gate.shut_at, gate.shut_by, gate.shut_why))
        elif gate.breaker is not None:
            rows = gates.breakers(engine, gate.breaker, counted=0)
            # Between the two looks it may have been closed.
            found += [_broken(row, job.id) for row in rows if row.opened_at is not None]
    return found


def _broken(breaker: BreakerRow, job: int) -> Reason:
    """What an open breaker says: since when and why, and what it waits for."""
    who = f" by {breaker.opened_by}" if breaker.opened_by else ""
    why = f" ({breaker.opened_why})" if breaker.opened_why else ""
    text = (
        f"breaker {breaker.name!r} was opened{who} at {_moment(breaker.opened_at):%Y-%m-%d %H:%M:%S} UTC{why}"
    )
    if breaker.opens_at is None:
        return Reason("breaker", f"{text}; it stays so until it is closed by hand")
    until = _moment(breaker.opens_at)
    if breaker.state is Circuit.OPEN:
        return Reason("breaker", f"{text}; a probe may run at {until:%Y-%m-%d %H:%M:%S} UTC", until)
    if breaker.probe_job is None:
        return Reason("breaker", f"{text}; the next job that a worker can take is its probe")
    if breaker.probe_job == job:
        return Reason("breaker", f"{text}; this job is its probe, and runs next")
    return Reason("breaker", f"{text}; it waits for its probe", None, (id_text(breaker.probe_job),))


def _holders(engine: Engine, limiter: str) -> tuple[str, ...]:
    return tuple(id_text(each) for each in limits.holders(engine, [limiter]).get(limiter, ()))


def _one_of(names: tuple[str, ...]) -> str:
    return f"job {names[0]}" if names else "nobody any more: the next sweep passes it on"


def _overflow(engine: Engine, job: JobRecord) -> list[Reason]:
    use = next((row for row in bounds.uses(engine) if row.name == job.queue), None)
    if use is None or use.max_ready is None:
        return [Reason("overflow", f"queue {job.queue!r} has no bound any more: the next sweep lets it in")]
    before = _many(bounds.waiting_before(engine, job.id, top=MOST_COUNTED))
    text = f"queue {job.queue!r} is at its bound: {use.ready}/{use.max_ready} ready, {before} wait before it"
    return [Reason("overflow", text)]


def _ready(engine: Engine, job: JobRecord) -> list[Reason]:
    found = _unserved(engine, job.queue)
    before = reads.ready_before(engine, job.id, top=MOST_COUNTED)
    if before or not found:
        text = f"{_many(before)} ready jobs of queue {job.queue!r} have their turn before it"
        found.append(Reason("turn", text))
    return found


def _unserved(engine: Engine, queue: str) -> list[Reason]:
    """Why no job of this queue starts: a pause, caps, nobody who serves it or has a free slot."""
    row = _row(engine, queue)
    return [*_paused(row), *_capped(engine, queue, row), *_manned(engine, queue)]


def _stopped(engine: Engine, queue: str) -> list[Reason]:
    """What somebody has done to the queue, for jobs that something else holds up first: a pause, a cap of 0."""
    row = _row(engine, queue)
    return [*_paused(row), *(_hold(queue) if row is not None and row.max_concurrency == 0 else [])]


def _row(engine: Engine, queue: str) -> QueueRow | None:
    return next((row for row in reads.queues(engine) if row.name == queue), None)


def _hold(queue: str) -> list[Reason]:
    return [Reason("queue cap", f"queue {queue!r} is held: max_concurrency is 0")]


def _paused(queue: QueueRow | None) -> list[Reason]:
    if queue is None or queue.paused_at is None:
        return []
    return [_pause(f"queue {queue.name!r}", queue.paused_at, queue.paused_by, queue.paused_why)]


def _pause(what: str, at: int, who: str | None, why: str | None) -> Reason:
    by = f" by {who}" if who else ""
    reason = f": {why}" if why else ""
    return Reason("pause", f"{what} was paused{by} at {_moment(at):%Y-%m-%d %H:%M:%S} UTC{reason}")


def _capped(engine: Engine, name: str, queue: QueueRow | None) -> list[Reason]:
    found = []
    running = reads.in_flight(engine)
    cap = None if queue is None else queue.max_concurrency
    if cap == 0:
        found += _hold(name)
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


def _manned(engine: Engine, queue: str) -> list[Reason]:
    """Whether nobody serves the queue, or whoever does has all slots full."""
    serving = [
        worker for worker in leases.workers(engine) if worker.kind == "worker" and _serves(worker, queue)
    ]
    if not serving:
        advice = "start one: evenflow worker MODULE:APP"
        return [Reason("worker", f"no worker that is alive serves queue {queue!r}; {advice}")]
    slots, busy = 0, []
    for worker in serving:
        size, running = _about(worker).get("concurrency"), leases.in_flight(engine, worker.id)
        if size is None or len(running) < size:
            return []
        slots += size
        busy += [id_text(job) for job, _ in sorted(running)]
    text = f"all {slots} slots of the workers that serve queue {queue!r} are busy"
    return [Reason("slots", text, None, tuple(busy[:HOLDERS_SHOWN]))]


def _serves(worker: Worker, queue: str) -> bool:
    served = _about(worker).get("queues")
    return served is None or any(
        queue == name or (name.endswith("*") and queue.startswith(name[:-1])) for name in served
    )


def _about(worker: Worker) -> dict[str, Any]:
    said: dict[str, Any] = msgspec.json.decode(worker.about)
    return said


def _expiry(engine: Engine, good_until: int) -> Reason:
    moment = from_us(good_until)
    if good_until <= reads.now_us(engine):
        return Reason("expiry", f"it expired at {moment:%Y-%m-%d %H:%M:%S} UTC and will not run", moment)
    return Reason("expiry", f"it must start before {moment:%Y-%m-%d %H:%M:%S} UTC", moment)


def _moment(stored: int | None) -> datetime | None:
    return None if stored is None else from_us(stored)
