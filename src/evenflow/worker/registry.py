"""What a worker knows about tasks: how to call them and by which rules their runs end. Looked up, never imported."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

import msgspec

from evenflow.codec import CallSignature
from evenflow.job import Claimed
from evenflow.limits import Breaker
from evenflow.rules.breaker import Declared, breaker_name, declared
from evenflow.rules.retry import NO_RETRY, Retry
from evenflow.settings import Settings
from evenflow.store.retention import kept_us
from evenflow.worker.builtin import BUILT_IN
from evenflow.worker.outcome import Rules

MOST_OVERRIDDEN = 1_000


class PolicyLike(Protocol):
    """What a worker reads of a task's policy."""

    @property
    def retry(self) -> Retry: ...
    @property
    def run_in(self) -> str: ...
    @property
    def timeout_us(self) -> int | None: ...
    @property
    def keep_us(self) -> int | None: ...
    @property
    def on_crash(self) -> str: ...
    @property
    def breaker(self) -> Breaker | None: ...


class TaskLike(Protocol):
    """What a worker needs of a task."""

    name: str
    function: Callable[..., Any]
    signature: CallSignature
    is_async: bool
    policy: Any


@dataclass(frozen=True, slots=True)
class Entry:
    """One task, ready to be run."""

    name: str
    function: Callable[..., Any]
    signature: CallSignature
    is_async: bool
    place: str
    timeout_s: float | None
    fails_on_crash: bool
    rules: Rules
    start_within_s: float | None = None


class Registry:
    """The tasks of an app, by name."""

    def __init__(self, tasks: Mapping[str, TaskLike], settings: Settings) -> None:
        self._tasks = tasks
        self._settings = settings
        self._entries: dict[str | tuple[str, str], Entry] = {}
        self._overridden: dict[tuple[str | tuple[str, str], str], Entry] = {}
        self._guarded = {queue.name: queue.breaker for queue in settings.queues if queue.breaker is not None}
        self._choosy = {queue.name: queue for queue in settings.queues if queue.tasks is not None}
        self.unknown = Rules(
            Retry(max_attempts=10_000),
            kept_us(settings.retention, "succeeded"),
            settings.retention,
            settings.max_payload_bytes,
        )
        # For jobs that no attempt could run.
        self.final = Rules(NO_RETRY, self.unknown.keep_us, settings.retention, settings.max_payload_bytes)

    def entry(self, job: Claimed) -> Entry | None:
        """How to run this job, or None where its task is not known here."""
        place = job.task if job.queue not in self._guarded else (job.task, job.queue)
        entry = self._entries.get(place)
        if entry is None:
            task = self._tasks.get(job.task) or BUILT_IN.get(job.task)
            if task is None:
                return None
            entry = self._entries[place] = self._built(task, job.queue)
        return entry if job.options is None else self._with_options(place, entry, job.options)

    def allows(self, job: Claimed) -> bool:
        """Whether its queue takes jobs of this task, by what the code says: nothing that is stored can change it."""
        return not self._choosy or job.queue not in self._choosy or self._choosy[job.queue].takes(job.task)

    def signature(self, task: str) -> CallSignature | None:
        """How a task is called, or None where it is not known here."""
        found = self._tasks.get(task) or BUILT_IN.get(task)
        return None if found is None else found.signature

    def _with_options(self, place: str | tuple[str, str], entry: Entry, options: str) -> Entry:
        """The entry as a call's options change it. Most calls say the same, so what was made is kept for a while."""
        found = self._overridden.get((place, options))
        if found is None:
            if len(self._overridden) >= MOST_OVERRIDDEN:
                self._overridden.clear()
            found = self._overridden[place, options] = _overridden(entry, options)
        return found

    @property
    def declared(self) -> Declared:
        """The breakers of these tasks, and of the queues of the settings."""
        tasks = {name: task.policy.breaker for name, task in self._tasks.items()}
        return declared(tasks, self._settings.queue_breakers)

    def _built(self, task: TaskLike, queue: str) -> Entry:
        policy: PolicyLike = task.policy
        place = policy.run_in
        if place == "auto":
            place = "async" if task.is_async else "thread"
        keep = policy.keep_us
        rules = Rules(
            policy.retry,
            kept_us(self._settings.retention, "succeeded") if keep is None else keep,
            self._settings.retention,
            self._settings.max_payload_bytes,
            _guards(task.name, policy.breaker, queue, self._guarded.get(queue)),
        )
        timeout = policy.timeout_us
        return Entry(
            task.name, task.function, task.signature, task.is_async, place, None if timeout is None else timeout / 1e6,
            policy.on_crash == "fail", rules,
        )  # fmt: skip


def _guards(
    task: str, of_task: Breaker | None, queue: str, of_queue: Breaker | None
) -> tuple[tuple[str, Breaker], ...]:
    """The breakers that hear of a run, each once: a task and its queue may share one."""
    found = {} if of_queue is None else {breaker_name(of_queue, queue=queue): of_queue}
    if of_task is not None:
        found[breaker_name(of_task, task=task)] = of_task
    return tuple(found.items())


def _overridden(entry: Entry, options: str) -> Entry:
    changes: dict[str, Any] = msgspec.json.decode(options)
    rules, timeout_s = entry.rules, entry.timeout_s
    if "timeout_us" in changes:
        timeout_s = None if changes["timeout_us"] is None else changes["timeout_us"] / 1e6
    if changes.get("keep_us") is not None:
        rules = replace(rules, keep_us=changes["keep_us"])
    if "retry" in changes:
        declared = rules.retry
        retry = Retry(
            declared.max_attempts, **changes["retry"], on=declared.on, give_up_on=declared.give_up_on
        )
        rules = replace(rules, retry=retry)
    start_us: int | None = changes.get("start_us")
    start_within_s = None if start_us is None else start_us / 1e6
    return replace(entry, timeout_s=timeout_s, rules=rules, start_within_s=start_within_s)
