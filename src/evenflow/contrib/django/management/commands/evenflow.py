"""`manage.py evenflow`: run the jobs of a backend, as `evenflow worker` does; with `--autoreload` anew after every change."""

import argparse
import os
import sys
from typing import Any

from evenflow.contrib.django.links import link_of
from evenflow.contrib.django.passing import PassingCommand
from evenflow.contrib.django.reloading import run_reloading
from evenflow.contrib.django.worker import locator_of

_RELOAD = "--autoreload"


class Command(PassingCommand):
    """The worker."""

    help = "Run the jobs of a backend: a supervisor with worker processes and the services."
    command = "worker"

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        super().add_arguments(parser)
        parser.add_argument(
            _RELOAD, action="store_true", help="Start the workers anew when a file of the project changes."
        )

    def handle(self, *args: Any, **options: Any) -> None:
        if options["autoreload"]:
            sys.exit(run_reloading([sys.executable, *_without_reload(sys.orig_argv[1:])]))
        link_of(options["backend"])  # or say which there are
        _let_children_import_what_we_can()
        self.run_program(["worker", locator_of(options["backend"]), *self.passed(options)])


def _without_reload(words: list[str]) -> list[str]:
    return [word for word in words if word != _RELOAD]


def _let_children_import_what_we_can() -> None:
    """Worker processes are fresh interpreters: they look for the project where `manage.py` stands."""
    paths = [
        path for path in sys.path if path and not path.endswith(("site-packages", "dist-packages", ".zip"))
    ]
    own = [path for path in paths if not path.startswith((sys.base_prefix, sys.prefix))]
    given = [path for path in os.environ.get("PYTHONPATH", "").split(os.pathsep) if path]
    os.environ["PYTHONPATH"] = os.pathsep.join(dict.fromkeys([*own, *given]))
