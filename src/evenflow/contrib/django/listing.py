"""What the admin's pages show: rows of texts, made from what the app says. Nothing here knows of requests."""

from collections.abc import Collection, Iterator, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from evenflow import Evenflow, EvenflowError, Job, State
from evenflow.cli.places import opened
from evenflow.cli.workers import document
from evenflow.clock import from_us
from evenflow.codec import decode_call
from evenflow.ids import id_text, job_number
from evenflow.store import dashboard, leases, reads
from evenflow.store.dashboard import Count, Listed

PAGE = 100
# What the columns of a queue count: ready, running, scheduled, and all that waits for something else.
_COLUMNS = (
    (State.READY,),
    (State.CLAIMED, State.RUNNING),
    (State.SCHEDULED,),
    (State.ARRIVING, State.WAITING, State.BLOCKED, State.OVERFLOW),
)
LONGEST_ARGUMENT = 2_000


class Row(NamedTuple):
    """One line of a list: by what it is chosen, and its cells."""

    key: str
    cells: tuple[object, ...]


class Listing(NamedTuple):
    """The lines of a page. `older` is the job to go on below; `is_partial` where the search stopped for its time."""

    rows: list[Row]
    older: str | None = None
    is_partial: bool = False


def jobs(app: Evenflow, wanted: reads.Filter, before: str | None) -> Listing:
    """Jobs that match, newest first: one page, by the dashboard's search, which never reads the whole history."""
    start = reads.NEWEST if before is None else job_number(before)
    with opened(app.settings) as engine:
        found = dashboard.search(engine, wanted, before=start, top=PAGE)
    older = None if found.following is None else id_text(found.following)
    return Listing([_line(job) for job in found.jobs], older, found.is_partial)


def details(app: Evenflow, id: str) -> dict[str, Any]:
    """Everything about one job. Its arguments are shown as they are stored: no row of a model is fetched."""
    job = app.job(id)
    return {
        "job": job,
        "facts": _facts(job),
        "arguments": _arguments(job.record.payload),
        "errors": job.errors,
        "logs": job.logs(),
        "reasons": [] if job.state.is_end or job.state is State.RUNNING else app.why(id),
        "returned": _short(job.record.result or "") if job.state is State.SUCCEEDED else None,
    }


def in_states(app: Evenflow, ids: Sequence[str], states: Collection[State]) -> list[str]:
    """Those of the jobs that are in one of these states now."""
    numbers = {id: job_number(id) for id in ids}
    with opened(app.settings) as engine:
        found = reads.find(engine, list(numbers.values()))
    return [id for id, number in numbers.items() if number in found and found[number].state in states]


def queues(app: Evenflow) -> Iterator[Row]:
    """Every queue that was declared, paused or used, with counts that stop at the dashboard's bound."""
    with opened(app.settings) as engine:
        depths, known = dashboard.depths(engine), reads.queues(engine)
    for queue in known:
        counts = (depths.of(queue.name, *states) for states in _COLUMNS)
        paused = ""
        if queue.paused_at is not None:
            paused = f"since {from_us(queue.paused_at):%Y-%m-%d %H:%M} UTC by {queue.paused_by or 'somebody'}"
        cap: object = "" if queue.max_concurrency is None else queue.max_concurrency
        yield Row(queue.name, (queue.name, *map(_counted, counts), cap, paused))


def schedules(app: Evenflow) -> Iterator[Row]:
    """Every schedule of the database, by key."""
    for each in app.schedules.list():
        state = (
            f"paused by {each.paused_by or 'somebody'}"
            if each.paused
            else "active"
            if each.served
            else "not served"
        )
        yield Row(
            each.key,
            (each.key, each.text, each.task, each.next_run or "", each.last_run or "", each.error or state),
        )


def workers(app: Evenflow) -> Iterator[Row]:
    """Every process in the books."""
    with opened(app.settings) as engine:
        now, found = reads.now_us(engine), leases.workers(engine)
    for worker in found:
        told = document(worker, now)
        running = "" if told["running"] is None else f"{told['running']} of {told['concurrency']}"
        yield Row(
            told["id"],
            (
                told["id"], worker.kind, worker.host, worker.pid, ", ".join(told["services"] or []) or running,
                from_us(worker.started_at), from_us(worker.beat_at), "alive" if told["alive"] else "silent",
            ),
        )  # fmt: skip


def _line(job: Listed) -> Row:
    id = id_text(job.id)
    return Row(
        id,
        (
            id, job.task, job.queue, job.group or "", job.state, -job.priority, f"{job.attempt} of {job.max_attempts}",
            from_us(job.created_at), "" if job.finished_at is None else from_us(job.finished_at),
        ),
    )  # fmt: skip


def _arguments(payload: str) -> list[str]:
    """The arguments of a call; of a forged or foreign one, which cannot be read, the stored text."""
    try:
        args, kwargs = decode_call(payload)
    except EvenflowError:
        return [_short(payload)]
    return [_short(repr(each)) for each in args] + [f"{name}={_short(repr(v))}" for name, v in kwargs.items()]


def _facts(job: Job[Any]) -> list[tuple[str, object]]:
    moments: list[tuple[str, datetime | None]] = [
        ("Enqueued", job.created_at), ("Due", job.run_at), ("Started", job.started_at), ("Ended", job.finished_at),
        ("Good until", job.good_until),
    ]  # fmt: skip
    return [
        ("Task", job.task), ("Queue", job.queue), ("Group", job.group or ""), ("State", job.state),
        ("Priority", -job.priority), ("Attempt", f"{job.attempt} of {job.max_attempts}"), ("Crashes", job.crashes),
        *((name, moment) for name, moment in moments if moment is not None),
        *([("Progress", job.progress)] if job.progress else []),
    ]  # fmt: skip


def _counted(count: Count) -> object:
    return f"{count.jobs} or more" if count.is_more else count.jobs


def _short(text: str) -> str:
    return text if len(text) <= LONGEST_ARGUMENT else f"{text[:LONGEST_ARGUMENT]}…"
