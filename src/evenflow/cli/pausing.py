"""`evenflow pause` and `evenflow resume`: whether a queue is served, and a task run."""

import difflib
import getpass
import socket

import click

from evenflow import Evenflow
from evenflow.cli.places import Place, takes_place


@click.command()
@click.argument("queue", required=False)
@click.option("--task", metavar="NAME", help="Pause a task instead, in whatever queue its jobs are.")
@click.option("--why", metavar="TEXT", help="Shown to whoever asks why nothing runs.")
@takes_place
def pause(place: Place, queue: str | None, task: str | None, why: str | None) -> None:
    """Start no more jobs of a queue, or of a task; what runs goes on.

    Lasts until `evenflow resume`, over restarts. Jobs can still be enqueued.
    """
    what = _what(queue, task)
    with place.acting() as app:
        if queue is not None:
            note_unknown(app, queue)
        app.pause(queue, task=task, who=who_am_i(), why=why)
    click.echo(f"{what} is paused")


@click.command()
@click.argument("queue", required=False)
@click.option("--task", metavar="NAME", help="Resume a task instead.")
@takes_place
def resume(place: Place, queue: str | None, task: str | None) -> None:
    """Serve a paused queue, or run a paused task, again."""
    what = _what(queue, task)
    with place.acting() as app:
        if queue is not None:
            note_unknown(app, queue)
        resumed = app.resume(queue, task=task)
    served = "served" if queue is not None else "run"
    click.echo(f"{what} is {served} again" if resumed else f"{what} was not paused")


def _what(queue: str | None, task: str | None) -> str:
    if (queue is None) == (task is None):
        raise click.UsageError("give a queue, or --task NAME, and not both")
    return f"queue {queue!r}" if queue is not None else f"task {task!r}"


def note_unknown(app: Evenflow, queue: str) -> None:
    """A queue needs no declaration, so a slip of the finger is no error; it is worth a word, though."""
    names = [row.name for row in app.queues()]
    if queue not in names:
        near = difflib.get_close_matches(queue, names, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        click.echo(f"note: no queue {queue!r} is known here yet{advice}", err=True)


def who_am_i() -> str:
    """Who gives this command, for those who read it later."""
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        name = "somebody"
    return f"{name}@{socket.gethostname()}"
