"""Why is this job not running? The reasons, with numbers and holders, from the facts that decide."""

from datetime import datetime

import msgspec

from evenflow.clock import from_us
from evenflow.ids import id_text
from evenflow.job import JobRecord, State
from evenflow.rules.breaker import Circuit
from evenflow.store import bounds, gates, leases, limits, reads, runs
from evenflow.store.engine import Engine
from evenflow.store.gates import BreakerRow
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
            found = [*_keyed(engine, job), *_shut(engine, job)]
            return found or [
                Reason("blocked", "nothing is in its way any more: the next sweep makes it ready")
            ]
        case State.READY:
            return [*_shut(engine, job), *_ready(engine, job)]
        case State.OVERFLOW:
            return _overflow(engine, job)
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


def _keyed(engine: Engine, job: JobRecord) -> list[Reason]:
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
        elif hold.limiter.startswith("lock:"):
            names = _holders(engine, hold.limiter)
            text = f"single instance {hold.limiter.removeprefix('lock:')!r} is held by {_one_of(names)}"
            found.append(Reason("single instance", text, None, names))
        else:
            names = _holders(engine, hold.limiter)
            text = f"key {hold.limiter.partition(':')[2]!r} is full: {held}/{hold.most} held"
            found.append(Reason("concurrency", text, None, names))
    return found


def _shut(engine: Engine, job: JobRecord) -> list[Reason]:
    """The gates that this job stands before: a pause of its task, breakers of its task and of its queue."""
    found = []
    for gate in gates.gates(engine, task=job.task, queue=job.queue):
        if gate.cause == "pause":
            found.append(_pause(f"task {gate.name!r}", gate.shut_at, gate.shut_by, gate.shut_why))
        elif gate.breaker is not None:
            found += [_broken(row, job.id) for row in gates.breakers(engine, gate.breaker)]
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
        return Reason("breaker", f"{text}; the next job that a worker can take is its probe", until)
    if breaker.probe_job == job:
        return Reason("breaker", f"{text}; this job is its probe, and runs next", until)
    return Reason("breaker", f"{text}; it waits for its probe", until, (id_text(breaker.probe_job),))


def _holders(engine: Engine, limiter: str) -> tuple[str, ...]:
    return tuple(id_text(each) for each in limits.holders(engine, [limiter]).get(limiter, ()))


def _one_of(names: tuple[str, ...]) -> str:
    return f"job {names[0]}" if names else "nobody any more: the next sweep passes it on"


def _overflow(engine: Engine, job: JobRecord) -> list[Reason]:
    use = next((row for row in bounds.uses(engine) if row.name == job.queue), None)
    if use is None or use.max_ready is None:
        return [Reason("overflow", f"queue {job.queue!r} has no bound any more: the next sweep lets it in")]
    before = bounds.waiting_before(engine, job.id, top=MOST_COUNTED)
    many = f"{before} or more" if before >= MOST_COUNTED else str(before)
    text = f"queue {job.queue!r} is at its bound: {use.ready}/{use.max_ready} ready, {many} wait before it"
    return [Reason("overflow", text)]


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
