"""The dashboard as one ASGI application over one app, mountable under any path. `app.web()` and `evenflow web` make it."""

import asyncio
from collections.abc import Iterable, Sequence
from typing import Any, cast

from evenflow import Evenflow
from evenflow.errors import ConfigError, DriverMissing
from evenflow.metrics import CONTENT_TYPE
from evenflow.store.open import AnyEngine
from evenflow.store.reads import now_us

try:
    from sse_starlette.sse import EventSourceResponse
    from starlette.applications import Starlette
    from starlette.exceptions import HTTPException
    from starlette.middleware import Middleware
    from starlette.requests import Request
    from starlette.responses import PlainTextResponse, Response
    from starlette.routing import Match, Route
except ImportError as missing:
    raise DriverMissing(f"the dashboard needs {missing.name}", extra="web") from missing

from evenflow.web.access import Basic, Hook, Permission, Token
from evenflow.web.answers import answer, refusal
from evenflow.web.api import API
from evenflow.web.calls import Call, Kind, Problem
from evenflow.web.doors import Door, admitted, endpoint
from evenflow.web.guard import Guard
from evenflow.web.openapi import description
from evenflow.web.pages import PAGES
from evenflow.web.rendering import environment
from evenflow.web.site import WRITES_PER_MINUTE, Site
from evenflow.web.texts import SECRET_NAMES

LEAST_KEY = 16
STREAM_ENDS_S = 1.0


def make_site(
    app: Evenflow, engine: AnyEngine, *, auth: Sequence[Basic | Token] | Hook | None = None, hosts: Iterable[str] = (),
    redact: Iterable[str] = SECRET_NAMES, enqueue: bool = False, secret: str | None = None,
    writes_per_minute: int | None = WRITES_PER_MINUTE,
) -> Starlette:  # fmt: skip
    """The ASGI application. `auth` None answers only to this machine; `hosts` are the names it is reached by."""
    if isinstance(hosts, str) or isinstance(redact, str):
        raise ConfigError("hosts and redact: expected lists of names; write ['jobs.example.com']")
    if secret is not None and len(secret) < LEAST_KEY:
        raise ConfigError(
            f"secret: expected at least {LEAST_KEY} characters, got {len(secret)}; draw it at random"
        )
    if writes_per_minute is not None and writes_per_minute < 1:
        raise ConfigError(
            f"writes_per_minute: expected 1 or more, or None for no limit, got {writes_per_minute}"
        )
    site = Site(
        app, engine, auth=auth, redact=redact, enqueue=enqueue, secret=secret, writes_per_minute=writes_per_minute
    )  # fmt: skip
    made = Starlette(
        routes=[*_routes(site), *(_route(site, door) for door in (*PAGES, *API))],
        middleware=[Middleware(Guard, hosts=tuple(hosts), is_open=site.is_open)],
        exception_handlers={HTTPException: _unknown(site), Exception: _broken},
    )
    made.state.site = site
    environment()  # a mistake in a template is found at the start
    return made


LIVE = Door("GET", "/live", Kind.PAGE, Permission.LOOK, lambda call: Response(), for_tenants=True)
HEALTH = Door("GET", "/healthz", Kind.API, None, lambda call: PlainTextResponse("ok\n"))


def _routes(site: Site) -> list[Route]:
    async def live(request: Request) -> Response:
        """Numbers as they change. The same check as every page; nothing but headline numbers is sent, and to those who may
        not see the whole cluster only that it is time to look again."""
        try:
            who, _ = await admitted(site, request, LIVE)
        except Problem as problem:
            return refusal(site, request, Kind.API, problem)
        if site.ticker.is_full:
            return refusal(
                site, request, Kind.API, Problem(503, "Too many pages are open; this one asks now and then.")
            )
        # Set when the server stops: the stream then ends as streams do, and is not cut.
        ending = asyncio.Event()
        events = site.ticker.events(is_bare=who.tenants is not None, ending=ending)
        return EventSourceResponse(
            events, ping=15, shutdown_event=cast(Any, ending), shutdown_grace_period=STREAM_ENDS_S
        )

    def ready(call: Call) -> Response:
        now_us(call.site.engine)
        return PlainTextResponse("ready\n")

    def metrics(call: Call) -> Response:
        return Response(site.scrape(), headers={"content-type": CONTENT_TYPE})

    def describe(call: Call) -> Response:
        return answer(description(API, call.root))

    checks = (
        HEALTH,
        Door("GET", "/readyz", Kind.API, None, ready),
        Door("GET", "/metrics", Kind.API, Permission.LOOK, metrics),
        Door("GET", "/api/openapi.json", Kind.API, Permission.LOOK, describe, for_tenants=True),
    )
    return [Route("/live", live), *(_route(site, door) for door in checks)]


def _route(site: Site, door: Door) -> Route:
    return Route(door.path, endpoint(site, door), methods=[door.method])


def _unknown(site: Site) -> Any:
    async def handle(request: Request, error: Any) -> Response:
        path = request.url.path.removeprefix(str(request.scope.get("root_path", "")).rstrip("/"))
        kind = Kind.API if path.startswith("/api") else Kind.PAGE
        text = {404: "There is no such page.", 405: "This address does not take that method."}
        message = text.get(error.status_code, str(error.detail))
        headers = {"allow": _methods(request)} if error.status_code == 405 else error.headers
        return refusal(site, request, kind, Problem(error.status_code, message, headers=headers))

    return handle


def _methods(request: Request) -> str:
    """What an address takes: several doors may share it, and Starlette tells the methods of the first."""
    found: set[str] = set()
    for route in request.app.routes:
        if route.matches(request.scope)[0] is not Match.NONE:
            found |= route.methods
    return ", ".join(sorted(found))


async def _broken(request: Request, error: Exception) -> Response:
    return PlainTextResponse("Something broke here; the log of the server says what.\n", 500)
