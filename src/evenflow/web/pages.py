"""The pages: each looks, then fills its template. Forms are posted to `/acts/NAME` and come back to their page."""

from typing import Any

import msgspec
from starlette.responses import RedirectResponse, Response

from evenflow import EvenflowError, State
from evenflow.ids import id_text
from evenflow.store.dashboard import FEW, SEARCH_S
from evenflow.store.reads import NEWEST, Filter
from evenflow.store.runs import RUN_STATES
from evenflow.web import acts, charts
from evenflow.web.access import Permission
from evenflow.web.calls import Call, Kind, Problem, too_many
from evenflow.web.doors import Door
from evenflow.web.drawing import drawing
from evenflow.web.guard import address_of
from evenflow.web.rendering import NOTICE_COOKIE, Notice, assets, rendered
from evenflow.web.sessions import NOTICE_S, SESSION_S

BULK_ACTS = {"retry": "retry-jobs", "cancel": "cancel-jobs", "discard": "discard-jobs"}
TROUBLE = ("failed", "quarantined", "expired", "cancelled", "discarded")
MINUTES = 60
BUSIEST = 10
STEPS = 150


def overview(call: Call) -> Response:
    if call.who.tenants is not None:
        return RedirectResponse(f"{call.root}/jobs", 303)
    points = call.site.points(MINUTES)
    found = call.look().overview(points, call.site.busiest(MINUTES, BUSIEST))
    drawn = [charts.throughput(points), charts.latency(points, "wait"), charts.latency(points, "run")]
    return rendered(call, "overview.html", found=found, charts=drawn)


def jobs(call: Call) -> Response:
    wanted, look = call.filter(), call.look()
    found = look.jobs(wanted, call.cursor(), call.top())
    return rendered(
        call, "jobs.html", found=found, wanted=wanted, filters=_filters(wanted), tasks=_task_names(call),
        queues=look.queue_names(), now_us=look.now(),
    )  # fmt: skip


def job(call: Call) -> Response:
    look = call.look()
    return rendered(call, "job.html", found=look.job(call.path("id")), now_us=look.now())


def failed(call: Call) -> Response:
    query, look = call.query, call.look()
    state = query.get("state", "failed")
    if state not in TROUBLE:
        raise Problem(422, f"state: expected one of {', '.join(TROUBLE)}, got {state[:50]!r}.")
    wanted = Filter(State(state), query.get("queue"), query.get("task"), query.get("group"))
    found = look.jobs(wanted, call.cursor(), call.top())
    return rendered(
        call, "failed.html", found=found, wanted=wanted, filters=_filters(wanted), trouble=TROUBLE,
        counts=look.ends(), tasks=_task_names(call), queues=look.queue_names(), now_us=look.now(),
    )  # fmt: skip


def bulk(call: Call) -> Response:
    """What an act over a filter would change, before it is done."""
    act, wanted = call.query.get("act", ""), call.filter()
    if act not in BULK_ACTS or wanted == Filter():
        raise Problem(422, f"Expected act, one of {', '.join(BULK_ACTS)}, and a filter.")
    before = call.cursor()
    found = acts.matching(
        call.site.engine, wanted, call.who, before=NEWEST if before is None else before, within_s=SEARCH_S
    )
    edge = id_text(found.following) if found.is_partial and found.following is not None else None
    return rendered(
        call, "bulk.html", act=act, name=BULK_ACTS[act], filters=_filters(wanted), count=len(found.jobs),
        most=acts.MOST_IN_BULK, edge=edge, before=call.query.get("before"), back=_back(call.query.get("back", "/jobs")),
    )  # fmt: skip


def queues(call: Call) -> Response:
    look = call.look()
    return rendered(
        call, "queues.html", found=look.queues(), paused=look.paused_tasks(), tasks=_task_names(call)
    )


def groups(call: Call) -> Response:
    look = call.look()
    names = look.queues_with_groups()
    queue = call.query.get("queue") or (names[0] if names else None)
    found = None if queue is None else look.groups(queue)
    return rendered(call, "groups.html", found=found, names=names, queue=queue)


def limits(call: Call) -> Response:
    look = call.look()
    return rendered(
        call, "limits.html", found=look.limits(), breakers=look.breakers(), most=FEW, now_us=look.now()
    )


def workers(call: Call) -> Response:
    look = call.look()
    return rendered(call, "workers.html", found=look.workers(), now_us=look.now())


def schedules(call: Call) -> Response:
    look = call.look()
    return rendered(call, "schedules.html", found=look.schedules(), now_us=look.now())


def workflows(call: Call) -> Response:
    query, look = call.query, call.look()
    state = query.get("state")
    if state is not None and state not in RUN_STATES:
        raise Problem(422, f"state: expected one of {', '.join(RUN_STATES)}, got {state[:50]!r}.")
    found = look.runs(state, query.get("workflow"), call.cursor(), call.top())
    filters = {"state": state, "workflow": query.get("workflow")}
    return rendered(
        call, "workflows.html", found=found, run_states=RUN_STATES, filters=filters, now_us=look.now()
    )


def workflow(call: Call) -> Response:
    look = call.look()
    found = look.run(call.path("id"), call.cursor("after"), call.top(STEPS))
    return rendered(call, "workflow.html", found=found, drawing=drawing(found.steps), now_us=look.now())


