"""The app of Django: commands, admin pages, checks, and tables that come with `manage.py migrate`."""

from typing import Any

from django.apps import AppConfig
from django.db.models.signals import post_migrate

from evenflow.contrib.django import compat
from evenflow.contrib.django.tables import close_before_drop, make_tables


class EvenflowConfig(AppConfig):
    """Put `"evenflow.contrib.django"` into INSTALLED_APPS."""

    name = "evenflow.contrib.django"
    label = "evenflow"
    verbose_name = "Evenflow"
    default_auto_field = "django.db.models.BigAutoField"

    def ready(self) -> None:
        """Called by Django when all apps are loaded."""
        compat.register_checks()
        post_migrate.connect(_make_tables, sender=self)


def _make_tables(using: str, verbosity: int = 1, **_: Any) -> None:
    close_before_drop(using)
    for name in make_tables(using):
        if verbosity >= 1:
            print(f"  Applying evenflow's own {name}... OK")
