"""The description of the API as OpenAPI 3.1, made from the doors and the shapes themselves."""

from collections.abc import Sequence
from typing import Any

import msgspec

from evenflow import State, __version__
from evenflow.store.runs import RUN_STATES
from evenflow.web.acts import ACTS
from evenflow.web.answers import Trouble
from evenflow.web.calls import MOST_PER_PAGE, PAGE
from evenflow.web.doors import Door

CURSORS = {
    "/api/jobs": "before",
    "/api/workflows": "before",
    "/api/audit": "before",
    "/api/workflows/{id}": "after",
}
_REFERENCE = "#/components/schemas/{name}"
_REFUSALS = {
    400: "Not understood",
    401: "Nobody is logged in",
    403: "Not allowed",
    422: "A value does not fit",
    503: "The database is away, or took too long",
}
_POSTED = {
    404: "Not there",
    409: "Not what was expected",
    413: "Too large",
    415: "Not JSON",
    429: "Too many changes",
}


def description(doors: Sequence[Door], root: str) -> dict[str, Any]:
    """The whole document."""
    kinds = [door.answers for door in doors if door.answers is not None]
    kinds += [door.takes for door in doors if door.takes is not None]
    kinds += [*(act.body for act in ACTS.values()), Trouble]
    schemas, components = msgspec.json.schema_components(kinds, ref_template=_REFERENCE)
    schema_of = {id(kind): schema for kind, schema in zip(kinds, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for door in doors:
        if door.path == "/api/acts/{act}":
            for act in ACTS.values():
                entry = _operation(door, schema_of, f"Act: {act.summary}", act.name)
                entry["requestBody"] = _body(schema_of[id(act.body)])
                paths[f"/api/acts/{act.name}"] = {"post": entry}
            continue
        entry = _operation(door, schema_of, door.summary, door.path.removeprefix("/api/"))
        if door.takes is not None:
            entry["requestBody"] = _body(schema_of[id(door.takes)])
        paths.setdefault(door.path, {})[door.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {"title": "Evenflow", "version": __version__, "description": "Look at jobs and steer them."},
        "servers": [{"url": root or "/"}],
        "security": [{"bearer": []}, {"basic": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {
                "bearer": {"type": "http", "scheme": "bearer"},
                "basic": {"type": "http", "scheme": "basic"},
            },
        },
    }


def _operation(door: Door, schemas: dict[int, Any], summary: str, name: str) -> dict[str, Any]:
    refusals = {**_REFUSALS, **(_POSTED if door.method == "POST" else {})}
    if "{id}" in door.path:
        refusals[404] = "Not there"
    answers: dict[str, Any] = {"200": _content("Done", schemas[id(door.answers)])}
    if door.takes is not None:
        answers["201"] = _content("Made", schemas[id(door.answers)])
    answers |= {
        str(status): _content(text, {"$ref": _REFERENCE.format(name="Trouble")})
        for status, text in refusals.items()
    }
    return {
        "operationId": f"{door.method.lower()}-{name}".replace("/", "-").replace("{", "").replace("}", ""),
        "summary": summary,
        "description": f"Needs the permission `{door.needs}`.",
        "parameters": _parameters(door),
        "responses": answers,
    }


def _parameters(door: Door) -> list[dict[str, Any]]:
    text = {"type": "string", "maxLength": 1000}
    found = []
    if "{id}" in door.path:
        found.append(
            _parameter("id", "path", {"type": "string", "pattern": "^[0-7][0-9a-hjkmnp-tv-z]{12}$"}, True)
        )
    if door.path == "/api/jobs" and door.method == "GET":
        found.append(_parameter("state", "query", {"enum": [state.value for state in State]}))
        found += [_parameter(name, "query", text) for name in ("queue", "task", "group")]
    if door.path == "/api/workflows":
        found.append(_parameter("state", "query", {"enum": list(RUN_STATES)}))
        found.append(_parameter("workflow", "query", text))
    if door.path == "/api/groups":
        found.append(_parameter("queue", "query", {**text, "minLength": 1}, True))
    if door.method == "GET" and door.path in CURSORS:
        cursor = {"type": "integer", "minimum": 0} if door.path == "/api/audit" else text
        found.append(_parameter(CURSORS[door.path], "query", cursor))
        limit = {"type": "integer", "minimum": 1, "maximum": MOST_PER_PAGE, "default": PAGE}
        found.append(_parameter("limit", "query", limit))
    return found


def _parameter(name: str, place: str, schema: dict[str, Any], is_required: bool = False) -> dict[str, Any]:
    return {"name": name, "in": place, "required": is_required, "schema": schema}


def _body(schema: Any) -> dict[str, Any]:
    return {"required": True, "content": {"application/json": {"schema": schema}}}


def _content(text: str, schema: Any) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": schema}}}
