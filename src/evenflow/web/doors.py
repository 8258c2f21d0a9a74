"""Doors: every route with the one permission it needs, and the one way in for all of them.

A request is authenticated, its permission and origin are checked, its body is read within limits, and only then the
handler runs, on a thread of its own because the store is synchronous.
"""

import inspect
import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any
from urllib.parse import parse_qsl, quote

import msgspec
from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import Response

from evenflow import EvenflowError
from evenflow.errors import StoreTooSlow, StoreUnavailable
from evenflow.store.deadlines import reads_within
from evenflow.web.access import LOCAL, Permission, Principal, Role
from evenflow.web.acts import Forbidden, Refused
from evenflow.web.answers import refusal
from evenflow.web.calls import MOST_FIELDS, Call, Kind, Login, Problem, too_many
from evenflow.web.guard import BodyTooLarge, address_of, basic_of, bearer_of, is_same_origin, read_body
from evenflow.web.site import Site

log = logging.getLogger("evenflow.web")

WHOLE = "This is about the whole cluster, and you may see the jobs of your own tenants alone."


@dataclass(frozen=True, slots=True)
class Door:
    """One route. `needs` is None only for what everybody may see: the login page, health, static files."""

    method: str
    path: str
    kind: Kind
    needs: Permission | None
    handle: Callable[[Call], Response]
    summary: str = ""
    answers: Any = None
    """The shape of an API's answer, for its description."""
    takes: Any = None
    """The shape of the body it takes."""
    for_tenants: bool = False
    """Whether what is behind it can be held to the jobs of some groups. Those who are held to them pass no other door."""


def endpoint(site: Site, door: Door) -> Callable[[Request], Any]:
    """The door as Starlette calls it."""

    async def enter(request: Request) -> Response:
        try:
            who, session = await admitted(site, request, door)
            body = await _body(site, request, door, session) if door.method == "POST" else b""
            if door.method == "POST" and door.needs is not None and (wait_s := site.writes.take(who.name)):
                raise too_many(wait_s, "changes")
            call = Call(site, request, who, session, body)
            answer = await run_in_threadpool(_handled, door, call)
        except Problem as problem:
            return refusal(site, request, door.kind, problem)
        return answer

    return enter


def _handled(door: Door, call: Call) -> Response:
    try:
        if door.needs is not None:  # what everybody may see needs no database
            call.site.make_ready()
        with reads_within(call.site.read_s):
            return door.handle(call)
    except Problem:
        raise
    except StoreTooSlow as error:
        log.warning("%s %s: %s", door.method, door.path, error)
        raise Problem(
            503,
            f"The database took longer than {call.site.read_s:g} s, so this look was given up; nothing is wrong with "
            "the jobs. Try again in a moment, or ask for less: a filter, a smaller limit.",
        ) from error
    except StoreUnavailable as error:
        log.warning("the database is away: %s", error)
        raise Problem(
            503, "The database is away. The workers wait for it too; try again in a moment."
        ) from error
    except Forbidden as error:
        raise Problem(403, WHOLE) from error
    except Refused as error:
        raise Problem(409, str(error)) from error
    except EvenflowError as error:
        # What is named and not there is a LookupError of ours; a KeyError would be a mistake of ours, and a 500.
        raise Problem(404 if isinstance(error, LookupError) else 422, str(error)) from error
    except (msgspec.ValidationError, msgspec.DecodeError) as error:
        raise Problem(422, str(error)) from error


async def admitted(site: Site, request: Request, door: Door) -> tuple[Principal, str]:
    """Whose request it is, if it may pass this door; and what its forms are bound to."""
    who, session = await _authenticated(site, request, door)
    if door.needs is None:
        return who or Principal("nobody", Role.PRODUCER), session
    if who is None:
        raise _stranger(site, request, door)
    if not who.may(door.needs):
        raise Problem(403, f"The role {who.role} may not do this: it needs the permission {door.needs}.")
    if who.tenants is not None and not door.for_tenants:
        raise Problem(403, WHOLE)
    return who, session


async def _authenticated(site: Site, request: Request, door: Door) -> tuple[Principal | None, str]:
    if site.hook is not None:
        answer = site.hook(request)
        who = await answer if inspect.isawaitable(answer) else answer
        if who is not None and not isinstance(who, Principal):
            raise TypeError(f"the auth hook returned {type(who).__name__}: expected a Principal or None")
        return who, "anonymous" if who is None else f"hook:{who.name}"
    known = site.credentials
    if known is None:
        return LOCAL, "local"
    address = address_of(request)
    if (token := bearer_of(request.headers)) is not None:
        return _counted(site, address, lambda: known.token(token)), "bearer"
    if (pair := basic_of(request.headers)) is not None:
        who = _counted(site, address, lambda: known.login(*pair))
        return who, f"basic:{pair[0]}"
    if door.kind is Kind.API:  # no cookies there: nothing that a browser adds by itself may act
        return None, "anonymous"
    session = site.seal.session_of(site.cookie(request))
    if session is None:
        return None, "anonymous"
    return known.named(session.name, session.role), session.nonce


def _counted(site: Site, address: str, ask: Callable[[], Principal | None]) -> Principal | None:
    """Wrong secrets count against their address, on every way in."""
    if wait_s := site.tries.wait_s(address):
        raise too_many(wait_s, "wrong passwords")
    who = ask()
    if who is None:
        site.tries.failed(address)
    return who


def _stranger(site: Site, request: Request, door: Door) -> Problem:
    if door.kind is Kind.PAGE and site.credentials is not None and site.credentials.logins:
        target = str(request.scope.get("root_path", "")).rstrip("/")
        back = request.url.path.removeprefix(target) + (f"?{request.url.query}" if request.url.query else "")
        return Login(f"{target}/login?back={quote(back)}")
    headers = {"www-authenticate": 'Basic realm="Evenflow", charset="UTF-8", Bearer realm="Evenflow"'}
    return Problem(401, "This needs a login: send Authorization: Bearer TOKEN, or Basic.", headers=headers)


async def _body(site: Site, request: Request, door: Door, session: str) -> bytes:
    """The body of a request that may change something: from a page of ours, in the form of its door."""
    if not is_same_origin(request):
        raise Problem(403, "This came from a page of another site, so nothing was changed.")
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    wanted = "application/json" if door.kind is Kind.API else "application/x-www-form-urlencoded"
    if kind != wanted:
        raise Problem(415, f"Expected a body of type {wanted}, got {kind[:50]!r}.")
    try:
        body = await read_body(request)
    except BodyTooLarge:
        raise Problem(413, "The body is larger than 1 MB.") from None
    if door.kind is Kind.FORM and not site.seal.is_form_token(session, _form_token(body)):
        raise Problem(403, "The form is too old: load the page again, then repeat.")
    return body


def _form_token(body: bytes) -> str:
    try:
        fields = dict(parse_qsl(body.decode(), max_num_fields=MOST_FIELDS))
    except ValueError:
        return ""
    return fields.get("form_token", "")
