"""`evenflow publish`: let programs in other languages enqueue an app's tasks by SQL."""

import click

from evenflow import ConfigError
from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import load_app


@click.command()
@click.argument("app", metavar="MODULE:APP")
@click.option(
    "--task", "names", metavar="NAME", multiple=True, help="Only this task; may be given several times."
)
@click.option("--remove", is_flag=True, help="Let them no longer be enqueued by SQL.")
@json_option
def publish(app: str, names: tuple[str, ...], remove: bool, as_json: bool) -> None:
    """Let tasks be enqueued by the SQL function evenflow.enqueue, by what their declarations say now.

    PostgreSQL only. Run it again when declarations change, as with migrations.
    """
    with load_app(app) as loaded:
        chosen = list(names or loaded.tasks)
        if unknown := [name for name in chosen if name not in loaded.tasks]:
            raise ConfigError([f"--task {name!r}: {app} has no such task" for name in unknown])
        withdrawn = list(loaded.withdraw(*chosen)) if remove else []
        published = {} if remove else loaded.publish(*(loaded.tasks[name] for name in chosen))
        if as_json:
            print_json({"withdrawn": withdrawn, "published": published})
            return
        for name in withdrawn:
            click.echo(f"withdrawn {name}")
        for name, refusal in published.items():
            click.echo(
                f"published {name}" + ("" if refusal is None else f", but it will be refused: {refusal}")
            )
