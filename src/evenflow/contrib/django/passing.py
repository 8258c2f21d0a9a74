"""Commands of `evenflow` as commands of `manage.py`: the same options, read by Django, passed on as they were written."""

import argparse
import sys
from typing import Any

import click
from django.core.management.base import BaseCommand, CommandError

from evenflow.cli import main
from evenflow.contrib.django.compat import DEFAULT_ALIAS


class PassingCommand(BaseCommand):
    """A command of `manage.py` that is one of `evenflow`, for the app of a backend. Subclasses say which."""

    command: str
    """Its name in `evenflow`."""
    requires_system_checks: Any = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """The options of the command, and which backend it is about."""
        parser.add_argument(
            "--backend", default=DEFAULT_ALIAS, metavar="ALIAS", help="The alias in TASKS. Default: default."
        )
        for option in click_options(self.command):
            _add(parser, option)

    def passed(self, options: dict[str, Any]) -> list[str]:
        """The options that were given, as the command line of `evenflow` takes them."""
        words: list[str] = []
        for option in click_options(self.command):
            value = options.get(_place(option))
            if value is None or value is False:
                continue
            words += [option.opts[0]] if option.is_flag else [option.opts[0], value]
        return words

    def run_program(self, words: list[str]) -> None:
        """Run `evenflow` with these words; its exit code is ours."""
        try:
            code = main.main(args=words, prog_name="evenflow", standalone_mode=False)
        except click.ClickException as wrong:
            raise CommandError(wrong.format_message(), returncode=wrong.exit_code) from wrong
        except click.Abort:
            code = 130
        if code:
            sys.exit(int(code))


def click_options(command: str) -> list[click.Option]:
    """The options of a command of `evenflow` that `manage.py` does not have itself."""
    found = main.get_command(click.Context(main), command)
    assert found is not None
    return [each for each in found.params if isinstance(each, click.Option) and each.name != "debug"]


def _place(option: click.Option) -> str:
    return f"evenflow_{option.name}"


def _add(parser: argparse.ArgumentParser, option: click.Option) -> None:
    words = [word for word in option.opts if word.startswith("--")]
    shown = (option.help or "").replace("%", "%%")
    if option.is_flag:
        parser.add_argument(*words, dest=_place(option), action="store_true", help=shown)
    else:
        parser.add_argument(*words, dest=_place(option), metavar=option.metavar or "VALUE", help=shown)
