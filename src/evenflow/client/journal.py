"""The journal of one run of a body, in the store: what it remembers, waits for, and adds to its workflow."""

from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any, Protocol

import msgspec

from evenflow.client.plan import timed
from evenflow.client.task import AnyTask, Task
from evenflow.clock import MICROSECOND, from_us
from evenflow.codec import Reference, call_wires, holds_reference
from evenflow.codec.wire import TAG, decode_any
from evenflow.errors import DecodeError, EnqueueError, LeaseLost
from evenflow.ids import IdSource, id_text
from evenflow.job import Claimed, NewJob
from evenflow.settings import Settings
from evenflow.store import control, durable, runs, workflows
from evenflow.store.callers import drive_together
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.open import AnyEngine
from evenflow.store.signals import Waker
from evenflow.store.workflows import NewStep

LISTED = ("tuple", "set", "frozenset")


class Office(Protocol):
    """What a journal needs of its app."""

    settings: Settings
    engine: AnyEngine
    ids: IdSource
    waker: Waker

    def declared(self, name: str) -> AnyTask | None: ...
    def signer(self) -> Sign | None: ...


class StoredJournal:
    """Reads everything at once, when it is first asked, and not at all where this is the first claim of its job."""

    def __init__(self, office: Office, job: Claimed, now: Callable[[], int]) -> None:
        self._office = office
        self._job = job
        self._known: dict[str, str] | None = {} if job.epoch == 1 else None
        self.now = now

    def recall(self, name: str) -> str | None:
        if self._known is None:
            self._known = durable.recall(self._office.engine, self._job.id)
        return self._known.get(name)

    def remember(self, name: str, value: str) -> None:
        job, retention = self._job, self._office.settings.retention
        if not durable.remember(self._office.engine, job.id, job.epoch, name, value, retention):
            raise LeaseLost(
                f"job {id_text(job.id)}: this attempt no longer owns it, so nothing is remembered"
            )
        if self._known is not None:
            self._known[name] = value

    def next_event(self, name: str, after: int) -> tuple[int, str] | None:
        job, engine = self._job, self._office.engine
        if not durable.await_event(engine, job.id, job.epoch, name, after):
            raise LeaseLost(f"job {id_text(job.id)}: this attempt no longer owns it, so it waits for nothing")
        return durable.next_event(engine, name, after=after, since=job.created_at)

    def leave_event(self) -> None:
        durable.leave_event(self._office.engine, self._job.id, self._job.epoch)

    def add_step(
        self, task: Any, args: Sequence[Any], kwargs: Mapping[str, Any], name: str | None, after: Any
    ) -> str:
        if not isinstance(task, Task):
            raise EnqueueError(f"expected a task, got {task!r}; write @app.task above the function")
        run, own_name, container, children = self._place()
        wanted = [after] if isinstance(after, str) else list(after)
        wanted += [reference.name for reference in references_in((list(args), dict(kwargs)))]
        full = self._full_names(run, own_name, wanted)
        parents = list(dict.fromkeys(full[each][1] for each in wanted))
        names = {each: known for each, (known, _) in full.items()}
        step = NewStep(
            f"{own_name}/{name}",
            task.template(renamed(tuple(args), names), renamed(dict(kwargs), names)),
            ordinal=-1,
            existing_parents=parents,
        )
        step = timed(step, task.policy.run_after)
        (number,) = self._extend(run, [step], container, [child for child in children if child != container])
        return id_text(number)

    def spread(self) -> int:
        """The list of a fan-out as steps of its container; how many."""
        run, _, container, _ = self._place()
        assert container is not None
        parents = self._job.inputs.parents if self._job.inputs is not None else []
        outputs = {parent.name: parent.result for parent in parents if parent.result is not None}
        (items, plan), _ = call_wires(self._job.payload, outputs)
        steps = self._members(run, _listed(items), msgspec.json.decode(plan))
        self._extend(run, steps, container, [])
        return len(steps)

    def _members(self, run: int, items: list[Any], plan: dict[str, Any]) -> list[NewStep]:
        declared = self._office.declared(plan["task"])
        if declared is None:
            raise EnqueueError(
                f"no task {plan['task']!r} is registered here; import its module, or correct its name"
            )
        using = plan["using"]
        when = _when(using)
        task = declared.using(queue=using["queue"], priority=using["priority"], group=using["group"])
        task = task if when is None else task.using(run_after=when)
        args, kwargs = _values(plan["args"]), _values(plan["kwargs"])
        parents = self._steps_named(run, [each.name for each in references_in((args, kwargs))])
        steps = []
        for place, item in enumerate(items):
            job = task.template((declared.signature.decode_first(item), *args), kwargs)
            name = f"{plan['name']}[{place}]"
            step = NewStep(name, _as_told(job, using), ordinal=place, existing_parents=parents)
            steps.append(timed(step, when))
        return steps

    def _place(self) -> tuple[int, str, int | None, list[int]]:
        found = runs.place_of(self._office.engine, self._job.id)
        if found is None:
            raise EnqueueError("steps can be added by a step of a workflow only; enqueue a job instead")
        return found

    def _steps_named(self, run: int, names: Sequence[str]) -> list[int]:
        found = runs.numbers_of(self._office.engine, run, names)
        if missing := [name for name in names if name not in found]:
            raise EnqueueError(f"no step {missing[0]!r} in this run")
        return list(dict.fromkeys(found[name] for name in names))

    def _full_names(self, run: int, own: str, names: Sequence[str]) -> dict[str, tuple[str, int]]:
        """Which steps names mean, with their numbers: of those that this step has added, of those beside it, of those
        around, the nearest."""
        parts = own.split("/")
        nearness = ["/".join(parts[:depth]) + "/" for depth in range(len(parts), 0, -1)] + [""]
        meant = {name: [prefix + name for prefix in nearness] for name in names}
        found = runs.numbers_of(self._office.engine, run, [each for full in meant.values() for each in full])
        known = {name: next((each for each in full if each in found), None) for name, full in meant.items()}
        if missing := [name for name, full in known.items() if full is None]:
            raise EnqueueError(f"no step {missing[0]!r} in this run")
        return {name: (full, found[full]) for name, full in known.items() if full is not None}

    def _extend(
        self, run: int, steps: Sequence[NewStep], container: int | None, children: Sequence[int]
    ) -> list[int]:
        office = self._office
        added = [self._as_caused_by_this(step) for step in steps]
        numbers = drive_together(
            office.engine,
            lambda: workflows.extend_steps(
                run, added, office.ids, container=container, children=children, sign=office.signer()
            ),
        )
        office.waker.wake(*control.admit(office.engine, office.settings.retention))
        return numbers

    def _as_caused_by_this(self, step: NewStep) -> NewStep:
        """A step of the same trace as the job that adds it."""
        if step.job is None or self._job.headers is None:
            return step
        return msgspec.structs.replace(step, job=msgspec.structs.replace(step.job, headers=self._job.headers))


