"""`evenflow top`: queues, groups, workers and limits, live in a terminal, once as tables, or as JSON."""

import importlib
import sys

import click

from evenflow.cli.documents import json_option, print_json
from evenflow.cli.overview import Look, document, look, tables
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import print_table
from evenflow.cli.texts import count_of
from evenflow.clock import from_us

_EXTRA = "a live view needs textual: pip install 'evenflow[top]'; `evenflow top --once` does without"


@click.command()
@click.option("--once", is_flag=True, help="Print tables and end.")
@click.option(
    "--interval",
    type=click.FloatRange(0.2, 3600),
    default=1.0,
    show_default=True,
    metavar="S",
    help="Seconds between two looks.",
)
@json_option
@takes_place
def top(place: Place, once: bool, interval: float, as_json: bool) -> None:
    """Watch queues, groups, workers and limits, live.

    Keys: 1 to 4 or Tab choose the view, arrows a line, s the order; p pauses or resumes the chosen queue, space stops the
    view, q ends it.
    """
    if not (once or as_json):
        _watch(place, interval)
        return
    with place.looking() as engine:
        seen = look(engine)
    if as_json:
        print_json(document(seen))
        return
    click.echo(summary(seen))
    for table in tables(seen):
        click.echo(f"\n{table.name.capitalize()}")
        if table.lines:
            print_table(table.headers, table.lines, right=table.to_right)
        else:
            click.echo(f"no {table.name}")


def summary(seen: Look) -> str:
    """One line about everything."""
    busy, slots = seen.slots
    alive = sum(worker.is_alive and worker.kind == "worker" for worker in seen.now.workers)
    done = sum(pace.succeeded for pace in seen.paces.values())
    errors = sum(pace.errors for pace in seen.paces.values())
    return (
        f"{from_us(seen.now.at):%H:%M:%S} UTC  {count_of(alive, 'worker')}  {busy:,} of {slots:,} slots busy  "
        f"{done:,} done/min  {count_of(errors, 'error')}/min"
    )


def _watch(place: Place, interval: float) -> None:
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        raise click.UsageError("a live view needs a terminal; say --once or --json")
    try:
        import textual  # noqa: F401
    except ImportError:
        raise click.ClickException(_EXTRA) from None
    screen = importlib.import_module("evenflow.cli.top_view")
    with place.looking() as engine, place.acting() as app:
        screen.TopView(engine, app, interval_s=interval).run()
