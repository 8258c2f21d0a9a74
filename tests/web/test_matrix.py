"""Every role at every door: who may not is refused, on pages, forms, streams and the API alike. Generated from the doors."""

import pytest
from starlette.testclient import TestClient

from evenflow import Unique
from evenflow.web.access import Permission, Role
from evenflow.web.api import API
from evenflow.web.asgi import LIVE
from evenflow.web.calls import Kind
from evenflow.web.doors import Door
from evenflow.web.pages import PAGES
from tests.web.shop import AUTH, ROLES, Shop, bearer, form_token

DOORS = [door for door in (*PAGES, *API) if door.needs is not None]
MAY = {
    Role.VIEWER: {Permission.LOOK},
    Role.READER: {Permission.LOOK, Permission.READ},
    Role.OPERATOR: {Permission.LOOK, Permission.READ, Permission.ACT},
    Role.ADMIN: set(Permission),
    Role.PRODUCER: {Permission.ENQUEUE},
}
PUBLIC = {("GET", "/login"), ("POST", "/login"), ("POST", "/logout"), ("GET", "/static/{name}")}


def test_what_roles_may_do_is_what_the_manual_says() -> None:
    assert {role: set(role.permissions) for role in Role} == MAY


def test_nothing_else_is_open_to_everybody() -> None:
    assert {(door.method, door.path) for door in (*PAGES, *API) if door.needs is None} == PUBLIC


@pytest.fixture(scope="module")
def clients(sqlite_shop: Shop) -> dict[str, TestClient]:
    return {
        role: sqlite_shop.client(auth=AUTH, enqueue=True, headers={} if role == "nobody" else bearer(role))
        for role in (*ROLES, "nobody")
    }


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.method} {door.path}")
@pytest.mark.parametrize("role", [*ROLES, "nobody"])
def test_a_role_passes_the_doors_that_are_its_own(
    clients: dict[str, TestClient], sqlite_shop: Shop, role: str, door: Door
) -> None:
    status = knock(clients[role], sqlite_shop, door)
    if role == "nobody":
        assert status == (303 if door.kind is Kind.PAGE else 401)
    elif door.needs in MAY[Role(role)]:
        assert status in (200, 201, 303)
    else:
        assert status == 403


@pytest.mark.parametrize("role", ["producer", "nobody"])
def test_the_stream_asks_the_same_question(clients: dict[str, TestClient], role: str) -> None:
    assert clients[role].get(LIVE.path).status_code in (401, 403, 303)


def test_a_viewer_sees_that_a_job_failed_and_not_what_it_carried(
    clients: dict[str, TestClient], sqlite_shop: Shop
) -> None:
    detail = clients["viewer"].get(f"/api/jobs/{sqlite_shop.failed.id}").json()
    assert detail["errors"][0]["code"] == "UNHANDLED_ERROR"
    assert (detail["errors"][0]["message"], detail["errors"][0]["traceback"]) == (None, None)
    assert (detail["arguments"], detail["logs"], detail["result"]) == (None, None, None)
    for path in (
        f"/jobs/{sqlite_shop.failed.id}",
        "/failed",
        "/jobs",
        "/",
        f"/workflows/{sqlite_shop.run.id}",
    ):
        page = clients["viewer"].get(path)
        assert page.status_code == 200
        assert "no such card" not in page.text
        assert "no such card" not in clients["viewer"].get(f"/api{path if path != '/' else '/overview'}").text
        assert '<form class="act"' not in page.text
    assert "no such card" in clients["reader"].get(f"/jobs/{sqlite_shop.failed.id}").text


def test_a_unique_key_is_for_readers_as_the_arguments_are_that_it_is_made_of(
    clients: dict[str, TestClient], sqlite_shop: Shop
) -> None:
    job = sqlite_shop.quick.using(unique=Unique(key=lambda _: "of-ann"), queue="free").enqueue(1)
    seen = {
        role: clients[role].get(f"/api/jobs/{job.id}").json()["unique_key"] for role in ("viewer", "reader")
    }
    assert seen["viewer"] is None
    assert "of-ann" in seen["reader"]
    sqlite_shop.app.cancel(job.id)


def test_a_reader_sees_arguments_with_secrets_hidden(
    clients: dict[str, TestClient], sqlite_shop: Shop
) -> None:
    found = clients["reader"].get(f"/api/jobs/{sqlite_shop.done.id}").json()
    assert found["arguments"] == {"a": 1, "b": 2, "tenant": "bob", "api_token": "•••"}
    assert found["result"] == 3


def knock(client: TestClient, shop: Shop, door: Door) -> int:
    """A sensible request for this door."""
    path = door.path.replace("{act}", "resume-queue")
    path = path.replace("{id}", shop.run.id if "workflows" in path else shop.failed.id)
    if door.path == "/bulk":
        path += "?act=retry&state=failed"
    if door.path == "/api/groups":
        path += "?queue=docs"
    if door.method == "GET":
        return client.get(path).status_code
    if door.kind is Kind.FORM:
        token = form_token(client.get("/queues").text)
        return client.post(path, data={"form_token": token, "queue": "docs", "back": "/"}).status_code
    body = {"task": "shop.quick", "args": [1]} if door.path == "/api/jobs" else {"queue": "docs"}
    return client.post(path, json=body).status_code