def renamed(value: Any, names: Mapping[str, str]) -> Any:
    """A value whose references go by other names."""
    if isinstance(value, Reference):
        return Reference(names[value.name])
    if not holds_reference(value):
        return value
    if isinstance(value, dict):
        return {key: renamed(each, names) for key, each in value.items()}
    return type(value)(renamed(each, names) for each in value)


def references_in(value: Any) -> list[Reference]:
    """All references inside of a value."""
    if isinstance(value, Reference):
        return [value]
    if not holds_reference(value):
        return []
    parts = value.values() if isinstance(value, dict) else value
    return [reference for each in parts for reference in references_in(each)]


def _listed(wire: Any) -> list[Any]:
    """The stored items of what a fan-out goes over."""
    items = wire.get("v") if isinstance(wire, dict) and wire.get(TAG) in LISTED else wire
    if not isinstance(items, list):
        raise DecodeError(f"expected a list to go over, got {type(decode_any(wire)).__name__}")
    return items


def _values(wire: Any) -> Any:
    """Stored arguments of a fan-out as values, references kept."""
    if isinstance(wire, dict):
        if wire.get(TAG) == "output":
            return Reference(wire["v"])
        return decode_any(wire) if TAG in wire else {key: _values(each) for key, each in wire.items()}
    return [_values(each) for each in wire] if isinstance(wire, list) else wire


def _when(using: Mapping[str, Any]) -> datetime | timedelta | None:
    """When the members of a fan-out start; a version that said nothing of it meant at once."""
    not_before, delay_us = using.get("not_before"), using.get("delay_us")
    if not_before is not None:
        return from_us(not_before)
    return None if delay_us is None else delay_us * MICROSECOND


def _as_told(job: NewJob, using: dict[str, Any]) -> NewJob:
    """What the builder's `using(...)` said beyond queue, priority and group."""
    of_limits, said = (msgspec.json.decode(text or "{}") for text in (job.options, using["options"]))
    if "start_us" in of_limits:  # what the job's rates demand, whatever the builder said
        said["start_us"] = of_limits["start_us"]
    options = msgspec.json.encode(said).decode() if said else None
    return msgspec.structs.replace(
        job, max_attempts=using["max_attempts"], options=options, fails_on_crash=using["fails_on_crash"],
        good_until=using["good_until"],
    )  # fmt: skip
