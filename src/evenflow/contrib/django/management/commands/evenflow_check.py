"""`manage.py evenflow_check`: what is wrong with a backend, its queues, tasks and schedules; with `--live` also its database."""

from typing import Any

from django.core.checks import ERROR
from django.core.management.base import CommandError

from evenflow.contrib.django.checks import link_messages
from evenflow.contrib.django.links import link_of
from evenflow.contrib.django.passing import PassingCommand
from evenflow.contrib.django.worker import locator_of


class Command(PassingCommand):
    """The check."""

    help = "Check a backend: settings, queues, tasks, schedules; with --live also the database, its tables and its workers."
    command = "check"

    def handle(self, *args: Any, **options: Any) -> None:
        link = link_of(options["backend"])
        messages = link_messages(link)
        for message in messages:
            self.stderr.write(str(message), style_func=lambda text: text)
        if any(message.level >= ERROR for message in messages):
            raise CommandError("TASKS has mistakes", returncode=1)
        self.run_program(["check", locator_of(options["backend"]), *self.passed(options)])
