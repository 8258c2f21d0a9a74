"""`manage.py evenflow_migrate`: bring the tables of a backend up to date. For jobs that have a database of their own."""

import argparse
from typing import Any

from django.core.management.base import BaseCommand

from evenflow.contrib.django.compat import DEFAULT_ALIAS
from evenflow.contrib.django.links import link_of
from evenflow.contrib.django.tables import update_tables
from evenflow.store.migrate import migration_script


class Command(BaseCommand):
    """The migration."""

    help = (
        "Bring Evenflow's tables up to date. `migrate` does it where they are in one of Django's databases."
    )
    requires_system_checks: Any = ()

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--backend", default=DEFAULT_ALIAS, metavar="ALIAS", help="The alias in TASKS.")
        parser.add_argument("--sql", action="store_true", help="Print the SQL and change nothing.")

    def handle(self, *args: Any, **options: Any) -> None:
        link = link_of(options["backend"])
        settings = link.app.settings
        if options["sql"]:
            self.stdout.write(migration_script(settings.database.kind, settings.schema))
            return
        applied = update_tables(link)
        for name in applied:
            self.stdout.write(f"applied {name}")
        self.stdout.write(f"{settings.database.masked()} is up to date")
