"""The backend of Django's tasks framework: Django's tasks and results on one side, Evenflow's jobs on the other."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from django.db import connections, transaction
from django.utils import timezone

from evenflow import JobNotFound
from evenflow.client.handle import Job
from evenflow.client.task import AnyTask, Call
from evenflow.contrib.django import compat
from evenflow.contrib.django.checks import link_messages
from evenflow.contrib.django.headers import as_stamped, stamped
from evenflow.contrib.django.links import Link, link
from evenflow.contrib.django.reading import find_job
from evenflow.contrib.django.registry import known_tasks, load_task_modules, note
from evenflow.contrib.django.results import EvenflowResult, new_result, sent_at, stored_result


class EvenflowBackend(compat.BaseTaskBackend):
    """Sends the tasks of Django to Evenflow.

    TASKS = {"default": {"BACKEND": "evenflow.contrib.django.EvenflowBackend", "OPTIONS": {"database": "default"}}}
    """

    is_evenflow = True
    supports_defer = True
    supports_async_task = True
    supports_get_result = True
    supports_priority = True

    def __init__(self, alias: str, params: dict[str, Any]) -> None:
        super().__init__(alias, params)
        self.link: Link = link(alias, params)
        self.queues = self.link.queue_names

    def validate_task(self, task: Any) -> None:
        """Refuse what could not be run, and note the task: what is declared here is what workers know."""
        super().validate_task(task)
        note(task)

    def enqueue(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> EvenflowResult:
        """Store a call. In an open transaction of the jobs' own database it is a part of it; in one of another database
        (`on_commit`) it is stored after the commit, and not at all after a rollback."""
        self.validate_task(task)
        call = self._call(task, args, kwargs)
        connection, waits_for = self._road(call)
        if waits_for is not None:
            return self._enqueue_on_commit(waits_for, task, call, args, kwargs)
        [job] = self.link.app.enqueue_many([call], connection=connection)
        result = new_result(task, self.alias, job.id, args, kwargs, enqueued_at=sent_at(job.id))
        self._tell(result)
        return result

    def get_result(self, result_id: str) -> EvenflowResult:
        """The result of this id; a job of the transaction that is open here can be seen as well."""
        try:
            record = find_job(self.link, result_id)
        except JobNotFound as missing:
            raise compat.TaskResultDoesNotExist(result_id) from missing
        if record.task not in known_tasks:
            load_task_modules(self.link.task_modules)
        task = known_tasks.get(record.task)
        if task is None:
            raise compat.TaskResultDoesNotExist(
                f"{result_id}: its task {record.task!r} is not known here; import its module, or name it in "
                "OPTIONS['task_modules']"
            )
        return stored_result(record, task, self.alias, self.link.native(task).signature)

    def check(self, **kwargs: Any) -> Iterable[Any]:
        """What is wrong with this backend's settings and tasks, for `manage.py check`."""
        return link_messages(self.link)

    def _call(self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any]) -> Call[Any]:
        native: AnyTask = self.link.variant(task)
        if (run_after := task.run_after) is not None:
            if timezone.is_naive(run_after):  # USE_TZ is off
                run_after = timezone.make_aware(run_after, timezone.get_default_timezone())
            native = native.using(run_after=run_after)
        call: Call[Any] = native.job(*args, **kwargs)
        return call

    def _road(self, call: Call[Any]) -> tuple[Any, str | None]:
        """(connection, alias): the connection of Django's that stores the call, or the alias whose commit it waits for."""
        found = self.link
        if (connection := found.joined()) is not None:
            if not call.new.replaces:
                return connection, None
            return None, found.address.alias  # to replace a job would lock it until the commit
        alias = found.on_commit
        if alias is not None and connections[alias].in_atomic_block:
            return None, alias
        return None, None

    def _enqueue_on_commit(
        self, alias: str, task: Any, call: Call[Any], args: Sequence[Any], kwargs: Mapping[str, Any]
    ) -> EvenflowResult:
        """The id is the job's own from the beginning, so it may be written down in the transaction."""
        app, call = self.link.app, stamped(call)
        ids = app.reserve_ids(1)
        result = new_result(task, self.alias, ids[0], args, kwargs, enqueued_at=None)

        def send() -> None:
            with as_stamped():
                [job] = app.enqueue_many([call], ids=ids)
            _note_sent(result, job)
            self._tell(result)

        transaction.on_commit(send, using=alias)
        return result

    def _tell(self, result: EvenflowResult) -> None:
        compat.task_enqueued.send(type(self), task_result=result)


def _note_sent(result: EvenflowResult, job: Job[Any]) -> None:
    """A unique key may have been taken meanwhile: then the result is that of the job which holds it."""
    object.__setattr__(result, "id", job.id)
    object.__setattr__(result, "enqueued_at", sent_at(job.id))
