"""Declaring a task: every mistake of its name, its options and its function, reported at once."""

import inspect
from collections.abc import Callable
from typing import Any

from evenflow.client.options import TaskOptions, declared_policy
from evenflow.client.producer import Producer
from evenflow.client.task import LONGEST_NAME, AnyTask, Task, task_name
from evenflow.codec import check_text
from evenflow.errors import ConfigError, PayloadError
from evenflow.rules.breaker import declared


def declare_task(producer: Producer, function: Callable[..., Any], options: TaskOptions) -> AnyTask:
    """Make a function a task of this app, or raise ConfigError."""
    given = options.get("name")
    name = task_name(function) if given is None else given
    policy, found = declared_policy(options)
    mistakes = _name_mistakes(producer, name, function)
    mistakes += [f"task {name!r}: {mistake}" for mistake in (*_kind_mistakes(function), *found)]
    if not mistakes and policy.breaker is not None:
        others = {each: task.policy.breaker for each, task in producer.tasks.items() if each != name}
        breakers = {**others, name: policy.breaker}
        mistakes += declared(breakers, producer.settings.queue_breakers).mistakes
    try:
        task: AnyTask = Task(function, name, policy, producer)
    except ConfigError as wrong:
        mistakes += wrong.mistakes
    if mistakes:
        raise ConfigError(mistakes)
    producer.tasks[name] = task
    return task


def _name_mistakes(producer: Producer, name: str, function: Callable[..., Any]) -> list[str]:
    try:
        check_text("name", name, LONGEST_NAME)
    except PayloadError as wrong:
        return [f"task {name!r}: {wrong}"]
    if not name:
        return ["task '': expected a name of at least one character; leave name= out for the function's own"]
    if (known := producer.tasks.get(name)) is not None and known.function is not function:
        return [f"task {name!r} is declared twice; give one of them another name="]
    return []


def _kind_mistakes(function: Callable[..., Any]) -> list[str]:
    if inspect.isgeneratorfunction(function) or inspect.isasyncgenfunction(function):
        return [
            "expected a function without yield: to call one that has it runs nothing; return a list instead"
        ]
    return []
