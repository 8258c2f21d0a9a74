"""`evenflow jobs` and `evenflow job`: lists of jobs, and everything about one."""

from typing import Any

import click
import msgspec

from evenflow import JobError, JobNotFound
from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.cli.texts import moment, printable, shortened, span
from evenflow.codec import decode_call, readable_result
from evenflow.errors import DecodeError
from evenflow.ids import id_text, job_number
from evenflow.job import JobRecord, State
from evenflow.store import reads
from evenflow.store.reads import Filter

COLOURS = {
    State.RUNNING: "cyan",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.QUARANTINED: "red",
    State.EXPIRED: "yellow",
    State.CANCELLED: "yellow",
    State.DISCARDED: "yellow",
}
_LONGEST_ERROR = 60
_errors = msgspec.json.Decoder(list[JobError])


@click.command()
@click.option("--state", type=click.Choice([state.value for state in State]), help="Only jobs in this state.")
@click.option("--queue", metavar="NAME", help="Only jobs of this queue.")
@click.option("--task", metavar="NAME", help="Only jobs of this task.")
@click.option("--group", metavar="NAME", help="Only jobs of this group.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Most jobs shown.",
)
@click.option("--before", metavar="ID", help="Go on below this job: the next page.")
@json_option
@takes_place
def jobs(
    place: Place, state: str | None, queue: str | None, task: str | None, group: str | None, limit: int,
    before: str | None, as_json: bool,
) -> None:  # fmt: skip
    """List jobs, newest first."""
    wanted = Filter(State(state) if state else None, queue, task, group)
    with place.looking() as engine:
        start = reads.NEWEST if before is None else job_number(before)
        found = reads.page(engine, wanted, before=start, top=limit + 1)
        now = reads.now_us(engine)
    shown, following = found[:limit], None if len(found) <= limit else id_text(found[limit - 1].id)
    if as_json:
        print_json({"jobs": [summary(record) for record in shown], "next": following})
        return
    if not shown:
        click.echo("no jobs match")
        return
    print_table(
        ("job", "state", "task", "queue", "group", "attempt", "created", "error"),
        [_line(record, now) for record in shown],
    )
    if following:
        click.echo(f"more: --before {following}", err=True)


@click.command()
@click.argument("id")
@json_option
@takes_place
def job(place: Place, id: str, as_json: bool) -> None:
    """Show everything about a job.

    Its arguments, its times, its result, and every failed attempt with its traceback.
    """
    number = job_number(id)
    with place.looking() as engine:
        record = reads.find(engine, [number]).get(number)
        now = reads.now_us(engine)
    if record is None:
        raise JobNotFound(f"no job {id}: it was never committed, kept no result, or its retention has passed")
    if as_json:
        print_json(summary(record) | details(record))
        return
    for name, text in _facts(record, now):
        click.echo(f"{name:<12}{printable(text)}")
    for error in _errors_of(record):
        _print_error(error)


def summary(record: JobRecord) -> dict[str, Any]:
    """What a list says of a job, with stable keys."""
    errors = _errors_of(record)
    return {
        "id": id_text(record.id),
        "state": record.state.value,
        "task": record.task,
        "queue": record.queue,
        "group": record.group,
        "priority": record.priority,
        "attempt": record.attempt,
        "max_attempts": record.max_attempts,
        "crashes": record.crashes,
        "created_at": moment(record.created_at),
        "run_at": moment(record.run_at),
        "started_at": moment(record.started_at),
        "finished_at": moment(record.finished_at),
        "good_until": moment(record.good_until),
        "progress": msgspec.json.decode(record.progress) if record.progress else None,
        "error": {"code": errors[-1].code, "message": errors[-1].message} if errors else None,
    }


def details(record: JobRecord) -> dict[str, Any]:
    """What only one job's own page says."""
    args, kwargs = _call(record)
    return {
        "args": args,
        "kwargs": kwargs,
        "result": readable_result(record.result),
        "worker": None if record.worker is None else id_text(record.worker),
        "unique_key": record.unique_key,
        "cancel_why": record.cancel_why,
        "errors": [
            {
                "attempt": error.attempt,
                "at": moment(error.at),
                "code": error.code,
                "class_name": error.class_name,
                "message": error.message,
                "data": error.data,
                "traceback": error.traceback,
            }
            for error in _errors_of(record)
        ],
    }


def _line(record: JobRecord, now: int) -> list[Cell | str | int | None]:
    errors = _errors_of(record)
    error = shortened(f"{errors[-1].code}: {errors[-1].message}", _LONGEST_ERROR) if errors else ""
    return [
        id_text(record.id), Cell(record.state, COLOURS.get(record.state)), record.task, record.queue, record.group,
        f"{record.attempt} of {record.max_attempts}", f"{span(now - record.created_at)} ago", error,
    ]  # fmt: skip


def _facts(record: JobRecord, now: int) -> list[tuple[str, str]]:
    args, kwargs = _call(record)
    said = [*map(_shown, args), *(f"{name}={_shown(value)}" for name, value in kwargs.items())]
    crashes = f", {record.crashes} crashes" if record.crashes else ""
    facts: list[tuple[str, str | None]] = [
        ("job", id_text(record.id)),
        ("state", record.state.value),
        ("call", f"{record.task}({', '.join(said)})"),
        ("queue", record.queue),
        ("group", record.group),
        ("priority", str(record.priority) if record.priority else None),
        ("attempt", f"{record.attempt} of {record.max_attempts}{crashes}"),
        ("unique", record.unique_key),
        *((name, _when(at, now)) for name, at in _moments(record)),
        ("worker", None if record.worker is None else id_text(record.worker)),
        ("progress", record.progress),
        ("cancelled", record.cancel_why),
        ("result", _shown(readable_result(record.result)) if record.state is State.SUCCEEDED else None),
    ]
    return [(name, text) for name, text in facts if text is not None]


def _moments(record: JobRecord) -> list[tuple[str, int | None]]:
    due = record.run_at if record.run_at != record.created_at else None
    return [
        ("created", record.created_at),
        ("due", due),
        ("good until", record.good_until),
        ("started", record.started_at),
        ("finished", record.finished_at),
    ]


def _when(at: int | None, now: int) -> str | None:
    if at is None:
        return None
    return f"{moment(at)} ({span(now - at)} ago)" if at <= now else f"{moment(at)} (in {span(at - now)})"


def _print_error(error: JobError) -> None:
    attempt = "" if error.attempt is None else f"attempt {error.attempt}: "
    name = f" {error.class_name}:" if error.class_name else ""
    click.echo()
    click.secho(printable(f"{attempt}{error.code}{name} {error.message}"), fg="red")
    if error.data is not None:
        click.echo(f"  data: {printable(_shown(error.data))}")
    if error.traceback:
        click.echo(printable(error.traceback.rstrip(), keep_lines=True))


def _errors_of(record: JobRecord) -> list[JobError]:
    return _errors.decode(record.errors) if record.errors else []


def _call(record: JobRecord) -> tuple[tuple[Any, ...], dict[str, Any]]:
    # Without the task's annotations: the same on every machine, whatever code it has.
    try:
        return decode_call(record.payload)
    except DecodeError as wrong:
        return (f"<{wrong}>",), {}


def _shown(value: Any) -> str:
    return msgspec.json.encode(value, enc_hook=str).decode()
