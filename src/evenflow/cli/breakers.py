"""`evenflow breakers`: what every breaker says, and opening, closing and resetting one by hand."""

from typing import Any

import click

from evenflow.cli.documents import json_option, print_json, tell
from evenflow.cli.pausing import who_am_i
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.cli.texts import moment, span
from evenflow.ids import id_text
from evenflow.store import gates

_COLOURS = {"closed": "green", "open": "red", "half_open": "yellow"}


@click.group(invoke_without_command=True)
@json_option
@takes_place
@click.pass_context
def breakers(ctx: click.Context, place: Place, as_json: bool) -> None:
    """List the breakers; `open`, `close` or `reset` one by hand."""
    if ctx.invoked_subcommand is not None:
        if place.url is not None or place.locator is not None or as_json:
            raise click.UsageError(
                f"options stand after the command: evenflow breakers {ctx.invoked_subcommand} …"
            )
        return
    with place.looking() as engine:
        found = gates.breakers(engine)
    if as_json:
        print_json({"breakers": [_document(row) for row in found]})
    elif found:
        headers = ("breaker", "state", "failures", "waiting", "probe", "next probe", "guards", "why")
        print_table(headers, [_line(row) for row in found])
    else:
        click.echo("no breakers: no worker has declared one yet")


@breakers.command("open")
@click.argument("name")
@click.option("--why", metavar="TEXT", help="Shown to whoever asks why nothing runs.")
@json_option
@takes_place
def open_(place: Place, name: str, why: str | None, as_json: bool) -> None:
    """Let nothing pass until it is closed by hand."""
    with place.acting() as app:
        app.breaker(name).open(who=who_am_i(), why=why)
    tell(as_json, f"breaker {name!r} is open until it is closed", breaker=name, state="open")


@breakers.command()
@click.argument("name")
@json_option
@takes_place
def close(place: Place, name: str, as_json: bool) -> None:
    """Let everybody pass again, at once."""
    with place.acting() as app:
        was_open = app.breaker(name).close()
    text = f"breaker {name!r} is closed" if was_open else f"breaker {name!r} was not open"
    tell(as_json, text, breaker=name, state="closed", changed=was_open)


@breakers.command()
@click.argument("name")
@json_option
@takes_place
def reset(place: Place, name: str, as_json: bool) -> None:
    """Close it, and forget the failures it has counted."""
    with place.acting() as app:
        app.breaker(name).reset()
    text = f"breaker {name!r} is closed and has counted no failures"
    tell(as_json, text, breaker=name, state="closed", failures=0)


def _document(row: gates.BreakerRow) -> dict[str, Any]:
    return {
        "name": row.name,
        "state": row.state.value,
        "failures": row.failures,
        "failure_threshold": row.failure_threshold,
        "cooldown_s": row.cooldown_us / 1_000_000,
        "on_open": row.on_open,
        "opened_at": moment(row.opened_at),
        "opens_at": moment(row.opens_at),
        "opened_by": row.opened_by,
        "opened_why": row.opened_why,
        "probe": None if row.probe_job is None else id_text(row.probe_job),
        "waiting": row.waiting,
        "guards": list(row.guards),
    }


def _line(row: gates.BreakerRow) -> list[Cell | str | int | None]:
    state = row.state.value
    by = f"by {row.opened_by}: " if row.opened_by else ""
    return [
        row.name, Cell(state, _COLOURS[state]), f"{row.failures}/{row.failure_threshold}", row.waiting,
        None if row.probe_job is None else id_text(row.probe_job), _next_probe(row), ", ".join(row.guards),
        f"{by}{row.opened_why or ''}".removesuffix(": "),
    ]  # fmt: skip


def _next_probe(row: gates.BreakerRow) -> str:
    if row.opened_at is None:
        return ""
    if row.opens_at is None:
        return "when closed by hand"
    return f"in {span(row.opens_at - row.now)}" if row.opens_at > row.now else "now"
