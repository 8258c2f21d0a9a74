"""The pages: each shows what is there, on both engines, and says clearly what is not."""

import contextlib
import sqlite3
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from evenflow import Evenflow
from evenflow.ids import id_number
from evenflow.store.statements import Statement, Unit
from tests.store.test_engine import ENDLESS
from tests.web.shop import Shop, form_token

PAGES = {
    "/": "Last failures",
    "/jobs": "shop.add",
    "/failed": "no such card",
    "/queues": "Paused tasks",
    "/groups?queue=docs": "alice",
    "/limits": "bank",
    "/workers": "No worker is running",
    "/schedules": "At 06:00 every day",
    "/workflows": "report",
    "/database": "Size",
    "/audit": "Audit log",
    "/bulk?act=retry&state=failed": "Retry 2 jobs?",
}


@pytest.mark.parametrize(("path", "text"), PAGES.items())
def test_a_page_shows_what_is_there(client: TestClient, path: str, text: str) -> None:
    page = client.get(path)
    assert page.status_code == 200, page.text
    assert text in page.text
    assert page.headers["content-type"] == "text/html; charset=utf-8"


@pytest.mark.parametrize("path", [path for path in PAGES if path != "/bulk?act=retry&state=failed"])
def test_a_page_of_an_empty_database_says_so(path: str) -> None:
    with Evenflow("sqlite:///:memory:") as app:
        client = TestClient(app.web(), base_url="http://localhost", client=("127.0.0.1", 1))
        assert client.get(path).status_code == 200


def test_the_page_of_a_failed_job_shows_its_traceback_its_log_and_hides_nothing_but_secrets(
    client: TestClient, shop: Shop
) -> None:
    page = client.get(f"/jobs/{shop.failed.id}").text
    assert "Traceback (most recent call last)" in page
    assert "about to fail: no such card" in page
    assert "Retry" in page
    done = client.get(f"/jobs/{shop.done.id}").text
    assert "hush" not in done
    assert "•••" in done
    assert "Result" in done


def test_a_job_that_was_changed_in_the_store_is_shown_as_forged(tmp_path: Path) -> None:
    path = tmp_path / "signed.db"
    with Evenflow(f"sqlite:///{path}", signing_keys="a secret of 16 and more", require_signed=True) as app:
        pay = app.task(name="pay")(lambda amount: amount)
        forged, sound = pay.enqueue(5), pay.enqueue(6)
        with contextlib.closing(sqlite3.connect(path)) as connection, connection:
            connection.execute(
                "update evenflow_job set payload = ? where id = ?", ('[["<b>all"],{}]', id_number(forged.id))
            )
        app.run_worker(until_empty=True)
        client = TestClient(app.web(), base_url="http://localhost", client=("127.0.0.1", 1))
        failed, page = client.get("/failed?state=quarantined").text, client.get(f"/jobs/{forged.id}").text
        overview, told = client.get("/").text, client.get(f"/api/jobs/{forged.id}").json()
    assert forged.id in failed and "SIGNATURE_INVALID" in failed
    assert sound.id not in failed
    assert "SIGNATURE_INVALID" in page and "quarantined" in page
    assert "&lt;b&gt;all" in page and "<b>all" not in page
    assert forged.id in overview
    assert (told["job"]["state"], told["errors"][-1]["code"]) == ("quarantined", "SIGNATURE_INVALID")


def test_the_page_of_a_blocked_job_links_to_who_holds_its_key(client: TestClient, shop: Shop) -> None:
    page = client.get(f"/jobs/{shop.keyed[1].id}").text
    assert "Why it does not run" in page
    assert f'href="/jobs/{shop.keyed[0].id}"' in page


def test_the_page_of_a_run_draws_its_steps(client: TestClient, shop: Shop) -> None:
    page = client.get(f"/workflows/{shop.run.id}").text
    assert page.count('<g class="step is-') == 2
    assert '<path class="edge"' in page


