"""What worker processes load: `evenflow.contrib.django.worker:app`. Sets Django up and knows every task of the project.

`app` is the backend "default"; any other alias of TASKS is named by itself, as in `evenflow.contrib.django.worker:mail`.
"""

import django
from django.apps import apps

from evenflow import Evenflow
from evenflow.contrib.django.compat import DEFAULT_ALIAS
from evenflow.contrib.django.links import link_of, links

LOCATOR = "evenflow.contrib.django.worker"
APP = "app"

if not apps.ready:
    django.setup()


def locator_of(alias: str) -> str:
    """The name by which a command finds the app of this alias."""
    return f"{LOCATOR}:{APP if alias == DEFAULT_ALIAS else alias}"


def __getattr__(name: str) -> Evenflow:
    """The app of an alias, with all tasks and schedules; loaded when it is asked for."""
    alias = DEFAULT_ALIAS if name == APP else name
    if name.startswith("__") or alias not in {link.alias for link in links()}:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return link_of(alias).load()
