"""One request that was let in, and how one that was not is told. What comes from outside is checked here, once."""

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from enum import StrEnum
from http import HTTPStatus
from typing import Any
from urllib.parse import parse_qsl

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from evenflow import State
from evenflow.ids import id_number
from evenflow.store.reads import Filter
from evenflow.web.access import Principal
from evenflow.web.acts import Scene
from evenflow.web.guard import address_of
from evenflow.web.looks import Looker
from evenflow.web.site import Site

LONGEST_TEXT = 1000
MOST_FIELDS = 50
PAGE, MOST_PER_PAGE = 50, 200


class Kind(StrEnum):
    """What comes through a door: it decides how refusals are told and how a change is protected."""

    PAGE = "page"
    FORM = "form"
    API = "api"


class Problem(Exception):
    """A request that is answered with an error."""

    def __init__(self, status: int, message: str, *, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(message)
        self.status, self.message, self.headers = status, message, headers


class Login(Problem):
    """Somebody has to log in first."""

    def __init__(self, address: str) -> None:
        super().__init__(303, "Please log in.")
        self.address = address

    def response(self) -> Response:
        return RedirectResponse(self.address, 303)


@dataclass(frozen=True, slots=True)
class Call:
    """One request that was let in."""

    site: Site
    request: Request
    who: Principal
    session: str
    body: bytes = b""

    @property
    def root(self) -> str:
        """The path under which the site is mounted."""
        return str(self.request.scope.get("root_path", "")).rstrip("/")

    @property
    def query(self) -> dict[str, str]:
        """Parameters of the address, each a text that a database can hold."""
        return {name: checked_text(name, value) for name, value in self.request.query_params.items() if value}

    def look(self) -> Looker:
        """What this principal may see."""
        return Looker(self.site.app, self.site.engine, self.who, self.site.redaction)

    def scene(self) -> Scene:
        """Where this principal acts."""
        return Scene(self.site.app, self.site.engine, self.who, address_of(self.request))

    def path(self, name: str) -> str:
        """A part of the path."""
        return checked_text(name, str(self.request.path_params[name]))

    def form(self) -> dict[str, str]:
        """The fields of a form; what is empty is there as an empty text."""
        try:
            fields = parse_qsl(
                self.body.decode(), keep_blank_values=True, max_num_fields=MOST_FIELDS, errors="strict"
            )
        except ValueError:
            raise Problem(400, "The form cannot be read.") from None
        return {name: checked_text(name, value) for name, value in fields}

    def filter(self) -> Filter:
        """Which jobs the address asks for."""
        query = self.query
        state = query.get("state")
        if state is not None and state not in list(State):
            raise Problem(422, f"state: expected one of {', '.join(State)}, got {state[:50]!r}.")
        return Filter(
            None if state is None else State(state), query.get("queue"), query.get("task"), query.get("group")
        )

    def cursor(self, name: str = "before") -> int | None:
        """Where a page of a list begins: the last id of the page before it."""
        said = self.query.get(name)
        if said is None:
            return None
        try:
            return id_number(said)
        except ValueError:
            raise Problem(422, f"{name}: expected the cursor of a page, got {said[:50]!r}.") from None

    def top(self, usual: int = PAGE) -> int:
        """How many rows of a page were asked for."""
        said = self.query.get("limit", str(usual))
        if not (said.isascii() and said.isdecimal() and len(said) < 5 and 1 <= int(said) <= MOST_PER_PAGE):
            raise Problem(422, f"limit: expected a number from 1 to {MOST_PER_PAGE}, got {said[:50]!r}.")
        return int(said)


def too_many(wait_s: float, what: str) -> Problem:
    """Too many tries or changes: the next has to wait."""
    seconds = int(wait_s) + 1
    unit = "second" if seconds == 1 else "seconds"
    return Problem(
        429, f"Too many {what}: try again in {seconds} {unit}.", headers={"retry-after": str(seconds)}
    )


def checked_text(name: str, value: str, longest: int | None = LONGEST_TEXT) -> str:
    """A text that both databases can hold, of a sane length."""
    if longest is not None and len(value) > longest:
        raise Problem(422, f"{name[:50]}: expected at most {longest} characters, got {len(value)}.")
    if "\0" in value or any("\ud800" <= letter <= "\udfff" for letter in value):
        raise Problem(422, f"{name[:50]}: expected text without control characters.")
    return value


def checked_body(value: Any, long: Collection[str] = ()) -> None:
    """Every text of a decoded body, `checked_text`; those of the fields `long` as long as the body may be."""
    for name, each in value.items() if isinstance(value, dict) else [("body", value)]:
        checked_text("body", name)
        _check_tree(name, each, None if name in long else LONGEST_TEXT, 1)


def _check_tree(name: str, value: Any, longest: int | None, depth: int) -> None:
    if depth > 64:
        raise Problem(422, "The body is nested more than 64 levels deep.")
    if isinstance(value, str):
        checked_text(name, value, longest)
    elif isinstance(value, dict):
        for key, each in value.items():
            checked_text(name, key)
            _check_tree(name, each, longest, depth + 1)
    elif isinstance(value, list):
        for each in value:
            _check_tree(name, each, longest, depth + 1)


def phrase(status: int) -> str:
    """What a status is called."""
    return HTTPStatus(status).phrase
