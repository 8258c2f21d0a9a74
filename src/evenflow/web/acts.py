"""Acting: everything that the dashboard and its API can change, by name. Each act is checked, written down, then done.

The log is written before the act and again after it, so that nothing is ever done that is not in it.
"""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, cast

import msgspec
from msgspec import UNSET, UnsetType

from evenflow import Evenflow, EvenflowError, State
from evenflow.client.queue_limits import UNSET as NOT_GIVEN
from evenflow.ids import id_text, job_number
from evenflow.store import audit, dashboard, gates, reads
from evenflow.store.audit import Asked
from evenflow.store.open import AnyEngine
from evenflow.store.reads import Filter
from evenflow.web.access import Principal

MOST_IN_BULK = 10_000
BULK_SEARCH_S = 10.0
MOST_LIMIT = 1_000_000_000
_LONGEST = 1000


class Refused(EvenflowError):
    """The act does not fit what is there: nothing was changed."""


class Forbidden(Exception):
    """The act is about more than the tenants of the one who asks."""


class Body(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an act is told. Unknown fields are refused, so a mistyped one is never ignored."""

    @property
    def target(self) -> str:
        """What the act is about, in one line for the log."""
        raise NotImplementedError


class Jobs(Body, frozen=True):
    """Jobs by their ids, or all that match a filter and are exactly `expect` many (at most 10,000 at a time).

    `before` and `down_to` are ids between which a filter looks, the second included.
    """

    ids: list[str] | None = None
    state: State | None = None
    queue: str | None = None
    task: str | None = None
    group: str | None = None
    before: str | None = None
    down_to: str | None = None
    expect: int | None = None
    why: str | None = None

    @property
    def target(self) -> str:
        if self.ids is not None:
            return ", ".join(self.ids[:3]) + (f" and {len(self.ids) - 3} more" if len(self.ids) > 3 else "")
        parts = {"state": self.state, "queue": self.queue, "task": self.task, "group": self.group}
        return "jobs with " + " ".join(
            f"{name}={value}" for name, value in parts.items() if value is not None
        )

    @property
    def filter(self) -> Filter:
        return Filter(self.state, self.queue, self.task, self.group)


class OneQueue(Body, frozen=True):
    """A queue by its name."""

    queue: str
    why: str | None = None

    @property
    def target(self) -> str:
        return self.queue


class QueueLimits(Body, frozen=True):
    """New limits of a queue; null is no limit, what is not named stays."""

    queue: str
    max_concurrency: Annotated[int, msgspec.Meta(ge=0, le=MOST_LIMIT)] | UnsetType | None = UNSET
    max_ready: Annotated[int, msgspec.Meta(ge=1, le=MOST_LIMIT)] | UnsetType | None = UNSET

    @property
    def target(self) -> str:
        return self.queue


class OneTask(Body, frozen=True):
    """A task by its name."""

    task: str
    why: str | None = None

    @property
    def target(self) -> str:
        return self.task


class OneBreaker(Body, frozen=True):
    """A breaker by its name."""

    breaker: str
    why: str | None = None

    @property
    def target(self) -> str:
        return self.breaker


class OneRate(Body, frozen=True):
    """The rates of a queue or a task, by its name."""

    rate: str

    @property
    def target(self) -> str:
        return self.rate


class OneSchedule(Body, frozen=True):
    """A schedule by its key."""

    key: str
    why: str | None = None

    @property
    def target(self) -> str:
        return self.key


class OneRun(Body, frozen=True):
    """A run of a workflow by its id."""

    run: str
    why: str | None = None

    @property
    def target(self) -> str:
        return self.run


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of an act: a sentence for people, and the state before and after for the log."""

    text: str
    before: Any = None
    after: Any = None
    changed: int | None = None


Do = Callable[["Scene", Any], Outcome]


@dataclass(frozen=True, slots=True)
class Act:
    """One thing that can be done: its name in URLs, what it is told, how it is done."""

    name: str
    summary: str
    body: type[Body]
    do: Do

    @property
    def is_for_tenants(self) -> bool:
        """Whether it can be held to the jobs of some groups."""
        return self.body is Jobs


@dataclass(frozen=True, slots=True)
class Scene:
    """Where acts are done, and by whom."""

    app: Evenflow
    engine: AnyEngine
    who: Principal
    address: str


def perform(scene: Scene, name: str, body: Body) -> Outcome:
    """Do an act, with its two rows in the log. Raises EvenflowError where it is refused; that is in the log too."""
    if scene.who.tenants is not None and not ACTS[name].is_for_tenants:
        raise Forbidden
    asked = Asked(
        scene.who.name, str(scene.who.role), scene.address, name, body.target[:_LONGEST],
        cast("dict[str, Any]", msgspec.to_builtins(body)),
    )  # fmt: skip
    scene.app.prepare()
    entry = audit.ask(scene.engine, asked)
    try:
        outcome = ACTS[name].do(scene, body)
    except (EvenflowError, ValueError, TypeError) as error:
        audit.answer(scene.engine, entry, asked, {"refused": str(error)[:_LONGEST]})
        raise
    said = {"said": outcome.text, "before": outcome.before, "after": outcome.after}
    audit.answer(scene.engine, entry, asked, {key: value for key, value in said.items() if value is not None})
    return outcome


def _retry(scene: Scene, body: Jobs) -> Outcome:
    return _on_jobs(scene, body, "retried", scene.app.retry)


def _cancel(scene: Scene, body: Jobs) -> Outcome:
    return _on_jobs(scene, body, "cancelled", lambda ids: scene.app.cancel(ids, body.why or ""))


def _discard(scene: Scene, body: Jobs) -> Outcome:
    return _on_jobs(scene, body, "discarded", scene.app.discard)


def _on_jobs(scene: Scene, body: Jobs, done: str, act: Callable[[Sequence[str]], int]) -> Outcome:
    ids = _chosen(scene, body)
    own = _seen(scene, ids)  # the others answer as if they were not there
    before = _states(scene, own)
    changed = act(own) if own else 0
    noun = "job" if changed == 1 else "jobs"
    rest = f"; {len(ids) - changed:,} could not be, as they are now" if changed < len(ids) else ""
    return Outcome(f"{changed:,} {noun} {done}{rest}.", before, _states(scene, own), changed)


def _chosen(scene: Scene, body: Jobs) -> list[str]:
    """The jobs that are named, or that match; of a filter exactly as many as were expected."""
    if body.ids is not None:
        if body.filter != Filter() or len(body.ids) > MOST_IN_BULK:
            raise Refused(f"expected ids or a filter, and not both; at most {MOST_IN_BULK:,} ids")
        return list(dict.fromkeys(id_text(job_number(id)) for id in body.ids))
    if body.filter == Filter() or body.expect is None:
        raise Refused(
            "expected ids, or a filter (state, queue, task, group) with expect, the number of jobs that match"
        )
    before = reads.NEWEST if body.before is None else job_number(body.before)
    down_to = 0 if body.down_to is None else job_number(body.down_to)
    found = matching(
        scene.engine, body.filter, scene.who, before=before, down_to=down_to, within_s=BULK_SEARCH_S
    )
    if found.is_partial:
        raise Refused(
            f"the search took longer than {BULK_SEARCH_S:g} s: nothing was changed. Narrow the filter, or name down_to."
        )
    ids = [id_text(job.id) for job in found.jobs]
    if len(ids) != body.expect:
        raise Refused(
            f"{body.expect:,} jobs were expected, and {len(ids):,} match now: nothing was changed. Look again, then repeat."
        )
    return ids


def matching(
    engine: AnyEngine, wanted: Filter, who: Principal, *, before: int, down_to: int = 0, within_s: float
) -> dashboard.Found:
    """The jobs that match between two ids, newest first, at most `MOST_IN_BULK`."""
    return dashboard.search(
        engine, wanted, before=before, down_to=down_to, top=MOST_IN_BULK, within_s=within_s, among=who.among
    )


def _seen(scene: Scene, ids: list[str]) -> list[str]:
    """Those that exist for the one who acts."""
    if scene.who.tenants is None:
        return ids
    seen: set[int] = set()
    for start in range(0, len(ids), reads.PAGE):
        found = reads.find(scene.engine, [job_number(id) for id in ids[start : start + reads.PAGE]])
        seen |= {number for number, record in found.items() if scene.who.sees(record.group)}
    return [id for id in ids if job_number(id) in seen]


def _states(scene: Scene, ids: Sequence[str]) -> Any:
    """How many of these are in which state; the log of a bulk act needs no more."""
    counts: dict[str, int] = {}
    for start in range(0, len(ids), reads.PAGE):
        numbers = [job_number(id) for id in ids[start : start + reads.PAGE]]
        for record in reads.find(scene.engine, numbers).values():
            counts[record.state.value] = counts.get(record.state.value, 0) + 1
    return counts


def _pause_queue(scene: Scene, body: OneQueue) -> Outcome:
    return _on_queue(
        scene,
        body.queue,
        f"Queue {body.queue} is paused.",
        lambda: scene.app.pause(body.queue, who=scene.who.name, why=body.why),
    )


def _resume_queue(scene: Scene, body: OneQueue) -> Outcome:
    before = _queue_row(scene, body.queue)
    was_paused = scene.app.resume(body.queue)
    text = f"Queue {body.queue} {'is served again' if was_paused else 'was not paused'}."
    return Outcome(text, before, _queue_row(scene, body.queue))


def _set_limit(scene: Scene, body: QueueLimits) -> Outcome:
    def change() -> None:
        scene.app.set_limit(
            body.queue,
            max_concurrency=NOT_GIVEN if body.max_concurrency is UNSET else body.max_concurrency,
            max_ready=NOT_GIVEN if body.max_ready is UNSET else body.max_ready,
        )

    return _on_queue(scene, body.queue, f"The limits of queue {body.queue} are set.", change)


def _reset_limit(scene: Scene, body: OneQueue) -> Outcome:
    text = f"Queue {body.queue} has the limits of the code again."
    return _on_queue(scene, body.queue, text, lambda: scene.app.reset_limit(body.queue))


def _on_queue(scene: Scene, queue: str, text: str, change: Callable[[], object]) -> Outcome:
    before = _queue_row(scene, queue)
    change()
    return Outcome(text, before, _queue_row(scene, queue))


def _queue_row(scene: Scene, name: str) -> Any:
    row = next((row for row in reads.queues(scene.engine) if row.name == name), None)
    kept = ("max_concurrency", "max_ready", "paused_at", "paused_by", "paused_why")
    return None if row is None else {field: getattr(row, field) for field in kept}


def _pause_task(scene: Scene, body: OneTask) -> Outcome:
    scene.app.pause(task=body.task, who=scene.who.name, why=body.why)
    return Outcome(f"Task {body.task} is paused in every queue.")


def _resume_task(scene: Scene, body: OneTask) -> Outcome:
    was_paused = scene.app.resume(task=body.task)
    return Outcome(f"Task {body.task} runs again." if was_paused else f"Task {body.task} was not paused.")


def _open_breaker(scene: Scene, body: OneBreaker) -> Outcome:
    def change() -> str:
        scene.app.breaker(body.breaker).open(who=scene.who.name, why=body.why)
        return f"Breaker {body.breaker} is open until it is closed by hand."

    return _on_breaker(scene, body.breaker, change)


def _close_breaker(scene: Scene, body: OneBreaker) -> Outcome:
    def change() -> str:
        was_open = scene.app.breaker(body.breaker).close()
        return f"Breaker {body.breaker} {'is closed' if was_open else 'was closed already'}."

    return _on_breaker(scene, body.breaker, change)


def _reset_breaker(scene: Scene, body: OneBreaker) -> Outcome:
    def change() -> str:
        scene.app.breaker(body.breaker).reset()
        return f"Breaker {body.breaker} is closed and has forgotten its failures."

    return _on_breaker(scene, body.breaker, change)


def _on_breaker(scene: Scene, name: str, change: Callable[[], str]) -> Outcome:
    before = _breaker_row(scene, name)
    text = change()
    return Outcome(text, before, _breaker_row(scene, name))


def _breaker_row(scene: Scene, name: str) -> Any:
    rows = gates.breakers(scene.engine, name, counted=0)
    return {"state": rows[0].state.value, "failures": rows[0].failures} if rows else None


def _reset_rate(scene: Scene, body: OneRate) -> Outcome:
    count = scene.app.rate_reset(body.rate)
    if not count:
        raise Refused(f"no rate of a queue or task {body.rate!r} is in use")
    return Outcome(f"The starts of this window are forgotten for {body.rate}.", changed=count)


def _run_schedule(scene: Scene, body: OneSchedule) -> Outcome:
    job = scene.app.schedules.run_now(body.key)
    return Outcome(f"Schedule {body.key} has made job {job.id}.", None, {"job": job.id})


def _pause_schedule(scene: Scene, body: OneSchedule) -> Outcome:
    scene.app.schedules.pause(body.key, who=scene.who.name, why=body.why)
    return Outcome(f"Schedule {body.key} is paused.")


def _resume_schedule(scene: Scene, body: OneSchedule) -> Outcome:
    was_paused = scene.app.schedules.resume(body.key)
    return Outcome(f"Schedule {body.key} {'fires again' if was_paused else 'was not paused'}.")


def _cancel_run(scene: Scene, body: OneRun) -> Outcome:
    return _on_run(scene, body, "cancelled", lambda run: run.cancel(body.why or ""))


def _pause_run(scene: Scene, body: OneRun) -> Outcome:
    return _on_run(scene, body, "paused", lambda run: run.pause(body.why))


def _resume_run(scene: Scene, body: OneRun) -> Outcome:
    return _on_run(scene, body, "resumed", lambda run: run.resume())


def _retry_run(scene: Scene, body: OneRun) -> Outcome:
    return _on_run(scene, body, "tried again", lambda run: run.retry())


def _on_run(scene: Scene, body: OneRun, done: str, act: Callable[[Any], object]) -> Outcome:
    run = scene.app.workflow_run(body.run)
    before = run.state
    if not act(run):
        raise Refused(f"run {body.run} is {before}: it cannot be {done}")
    return Outcome(f"Run {body.run} is {done}.", before, run.refresh().state)


ACTS: dict[str, Act] = {
    act.name: act
    for act in (
        Act("retry-jobs", "Put jobs back to work, with all their attempts anew", Jobs, _retry),
        Act("cancel-jobs", "Stop open jobs; running ones are told", Jobs, _cancel),
        Act("discard-jobs", "Give jobs up: they do not run, failed ones leave the list", Jobs, _discard),
        Act("pause-queue", "Start no more jobs of a queue", OneQueue, _pause_queue),
        Act("resume-queue", "Serve a paused queue again", OneQueue, _resume_queue),
        Act("set-limit", "Change the limits of a queue, over the whole cluster", QueueLimits, _set_limit),
        Act("reset-limit", "Give the word about a queue's limits back to the code", OneQueue, _reset_limit),
        Act("pause-task", "Start no more jobs of a task, in any queue", OneTask, _pause_task),
        Act("resume-task", "Run a paused task's jobs again", OneTask, _resume_task),
        Act(
            "open-breaker", "Let nothing pass a breaker until it is closed by hand", OneBreaker, _open_breaker
        ),
        Act("close-breaker", "Let everybody pass a breaker again", OneBreaker, _close_breaker),
        Act("reset-breaker", "Close a breaker and forget its failures", OneBreaker, _reset_breaker),
        Act("reset-rate", "Forget the starts of a rate's window", OneRate, _reset_rate),
        Act("run-schedule", "Enqueue the job of a schedule now", OneSchedule, _run_schedule),
        Act("pause-schedule", "Fire a schedule no more", OneSchedule, _pause_schedule),
        Act("resume-schedule", "Fire a paused schedule again", OneSchedule, _resume_schedule),
        Act("cancel-run", "End a run of a workflow", OneRun, _cancel_run),
        Act("pause-run", "Start no more steps of a run", OneRun, _pause_run),
        Act("resume-run", "Let a paused run go on", OneRun, _resume_run),
        Act("retry-run", "Run the failed steps of a run again", OneRun, _retry_run),
    )
}
