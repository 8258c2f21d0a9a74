"""The program `evenflow`: its commands by name, each imported when it is used, and how errors are told.

A new command is a module of this folder and one line in `COMMANDS`.
"""

import contextlib
import difflib
import importlib
import os
import traceback
from collections.abc import Iterator
from typing import Any

import click

from evenflow import EvenflowError, __version__
from evenflow.cli.texts import masked

COMMANDS = {
    "Set up": {"check": "check", "migrate": "migrate", "publish": "publish", "completion": "completion"},
    "Run": {"worker": "worker", "web": "web"},
    "Look": {
        "queues": "queues",
        "jobs": "jobs",
        "job": "jobs",
        "why": "why",
        "limits": "limits",
        "workers": "workers",
        "breakers": "breakers",
        "schedules": "schedules",
        "workflows": "workflows",
        "workflow": "workflows",
        "top": "top",
    },
    "Operate": {
        "pause": "pausing",
        "resume": "pausing",
        "retry": "batches",
        "cancel": "batches",
        "discard": "batches",
    },
    "Try": {"demo": "demo", "bench": "bench", "seed": "seed", "load": "load"},
}
"""Section of the help -> command -> the module that holds it under its name."""

_MODULES = {name: module for section in COMMANDS.values() for name, module in section.items()}
_DEBUG = "evenflow.debug"


class Program(click.Group):
    """A group that imports a command's module when the command is asked for, and not before."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(_MODULES)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in _MODULES:
            return None
        command: click.Command = getattr(
            importlib.import_module(f"evenflow.cli.{_MODULES[cmd_name]}"), cmd_name
        )
        if all(parameter.name != "debug" for parameter in command.params):
            command.params.append(_debug_option())
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        name = args[0]
        if name not in _MODULES and not name.startswith("-") and not ctx.resilient_parsing:
            near = difflib.get_close_matches(name, _MODULES, n=1)
            advice = f"did you mean {near[0]!r}?" if near else "`evenflow --help` lists them"
            raise click.UsageError(f"there is no command {name!r}; {advice}", ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = formatter.width - 6 - max(map(len, _MODULES))
        for title, names in COMMANDS.items():
            found = [(name, self.get_command(ctx, name)) for name in names]
            with formatter.section(title):
                formatter.write_dl(
                    [
                        (name.ljust(10), command.get_short_help_str(width))
                        for name, command in found
                        if command
                    ]
                )

    def invoke(self, ctx: click.Context) -> Any:
        with _errors_told(ctx):
            return super().invoke(ctx)


@contextlib.contextmanager
def _errors_told(ctx: click.Context) -> Iterator[None]:
    """Whatever goes wrong is one clear sentence and exit code 1; `--debug` adds the way there."""
    try:
        yield
    except (click.ClickException, click.exceptions.Exit, click.Abort, BrokenPipeError):
        raise
    except Exception as error:
        if ctx.meta.get(_DEBUG):
            click.echo(masked(traceback.format_exc()).rstrip(), err=True)
        raise click.ClickException(masked(_sentence(error))) from error


def _sentence(error: Exception) -> str:
    if isinstance(error, EvenflowError | OSError):
        return str(error)
    name = type(error).__name__
    return f"{name}: {error} (unexpected; `--debug` shows where)" if str(error) else f"{name} (unexpected)"


def _debug_option() -> click.Option:
    def note(ctx: click.Context, _: click.Parameter, wants: bool) -> None:
        if wants:
            ctx.meta[_DEBUG] = True  # shared by the contexts of a program and its command

    return click.Option(
        ["--debug"],
        is_flag=True,
        expose_value=False,
        is_eager=True,
        callback=note,
        help="Show where an error comes from.",
    )


@click.group(cls=Program, context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110})
@click.version_option(__version__, message="evenflow %(version)s")
@click.pass_context
def main(ctx: click.Context) -> None:
    """Evenflow: a task queue that lives in your database.

    Commands that need a database take --url URL or --app MODULE:APP; without either, EVENFLOW_URL counts.
    """
    if os.environ.get("NO_COLOR"):
        ctx.color = False


main.params.append(_debug_option())
