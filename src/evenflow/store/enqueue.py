"""Enqueue: one operation, written as steps, so that our engine or a caller's own connection can run it."""

import collections
from collections.abc import Collection, Sequence

import msgspec

from evenflow.errors import DuplicateJob, QueueFull, StoreUnavailable
from evenflow.ids import IdSource, id_text
from evenflow.job import NewJob
from evenflow.store.bounds import BATCH, fill_parameters
from evenflow.store.callers import drive_together
from evenflow.store.engine import Steps, as_json, drive
from evenflow.store.enqueue_parameters import (
    Sign,
    Wake,
    batch_keys,
    batch_parameters,
    change_row,
    hold_rows,
    lone_call,
)
from evenflow.store.open import AnyEngine

_MAX_ROUNDS = 5
_MAX_LOSSES = 2


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What became of one job: its id, or the live job that holds its unique key."""

    id: int
    is_new: bool = True


def enqueue_plain(
    engine: AnyEngine,
    job: NewJob,
    ids: IdSource,
    *,
    numbers: Sequence[int] | None = None,
    sign: Sign | None = None,
    wakes: Sequence[Wake] = (),
) -> int:
    """`enqueue_steps` for one job that asks for nothing but a row, and its id. As a rule that is one statement, which runs
    without steps around it: they took a twelfth of the call, and programs make it more often than any other."""
    number = ids.take_one() if numbers is None else numbers[0]
    if number is None:
        (number,) = drive(engine, fresh_ids(ids, 1))
    losses = 0
    if len(wakes) < 2 and _is_simple(job):
        try:
            rows = engine.run(*lone_call(job, number, sign, wakes, None))
            if rows and rows[0][0]:
                return number
        except StoreUnavailable:
            losses = 1
    taken = [number]
    insert = _insert(
        [job], ids, taken, losses, arriving=False, sign=sign, must_be_new=(), wakes=wakes, now=None
    )
    drive(engine, insert)
    return taken[0]


def enqueue_together(
    engine: AnyEngine,
    jobs: Sequence[NewJob],
    ids: IdSource,
    *,
    numbers: Sequence[int] | None = None,
    arriving: bool = False,
    sign: Sign | None = None,
    must_be_new: Collection[int] = (),
    bounded: Collection[str] = (),
) -> list[Enqueued]:
    """`enqueue_steps` in one transaction of ours. A commit that got no answer is looked for by the ids of its jobs: it is
    there as a whole or not at all, and only then tried again."""
    numbers = drive(engine, fresh_ids(ids, len(jobs))) if numbers is None else numbers
    losses = 0
    while True:
        try:
            return drive_together(
                engine,
                lambda: enqueue_steps(
                    jobs,
                    ids,
                    numbers=numbers,
                    arriving=arriving,
                    sign=sign,
                    must_be_new=must_be_new,
                    bounded=bounded,
                ),
            )
        except StoreUnavailable:
            losses += 1
            if losses > _MAX_LOSSES:
                raise
        if placed := drive(engine, _committed(jobs, numbers)):
            return placed


def _committed(jobs: Sequence[NewJob], numbers: Sequence[int]) -> Steps[list[Enqueued]]:
    """Where the jobs are, if one of these ids is known: those without a row of their own are with whoever holds their key."""
    batch = list(zip(numbers, jobs, strict=True))
    present: dict[int, int] = dict((yield "find_duplicates", {"batch": batch_keys(batch)}))
    if not any(present.get(number) == number for number in numbers):
        return []
    return [Enqueued(present.get(number, number), present.get(number) == number) for number in numbers]


def enqueue_steps(
    jobs: Sequence[NewJob],
    ids: IdSource,
    *,
    numbers: Sequence[int] | None = None,
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
    `numbers` are their ids, where these were taken before.
    """
    numbers = ids.take_reserved(len(jobs)) if numbers is None else list(numbers)
    if numbers is None:
        numbers = yield from fresh_ids(ids, len(jobs))
    is_there, losses = False, 0
    if not arriving and len(jobs) == 1 and len(wakes) < 2 and _is_simple(jobs[0]):
        try:
            rows = yield lone_call(jobs[0], numbers[0], sign, wakes, now)
            is_there = bool(rows and rows[0][0])
        except StoreUnavailable:
            losses = 1
    holders: dict[int, int] = {}
    if not is_there:
        holders = yield from _insert(
            jobs,
            ids,
            numbers,
            losses,
            arriving=arriving,
            sign=sign,
            must_be_new=must_be_new,
            wakes=wakes,
            now=now,
        )
        yield from _mark(jobs, numbers, holders, must_be_new, now)
    if bounded:
        new = [job for place, job in enumerate(jobs) if place not in holders]
        yield from _let_in(new, bounded, arriving)
    if not holders:
        return [Enqueued(number) for number in numbers]
    return [
        Enqueued(holders.get(place, number), place not in holders) for place, number in enumerate(numbers)
    ]


