"""`evenflow migrate`: create or update the tables, or print the SQL for those who apply it themselves."""

import click

from evenflow.cli.places import Place, takes_place
from evenflow.store.migrate import migration_script


@click.command()
@click.option(
    "--sql", "as_sql", is_flag=True, help="Print the script for an empty database and connect to nothing."
)
@takes_place
def migrate(place: Place, as_sql: bool) -> None:
    """Create or update the tables.

    Safe to run from many places at once, and again: what is there stays. Tables only go forward.
    """
    if as_sql:
        settings = place.settings()
        click.echo(migration_script(settings.database.kind, settings.schema), nl=False)
        return
    with place.app() as app:
        applied = app.migrate()
        address = app.settings.database.masked()
    for name in applied:
        click.echo(f"applied {name}")
    click.echo(f"{address} is up to date")
