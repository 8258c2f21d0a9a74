"""Pages from templates: what every page shows around its own content. Every stored text is escaped, always."""

import base64
import hashlib
from datetime import UTC, datetime
from functools import cache
from importlib.resources import files
from typing import Any
from urllib.parse import urlencode

import jinja2
import msgspec
from starlette.responses import HTMLResponse, Response

from evenflow import State, __version__
from evenflow.clock import from_us
from evenflow.web.access import Permission
from evenflow.web.calls import Call
from evenflow.web.texts import machine_moment, moment, number, pretty, size, span

MENU = (
    ("Overview", "/"),
    ("Jobs", "/jobs"),
    ("Failed", "/failed"),
    ("Queues", "/queues"),
    ("Groups", "/groups"),
    ("Limits", "/limits"),
    ("Workers", "/workers"),
    ("Schedules", "/schedules"),
    ("Workflows", "/workflows"),
    ("Database", "/database"),
)
TENANTS_MENU = (("Jobs", "/jobs"), ("Failed", "/failed"))
ASSETS = {"evenflow.css": "text/css", "evenflow.js": "text/javascript", "icon.svg": "image/svg+xml"}
THEMES = ("light", "dark")
THEME_COOKIE, NOTICE_COOKIE = "evenflow_theme", "evenflow_notice"


class Notice(msgspec.Struct, frozen=True):
    """What came of the last act, shown once on the next page."""

    text: str
    is_good: bool = True


class Asset(msgspec.Struct, frozen=True):
    """A file of ours: its bytes, and the hash by which a browser checks them."""

    body: bytes
    media_type: str
    integrity: str
    version: str


@cache
def assets() -> dict[str, Asset]:
    """Everything that pages load; nothing comes from elsewhere."""
    found = {}
    for name, media_type in ASSETS.items():
        body = files("evenflow.web").joinpath("static", name).read_bytes()
        digest = hashlib.sha384(body).digest()
        found[name] = Asset(
            body, media_type, f"sha384-{base64.b64encode(digest).decode()}", digest.hex()[:12]
        )
    return found


@cache
def environment() -> jinja2.Environment:
    """Templates of ours alone, escaping everywhere, with names that must exist."""
    made = jinja2.Environment(
        loader=jinja2.PackageLoader("evenflow.web", "templates"), autoescape=True, undefined=jinja2.StrictUndefined,
        trim_blocks=True, lstrip_blocks=True,
    )  # fmt: skip
    made.filters |= {
        "span": span, "number": number, "size": size, "moment": moment, "machine_moment": machine_moment, "pretty": pretty,
        "seconds": lambda value: span(None if value is None else value * 1e6),
        "percent": lambda value: f"{value * 100:.0f} %",
    }  # fmt: skip
    made.globals |= {
        "version": __version__,
        "states": [state.value for state in State],
        "assets": assets(),
    }
    return made


def rendered(call: Call, template: str, *, status: int = 200, **content: Any) -> Response:
    """A page, with what is around it."""
    request = call.request
    now = from_us(content.pop("now_us")) if "now_us" in content else datetime.now(UTC)
    notice = call.site.seal.opened("notice", request.cookies.get(NOTICE_COOKIE, ""))
    theme = request.cookies.get(THEME_COOKIE, "")
    path = request.url.path.removeprefix(call.root) or "/"

    def url(path: str, **query: Any) -> str:
        kept = {name: value for name, value in query.items() if value not in (None, "")}
        return call.root + path + (f"?{urlencode(kept)}" if kept else "")

    def ago(at: datetime | None) -> str:
        if at is None:
            return "–"
        length_us = (now - at).total_seconds() * 1e6
        return f"{span(length_us)} ago" if length_us >= 0 else f"in {span(-length_us)}"

    response = HTMLResponse(
        environment().get_template(template).render(
            menu=MENU if call.who.tenants is None else TENANTS_MENU, url=url, ago=ago, now=now,
            root=call.root, path=path, who=call.who,
            may_look=call.who.may(Permission.LOOK), may_act=call.who.may(Permission.ACT), may_read=call.who.may(Permission.READ),
            may_audit=call.who.may(Permission.AUDIT), has_login=call.site.has_login,
            form_token=call.site.seal.form_token(call.session), here=here(call),
            theme=theme if theme in THEMES else "", query=call.request.query_params,
            notice=None if notice is None else msgspec.json.decode(notice, type=Notice), **content,
        ),
        status,
    )  # fmt: skip
    if notice is not None:
        response.delete_cookie(NOTICE_COOKIE, path=call.root or "/")
    return response


def here(call: Call) -> str:
    """This page, for forms that come back to it."""
    path = call.request.url.path.removeprefix(call.root) or "/"
    return path + (f"?{call.request.url.query}" if call.request.url.query else "")