def test_a_large_run_is_shown_page_by_page(client: TestClient, shop: Shop) -> None:
    flow = shop.app.workflow("large")
    first = [flow.step(shop.quick.using(queue="free"), 1, name=f"step-{number}") for number in range(5)]
    flow.step(shop.quick.using(queue="free"), 1, after=first, name="last")
    run = flow.start()
    seen: list[str] = []
    path: str | None = f"/api/workflows/{run.id}?limit=4"
    while path:
        page = client.get(path).json()
        assert page["size"] == {"jobs": 6, "is_more": False}
        seen += [step["name"] for step in page["steps"]]
        path = page["next"] and f"/api/workflows/{run.id}?limit=4&after={page['next']}"
    assert seen == [*(f"step-{number}" for number in range(5)), "last"]
    assert page["steps"][-1]["parent_count"] == 5
    assert page["steps"][-1]["parents"] == [f"step-{number}" for number in range(5)]
    start = client.get(f"/workflows/{run.id}?limit=4").text
    assert start.count('<g class="step is-') == 4
    assert "The graph shows 4 of 6 steps" in start
    address = start.partition('rel="next" href="')[2].partition('"')[0]
    assert '<th scope="row" class="name">last</th>' in client.get(address).text
    whole = client.get(f"/workflows/{run.id}").text
    assert "The graph shows" not in whole
    assert 'rel="next"' not in whole
    run.cancel()


@pytest.mark.parametrize(
    ("query", "there", "not_there"),
    [
        ("state=failed", "failed", "waiting"),
        ("queue=docs", "waiting", "failed"),
        ("task=shop.fail", "failed", "waiting"),
        ("group=alice", "waiting", "failed"),
        ("state=scheduled", "later", "failed"),
    ],
)
def test_filters_of_the_address_choose_the_jobs(
    client: TestClient, shop: Shop, query: str, there: str, not_there: str
) -> None:
    page = client.get(f"/jobs?{query}").text
    ids = {"failed": shop.failed.id, "waiting": shop.waiting[1].id, "later": shop.later.id}
    assert ids[there] in page
    assert ids[not_there] not in page


def test_pages_of_a_list_follow_a_cursor(client: TestClient, shop: Shop) -> None:
    seen: list[str] = []
    path: str | None = "/api/jobs?limit=4"
    while path:
        page = client.get(path).json()
        seen += [job["id"] for job in page["jobs"]]
        path = page["next"] and f"/api/jobs?limit=4&before={page['next']}"
    assert len(seen) == len(set(seen))
    assert seen == sorted(seen, reverse=True)
    assert {shop.failed.id, shop.later.id, *(job.id for job in shop.waiting)} <= set(seen)


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("/jobs/nonsense", 404), ("/jobs/0000000000001", 404), ("/jobs?state=lost", 422), ("/jobs?limit=201", 422),
        ("/jobs?limit=0", 422), ("/jobs?limit=%C2%B2", 422), ("/jobs?before=x", 422), ("/api/jobs?before=zz", 422),
        ("/workflows?before=zz", 422), ("/failed?before=zz", 422),
        ("/jobs?queue=a%00b", 422), ("/workflows/zz", 404),
        ("/jobs/..%2f..%2fetc%2fpasswd", 404), ("/jobs/%252e%252e", 404), ("/nowhere", 404), ("/bulk?act=drop&state=failed", 422),
        ("/bulk?act=retry", 422), ("/audit?before=x", 422), ("/static/../doors.py", 404), ("/login", 404),
    ],
)  # fmt: skip
def test_what_does_not_fit_is_refused_with_a_page(client: TestClient, path: str, status: int) -> None:
    page = client.get(path)
    assert page.status_code == status
    assert "Traceback" not in page.text


def test_a_form_acts_comes_back_and_tells_once_what_came_of_it(client: TestClient, shop: Shop) -> None:
    token = form_token(client.get("/queues").text)
    done = client.post(
        "/acts/pause-queue", data={"form_token": token, "queue": "free", "why": "holiday", "back": "/queues"}
    )
    assert (done.status_code, done.headers["location"]) == (303, "/queues")
    row = next(row for row in shop.app.queues() if row.name == "free")
    assert (row.paused_by, row.paused_why) == ("local", "holiday")
    assert "Queue free is paused." in client.get("/queues").text
    assert "Queue free is paused." not in client.get("/queues").text
    client.post("/acts/resume-queue", data={"form_token": token, "queue": "free", "back": "/queues"})
    assert next(row for row in shop.app.queues() if row.name == "free").paused_at is None


