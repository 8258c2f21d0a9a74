"""Tenants: who is held to some groups sees and changes their jobs alone. Role by door by tenant, generated from the doors."""

import asyncio
import re

import pytest
from starlette.testclient import TestClient

from evenflow import ConfigError
from evenflow.web import Basic, Principal, Role, Token
from evenflow.web.access import read_specs
from evenflow.web.acts import ACTS
from evenflow.web.api import API
from evenflow.web.calls import Kind
from evenflow.web.doors import Door
from evenflow.web.live import Ticker
from evenflow.web.pages import PAGES
from tests.web.shop import Shop, form_token
from tests.web.test_live import PULSE
from tests.web.test_matrix import MAY

DOORS = [door for door in (*PAGES, *API) if door.needs is not None]
HELD = {
    ("GET", "/"), ("GET", "/jobs"), ("GET", "/jobs/{id}"), ("GET", "/failed"), ("GET", "/bulk"), ("POST", "/acts/{act}"),
    ("GET", "/api/jobs"), ("GET", "/api/jobs/{id}"), ("POST", "/api/acts/{act}"),
}  # fmt: skip
ROLES = ("viewer", "reader", "operator")
TENANTS = ("alice", "bob", "nobody")
AUTH = [
    Token(f"{role}-of-{tenant}", role, f"{role}-of-{tenant}", [tenant])
    for role in ROLES
    for tenant in TENANTS
]
MISSING = "0000000000001"
Clients = dict[tuple[str, str], TestClient]


@pytest.fixture(scope="module")
def clients(sqlite_shop: Shop) -> Clients:
    """Somebody of each role and tenant."""
    site = sqlite_shop.app.web(auth=AUTH, enqueue=True)
    return {
        (role, tenant): TestClient(
            site, base_url="http://localhost", follow_redirects=False,
            headers={"authorization": f"Bearer {role}-of-{tenant}"},
        )
        for role in ROLES for tenant in TENANTS
    }  # fmt: skip


def job_of(shop: Shop, tenant: str) -> str:
    """A job that waits, of this tenant, or one that is not there."""
    return next((job.id for job in shop.waiting if job.group == tenant), MISSING)


def test_doors_are_shut_for_tenants_unless_they_say_otherwise() -> None:
    assert {(door.method, door.path) for door in DOORS if door.for_tenants} == HELD
    assert {act.name for act in ACTS.values() if act.is_for_tenants} == {
        "retry-jobs", "cancel-jobs", "discard-jobs",
    }  # fmt: skip


@pytest.mark.parametrize("door", DOORS, ids=lambda door: f"{door.method} {door.path}")
@pytest.mark.parametrize("tenant", TENANTS)
@pytest.mark.parametrize("role", ROLES)
def test_a_role_of_a_tenant_at_a_door(
    clients: Clients, sqlite_shop: Shop, role: str, tenant: str, door: Door
) -> None:
    foreign = {job.id for job in sqlite_shop.waiting if job.group != tenant} | {sqlite_shop.failed.id}
    for target in ("alice", "bob"):
        status, text = knock(clients[role, tenant], door, job_of(sqlite_shop, target))
        if door.needs not in MAY[Role(role)] or (door.method, door.path) not in HELD:
            assert status == 403
        elif "{id}" in door.path:
            assert status == (200 if tenant == target else 404)
        else:
            assert status == (303 if door.path in ("/", "/acts/{act}") else 200)
        assert not foreign & set(re.findall(r"[0-9a-z]{13}", text))


def knock(client: TestClient, door: Door, job: str) -> tuple[int, str]:
    """A sensible request about this job; what came, without the job that was asked for."""
    path = door.path.replace("{act}", "retry-jobs").replace("{id}", job)
    path += {"/bulk": "?act=cancel&queue=docs", "/api/groups": "?queue=docs"}.get(door.path, "")
    if door.method == "GET":
        answer = client.get(path)
    elif door.kind is Kind.FORM:
        answer = client.post(path, data={"form_token": token_of(client), "ids": job})
    else:
        body = {"task": "shop.quick", "args": [1]} if door.path == "/api/jobs" else {"ids": [job]}
        answer = client.post(path, json=body)
    return answer.status_code, "" if f"/{job}" in path and answer.status_code == 404 else answer.text


def token_of(client: TestClient) -> str:
    """What forms would carry that a program of this site filled in."""
    token: str = client.app.state.site.seal.form_token("bearer")  # type: ignore[attr-defined]
    return token


@pytest.mark.parametrize("act", [name for name, act in ACTS.items() if not act.is_for_tenants])
def test_acts_on_the_whole_cluster_are_refused(clients: Clients, sqlite_shop: Shop, act: str) -> None:
    client = clients["operator", "bob"]
    body = {
        "queue": {"queue": "docs"}, "task": {"task": "shop.add"}, "breaker": {"breaker": "bank"}, "rate": {"rate": "default"},
        "schedule": {"key": "daily"}, "run": {"run": sqlite_shop.run.id},
        "limit": {"queue": "docs"},
    }[act.partition("-")[2]]  # fmt: skip
    assert client.post(f"/api/acts/{act}", json=body).status_code == 403
    form = {"form_token": token_of(client), **body}
    assert client.post(f"/acts/{act}", data=form).status_code == 403


