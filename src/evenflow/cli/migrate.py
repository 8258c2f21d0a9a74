"""`evenflow migrate`: create or update the tables, and roles with the least rights; or print the SQL for that."""

import click

from evenflow import ConfigError
from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import Place, opened, takes_place
from evenflow.settings import Settings
from evenflow.store.migrate import migration_script
from evenflow.store.postgres import PostgresEngine
from evenflow.store.roles import DEFAULT_PREFIX, make_roles, role_script
from evenflow.store.upkeep import turn_partitions


@click.command()
@click.option(
    "--sql", "as_sql", is_flag=True, help="Print the script for an empty database and connect to nothing."
)
@click.option(
    "--roles",
    is_flag=True,
    help="Also create roles with the least rights (PostgreSQL); with --sql, print only those.",
)
@click.option(
    "--role-prefix",
    metavar="TEXT",
    default=DEFAULT_PREFIX,
    show_default=True,
    help="What the roles' names begin with.",
)
@json_option
@takes_place
def migrate(place: Place, as_sql: bool, roles: bool, role_prefix: str, as_json: bool) -> None:
    """Create or update the tables.

    Safe to run from many places at once, and again: what is there stays. Tables only go forward.
    """
    if as_sql and as_json:
        raise click.UsageError("--sql prints a script and --json a document: choose one")
    if roles:
        _require_roles(place.settings())
    if as_sql:
        settings = place.settings()
        script = (
            role_script(settings.schema, role_prefix)
            if roles
            else migration_script(settings.database.kind, settings.schema)
        )
        click.echo(script, nl=False)
        return
    with place.app() as app:
        applied = app.migrate()
        settings = app.settings
    with opened(settings) as engine:
        if isinstance(engine, PostgresEngine):
            turn_partitions(engine)  # for workers whose role may not
    made = _make_roles(settings, role_prefix) if roles else []
    if as_json:
        print_json({"database": settings.database.masked(), "applied": applied, "roles": made})
        return
    for name in applied:
        click.echo(f"applied {name}")
    for name in made:
        click.echo(f"role {name} has its rights")
    click.echo(f"{settings.database.masked()} is up to date")


def _require_roles(settings: Settings) -> None:
    if settings.database.kind != "postgres":
        raise ConfigError(
            "--roles: expected a PostgreSQL database, got SQLite, whose rights are those of its file"
        )


def _make_roles(settings: Settings, prefix: str) -> list[str]:
    with opened(settings) as engine:
        assert isinstance(engine, PostgresEngine)
        return list(make_roles(engine, prefix))