def test_a_form_that_is_refused_says_why_on_its_page(client: TestClient) -> None:
    token = form_token(client.get("/queues").text)
    client.post("/acts/set-limit", data={"form_token": token, "queue": "mail", "max_concurrency": "many"})
    assert 'class="notice bad"' in client.get("/").text


@pytest.mark.parametrize(
    "back", ["//evil.example/", "https://evil.example/", "/\\evil.example", "javascript:alert(1)"]
)
def test_a_form_goes_back_to_this_site_only(client: TestClient, back: str) -> None:
    token = form_token(client.get("/queues").text)
    done = client.post("/acts/resume-task", data={"form_token": token, "task": "shop.add", "back": back})
    assert done.headers["location"] == "/"


def test_everything_a_page_loads_is_ours_and_has_its_hash(client: TestClient) -> None:
    page = client.get("/").text
    assert page.count("integrity=") == 2
    for name in ("evenflow.css", "evenflow.js", "icon.svg"):
        assert client.get(f"/static/{name}").status_code == 200
    assert "http://" not in page.replace("http://www.w3.org", "")
    assert "<style" not in page
    assert " style=" not in page
    assert " onclick" not in page


def test_a_site_under_a_prefix_links_to_itself(sqlite_shop: Shop) -> None:
    from starlette.applications import Starlette
    from starlette.routing import Mount

    outer = Starlette(routes=[Mount("/tools/jobs", app=sqlite_shop.app.web())])
    client = TestClient(outer, base_url="http://localhost", client=("127.0.0.1", 1), follow_redirects=False)
    page = client.get("/tools/jobs/queues").text
    assert 'href="/tools/jobs/failed"' in page
    assert 'action="/tools/jobs/acts/set-limit"' in page
    assert 'aria-current="page">Queues' in page
    assert client.get("/tools/jobs/static/evenflow.css").status_code == 200
    token = form_token(page)
    done = client.post(
        "/tools/jobs/acts/resume-queue", data={"form_token": token, "queue": "docs", "back": "/queues"}
    )
    assert done.headers["location"] == "/tools/jobs/queues"
    assert client.get("/tools/jobs/api/openapi.json").json()["servers"] == [{"url": "/tools/jobs"}]


def test_health_needs_nobody_and_readiness_needs_the_database(client: TestClient) -> None:
    assert client.get("/healthz").text == "ok\n"
    assert client.get("/readyz").text == "ready\n"


def test_a_database_that_is_away_is_said_and_not_an_error_of_ours() -> None:
    with Evenflow("postgresql://nobody:secret@127.0.0.1:1/none") as app:
        client = TestClient(app.web(), base_url="http://localhost", client=("127.0.0.1", 1))
        page = client.get("/")
        assert page.status_code == 503
        assert "The database is away" in page.text
        assert "secret" not in page.text
        assert client.get("/healthz").status_code == 200
        assert client.get("/readyz").status_code == 503


@pytest.mark.parametrize("path", ["/queues", "/api/queues"])
def test_a_look_that_takes_too_long_is_given_up_and_says_so(client: TestClient, path: str) -> None:
    site = client.app.state.site  # type: ignore[attr-defined]
    engine, known = site.engine, site.engine._units
    text = ENDLESS[engine.kind]
    site.read_s = 0.05
    engine._units = {**known, "list_queues": Unit("list_queues", "read", ("name",), (Statement(text),))}
    answer = client.get(path)
    assert answer.status_code == 503
    assert "The database took longer than 0.05 s" in answer.text
    engine._units = known
    site.read_s = 30.0
    assert client.get(path).status_code == 200


def test_looks_are_given_five_seconds(client: TestClient) -> None:
    assert client.app.state.site.read_s == 5.0  # type: ignore[attr-defined]


def test_metrics_are_answered(client: TestClient) -> None:
    answer = client.get("/metrics")
    assert answer.headers["content-type"].startswith("text/plain")
    assert "evenflow_jobs{" in answer.text


def test_groups_say_when_there_may_be_more_of_them(shop: Shop, client: TestClient) -> None:
    told = "others may wait too"
    assert told not in client.get("/groups?queue=docs").text
    shop.add.enqueue_many([(1, 1, f"tenant-{number}") for number in range(120)])
    assert told in client.get("/groups?queue=docs").text
    assert client.get("/api/groups?queue=docs").json()["is_partial"]
