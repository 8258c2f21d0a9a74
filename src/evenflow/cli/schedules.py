"""`evenflow schedules`: what recurs, and changing it while workers run."""

import contextlib
from collections.abc import Callable
from datetime import datetime, timedelta
from typing import Any

import click

from evenflow.cli.documents import json_option, print_json, tell
from evenflow.cli.pausing import who_am_i
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.cli.texts import moment, printable, shortened, span
from evenflow.client.schedules import Fire, Schedule, shown
from evenflow.client.task import AnyTask
from evenflow.clock import to_us
from evenflow.codec import decode_call
from evenflow.errors import DecodeError
from evenflow.store import reads
from evenflow.store import schedules as store

_LONGEST_ERROR = 60


@click.group(invoke_without_command=True)
@json_option
@takes_place
@click.pass_context
def schedules(ctx: click.Context, place: Place, as_json: bool) -> None:
    """List the schedules, or change one: what recurs and when.

    Schedules of code are declared with @app.recurring; those added here last until they are removed.
    """
    ctx.obj = place
    if ctx.invoked_subcommand is None:
        _list(place, as_json)


@schedules.command("list")
@json_option
@takes_place
@click.pass_context
def list_(ctx: click.Context, place: Place, as_json: bool) -> None:
    """List the schedules by key."""
    _list(_place(ctx, place), as_json)


@schedules.command()
@click.argument("key")
@json_option
@takes_place
@click.pass_context
def show(ctx: click.Context, place: Place, key: str, as_json: bool) -> None:
    """Show everything about a schedule, with its last runs."""
    with _place(ctx, place).acting() as app:
        schedule = app.schedules.get(key)
        fires = [_fire(each) for each in app.schedules.fires(key)]
    if as_json:
        print_json(document(schedule) | {"fires": fires})
        return
    for name, value in document(schedule).items():
        if value not in (None, [], {}):
            click.echo(f"{name:<12}{printable(str(value))}")
    if fires:
        click.echo()
        print_table(("slot", "outcome", "job"), [(row["slot"], row["outcome"], row["job"]) for row in fires])


def _takes_call(command: Callable[..., None]) -> Callable[..., None]:
    """What is called and when. Nothing has a default here: what is not said is not passed on."""
    for option in reversed(_CALL):
        command = option(command)
    return command


_CALL = (
    click.option("--cron", metavar="EXPRESSION", help="A cron expression of 5 fields, or of 6 with seconds first."),
    click.option("--every", metavar="SPAN", help="A span such as 90s or '5 minutes', instead of --cron."),
    click.option("--timezone", metavar="ZONE", help="Of the cron expression; UTC unless told."),
    click.option("--args", metavar="JSON", help="Positional arguments, as a list."),
    click.option("--kwargs", metavar="JSON", help="Named arguments, as an object."),
    click.option("--queue", metavar="NAME", help="Instead of the task's own."),
    click.option("--priority", type=int, metavar="N", help="Instead of the task's own."),
    click.option("--catch-up", type=click.Choice(["skip", "one", "all"]),
                 help="What becomes of slots that nobody was there to fire; skip unless told."),
    click.option("--overlap", type=click.Choice(["allow", "skip"]),
                 help="Whether to fire while the last run is open; allow unless told."),
    click.option("--jitter", metavar="SPAN", help="Start up to this much later, by chance."),
    click.option("--description", metavar="TEXT"),
)  # fmt: skip


@schedules.command()
@click.argument("key")
@click.option("--task", required=True, metavar="NAME", help="The task, by the name that jobs carry.")
@_takes_call
@json_option
@takes_place
@click.pass_context
def add(ctx: click.Context, /, place: Place, key: str, task: str, as_json: bool, **options: Any) -> None:
    """Add a schedule. Needs --app, whose code knows the task."""
    with _place(ctx, place).acting() as app:
        schedule = app.schedules.add(key, task, **_said(app.tasks.get(task), options))
    text = f"schedule {key!r} is added: {schedule.text}; next run {_when(schedule.next_run)}"
    tell(as_json, text, **document(schedule))


@schedules.command()
@click.argument("key")
@click.option("--task", metavar="NAME", help="Another task, by the name that jobs carry.")
@_takes_call
@json_option
@takes_place
@click.pass_context
def update(
    ctx: click.Context, /, place: Place, key: str, task: str | None, as_json: bool, **options: Any
) -> None:
    """Change a schedule that was added at run time; what is not said stays. Needs --app, whose code knows the task."""
    with _place(ctx, place).acting() as app:
        named = app.schedules.get(key).task if task is None else task
        schedule = app.schedules.update(key, task=task, **_said(app.tasks.get(named), options))
    text = f"schedule {key!r} is changed: {schedule.text}; next run {_when(schedule.next_run)}"
    tell(as_json, text, **document(schedule))


@schedules.command()
@click.argument("key")
@click.option("--why", metavar="TEXT", help="Shown to whoever asks why it does not fire.")
@json_option
@takes_place
@click.pass_context
def pause(ctx: click.Context, place: Place, key: str, why: str | None, as_json: bool) -> None:
    """Let a schedule fire no more, until it is resumed."""
    with _place(ctx, place).acting() as app:
        app.schedules.pause(key, who=who_am_i(), why=why)
    tell(as_json, f"schedule {key!r} is paused", schedule=key, paused=True)


