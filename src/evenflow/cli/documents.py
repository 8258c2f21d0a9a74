"""The `--json` of every listing: one document, stable keys, moments as ISO 8601 in UTC."""

from typing import Any

import click
import msgspec

json_option = click.option("--json", "as_json", is_flag=True, help="Print one JSON document instead.")


def print_json(value: Any) -> None:
    """One JSON document on standard output. What JSON has no form for is shown as text."""
    click.echo(msgspec.json.format(msgspec.json.encode(value, enc_hook=str), indent=2).decode())
