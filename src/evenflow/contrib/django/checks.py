"""What `manage.py check` says about a backend: settings that cannot work, tasks that could not run, and what looks unintended."""

from collections.abc import Iterator
from typing import Any

from django.apps import apps
from django.core.checks import Error, Warning
from django.core.exceptions import ImproperlyConfigured
from django.db import connections

from evenflow import ConfigError, Queue, UnknownQueue
from evenflow.contrib.django.addresses import Address
from evenflow.contrib.django.links import Link
from evenflow.contrib.django.registry import known_tasks

APP = "evenflow.contrib.django"


def link_messages(link: Link) -> list[Any]:
    """Every message about one alias of TASKS. Opens no database."""
    try:
        address = link.address
    except ImproperlyConfigured as wrong:
        return [_error(link, str(wrong), "E001")]
    except ConfigError as wrong:
        return [_error(link, mistake, "E002") for mistake in wrong.mistakes]
    return [*_queue_messages(link), *_option_messages(link), *_task_messages(link), *_warnings(link, address)]


def _queue_messages(link: Link) -> Iterator[Any]:
    names = link.queue_names
    for queue in link.options.get("queues", ()):
        if names and isinstance(queue, Queue) and queue.name not in names:
            yield _error(
                link,
                f"OPTIONS['queues'] has rules for {queue.name!r}, which QUEUES does not list; add it there",
                "E003",
            )


def _option_messages(link: Link) -> Iterator[Any]:
    given = link.options.get("on_commit", True)
    if not isinstance(given, bool) and given not in connections:
        known = ", ".join(map(repr, connections))
        yield _error(
            link, f"OPTIONS['on_commit']: expected True, False or one of {known}, got {given!r}", "E004"
        )


def _task_messages(link: Link) -> Iterator[Any]:
    try:
        link.load()
    except ConfigError as wrong:
        yield from (_error(link, mistake, "E005") for mistake in wrong.mistakes)
    except ImproperlyConfigured as wrong:
        yield _error(link, str(wrong), "E004")
        return
    for path, task in known_tasks.items():
        if task.backend != link.alias:
            continue
        try:
            link.app.settings.queue(task.queue_name)
        except UnknownQueue as wrong:
            yield _error(link, f"task {path!r}: {wrong}", "E006")


def _warnings(link: Link, address: Address) -> Iterator[Any]:
    for warning in link.app.settings.warnings:
        yield _warning(link, warning, "W001")
    if not apps.is_installed(APP):
        yield _warning(
            link,
            f"{APP!r} is not in INSTALLED_APPS: no commands, no admin pages, and `migrate` leaves its tables out",
            "W002",
        )
    if address.alias is None or connections[address.alias].vendor != "sqlite":
        return
    options = connections[address.alias].settings_dict.get("OPTIONS", {})
    if str(options.get("transaction_mode", "")).upper() not in ("IMMEDIATE", "EXCLUSIVE"):
        yield _warning(
            link,
            f"DATABASES[{address.alias!r}]: transactions that read before they write fail with 'database is locked' while a "
            "worker writes; set OPTIONS = {'transaction_mode': 'IMMEDIATE', 'timeout': 20}",
            "W003",
        )


def _error(link: Link, text: str, number: str) -> Any:
    return Error(f"TASKS[{link.alias!r}]: {text}", id=f"evenflow.{number}")


def _warning(link: Link, text: str, number: str) -> Any:
    return Warning(f"TASKS[{link.alias!r}]: {text}", id=f"evenflow.{number}")