def test_a_foreign_id_answers_like_one_that_is_not_there(clients: Clients, sqlite_shop: Shop) -> None:
    client, foreign = clients["operator", "alice"], job_of(sqlite_shop, "bob")
    client.cookies.clear()
    for path in ("/api/jobs/{id}", "/jobs/{id}"):
        seen, missing = (client.get(path.format(id=id)) for id in (foreign, MISSING))
        assert seen.status_code == missing.status_code == 404
        assert strip(seen.text, foreign) == strip(missing.text, MISSING)
    for act in ("retry-jobs", "cancel-jobs", "discard-jobs"):
        seen, missing = (client.post(f"/api/acts/{act}", json={"ids": [id]}) for id in (foreign, MISSING))
        assert (seen.status_code, seen.json()) == (missing.status_code, missing.json())
    assert sqlite_shop.app.job(foreign).state == "ready"


def strip(text: str, id: str) -> str:
    return re.sub(r'name="form_token" value="\w+"', "", text.replace(id, "ID"))


def test_lists_and_bulk_acts_keep_to_the_own_jobs(shop: Shop) -> None:
    jobs = {
        tenant: shop.add.using(queue="free").enqueue(1, tenant=tenant).id for tenant in ("ann", "bea", "cleo")
    }
    client = shop.client(
        auth=[Token("a-token-of-two", "operator", "two", ["ann", "bea"])],
        headers={"authorization": "Bearer a-token-of-two"},
    )
    assert {job["group"] for job in client.get("/api/jobs").json()["jobs"]} == {"ann", "bea"}
    assert client.get("/api/jobs?group=cleo").json()["jobs"] == []
    assert "Cancel 2 jobs?" in client.get("/bulk?act=cancel&queue=free").text
    refused = client.post("/api/acts/cancel-jobs", json={"queue": "free", "expect": 3})
    assert refused.status_code == 409
    done = client.post("/api/acts/cancel-jobs", json={"queue": "free", "expect": 2}).json()
    assert (done["changed"], done["before"]) == (2, {"ready": 2})
    states = {tenant: shop.app.job(id).state.value for tenant, id in jobs.items()}
    assert states == {"ann": "cancelled", "bea": "cancelled", "cleo": "ready"}
    shop.app.cancel(jobs["cleo"])


def test_why_names_no_job_of_others_and_does_not_count_them(clients: Clients, sqlite_shop: Shop) -> None:
    detail = clients["reader", "alice"].get(f"/api/jobs/{job_of(sqlite_shop, 'alice')}").json()
    reasons = {reason["rule"]: reason["text"] for reason in detail["why"]}
    assert reasons["turn"] == "it is full, or others come first"
    assert "no worker that is alive serves" in reasons["worker"]
    assert (detail["worker"], detail["run"]) == (None, None)


def test_pages_lead_only_where_somebody_of_a_tenant_may_go(clients: Clients) -> None:
    client = clients["viewer", "bob"]
    assert client.get("/").headers["location"] == "/jobs"
    menu = client.get("/failed").text.partition('aria-label="Pages">')[2].partition("</nav>")[0]
    assert re.findall(r'href="([^"]+)"', menu) == ["/jobs", "/failed"]


async def test_the_stream_tells_them_when_and_not_what() -> None:
    ticker = Ticker(lambda: PULSE, every_s=0.01)
    events = ticker.events(is_bare=True)
    assert await asyncio.wait_for(anext(events), 30) == {"event": "pulse", "data": "{}"}
    await events.aclose()


@pytest.mark.parametrize("path", ["/metrics", "/api/pulse", "/api/overview"])
def test_statistics_of_the_cluster_are_refused(clients: Clients, path: str) -> None:
    assert clients["operator", "bob"].get(path).status_code == 403


def test_tenants_are_told_to_credentials_and_hooks(sqlite_shop: Shop) -> None:
    assert read_specs(["token:0123456789:viewer@acme,globex", "basic:ann:a long secret:operator@acme"]) == [
        Token("0123456789", "viewer", tenants=["acme", "globex"]),
        Basic("ann", "a long secret", "operator", ["acme"]),
    ]
    client = sqlite_shop.client(auth=lambda request: Principal("ann", Role.VIEWER, ["alice"]))
    assert {job["group"] for job in client.get("/api/jobs").json()["jobs"]} == {"alice"}


@pytest.mark.parametrize("role", ["admin", "producer"])
def test_roles_that_are_about_the_whole_are_not_held_to_tenants(role: str) -> None:
    with pytest.raises(ConfigError, match="cannot be held to tenants"):
        Token("0123456789", role, tenants=["acme"])
    with pytest.raises(ConfigError, match="expected a list of groups"):
        Token("0123456789", "viewer", tenants="acme")


def test_a_login_of_a_tenant_keeps_to_it(sqlite_shop: Shop) -> None:
    client = sqlite_shop.client(auth=[Basic("ann", "a long secret", "viewer", ["alice"])])
    token = form_token(client.get("/login").text)
    client.post("/login", data={"form_token": token, "name": "ann", "password": "a long secret"})
    page = client.get("/jobs").text
    assert job_of(sqlite_shop, "alice") in page
    assert job_of(sqlite_shop, "bob") not in page
    assert client.get("/queues").status_code == 403
