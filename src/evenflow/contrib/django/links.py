"""From Django's settings to Evenflow's app: one link for each alias of TASKS that names our backend, shared by all threads.

Django makes a backend object for every thread; what is worth keeping is kept here.
"""

import threading
from collections.abc import Callable, Iterator, Mapping
from typing import Any

from django.conf import settings
from django.core.exceptions import ImproperlyConfigured
from django.db import DEFAULT_DB_ALIAS, connections
from django.utils.module_loading import import_string

from evenflow import ConfigError, Evenflow, Queue
from evenflow.client.task import AnyTask
from evenflow.contrib.django import compat
from evenflow.contrib.django.addresses import Address, address_of, identity_of
from evenflow.contrib.django.declaring import Declared, Recurrence, declared
from evenflow.contrib.django.headers import stamping
from evenflow.contrib.django.references import register_models
from evenflow.contrib.django.registry import known_tasks, load_task_modules, note
from evenflow.contrib.django.running import body_of

OWN_OPTIONS = ("url", "database", "on_commit", "task_modules")
DEFAULT_TASK_MODULES = ("tasks",)


class Link:
    """One alias of TASKS and its app. The app is made when it is first needed, and anew when a test changes its database."""

    def __init__(self, alias: str, params: Mapping[str, Any]) -> None:
        self.alias = alias
        self.params = dict(params)
        self.options: dict[str, Any] = dict(params.get("OPTIONS", {}))
        self._lock = threading.RLock()
        self._app: Evenflow | None = None
        self._address: Address | None = None
        self._identity: object = None
        self._natives: dict[str, tuple[AnyTask, Declared, bool]] = {}
        self._variants: dict[tuple[str, str, int], AnyTask] = {}

    @property
    def app(self) -> Evenflow:
        """The Evenflow app behind this alias."""
        if self._app is None or self._has_moved():
            with self._lock:
                if self._app is None or self._has_moved():
                    self._open()
        assert self._app is not None
        return self._app

    @property
    def address(self) -> Address:
        """Where its jobs live."""
        assert self.app is not None and self._address is not None
        return self._address

    @property
    def on_commit(self) -> str | None:
        """The alias whose open transaction a job waits for, where it cannot be a part of it; None where it never waits."""
        given: object = self.options.get("on_commit", True)
        alias: object = DEFAULT_DB_ALIAS if given is True else given
        return alias if isinstance(alias, str) else None

    def connection(self) -> Any:
        """Django's connection to the database of the jobs, where they share one; of this thread."""
        alias = self.address.alias
        return None if alias is None else connections[alias]

    def joined(self) -> Any:
        """Django's connection, where a job is to be written and read through it: in a transaction that is open on it, or in a
        database that nobody else can see; else None."""
        connection = self.connection()
        if connection is None or not (self.address.is_memory or is_in_transaction(connection)):
            return None
        return connection

    def native(self, task: Any) -> AnyTask:
        """The Evenflow task of a Django task, made when it is first asked for, with what the decorators said of it."""
        app, path, notes = self.app, task.module_path, declared(task.func)
        found = self._natives.get(path)
        if found is not None and found[1] is notes and found[2] is task.takes_context:
            body: Any = found[0].function
            if body.task_function is task.func:
                return found[0]
        with self._lock:
            note(task)
            app.tasks.pop(path, None)  # a module that was loaded again, or declared more
            body = body_of(task.func, self.alias, takes_context=task.takes_context)
            declare: Callable[..., Any] = app.task
            base = known_tasks[path]
            native: AnyTask = declare(
                name=path, queue=self._queue_of(base), priority=-int(base.priority), **notes.options
            )(body)
            self._natives[path] = native, notes, task.takes_context
            self._variants = {key: value for key, value in self._variants.items() if key[0] != path}
        return native

    def variant(self, task: Any) -> AnyTask:
        """The Evenflow task with the queue and the priority of a Django task; Django's larger priorities come first."""
        native = self.native(task)
        key = (native.name, task.queue_name, int(task.priority))
        found = self._variants.get(key)
        if found is None:
            found = self._variants[key] = native.using(queue=key[1], priority=-key[2])
        return found

    def load(self) -> Evenflow:
        """The app with every task of the project, and the schedules of those that name this backend: what workers run, and
        what checks look at. A task of another backend may be sent here with `using`; its schedule would fire twice.

        ConfigError lists every mistake that was found on the way.
        """
        load_task_modules(self.task_modules)
        mistakes: list[str] = []
        for task in list(known_tasks.values()):
            try:
                native = self.native(task)
                for schedule in declared(task.func).schedules if task.backend == self.alias else ():
                    self._recur(task, native, schedule)
            except ConfigError as wrong:
                mistakes += wrong.mistakes
        if mistakes:
            raise ConfigError(dict.fromkeys(mistakes))
        return self.app

    @property
    def task_modules(self) -> tuple[str, ...]:
        """What is imported to find tasks: names of modules in every installed app, or of modules with a dot in them."""
        given = self.options.get("task_modules", DEFAULT_TASK_MODULES)
        if isinstance(given, str) or not all(isinstance(each, str) for each in given):
            raise ImproperlyConfigured(
                f"OPTIONS['task_modules']: expected a list of names, got {given!r}; write ['tasks', 'shop.jobs']"
            )
        return tuple(given)

    def close(self) -> None:
        """Give the app's connections back."""
        with self._lock:
            if self._app is not None:
                self._app.close()
            self._app = None

    def _queue_of(self, task: Any) -> str:
        """The queue that a task declares. One of another backend may declare a queue that there is not here: whoever sends it
        here with `using` names one of ours, and until then any will do."""
        names = self.queue_names
        is_known = task.backend == self.alias or not names or task.queue_name in names
        declared_queue: str = task.queue_name if is_known else min(names)
        return declared_queue

    def _recur(self, task: Any, native: AnyTask, schedule: Recurrence) -> None:
        options = dict(schedule.options)
        if schedule.every is None:
            options.setdefault("timezone", settings.TIME_ZONE)
        options["queue"] = options.get("queue") or task.queue_name
        if options.get("priority") is None:
            options["priority"] = -int(task.priority)
        key = native.name if schedule.key is None else schedule.key
        declare: Callable[..., Any] = self.app.recurring
        declare(schedule.cron, every=schedule.every, key=key, **options)(native)

    def _has_moved(self) -> bool:
        address = self._address
        return (
            address is not None and address.alias is not None and identity_of(address.alias) != self._identity
        )

    def _open(self) -> None:
        self.close()
        register_models()
        address = address_of(self.options)
        rest = {name: value for name, value in self.options.items() if name not in OWN_OPTIONS}
        rest |= self._queue_options(rest.get("queues", ()))
        self._natives, self._variants = {}, {}
        self._identity = None if address.alias is None else identity_of(address.alias)
        self._address = address
        self._app = Evenflow(address.url, **rest)
        self._app.publish_with(stamping)

    def _queue_options(self, declared_queues: Any) -> dict[str, Any]:
        """QUEUES of Django and `queues` of Evenflow as one list: names without rules are plain queues."""
        queues = list(declared_queues) if isinstance(declared_queues, list | tuple) else []
        names = self.queue_names
        if not names:
            return {"queues": declared_queues, "queue_mode": self.options.get("queue_mode", "open")}
        with_rules = {queue.name for queue in queues if isinstance(queue, Queue)}
        return {"queues": [*queues, *(Queue(name) for name in sorted(names - with_rules))]}

    @property
    def queue_names(self) -> set[str]:
        """The queues that tasks of this alias may name; empty where any may be named."""
        if "QUEUES" in self.params:
            return set(self.params["QUEUES"])
        queues = self.options.get("queues", ())
        declared_names = {queue.name for queue in queues if isinstance(queue, Queue)}
        return {compat.DEFAULT_QUEUE, *declared_names}


