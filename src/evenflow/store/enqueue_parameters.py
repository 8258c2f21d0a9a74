"""What enqueue hands to the database: one job, a batch, and the keys of jobs, as parameters of its statements."""

from collections.abc import Callable, Sequence

import msgspec

from evenflow.job import Limit, NewJob
from evenflow.store.engine import as_json

Sign = Callable[[NewJob, int], str | None]
_NOTHING_MORE = (None,) * 6


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
    has_more: bool


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
    first_id: int
    last_id: int
    jobs: int = 0


def lone_call(
    job: NewJob, number: int, sign: Sign | None, wakes: Sequence[Wake], now: int | None
) -> tuple[str, dict[str, object]]:
    """The statement for one job, with its parameters: the smaller one where the job asks for nothing more."""
    plain: dict[str, object] = {
        "id": number, "queue": job.queue, "task": job.task, "priority": job.priority, "max_attempts": job.max_attempts,
        "payload": job.payload, "now": now,
    }  # fmt: skip
    more = job.run_at, job.good_until, job.run_id, job.unique_key, job.headers, job.options
    wake = wakes[0] if wakes else None
    if more == _NOTHING_MORE and not (job.fails_on_crash or sign):
        if wake is None:
            return "enqueue_plainly", plain
        return "enqueue_aloud", {**plain, "channel": wake.channel, "wake": wake.payload}
    return "enqueue_lone", {
        **plain, "run_at": job.run_at, "good_until": job.good_until, "run_id": job.run_id, "unique_key": job.unique_key,
        "fails_on_crash": job.fails_on_crash, "signature": sign(job, number) if sign else None, "headers": job.headers,
        "options": job.options, "channel": wake and wake.channel, "wake": wake and wake.payload,
    }  # fmt: skip


def batch_parameters(
    batch: list[tuple[int, NewJob]], sign: Sign | None, now: int | None
) -> dict[str, object]:
    lines: dict[tuple[str, int, str | None], _Line] = {}
    kinds: dict[tuple[object, ...], tuple[int, _Line]] = {}
    listed: list[_Kind] = []
    items: list[_Item] = []
    numbers = [number for number, _ in batch]
    first, last = min(numbers, default=0), max(numbers, default=0)
    for number, job in batch:
        has_more = bool(
            sign
            or job.run_at is not None
            or job.good_until is not None
            or job.unique_key
            or job.limits
            or job.waits
        )
        shared = (
            job.queue, job.priority, job.group, job.task, job.max_attempts, job.fails_on_crash, job.run_id, job.headers,
            job.options, has_more,
        )  # fmt: skip
        found = kinds.get(shared)
        if found is None:
            place = shared[:3]
            line = lines.get(place)
            if line is None:
                line = lines[place] = _Line(len(lines), *place, first, last)
            found = kinds[shared] = len(listed), line
            listed.append(_Kind(len(listed), line.line, *shared[3:]))
        kind, line = found
        if job.run_at is None:
            line.jobs += 1
        if has_more:
            items.append((number, kind, line.jobs, job.payload, _more(job, number, sign)))
        else:
            items.append((number, kind, line.jobs, job.payload))
    return {
        "batch": as_json(items),
        "kinds": as_json(listed),
        "lines": as_json(list(lines.values())),
        "now": now,
    }


def batch_keys(batch: list[tuple[int, NewJob]]) -> str:
    return as_json([{"id": number, "unique_key": job.unique_key} for number, job in batch])


def hold_rows(batch: list[tuple[int, NewJob]]) -> list[dict[str, object]]:
    limited = [(number, job) for number, job in batch if job.limits]
    return [{"job_id": number, **limit} for number, job in limited for limit in limit_rows(job.limits)]


def limit_rows(limits: Sequence[Limit]) -> list[dict[str, object]]:
    """The keys of a job as they are stored, in the order of taking them: what few share first, then by name. It is the same for
    all jobs, so no two wait for each other. The one that a job takes when it starts is number 0."""
    rows: list[dict[str, object]] = []
    waited_for = sorted(
        (limit for limit in limits if not limit.at_start), key=lambda limit: (limit.breadth, limit.name)
    )
    at_start = [(0, limit) for limit in limits if limit.at_start]
    for place, each in [*at_start, *enumerate(waited_for, start=1)]:
        row: dict[str, object] = {
            "ordinal": place,
            "limiter": each.name,
            "most": each.most,
            "keep_us": each.keep_us,
        }
        if each.window_us is not None:
            row["window_us"] = each.window_us
        if each.discards:
            row["discards"] = True
        rows.append(row)
    return rows


def change_row(holder: int, job: NewJob, sign: Sign | None) -> dict[str, object]:
    return {
        "id": holder, "unique_key": job.unique_key, "queue": job.queue, "priority": job.priority, "group_key": job.group,
        "task": job.task, "max_attempts": job.max_attempts, "run_at": job.run_at, "good_until": job.good_until,
        "fails_on_crash": job.fails_on_crash, "max_wait_us": job.max_wait_us, "headers": job.headers,
        "signature": sign(job, holder) if sign else None, "options": job.options,
        "limits": as_json(limit_rows(job.limits)) if job.limits else None, "payload": job.payload,
    }  # fmt: skip


def _more(job: NewJob, number: int, sign: Sign | None) -> _More:
    return _More(
        job.run_at,
        job.good_until,
        job.unique_key,
        sign(job, number) if sign else None,
        as_json(limit_rows(job.limits)) if job.limits else None,
        "waiting" if job.waits else None,
    )
