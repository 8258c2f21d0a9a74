"""Enqueue: one operation, written as steps, so that our engine or a caller's own connection can run it."""

import collections
from collections.abc import Callable, Collection, Sequence

import msgspec

from evenflow.errors import DuplicateJob, QueueFull, StoreUnavailable
from evenflow.ids import IdSource, id_text
from evenflow.job import Limit, NewJob
from evenflow.store.bounds import BATCH, fill_parameters
from evenflow.store.engine import Row, Steps, as_json

Sign = Callable[[NewJob, int], str | None]
_MAX_ROUNDS = 5
_MAX_LOSSES = 2


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What became of one job: its id, or the live job that holds its unique key."""

    id: int
    is_new: bool = True


class Wake(msgspec.Struct, frozen=True, gc=False):
    """A wake-up to send along with a commit."""

    channel: str
    payload: str


class _Kind(msgspec.Struct, gc=False):
    """What many jobs of a batch have in common."""

    kind: int
    line: int
    task: str
    max_attempts: int
    fails_on_crash: bool
    run_id: int | None
    headers: str | None
    options: str | None


class _More(msgspec.Struct, omit_defaults=True, gc=False):
    """What few jobs have, and each for itself."""

    run_at: int | None = None
    good_until: int | None = None
    unique_key: str | None = None
    signature: str | None = None
    limits: str | None = None
    state: str | None = None


# id, kind, rank in its line, payload, more: short, since the database parses it for each job.
_Item = tuple[int, int, int, str] | tuple[int, int, int, str, _More]


class _Line(msgspec.Struct, gc=False):
    line: int
    queue: str
    priority: int
    group_key: str | None
    jobs: int = 0


def enqueue_steps(
    jobs: Sequence[NewJob],
    ids: IdSource,
    *,
    arriving: bool = False,
    sign: Sign | None = None,
    must_be_new: Collection[int] = (),
    bounded: Collection[str] = (),
    wakes: Sequence[Wake] = (),
    now: int | None = None,
) -> Steps[list[Enqueued]]:
    """Insert all jobs, each at its turn; or as `arriving`, inside a caller's transaction, without taking a lock.

    All or nothing. A job whose unique key is held by a live job is not inserted: the holder is returned in its place.
    If its place is among `must_be_new`, DuplicateJob is raised instead and nothing of the batch stays: arrivals are
    taken back here, other batches of several jobs have to be driven in one transaction, which the error undoes.
    `wakes` are sent with the commit of jobs that are not arriving.
    If the connection is lost, the jobs that were committed after all are found by their ids and not inserted again.

    Jobs for `bounded` queues are let in as far as there is room; QueueFull is raised where a queue rejects the rest.
    These, jobs that replace others, and those whose key stays taken for a while, have to be driven in one transaction.
    """
    numbers = yield from fresh_ids(ids, len(jobs))
    left = list(range(len(jobs)))  # places in `jobs`
    holders: dict[int, int] = {}
    losses = 0
    for _ in range(_MAX_ROUNDS):
        batch, added = [(numbers[place], jobs[place]) for place in left], -1
        try:
            parameters = _parameters(batch, sign, now)
            if arriving:
                rows = yield "enqueue_arriving", parameters
            else:
                rows = yield "enqueue", {**parameters, "wakes": as_json(wakes)}
            added = rows[0][0]
            if holds := _holds(batch):
                yield "add_holds", {"holds": as_json(holds)}
        except StoreUnavailable:
            losses += 1
            if arriving or losses > _MAX_LOSSES:
                raise
        if added == len(left):
            break
        found: list[Row] = yield (
            "find_duplicates",
            {"batch": as_json([_key(number, job) for number, job in batch])},
        )
        present: dict[int, int] = dict(found)
        yield from _replace(jobs, numbers, left, present, sign, now)
        if added == 0 and not losses:
            # Nothing of ours is there yet, so whatever carries one of our ids is another job.
            taken = [place for place in left if present.get(numbers[place]) == numbers[place]]
            for place, number in zip(taken, (yield from fresh_ids(ids, len(taken))), strict=True):
                numbers[place] = number
        holders |= {
            place: present[numbers[place]]
            for place in left
            if present.get(numbers[place], numbers[place]) != numbers[place]
        }
        if refused := [place for place in must_be_new if place in holders]:
            if arriving and len(jobs) > 1:
                yield from _retract(jobs, numbers)
            raise _duplicate(jobs[refused[0]], holders[refused[0]], numbers)
        left = [place for place in left if numbers[place] not in present]
        if not left:
            break
    else:
        raise StoreUnavailable(
            f"{len(left)} jobs met a unique key that changed hands {_MAX_ROUNDS} times; try again"
        )
    yield from _mark(jobs, numbers, holders, must_be_new, now)
    if bounded:
        new = [job for place, job in enumerate(jobs) if place not in holders]
        yield from _let_in(new, bounded, arriving)
    return [
        Enqueued(holders.get(place, number), place not in holders) for place, number in enumerate(numbers)
    ]


def _replace(
    jobs: Sequence[NewJob], numbers: list[int], left: list[int], present: dict[int, int], sign: Sign | None,
    now: int | None,
) -> Steps[None]:  # fmt: skip
    """Let open jobs become what those of us are that replace them. Where the holder runs, or is gone, its key is free:
    then it is no longer among the present, and the next round inserts."""
    held = [
        place for place in left if jobs[place].replaces and present.get(numbers[place], 0) != numbers[place]
    ]
    held = [place for place in held if numbers[place] in present]
    if not held:
        return
    latest = {present[numbers[place]]: place for place in held}  # of several in one batch the last one counts
    changes = [_change(holder, jobs[place], sign) for holder, place in latest.items()]
    rows = yield "replace_open", {"changes": as_json(changes), "now": now}
    outcomes: dict[int, str] = dict(rows)
    if put_off := [job for job, outcome in outcomes.items() if outcome == "put_off"]:
        yield "park_holds", {"ids": as_json(put_off)}
    if moved := [job for job, outcome in outcomes.items() if outcome == "moved"]:
        yield "release_holds", {"ids": as_json(moved)}
        if holds := _holds([(job, jobs[latest[job]]) for job in moved]):
            yield "add_holds", {"holds": as_json(holds)}
    for place in held:
        if outcomes.get(present[numbers[place]], "in_flight") == "in_flight":
            del present[numbers[place]]


def _mark(
    jobs: Sequence[NewJob],
    numbers: list[int],
    holders: dict[int, int],
    must_be_new: Collection[int],
    now: int | None,
) -> Steps[None]:
    """Take the keys that stay taken for a while. Jobs that come too early are taken back: the earlier one holds their place."""
    places = [
        place for place, job in enumerate(jobs) if job.unique_for_us is not None and place not in holders
    ]
    if not places:
        return
    marks = [
        {"id": numbers[place], "unique_key": jobs[place].unique_key, "keep_us": jobs[place].unique_for_us}
        for place in places
        if jobs[place].unique_key is not None
    ]
    earlier: dict[int, int] = dict((yield "take_marks", {"marks": as_json(marks), "now": now}))
    holders |= {place: earlier[numbers[place]] for place in places if numbers[place] in earlier}
    if refused := [place for place in must_be_new if numbers[place] in earlier]:
        yield from _retract(jobs, numbers)
        raise _duplicate(jobs[refused[0]], holders[refused[0]], numbers)
    if early := [place for place in places if numbers[place] in earlier]:
        yield from _retract([jobs[place] for place in early], [numbers[place] for place in early])


def _retract(jobs: Sequence[NewJob], numbers: Sequence[int]) -> Steps[None]:
    yield "retract_arriving", {"ids": as_json(numbers)}
    if any(job.limits for job in jobs):
        yield "release_holds", {"ids": as_json(numbers)}


def _let_in(jobs: Sequence[NewJob], bounded: Collection[str], arriving: bool) -> Steps[None]:
    """Refuse what a queue has no room for, if it rejects; else let in as many as there is room for."""
    due = collections.Counter(job.queue for job in jobs if job.run_at is None)
    rows = yield "room_of", {"queues": as_json(sorted(bounded))}
    for queue, most, ready, beyond in rows:
        # Ours are among those beyond the ready ones, unless they have only arrived.
        if most and due[queue] and ready + beyond + (due[queue] if arriving else 0) > most:
            raise QueueFull(
                f"queue {queue!r} is full: {ready} of {most} ready, and {due[queue]} more do not fit; try later, raise "
                "max_ready, or declare it with on_full='overflow'",
                queue=queue,
                limit=most,
                count=ready,
            )
    if not arriving:
        yield "fill_queues", fill_parameters(bounded, top=max(BATCH, len(jobs)))


def fresh_ids(ids: IdSource, count: int) -> Steps[list[int]]:
    """`count` fresh ids, reserved where none are at hand."""
    numbers = ids.take_reserved(count)
    while numbers is None:
        blocks = yield "reserve_ids", {"blocks": ids.blocks_needed(count)}
        ids.add_blocks([block for (block,) in blocks])
        numbers = ids.take_reserved(count)
    return numbers


def _duplicate(job: NewJob, holder: int, batch: Sequence[int]) -> DuplicateJob:
    if holder in batch:
        return DuplicateJob(f"task {job.task!r}: two calls of this batch have the same unique key")
    found = id_text(holder)
    holds = "is open" if job.unique_for_us is None else "is open, or was enqueued within its ttl"
    return DuplicateJob(f"task {job.task!r}: job {found} with the same unique key {holds}", job_id=found)


def _holds(batch: list[tuple[int, NewJob]]) -> list[dict[str, object]]:
    return [{"job_id": number, **limit} for number, job in batch for limit in limit_rows(job.limits)]


def limit_rows(limits: Sequence[Limit]) -> list[dict[str, object]]:
    """The keys of a job as they are stored: in the order of their names, which is the order of taking them. The one that it
    takes when it starts is number 0."""
    rows: list[dict[str, object]] = []
    waited_for = sorted((limit for limit in limits if not limit.at_start), key=lambda limit: limit.name)
    at_start = [(0, limit) for limit in limits if limit.at_start]
    for place, each in [*at_start, *enumerate(waited_for, start=1)]:
        row: dict[str, object] = {
            "ordinal": place,
            "limiter": each.name,
            "most": each.most,
            "keep_us": each.keep_us,
        }
        rows.append(row if each.window_us is None else {**row, "window_us": each.window_us})
    return rows


def _change(holder: int, job: NewJob, sign: Sign | None) -> dict[str, object]:
    return {
        "id": holder, "unique_key": job.unique_key, "queue": job.queue, "priority": job.priority, "group_key": job.group,
        "task": job.task, "max_attempts": job.max_attempts, "run_at": job.run_at, "good_until": job.good_until,
        "fails_on_crash": job.fails_on_crash, "max_wait_us": job.max_wait_us, "headers": job.headers,
        "signature": sign(job, holder) if sign else None, "options": job.options,
        "limits": as_json(limit_rows(job.limits)) if job.limits else None, "payload": job.payload,
    }  # fmt: skip


def _key(number: int, job: NewJob) -> dict[str, int | str | None]:
    return {"id": number, "unique_key": job.unique_key}


def _parameters(batch: list[tuple[int, NewJob]], sign: Sign | None, now: int | None) -> dict[str, object]:
    lines: dict[tuple[str, int, str | None], _Line] = {}
    kinds: dict[tuple[object, ...], tuple[int, _Line]] = {}
    listed: list[_Kind] = []
    items: list[_Item] = []
    for number, job in batch:
        shared = (
            job.queue, job.priority, job.group, job.task, job.max_attempts, job.fails_on_crash, job.run_id, job.headers,
            job.options,
        )  # fmt: skip
        found = kinds.get(shared)
        if found is None:
            place = shared[:3]
            line = lines.get(place)
            if line is None:
                line = lines[place] = _Line(len(lines), *place)
            found = kinds[shared] = len(listed), line
            listed.append(_Kind(len(listed), line.line, *shared[3:]))
        kind, line = found
        if job.run_at is None:
            line.jobs += 1
        if (
            sign
            or job.run_at is not None
            or job.good_until is not None
            or job.unique_key
            or job.limits
            or job.waits
        ):
            limits = as_json(limit_rows(job.limits)) if job.limits else None
            signature = sign(job, number) if sign else None
            more = _More(
                job.run_at,
                job.good_until,
                job.unique_key,
                signature,
                limits,
                "waiting" if job.waits else None,
            )
            items.append((number, kind, line.jobs, job.payload, more))
        else:
            items.append((number, kind, line.jobs, job.payload))
    return {
        "batch": as_json(items),
        "kinds": as_json(listed),
        "lines": as_json(list(lines.values())),
        "now": now,
    }