def database(call: Call) -> Response:
    return rendered(call, "database.html", found=call.look().database())


def audit(call: Call) -> Response:
    look = call.look()
    return rendered(
        call, "audit.html", found=look.audit(asked_number(call, "before"), call.top()), now_us=look.now()
    )


def act(call: Call) -> Response:
    """A form of ours: do what it says, tell what came of it on the page it came from."""
    fields = call.form()
    back = _back(fields.pop("back", "/"))
    fields.pop("form_token", None)
    try:
        outcome = acts.perform(call.scene(), call.path("act"), _form_body(call.path("act"), fields))
        notice = Notice(outcome.text)
    except (EvenflowError, msgspec.ValidationError) as error:
        notice = Notice(str(error), False)
    return _with_notice(call, RedirectResponse(call.root + back, 303), notice)


def login_page(call: Call) -> Response:
    if not call.site.has_login:
        raise Problem(404, "There is no login here.")
    return rendered(call, "login.html", back=_back(call.query.get("back", "/")), said=None)


def log_in(call: Call) -> Response:
    fields, address = call.form(), address_of(call.request)
    if (wait_s := call.site.tries.wait_s(address)) > 0:
        raise too_many(wait_s, "wrong passwords")
    credentials = call.site.credentials
    who = credentials.login(fields.get("name", ""), fields.get("password", "")) if credentials else None
    back = _back(fields.get("back", "/"))
    if who is None:
        call.site.tries.failed(address)
        return rendered(call, "login.html", status=401, back=back, said="The name or the password is wrong.")
    response = RedirectResponse(call.root + back, 303)
    name, is_secure = call.site.cookie_name(call.request)
    response.set_cookie(
        name,
        call.site.seal.session(who),
        max_age=SESSION_S,
        path="/",
        secure=is_secure,
        httponly=True,
        samesite="strict",
    )
    return response


def log_out(call: Call) -> Response:
    response = RedirectResponse(f"{call.root}/login", 303)
    name, is_secure = call.site.cookie_name(call.request)
    response.delete_cookie(name, path="/", secure=is_secure, httponly=True, samesite="strict")
    return response


def asset(call: Call) -> Response:
    found = assets().get(call.path("name"))
    if found is None:
        raise Problem(404, "There is no such file.")
    headers = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(found.body, media_type=found.media_type, headers=headers)


def _form_body(name: str, fields: dict[str, str]) -> acts.Body:
    found = acts.ACTS.get(name)
    if found is None:
        raise Problem(404, "There is no such act.")
    values: dict[str, Any] = {key: None if value == "" else value for key, value in fields.items()}
    if "ids" in values:
        values["ids"] = str(values["ids"] or "").split(",")
    body: acts.Body = msgspec.convert(values, found.body, strict=False)
    return body


def _with_notice(call: Call, response: Response, notice: Notice) -> Response:
    sealed = call.site.seal.sealed("notice", Notice(notice.text[:500], notice.is_good))
    response.set_cookie(
        NOTICE_COOKIE, sealed, max_age=NOTICE_S, path=call.root or "/", httponly=True, samesite="strict"
    )
    return response


def _back(said: str) -> str:
    """A path of this site to go back to; anything else is the first page."""
    is_ours = said.startswith("/") and not said.startswith("//") and "\\" not in said
    return said if is_ours and said.isprintable() else "/"


def _filters(wanted: Filter) -> dict[str, str | None]:
    return {
        "state": None if wanted.state is None else wanted.state.value,
        "queue": wanted.queue,
        "task": wanted.task,
        "group": wanted.group,
    }


def _task_names(call: Call) -> list[str]:
    if call.who.tenants is not None:
        return []
    return sorted(call.site.app.tasks)[:FEW]


def asked_number(call: Call, name: str) -> int | None:
    said = call.query.get(name)
    if said is None:
        return None
    if not (said.isascii() and said.isdecimal() and len(said) < 19):
        raise Problem(422, f"{name}: expected a number, got {said[:50]!r}.")
    return int(said)


PAGES: tuple[Door, ...] = (
    *(
        Door("GET", path, Kind.PAGE, Permission.LOOK, handle, for_tenants=True)
        for path, handle in (("/", overview), ("/jobs", jobs), ("/jobs/{id}", job), ("/failed", failed))
    ),
    *(
        Door("GET", path, Kind.PAGE, Permission.LOOK, handle)
        for path, handle in (
            ("/queues", queues), ("/groups", groups), ("/limits", limits), ("/workers", workers),
            ("/schedules", schedules), ("/workflows", workflows), ("/workflows/{id}", workflow), ("/database", database),
        )
    ),
    Door("GET", "/bulk", Kind.PAGE, Permission.ACT, bulk, for_tenants=True),
    Door("GET", "/audit", Kind.PAGE, Permission.AUDIT, audit),
    Door("POST", "/acts/{act}", Kind.FORM, Permission.ACT, act, for_tenants=True),
    Door("GET", "/login", Kind.PAGE, None, login_page),
    Door("POST", "/login", Kind.FORM, None, log_in),
    Door("POST", "/logout", Kind.FORM, None, log_out),
    Door("GET", "/static/{name}", Kind.PAGE, None, asset),
)  # fmt: skip
