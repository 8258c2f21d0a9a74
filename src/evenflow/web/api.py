"""The JSON API: the same looks and acts as the pages, for programs. Described at `/api/openapi.json`."""

from collections.abc import Collection
from typing import Any

import msgspec
from msgspec import structs
from starlette.responses import Response

from evenflow import EvenflowError
from evenflow.client.task import Call as TaskCall
from evenflow.client.task import canonical_payload
from evenflow.codec import decode_call
from evenflow.errors import DecodeError
from evenflow.ids import id_text
from evenflow.job import JobRecord, NewJob
from evenflow.store.runs import RUN_STATES
from evenflow.web import acts, shapes
from evenflow.web.access import Permission
from evenflow.web.answers import answer
from evenflow.web.calls import Call, Kind, Problem, checked_body
from evenflow.web.doors import Door
from evenflow.web.pages import BUSIEST, MINUTES, asked_number

IDEMPOTENT_FOR_US = 86_400_000_000
LONGEST_KEY = 200


class Done(shapes.Shape, frozen=True, kw_only=True):
    """What came of an act."""

    said: str
    changed: int | None
    before: Any
    after: Any


class Enqueue(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A call of a task that the app declares. The same `idempotency_key` within a day gives the same job; with another
    task, queue or other arguments it is refused."""

    task: str
    args: list[Any] = []
    kwargs: dict[str, Any] = {}
    queue: str | None = None
    priority: int | None = None
    run_after: float | None = None
    idempotency_key: str | None = None


class Enqueued(shapes.Shape, frozen=True, kw_only=True):
    """The job of a call; not new where its key was used before."""

    id: str
    state: str
    queue: str
    is_new: bool


def overview(call: Call) -> Response:
    site = call.site
    return answer(call.look().overview(site.points(MINUTES), site.busiest(MINUTES, BUSIEST)))


def pulse(call: Call) -> Response:
    return answer(call.look().pulse())


def jobs(call: Call) -> Response:
    return answer(call.look().jobs(call.filter(), call.cursor(), call.top()))


def job(call: Call) -> Response:
    return answer(call.look().job(call.path("id")))


def queues(call: Call) -> Response:
    return answer(call.look().queues())


def groups(call: Call) -> Response:
    queue = call.query.get("queue")
    if queue is None:
        raise Problem(422, "queue: expected the name of a queue.")
    return answer(call.look().groups(queue))


def limits(call: Call) -> Response:
    return answer(call.look().limits())


def breakers(call: Call) -> Response:
    return answer(call.look().breakers())


def workers(call: Call) -> Response:
    return answer(call.look().workers())


def schedules(call: Call) -> Response:
    return answer(call.look().schedules())


def workflows(call: Call) -> Response:
    query = call.query
    state = query.get("state")
    if state is not None and state not in RUN_STATES:
        raise Problem(422, f"state: expected one of {', '.join(RUN_STATES)}, got {state[:50]!r}.")
    return answer(call.look().runs(state, query.get("workflow"), call.cursor(), call.top()))


def workflow(call: Call) -> Response:
    return answer(call.look().run(call.path("id"), call.cursor("after"), call.top()))


def database(call: Call) -> Response:
    return answer(call.look().database())


def audit(call: Call) -> Response:
    return answer(call.look().audit(asked_number(call, "before"), call.top()))


def act(call: Call) -> Response:
    found = acts.ACTS.get(call.path("act"))
    if found is None:
        raise Problem(404, "There is no such act.")
    outcome = acts.perform(call.scene(), found.name, read(call.body, found.body))
    return answer(
        Done(said=outcome.text, changed=outcome.changed, before=outcome.before, after=outcome.after)
    )


def enqueue(call: Call) -> Response:
    """A new job of a declared task, or the one that this caller's key stands for already."""
    if not call.site.takes_jobs:
        raise Problem(404, "Jobs are not taken over HTTP here: set enqueue=True, or --enqueue.")
    asked = read(call.body, Enqueue, long=("args", "kwargs"))
    task = call.site.app.tasks.get(asked.task)
    if task is None:
        raise Problem(404, f"There is no task {asked.task[:100]!r}.")
    options: dict[str, Any] = {
        name: value
        for name in ("queue", "priority", "run_after")
        if (value := getattr(asked, name)) is not None
    }
    if asked.idempotency_key is not None:
        options["unique"] = False  # the caller's key instead of the task's own
    text = msgspec.json.encode([asked.args, asked.kwargs]).decode()
    try:
        args, kwargs = decode_call(text, task.signature)  # plain JSON becomes what the annotations say
        wanted = task.using(**options).job(*args, **kwargs)
        if asked.idempotency_key is not None:
            wanted = keyed(wanted, call.who.name, asked.idempotency_key)
        [made] = call.site.app.enqueue_many([wanted])
    except (DecodeError, EvenflowError, ValueError, TypeError) as wrong:
        raise Problem(422, str(wrong)) from wrong
    if asked.idempotency_key is not None and not made.is_new:
        refuse_another_call(wanted.new, made.record)
    shape = Enqueued(id=made.id, state=made.state.value, queue=made.queue, is_new=made.is_new)
    return answer(shape, 201 if made.is_new else 200)


def keyed(wanted: TaskCall[Any], caller: str, key: str) -> TaskCall[Any]:
    """The call under the caller's key, whatever its task: another caller's key never meets it, nor any task's own."""
    if not 1 <= len(key) <= LONGEST_KEY:
        raise Problem(422, f"idempotency_key: expected 1 to {LONGEST_KEY} characters.")
    unique_key = f":http:{len(caller)}:{caller}:{key}"  # a task's own begin with its name
    new = structs.replace(wanted.new, unique_key=unique_key, unique_for_us=IDEMPOTENT_FOR_US)
    return TaskCall(wanted.task, new)


def refuse_another_call(wanted: NewJob, found: JobRecord) -> None:
    """A key stands for one call: whoever repeats it with another one must not take the first one's job for theirs."""
    differs = {
        "another task": wanted.task != found.task,
        "another queue": wanted.queue != found.queue,
        "other arguments": not has_same_arguments(wanted.payload, found.payload),
    }
    if any(differs.values()):
        described = " and ".join(name for name, is_so in differs.items() if is_so)
        raise Problem(
            422,
            f"idempotency_key: this key was used for job {id_text(found.id)} with {described}; nothing was enqueued. "
            "Take a new key for a new call.",
        )


def has_same_arguments(one: str, other: str) -> bool:
    """Whether two stored calls say the same; one that cannot be read is like itself alone."""
    try:
        return one == other or canonical_payload(one) == canonical_payload(other)
    except msgspec.DecodeError:
        return False


def read(body: bytes, kind: type[Any], long: Collection[str] = ()) -> Any:
    """A body of the shape that is asked for, with texts that a database can hold; those of the fields `long` may be long."""
    try:
        checked_body(msgspec.json.decode(body), long)
    except RecursionError:
        raise Problem(422, "The body is nested too deeply.") from None
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise Problem(422, f"The body is not JSON: {error}.") from None
    return msgspec.json.decode(body, type=kind)


API: tuple[Door, ...] = (
    Door(
        "GET",
        "/api/overview",
        Kind.API,
        Permission.LOOK,
        overview,
        "Numbers, queues and the last hour",
        shapes.Overview,
    ),
    Door("GET", "/api/pulse", Kind.API, Permission.LOOK, pulse, "The headline numbers", shapes.Pulse),
    Door(
        "GET",
        "/api/jobs",
        Kind.API,
        Permission.LOOK,
        jobs,
        "Jobs, newest first",
        shapes.JobPage,
        for_tenants=True,
    ),
    Door(
        "GET",
        "/api/jobs/{id}",
        Kind.API,
        Permission.LOOK,
        job,
        "Everything about a job",
        shapes.JobDetail,
        for_tenants=True,
    ),
    Door("GET", "/api/queues", Kind.API, Permission.LOOK, queues, "Queues", list[shapes.QueueShape]),
    Door(
        "GET", "/api/groups", Kind.API, Permission.LOOK, groups, "The groups of a queue", shapes.GroupsShape
    ),
    Door("GET", "/api/limits", Kind.API, Permission.LOOK, limits, "Limits in use", list[shapes.LimitShape]),
    Door("GET", "/api/breakers", Kind.API, Permission.LOOK, breakers, "Breakers", list[shapes.BreakerShape]),
    Door(
        "GET",
        "/api/workers",
        Kind.API,
        Permission.LOOK,
        workers,
        "Worker processes",
        list[shapes.WorkerShape],
    ),
    Door(
        "GET", "/api/schedules", Kind.API, Permission.LOOK, schedules, "Schedules", list[shapes.ScheduleShape]
    ),
    Door("GET", "/api/workflows", Kind.API, Permission.LOOK, workflows, "Runs of workflows", shapes.RunPage),
    Door(
        "GET",
        "/api/workflows/{id}",
        Kind.API,
        Permission.LOOK,
        workflow,
        "A run with its steps",
        shapes.RunDetail,
    ),
    Door(
        "GET",
        "/api/database",
        Kind.API,
        Permission.LOOK,
        database,
        "The health of the database",
        shapes.DatabaseShape,
    ),
    Door("GET", "/api/audit", Kind.API, Permission.AUDIT, audit, "What people did", shapes.AuditPage),
    Door("POST", "/api/acts/{act}", Kind.API, Permission.ACT, act, "Do something", Done, for_tenants=True),
    Door(
        "POST",
        "/api/jobs",
        Kind.API,
        Permission.ENQUEUE,
        enqueue,
        "Enqueue a call of a task",
        Enqueued,
        Enqueue,
    ),
)
