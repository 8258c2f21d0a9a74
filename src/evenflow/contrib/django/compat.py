"""Django's tasks framework under one roof: `django.tasks` where it is built in (6.0), else the backport `django_tasks`.

The only module that knows that there are two.
"""

import importlib
import importlib.util
from typing import Any

from django.core.exceptions import ImproperlyConfigured

PACKAGE = "django.tasks" if importlib.util.find_spec("django.tasks") else "django_tasks"

if importlib.util.find_spec(PACKAGE) is None:
    raise ImproperlyConfigured(
        "this Django has no django.tasks and the backport is not installed; install it with: "
        "pip install 'evenflow[django]' django-tasks"
    )


def _part(name: str) -> Any:
    return importlib.import_module(f"{PACKAGE}.{name}")


_base = _part("base")
_signals = _part("signals")
_exceptions = _part("exceptions")
_root: Any = importlib.import_module(PACKAGE)

BaseTaskBackend: Any = _part("backends.base").BaseTaskBackend
Task: Any = _base.Task
TaskContext: Any = _base.TaskContext
TaskError: Any = _base.TaskError
TaskResult: Any = _base.TaskResult
TaskResultStatus: Any = _base.TaskResultStatus
DEFAULT_ALIAS: str = _base.DEFAULT_TASK_BACKEND_ALIAS
DEFAULT_QUEUE: str = _base.DEFAULT_TASK_QUEUE_NAME
task: Any = _base.task
task_backends: Any = _root.task_backends
InvalidTask: Any = getattr(_exceptions, "InvalidTask", None) or _exceptions.InvalidTaskError
TaskResultDoesNotExist: Any = _exceptions.TaskResultDoesNotExist
task_enqueued: Any = _signals.task_enqueued
task_started: Any = _signals.task_started
task_finished: Any = _signals.task_finished


def normalized(value: Any) -> Any:
    """A value as JSON would give it back; TypeError or ValueError where JSON has no form for it."""
    return _normalize(value)


_normalize: Any = (
    importlib.import_module("django.utils.json") if PACKAGE == "django.tasks" else _part("utils")
).normalize_json


def register_checks() -> None:
    """Have Django ask every backend for its checks. Built in they are registered already; twice is once."""
    _part("checks")
