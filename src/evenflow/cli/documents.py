"""The `--json` of every command: one document, stable keys, moments as ISO 8601 in UTC."""

from typing import Any

import click
import msgspec

_SAID = "evenflow.json"


def _also_before(ctx: click.Context, _: click.Parameter, wants: bool) -> bool:
    """Said before a subcommand, it counts for the subcommand too: the contexts of both share what is noted here."""
    if wants:
        ctx.meta[_SAID] = True
    return wants or bool(ctx.meta.get(_SAID))


json_option = click.option(
    "--json", "as_json", is_flag=True, callback=_also_before, help="Print one JSON document instead."
)


def tell(as_json: bool, text: str, /, **facts: Any) -> None:
    """What a command has done: a line for people, or the facts as one document."""
    if as_json:
        print_json(facts)
    else:
        click.echo(text)


def print_json(value: Any) -> None:
    """One JSON document on standard output. What JSON has no form for is shown as text."""
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())
