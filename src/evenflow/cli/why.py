"""`evenflow why`: what keeps a job from running."""

import click

from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import print_table
from evenflow.client.why import Reason


@click.command()
@click.argument("job", metavar="ID")
@json_option
@takes_place
def why(place: Place, job: str, as_json: bool) -> None:
    """Say why a job is not running: the rules, with numbers and holders."""
    with place.acting() as app:
        found = app.why(job)
    if as_json:
        print_json({"id": job, "reasons": [_document(reason) for reason in found]})
    elif found:
        print_table(
            ("rule", "why", "until", "held by"),
            [[each.rule, each.text, _until(each), ", ".join(each.holders)] for each in found],
        )
    else:
        click.echo("nothing keeps it from running: it is simply its turn")


def _document(reason: Reason) -> dict[str, object]:
    return {
        "rule": reason.rule,
        "text": reason.text,
        "until": reason.until,
        "holders": list(reason.holders),
    }


def _until(reason: Reason) -> str:
    return "" if reason.until is None else f"{reason.until:%Y-%m-%d %H:%M:%S} UTC"
