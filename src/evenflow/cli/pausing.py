"""`evenflow pause` and `evenflow resume`: whether a queue is served."""

import difflib
import getpass
import socket

import click

from evenflow import Evenflow
from evenflow.cli.places import Place, takes_place


@click.command()
@click.argument("queue")
@click.option("--why", metavar="TEXT", help="Shown to whoever asks why nothing runs.")
@takes_place
def pause(place: Place, queue: str, why: str | None) -> None:
    """Start no more jobs of a queue; what runs goes on.

    Lasts until `evenflow resume`, over restarts. Jobs can still be enqueued.
    """
    with place.acting() as app:
        note_unknown(app, queue)
        app.pause(queue, who=_who(), why=why)
    click.echo(f"queue {queue!r} is paused")


@click.command()
@click.argument("queue")
@takes_place
def resume(place: Place, queue: str) -> None:
    """Serve a paused queue again."""
    with place.acting() as app:
        note_unknown(app, queue)
        resumed = app.resume(queue)
    click.echo(f"queue {queue!r} is served again" if resumed else f"queue {queue!r} was not paused")


def note_unknown(app: Evenflow, queue: str) -> None:
    """A queue needs no declaration, so a slip of the finger is no error; it is worth a word, though."""
    names = [row.name for row in app.queues()]
    if queue not in names:
        near = difflib.get_close_matches(queue, names, n=1)
        advice = f"; did you mean {near[0]!r}?" if near else ""
        click.echo(f"note: no queue {queue!r} is known here yet{advice}", err=True)


def _who() -> str:
    try:
        name = getpass.getuser()
    except (OSError, KeyError):  # a container without an entry for its user
        name = "somebody"
    return f"{name}@{socket.gethostname()}"
