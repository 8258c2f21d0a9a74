"""`evenflow limits`: what is limited, how far it is used, by whom; and changing the limits of a queue."""

from collections.abc import Callable
from typing import Any

import click

from evenflow import Evenflow
from evenflow.cli.documents import json_option, print_json, tell
from evenflow.cli.pausing import note_unknown
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.client.limit_rows import MOST_KEYS, LimitRow, limit_rows

NO_LIMIT = "none"


def _number(low: int) -> Callable[[click.Context, click.Parameter, str | None], int | str | None]:
    """Reads a whole number, or `none`."""

    def read(ctx: click.Context, parameter: click.Parameter, said: str | None) -> int | str | None:
        if said is None or said.lower() == NO_LIMIT:
            return None if said is None else NO_LIMIT
        if said.isdecimal() and int(said) >= low:
            return int(said)
        expected = f"expected a whole number of {low} or more, or {NO_LIMIT!r}, got {said!r}"
        raise click.BadParameter(expected, ctx, parameter)

    return read


@click.group(invoke_without_command=True)
@json_option
@takes_place
def limits(place: Place, as_json: bool) -> None:
    """List the limits: caps, bounds, keys, locks, groups and rates.

    `evenflow limits set QUEUE` changes those of a queue.
    """
    ctx = click.get_current_context()
    if ctx.invoked_subcommand is not None:
        ctx.obj = place
        return
    with place.looking() as engine:
        rows = limit_rows(engine)
    if as_json:
        print_json({"limits": rows})
    elif rows:
        headers = ("limit", "kind", "used", "of", "waiting", "opens", "held by")
        print_table(headers, [_line(row) for row in rows], right=("used",))
        if len(rows) >= MOST_KEYS:
            click.echo(f"of keys, locks, groups and rates the first {MOST_KEYS} are listed", err=True)
    else:
        click.echo("no limits: no queue has a cap or a bound, and no key, lock or rate is in use")


@limits.command("set")
@click.argument("queue")
@click.option(
    "--max-concurrency",
    callback=_number(0),
    metavar="N",
    help="Jobs in flight; 0 holds the queue, 'none' lifts the cap.",
)
@click.option(
    "--max-ready",
    callback=_number(1),
    metavar="N",
    help="Ready jobs, the rest waits; 'none' lifts the bound.",
)
@click.option("--reset", is_flag=True, help="Give the word back to the code.")
@json_option
@takes_place
def set_(
    place: Place, queue: str, max_concurrency: int | str | None, max_ready: int | str | None, reset: bool, as_json: bool,
) -> None:  # fmt: skip
    """Change the cap or the bound of a queue, now and for the whole cluster.

    Lasts over restarts and deployments until it is set again, or given back to the code by --reset.
    """
    given = {"max_concurrency": max_concurrency, "max_ready": max_ready}
    changes: dict[str, Any] = {
        name: None if value == NO_LIMIT else value for name, value in given.items() if value is not None
    }
    if reset == bool(changes):
        raise click.UsageError("say --max-concurrency N, --max-ready N or both; or --reset alone")
    with _place_of(place).acting() as app:
        note_unknown(app, queue)
        if reset:
            _reset(app, queue, as_json)
        else:
            app.set_limit(queue, **changes)
            said = ", ".join(
                f"{name}={NO_LIMIT if value is None else value}" for name, value in changes.items()
            )
            tell(as_json, f"queue {queue!r}: {said}", queue=queue, **changes)


def _place_of(place: Place) -> Place:
    """What was said behind `set`, or else before it."""
    before: Place | None = click.get_current_context().obj
    return before if before is not None and place == Place(None, None) else place


def _reset(app: Evenflow, queue: str, as_json: bool) -> None:
    app.reset_limit(queue)
    declared = app.settings.queue(queue)
    limits = {"max_concurrency": declared.max_concurrency, "max_ready": declared.max_ready}
    said = ", ".join(f"{name}={NO_LIMIT if value is None else value}" for name, value in limits.items())
    tell(as_json, f"queue {queue!r} is as the code says: {said}", queue=queue, **limits)


def _line(row: LimitRow) -> list[Cell | str | int | None]:
    used = Cell(f"{row.used:,}", "yellow" if row.used >= row.limit else None)
    opens = "" if row.opens_at is None else f"{row.opens_at:%Y-%m-%d %H:%M:%S} UTC"
    return [row.name, row.kind, used, row.limit, row.waiting, opens, ", ".join(row.holders)]
