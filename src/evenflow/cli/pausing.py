"""`evenflow pause` and `evenflow resume`: whether a queue is served, and a task run."""

import difflib
import getpass
import socket
from collections.abc import Sequence

import click

from evenflow import Evenflow
from evenflow.cli.documents import json_option, tell
from evenflow.cli.places import Place, takes_place

RECENT = 200


@click.command()
@click.argument("queue", required=False)
@click.option("--task", metavar="NAME", help="Pause a task instead, in whatever queue its jobs are.")
@click.option("--why", metavar="TEXT", help="Shown to whoever asks why nothing runs.")
@json_option
@takes_place
def pause(place: Place, queue: str | None, task: str | None, why: str | None, as_json: bool) -> None:
    """Start no more jobs of a queue, or of a task; what runs goes on.

    Lasts until `evenflow resume`, over restarts. Jobs can still be enqueued.
    """
    what = _what(queue, task)
    with place.acting() as app:
        if queue is not None:
            note_unknown(app, queue)
        else:
            _note_unknown_task(app, task or "")
        app.pause(queue, task=task, who=who_am_i(), why=why)
    tell(as_json, f"{what} is paused", queue=queue, task=task, paused=True)


@click.command()
@click.argument("queue", required=False)
@click.option("--task", metavar="NAME", help="Resume a task instead.")
@json_option
@takes_place
def resume(place: Place, queue: str | None, task: str | None, as_json: bool) -> None:
    """Serve a paused queue, or run a paused task, again."""
    what = _what(queue, task)
    with place.acting() as app:
        if queue is not None:
            note_unknown(app, queue)
        resumed = app.resume(queue, task=task)
        if task is not None and not resumed:
            _note_unknown_task(app, task)
    served = "served" if queue is not None else "run"
    text = f"{what} is {served} again" if resumed else f"{what} was not paused"
    tell(as_json, text, queue=queue, task=task, paused=False, changed=resumed)


def _what(queue: str | None, task: str | None) -> str:
    if (queue is None) == (task is None):
        raise click.UsageError("give a queue, or --task NAME, and not both")
    return f"queue {queue!r}" if queue is not None else f"task {task!r}"


def note_unknown(app: Evenflow, queue: str) -> None:
    """A queue needs no declaration, so a slip of the finger is no error; it is worth a word, though."""
    _note("queue", queue, [row.name for row in app.queues()])


def _note_unknown_task(app: Evenflow, task: str) -> None:
    """A task may be declared elsewhere and not have run yet: worth a word, and no error."""
    seen = {job.task for job in app.jobs(limit=RECENT)} | {row.task for row in app.totals()}
    _note("task", task, sorted(seen | set(app.tasks)))


def _note(kind: str, name: str, known: Sequence[str]) -> None:
    if name not in known:
        near = difflib.get_close_matches(name, known, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        click.echo(f"note: no {kind} {name!r} is known here yet{advice}", err=True)


def who_am_i() -> str:
    """Who gives this command, for those who read it later."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        name = "somebody"
    return f"{name}@{socket.gethostname()}"