@schedules.command()
@click.argument("key")
@json_option
@takes_place
@click.pass_context
def resume(ctx: click.Context, place: Place, key: str, as_json: bool) -> None:
    """Let a paused schedule fire again, from its next slot on."""
    with _place(ctx, place).acting() as app:
        resumed = app.schedules.resume(key)
        next_run = app.schedules.get(key).next_run
    said = "fires again" if resumed else "was not paused"
    text = f"schedule {key!r} {said}; next run {_when(next_run)}"
    at = None if next_run is None else next_run.isoformat()
    tell(as_json, text, schedule=key, paused=False, changed=resumed, next_run=at)


@schedules.command("run-now")
@click.argument("key")
@json_option
@takes_place
@click.pass_context
def run_now(ctx: click.Context, place: Place, key: str, as_json: bool) -> None:
    """Enqueue the job of a schedule now. Needs --app, whose code knows the task."""
    with _place(ctx, place).acting() as app:
        job = app.schedules.run_now(key)
    text = f"schedule {key!r}: job {job.id} is {job.state.value}"
    tell(as_json, text, schedule=key, job=job.id, state=job.state.value)


@schedules.command()
@click.argument("key")
@json_option
@takes_place
@click.pass_context
def remove(ctx: click.Context, place: Place, key: str, as_json: bool) -> None:
    """Delete a schedule that was added at run time, or that no living program declares any more."""
    with _place(ctx, place).acting() as app:
        app.schedules.remove(key)
    tell(as_json, f"schedule {key!r} is removed", schedule=key, removed=True)


def document(schedule: Schedule) -> dict[str, Any]:
    """A schedule with stable keys."""
    return {
        "key": schedule.key,
        "text": schedule.text,
        "state": _state(schedule),
        "description": schedule.description,
        "task": schedule.task,
        "args": schedule.args,
        "kwargs": schedule.kwargs,
        "cron": schedule.cron,
        "every_s": None if schedule.every is None else schedule.every.total_seconds(),
        "timezone": schedule.timezone,
        "queue": schedule.queue,
        "priority": schedule.priority,
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
        "jitter_s": schedule.jitter / timedelta(seconds=1),
        "source": schedule.source,
        "next_run": None if schedule.next_run is None else schedule.next_run.isoformat(),
        "last_run": None if schedule.last_run is None else schedule.last_run.isoformat(),
        "last_job": schedule.last_job,
        "paused": schedule.paused,
        "paused_by": schedule.paused_by,
        "paused_why": schedule.paused_why,
        "served": schedule.served,
        "error": schedule.error,
    }


def _place(ctx: click.Context, place: Place) -> Place:
    """What was said behind the subcommand, else what was said before it."""
    outer: Place = ctx.obj
    return outer if place.url is None and place.locator is None else place


def _said(task: AnyTask | None, options: dict[str, Any]) -> dict[str, Any]:
    """The options that were given, with arguments by the annotations of the task."""
    args, kwargs = options.pop("args"), options.pop("kwargs")
    said = {name: value for name, value in options.items() if value is not None}
    found_args, found_kwargs = _arguments(task, f"[{args or '[]'},{kwargs or '{}'}]")
    said |= {"args": found_args} if args is not None else {}
    return said | ({"kwargs": found_kwargs} if kwargs is not None else {})


def _arguments(task: AnyTask | None, call: str) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Arguments by the annotations of the task; where they do not fit, as they are, and `add` says what is wrong."""
    try:
        plain = decode_call(call)
    except DecodeError as wrong:
        raise click.UsageError(f"--args is a JSON list and --kwargs a JSON object: {wrong}") from None
    with contextlib.suppress(DecodeError):
        return plain if task is None else decode_call(call, task.signature)
    return plain


def _list(place: Place, as_json: bool) -> None:
    with place.looking() as engine:
        now = reads.now_us(engine)
        found = [shown(row) for row in store.found(engine)]
        alive = store.schedulers(engine)
    if as_json:
        schedulers = [{"host": row.host, "pid": row.pid, "seen_at": moment(row.seen_at)} for row in alive]
        print_json({"schedules": [document(each) for each in found], "schedulers": schedulers})
        return
    if not found:
        click.echo("no schedules: none was declared by a worker that ran here, or added")
        return
    headers = ("key", "fires", "task", "next run", "last run", "source", "state")
    print_table(headers, [_line(each, now) for each in found])
    if not alive:
        click.echo("no scheduler is running: nothing fires", err=True)


def _line(schedule: Schedule, now: int) -> list[Cell | str | int | None]:
    state = _state(schedule)
    said = f"{state}: {shortened(schedule.error, _LONGEST_ERROR)}" if schedule.error else state
    colour = "red" if schedule.error else None if state == "active" else "yellow"
    return [
        schedule.key, schedule.text, schedule.task, _span(schedule.next_run, now), _span(schedule.last_run, now),
        schedule.source, Cell(said, colour),
    ]  # fmt: skip


def _state(schedule: Schedule) -> str:
    if schedule.paused:
        return "paused"
    return "active" if schedule.served else "unserved"


def _span(at: datetime | None, now: int) -> str:
    if at is None:
        return ""
    left = to_us(at) - now
    return f"in {span(left)}" if left > 0 else f"{span(-left)} ago"


def _when(at: datetime | None) -> str:
    return "never" if at is None else at.isoformat()


def _fire(fire: Fire) -> dict[str, Any]:
    return {
        "slot": fire.slot.isoformat(),
        "fired_at": fire.fired_at.isoformat(),
        "outcome": fire.outcome,
        "job": fire.job,
    }
