"""Enqueue: one operation, written as steps, so that our engine or a caller's own connection can run it."""

from collections.abc import Callable, Collection, Sequence

import msgspec

from evenflow.errors import DuplicateJob, StoreUnavailable
from evenflow.ids import IdSource, id_text
from evenflow.job import Limit, NewJob
from evenflow.store.engine import Row, Steps, as_json

Sign = Callable[[NewJob, int], str | None]
_MAX_ROUNDS = 5
_MAX_LOSSES = 2


class Enqueued(msgspec.Struct, frozen=True, gc=False):
    """What became of one job: its id, or the live job that holds its unique key."""

    id: int
    is_new: bool = True


class _Item(msgspec.Struct, omit_defaults=True, gc=False):
    id: int
    line: int
    rank: int
    task: str
    max_attempts: int
    payload: str
    run_at: int | None = None
    good_until: int | None = None
    run_id: int | None = None
    unique_key: str | None = None
    fails_on_crash: bool = False
    signature: str | None = None
    headers: str | None = None
    options: str | None = None
    limits: str | None = None
    state: str | None = None


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
    now: int | None = None,
) -> Steps[list[Enqueued]]:
    """Insert all jobs, each at its turn; or as `arriving`, inside a caller's transaction, without taking a lock.

    All or nothing. A job whose unique key is held by a live job is not inserted: the holder is returned in its place.
    If its place is among `must_be_new`, DuplicateJob is raised instead and nothing of the batch stays: arrivals are
    taken back here, other batches of several jobs have to be driven in one transaction, which the error undoes.
    If the connection is lost, the jobs that were committed after all are found by their ids and not inserted again.
    """
    numbers = yield from fresh_ids(ids, len(jobs))
    left = list(range(len(jobs)))  # places in `jobs`
    holders: dict[int, int] = {}
    losses = 0
    for _ in range(_MAX_ROUNDS):
        batch, added = [(numbers[place], jobs[place]) for place in left], -1
        try:
            rows = yield "enqueue_arriving" if arriving else "enqueue", _parameters(batch, sign, now)
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
                yield "retract_arriving", {"ids": as_json(numbers)}
            raise _duplicate(jobs[refused[0]], holders[refused[0]], numbers)
        left = [place for place in left if numbers[place] not in present]
        if not left:
            break
    else:
        raise StoreUnavailable(
            f"{len(left)} jobs met a unique key that changed hands {_MAX_ROUNDS} times; try again"
        )
    return [
        Enqueued(holders.get(place, number), place not in holders) for place, number in enumerate(numbers)
    ]


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
    return DuplicateJob(f"task {job.task!r}: job {found} with the same unique key is open", job_id=found)


def _holds(batch: list[tuple[int, NewJob]]) -> list[dict[str, object]]:
    return [{"job_id": number, **limit} for number, job in batch for limit in limit_rows(job.limits)]


def limit_rows(limits: Sequence[Limit]) -> list[dict[str, object]]:
    """The keys of a job as they are stored: in the order of their names, which is the order of taking them."""
    rows: list[dict[str, object]] = []
    for place, each in enumerate(sorted(limits, key=lambda limit: limit.name), start=1):
        row: dict[str, object] = {
            "ordinal": place,
            "limiter": each.name,
            "most": each.most,
            "keep_us": each.keep_us,
        }
        rows.append(row if each.window_us is None else {**row, "window_us": each.window_us})
    return rows


def _key(number: int, job: NewJob) -> dict[str, int | str | None]:
    return {"id": number, "unique_key": job.unique_key}


def _parameters(batch: list[tuple[int, NewJob]], sign: Sign | None, now: int | None) -> dict[str, object]:
    lines: dict[tuple[str, int, str | None], _Line] = {}
    items = []
    for number, job in batch:
        place = (job.queue, job.priority, job.group)
        line = lines.get(place)
        if line is None:
            line = lines[place] = _Line(len(lines), *place)
        if job.run_at is None:
            line.jobs += 1
        items.append(
            _Item(
                number, line.line, line.jobs, job.task, job.max_attempts, job.payload, job.run_at, job.good_until,
                job.run_id, job.unique_key, job.fails_on_crash, sign(job, number) if sign else None, job.headers,
                job.options, as_json(limit_rows(job.limits)) if job.limits else None,
                "waiting" if job.waits else None,
            )
        )  # fmt: skip
    return {"batch": as_json(items), "lines": as_json(list(lines.values())), "now": now}
