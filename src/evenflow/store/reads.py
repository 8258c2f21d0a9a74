"""Reads: short statements that fetch all and let go, so that no page left open holds a snapshot."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec

from evenflow.job import ENDS, JobRecord, State
from evenflow.store.engine import Engine, Row, as_json

PAGE = 200
NEWEST = 2**63 - 1
_COUNTED_BY = {"list_live": "count_open", "list_history": "count_history", "list_trouble": "count_trouble"}


class Filter(msgspec.Struct, frozen=True):
    """Which jobs: everything that is not None must match."""

    state: State | None = None
    queue: str | None = None
    task: str | None = None
    group: str | None = None


class QueueRow(msgspec.Struct, frozen=True):
    """A queue as the store knows it."""

    name: str
    priority: int
    fair: str
    max_concurrency: int | None
    max_ready: int | None
    on_full: str
    paused_at: int | None
    paused_by: str | None
    paused_why: str | None


def find(engine: Engine, ids: Sequence[int]) -> dict[int, JobRecord]:
    """The jobs with these ids, live or kept; those that are neither are left out."""
    return {row[0]: _record(row) for row in engine.run("jobs_by_id", {"ids": as_json(ids)})}


def page(engine: Engine, wanted: Filter, *, before: int = NEWEST, top: int = PAGE) -> list[JobRecord]:
    """Jobs newest first, below the cursor `before`, at most `top`. The last id is the cursor of the next page."""
    state = None if wanted.state is None else str(wanted.state)
    parameters = {
        "state": state, "queue": wanted.queue, "task": wanted.task, "group_key": wanted.group, "before": before, "top": top,
    }  # fmt: skip
    # By id: a job that ends between the two reads is in both.
    found = {row[0]: _record(row) for unit in _units(wanted.state) for row in engine.run(unit, parameters)}
    return [found[job] for job in sorted(found, reverse=True)[:top]]


def pages(engine: Engine, wanted: Filter, *, before: int = NEWEST) -> Iterator[JobRecord]:
    """All jobs that match, fetched page by page."""
    while found := page(engine, wanted, before=before):
        yield from found
        before = found[-1].id


def count(engine: Engine, wanted: Filter) -> int:
    """How many jobs match, live and kept. Reads every match where no state is given: for operators, not for loops."""
    state = None if wanted.state is None else str(wanted.state)
    parameters = {"state": state, "queue": wanted.queue, "task": wanted.task, "group_key": wanted.group}
    units = [_COUNTED_BY[unit] for unit in _units(wanted.state)]
    return sum(engine.run(unit, parameters)[0][0] for unit in units)


def ended_among(engine: Engine, ids: Iterable[int]) -> set[int]:
    """Which of these are no longer open."""
    return {job for (job,) in engine.run("ended_among", {"ids": as_json(list(ids))})}


def await_job(engine: Engine, job: int) -> bool:
    """Ask for an announcement of this job's end; False if it is not open any more."""
    return bool(engine.run("await_job", {"id": job}))


def queues(engine: Engine) -> list[QueueRow]:
    """Every queue that was declared, paused or used."""
    return [QueueRow(*row) for row in engine.run("list_queues", {})]


def counts(engine: Engine) -> dict[str, dict[str, int]]:
    """Open jobs: queue -> state -> how many."""
    found: dict[str, dict[str, int]] = {}
    for queue, state, jobs in engine.run("count_live", {}):
        found.setdefault(queue, {})[state] = jobs
    return found


def in_flight(engine: Engine) -> dict[str, int]:
    """Jobs claimed or running: queue -> how many."""
    return dict(engine.run("count_in_flight", {}))


def in_flight_ids(engine: Engine, queue: str | None = None, *, top: int = 10) -> list[int]:
    """Some jobs that are claimed or running, of one queue or of all."""
    return [job for (job,) in engine.run("some_in_flight", {"queue": queue, "top": top})]


def ready(engine: Engine, *, top: int = 10_000) -> int:
    """How many jobs are ready, in all queues, counted up to `top`."""
    count: int = engine.run("count_ready", {"top": top})[0][0]
    return count


def ready_before(engine: Engine, job: int, *, top: int = 1000) -> int:
    """How many ready jobs of its queue go before this one, counted up to `top`."""
    count: int = engine.run("count_before", {"id": job, "top": top})[0][0]
    return count


def cluster_cap(engine: Engine) -> int | None:
    """How many jobs may be in flight in the whole cluster; None is no cap."""
    rows = engine.run("cluster_cap", {})
    return rows[0][0] if rows else None


def has_open(engine: Engine, queues: Sequence[str]) -> bool:
    """Whether these queues hold work that needs nobody's help to run: arriving, ready, overflow or in flight."""
    return bool(engine.run("any_open", {"queues": as_json(queues)})[0][0])


def rounds(engine: Engine) -> dict[tuple[str, int], float]:
    """V of each band that has been claimed from."""
    return {(queue, priority): v for queue, priority, v in engine.run("list_rounds", {})}


def tails(engine: Engine) -> dict[tuple[str, int, str], float]:
    """The last turn given to each group that is remembered."""
    return {(queue, priority, group): tail for queue, priority, group, tail in engine.run("list_groups", {})}


def now_us(engine: Engine) -> int:
    """The store's clock."""
    now: int = engine.run("clock", {"now": None})[0][0]
    return now


def _units(state: State | None) -> list[str]:
    if state is None:
        return ["list_live", "list_history"]
    if state not in ENDS:
        return ["list_live"]
    return ["list_history" if state is State.SUCCEEDED else "list_trouble"]


def _record(row: Row) -> JobRecord:
    return JobRecord(row[0], State(row[1]), *row[2:])
