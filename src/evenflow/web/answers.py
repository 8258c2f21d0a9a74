"""Answers that are no pages: values as JSON, and refusals, as a page or as JSON by what was asked for."""

from typing import Any

import msgspec
from starlette.requests import Request
from starlette.responses import Response

from evenflow.web.access import Principal, Role
from evenflow.web.calls import Call, Kind, Login, Problem, phrase
from evenflow.web.rendering import rendered
from evenflow.web.shapes import Shape
from evenflow.web.site import Site


class Trouble(Shape, frozen=True, kw_only=True):
    """Why a request was refused."""

    status: int
    message: str


def answer(value: Any, status: int = 200) -> Response:
    """A value as JSON."""
    return Response(msgspec.json.encode(value, enc_hook=str), status, media_type="application/json")


def refusal(site: Site, request: Request, kind: Kind, problem: Problem) -> Response:
    """A refusal, as a page or as JSON."""
    if isinstance(problem, Login):
        return problem.response()
    if kind is Kind.API:
        response = answer(Trouble(status=problem.status, message=problem.message), problem.status)
    else:
        nobody = Call(site, request, Principal("nobody", Role.PRODUCER), "anonymous")
        response = rendered(
            nobody, "error.html", status=problem.status, code=problem.status, phrase=phrase(problem.status),
            message=problem.message,
        )  # fmt: skip
    response.headers.update(problem.headers or {})
    return response
