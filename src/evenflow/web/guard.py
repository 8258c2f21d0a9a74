"""Who may come in, and with what: hosts, addresses, origins, bodies, and the headers of every answer.

Everything here says no by default. What a role may do is asked in `doors`, once for every route.
"""

import base64
from collections.abc import Iterable, Mapping
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from evenflow.web.exposure import is_loopback

MOST_BODY = 1_000_000
LOOPBACK_NAMES = ("localhost", "127.0.0.1", "::1")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; font-src 'none'; "
    "form-action 'self'; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
HEADERS = {
    "content-security-policy": POLICY,
    "x-content-type-options": "nosniff",
    "x-frame-options": "DENY",
    # Not `no-referrer`: browsers then send `Origin: null` with our own forms.
    "referrer-policy": "same-origin",
    "cross-origin-opener-policy": "same-origin",
    "cross-origin-resource-policy": "same-origin",
    "permissions-policy": "camera=(), geolocation=(), microphone=(), payment=()",
}
FORWARDED = ("forwarded", "x-forwarded-for", "x-forwarded-host", "x-real-ip")


class BodyTooLarge(Exception):
    """More than `MOST_BODY` bytes were sent."""


class Guard:
    """ASGI middleware: refuses foreign hosts, and strangers where nobody has to log in; marks every answer."""

    def __init__(self, app: ASGIApp, hosts: Iterable[str], *, is_open: bool) -> None:
        self._app = app
        self._hosts = frozenset(map(_host_name, hosts)) | set(LOOPBACK_NAMES)
        self._is_open = is_open

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            if scope["type"] == "websocket":
                await send({"type": "websocket.close", "code": 1008})
                return
            await self._app(scope, receive, send)
            return

        async def marked(message: Message) -> None:
            if message["type"] == "http.response.start":
                _mark(MutableHeaders(scope=message), scope)
            await send(message)

        refusal = self._refusal(scope)
        if refusal is not None:
            await refusal(scope, receive, marked)
            return
        await self._app(scope, receive, marked)

    def _refusal(self, scope: Scope) -> PlainTextResponse | None:
        headers = Headers(scope=scope)
        host = _host_name(headers.get("host", ""))
        if "*" not in self._hosts and host not in self._hosts:
            text = f"This dashboard does not answer to the name {host[:100]!r}: add it with hosts=[…] or --allow-host."
            return PlainTextResponse(text, 400)
        if self._is_open and not _is_local(scope, headers):
            text = "This dashboard has no login, so it answers only to this machine: configure auth (see docs/dashboard.md)."
            return PlainTextResponse(text, 403)
        return None


def is_same_origin(request: Request) -> bool:
    """Whether a request that changes something comes from a page of ours, or from no page at all.

    Browsers say where a request comes from in two headers, which pages cannot forge; programs send neither.
    """
    site = request.headers.get("sec-fetch-site")
    if site is not None and site not in ("same-origin", "none"):
        return False
    origin = request.headers.get("origin")
    if origin is None:
        return True
    return urlsplit(origin).netloc.lower() == request.headers.get("host", "").lower()


async def read_body(request: Request) -> bytes:
    """The whole body, or BodyTooLarge; never more than the limit in memory."""
    announced = request.headers.get("content-length", "0")
    if not announced.isdecimal() or int(announced) > MOST_BODY:
        raise BodyTooLarge
    pieces, length = [], 0
    async for piece in request.stream():
        length += len(piece)
        if length > MOST_BODY:
            raise BodyTooLarge
        pieces.append(piece)
    return b"".join(pieces)


def basic_of(headers: Mapping[str, str]) -> tuple[str, str] | None:
    """Name and password of HTTP Basic, or None."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        name, colon, password = base64.b64decode(value, validate=True).decode().partition(":")
    except ValueError:
        return None
    return (name, password) if colon else None


def bearer_of(headers: Mapping[str, str]) -> str | None:
    """The token of `Authorization: Bearer`, or None."""
    scheme, _, value = headers.get("authorization", "").partition(" ")
    return value.strip() if scheme.lower() == "bearer" else None


def address_of(request: Request) -> str:
    """Where a request comes from, as the server saw it."""
    return request.client.host if request.client else "local socket"


def _is_local(scope: Scope, headers: Headers) -> bool:
    # A proxy on this machine makes the whole world look local; it leaves its marks.
    if any(name in headers for name in FORWARDED):
        return False
    client = scope.get("client")
    return client is None or is_loopback(client[0])


def _host_name(host: str) -> str:
    name = host.strip().lower()
    if name.startswith("["):
        return name[1:].partition("]")[0]
    return name if name.count(":") > 1 else name.partition(":")[0]


def _mark(headers: MutableHeaders, scope: Scope) -> None:
    for name, value in HEADERS.items():
        headers[name] = value
    if "cache-control" not in headers:
        headers["cache-control"] = "no-store"
    if scope.get("scheme") == "https":
        headers["strict-transport-security"] = "max-age=31536000"
