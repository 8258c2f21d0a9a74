"""The registry of Django's tasks in this process, by path: jobs are looked up here, never imported by a stored name."""

from collections.abc import Callable, Iterator
from importlib import import_module, util
from typing import Any

from django.apps import apps
from django.utils.module_loading import module_has_submodule

from evenflow.contrib.django import compat
from evenflow.errors import ConfigError

known_tasks: dict[str, Any] = {}
"""Every task that was declared or sent in this process: its path to the task as it was declared."""


def path_of(function: Callable[..., Any]) -> str:
    """The name under which a function's jobs are stored: where it is imported from."""
    return f"{function.__module__}.{function.__qualname__}"


def note(task: Any) -> None:
    """Take a task into the registry. The first one of a function is its declaration; `using()` makes others."""
    known = known_tasks.get(task.module_path)
    if known is None or known.func is not task.func:
        known_tasks[task.module_path] = task


def load_task_modules(names: tuple[str, ...]) -> None:
    """Import the modules that declare tasks, and take in every task that is found in them."""
    for name in _modules(names):
        module = import_module(name)
        for value in list(vars(module).values()):
            if isinstance(value, compat.Task):
                known_tasks.setdefault(path_of(value.func), value)


def _modules(names: tuple[str, ...]) -> Iterator[str]:
    """A name with a dot is a module; one without is looked for in every installed app."""
    for name in names:
        if "." in name:
            if not _exists(name):
                raise ConfigError(f"OPTIONS['task_modules']: there is no module {name!r}")
            yield name
            continue
        for config in apps.get_app_configs():
            if module_has_submodule(config.module, name):
                yield f"{config.name}.{name}"


def _exists(name: str) -> bool:
    try:
        return util.find_spec(name) is not None
    except ModuleNotFoundError:  # its package is not there either
        return False