def is_in_transaction(connection: Any) -> bool:
    """Whether what this connection writes waits for a commit: inside of `atomic`, or where autocommit is off."""
    if connection.in_atomic_block:
        return True
    return not (connection.autocommit if connection.connection else connection.settings_dict["AUTOCOMMIT"])


_links: dict[str, Link] = {}
_lock = threading.Lock()


def link(alias: str, params: Mapping[str, Any]) -> Link:
    """The link of an alias; a new one where its settings have changed, as tests change them."""
    found = _links.get(alias)
    if found is not None and found.params == params:
        return found
    with _lock:
        found = _links.get(alias)
        if found is None or found.params != params:
            if found is not None:
                found.close()
            found = _links[alias] = Link(alias, params)
    return found


def links() -> Iterator[Link]:
    """The links of all aliases of TASKS that name our backend."""
    for alias in compat.task_backends:
        params = compat.task_backends.settings[alias]
        try:
            kind = import_string(params["BACKEND"])
        except ImportError:
            continue
        if getattr(kind, "is_evenflow", False):
            yield link(alias, params)


def link_of(alias: str = compat.DEFAULT_ALIAS) -> Link:
    """The link of this alias, or ImproperlyConfigured where TASKS has no backend of ours under it."""
    for found in links():
        if found.alias == alias:
            return found
    ours = ", ".join(repr(each.alias) for each in links()) or "none"
    raise ImproperlyConfigured(
        f"TASKS[{alias!r}]: expected 'BACKEND': 'evenflow.contrib.django.EvenflowBackend'; aliases with it: {ours}"
    )


def queue_app(alias: str = compat.DEFAULT_ALIAS) -> Evenflow:
    """The Evenflow app behind a backend: `queue_app().pause("mail")`, `queue_app().why(result.id)`, and all else."""
    return link_of(alias).app


def evenflow_task(task: Any) -> AnyTask:
    """The Evenflow task behind a Django task, for what Django's has no word for: `evenflow_task(send).using(group="bob")`."""
    return link_of(task.backend).variant(task)