def _insert(
    jobs: Sequence[NewJob], ids: IdSource, numbers: list[int], losses: int, *, arriving: bool, sign: Sign | None,
    must_be_new: Collection[int], wakes: Sequence[Wake], now: int | None,
) -> Steps[dict[int, int]]:  # fmt: skip
    """Insert until each job is there, or another one that holds its key: the place of the former -> the latter's id.

    An id that belongs to somebody else already is replaced in `numbers`. After `losses` it may be our own.
    """
    left = list(range(len(jobs)))  # places in `jobs`
    holders: dict[int, int] = {}
    for _ in range(_MAX_ROUNDS):
        batch, added = [(numbers[place], jobs[place]) for place in left], -1
        try:
            parameters = batch_parameters(batch, sign, now)
            if arriving:
                rows = yield "enqueue_arriving", parameters
            else:
                rows = yield "enqueue", {**parameters, "wakes": as_json(wakes)}
            added = rows[0][0]
            if holds := hold_rows(batch):
                yield "add_holds", {"holds": as_json(holds)}
        except StoreUnavailable:
            losses += 1
            if arriving or losses > _MAX_LOSSES:
                raise
        if added == len(left):
            return holders
        present: dict[int, int] = dict((yield "find_duplicates", {"batch": batch_keys(batch)}))
        yield from _replace(jobs, numbers, left, present, sign, now)
        if added == 0 and not losses:
            # Nothing of ours is there yet, so whatever carries one of our ids is another job.
            taken = [place for place in left if present.get(numbers[place]) == numbers[place]]
            for place, number in zip(taken, (yield from fresh_ids(ids, len(taken))), strict=True):
                numbers[place] = number
        found = {place: present.get(numbers[place], numbers[place]) for place in left}
        holders |= {place: holder for place, holder in found.items() if holder != numbers[place]}
        if refused := [place for place in must_be_new if place in holders]:
            if arriving and len(jobs) > 1:
                yield from _retract(jobs, numbers)
            raise _duplicate(jobs[refused[0]], holders[refused[0]], numbers)
        left = [place for place in left if numbers[place] not in present]
        if not left:
            return holders
    raise StoreUnavailable(
        f"{len(left)} jobs met a unique key that changed hands {_MAX_ROUNDS} times; try again"
    )


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
    changes = [change_row(holder, jobs[place], sign) for holder, place in latest.items()]
    rows = yield "replace_open", {"changes": as_json(changes), "now": now}
    outcomes: dict[int, str] = dict(rows)
    if put_off := [job for job, outcome in outcomes.items() if outcome == "put_off"]:
        yield "park_holds", {"ids": as_json(put_off)}
    if moved := [job for job, outcome in outcomes.items() if outcome == "moved"]:
        yield "release_holds", {"ids": as_json(moved)}
        if holds := hold_rows([(job, jobs[latest[job]]) for job in moved]):
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


def _is_simple(job: NewJob) -> bool:
    """Whether its row is all that has to be written for it."""
    return job.group is None and not job.limits and not job.waits and job.unique_for_us is None
