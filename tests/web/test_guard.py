"""Who is let in: hosts, addresses, origins, tokens of forms, sizes; and what every answer carries."""

import base64
from typing import Any

import pytest
from starlette.testclient import TestClient

from evenflow import ConfigError
from evenflow.web import Principal, Role
from evenflow.web.exposure import check_exposure
from evenflow.web.guard import HEADERS
from evenflow.web.sessions import Allowance, Seal, Tries
from tests.web.shop import AUTH, PASSWORD, Shop, bearer, form_token

HOME = {"base_url": "http://localhost", "follow_redirects": False}


def stranger(shop: Shop, **options: Any) -> TestClient:
    """Somebody on another machine."""
    return TestClient(shop.app.web(**options), client=("203.0.113.7", 50000), **HOME)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    "path", ["/", "/nowhere", "/api/jobs", "/static/evenflow.js", "/healthz", "/login", "/jobs?state=x"]
)
def test_every_answer_carries_the_policy(guarded: TestClient, path: str) -> None:
    answer = guarded.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "'unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["content-security-policy"].startswith("default-src 'none'")


def test_pages_are_not_kept_by_browsers_and_files_are(guarded: TestClient) -> None:
    assert guarded.get("/login").headers["cache-control"] == "no-store"
    assert "immutable" in guarded.get("/static/evenflow.css").headers["cache-control"]


@pytest.mark.parametrize("host", ["evil.example", "localhost.evil.example", "", "127.0.0.2"])
def test_a_foreign_host_is_refused(guarded: TestClient, host: str) -> None:
    assert guarded.get("/healthz", headers={"host": host}).status_code == 400


@pytest.mark.parametrize("host", ["localhost", "LOCALHOST:8600", "127.0.0.1:1", "[::1]:8600"])
def test_this_machine_s_names_are_known(guarded: TestClient, host: str) -> None:
    assert guarded.get("/healthz", headers={"host": host}).status_code == 200


def test_names_can_be_allowed(sqlite_shop: Shop) -> None:
    client = sqlite_shop.client(auth=AUTH, hosts=["Jobs.Example.com"])
    assert client.get("/healthz", headers={"host": "jobs.example.com:443"}).status_code == 200
    assert client.get("/healthz", headers={"host": "other.example.com"}).status_code == 400


def test_without_a_login_only_this_machine_is_answered(sqlite_shop: Shop) -> None:
    assert stranger(sqlite_shop).get("/").status_code == 403
    assert stranger(sqlite_shop).get("/api/jobs").status_code == 403
    assert sqlite_shop.client().get("/").status_code == 200


@pytest.mark.parametrize("mark", ["x-forwarded-for", "forwarded", "x-real-ip", "x-forwarded-host"])
def test_a_proxy_on_this_machine_does_not_make_the_world_local(sqlite_shop: Shop, mark: str) -> None:
    assert sqlite_shop.client().get("/", headers={mark: "203.0.113.7"}).status_code == 403


def test_with_logins_strangers_are_asked_for_theirs(sqlite_shop: Shop) -> None:
    client = stranger(sqlite_shop, auth=AUTH)
    assert client.get("/jobs?state=failed").headers["location"] == "/login?back=/jobs%3Fstate%3Dfailed"
    assert "Overview" not in client.get("/login").text  # no menu whose every entry leads back here
    answer = client.get("/api/jobs")
    assert answer.status_code == 401
    assert "Bearer" in answer.headers["www-authenticate"]


class TestLogin:
    def log_in(
        self, client: TestClient, password: str = PASSWORD, name: str = "operator-ann", back: str = "/"
    ) -> Any:
        token = form_token(client.get("/login").text)
        return client.post(
            "/login", data={"form_token": token, "name": name, "password": password, "back": back}
        )

    def test_a_right_password_opens_the_pages_until_the_log_out(self, guarded: TestClient) -> None:
        done = self.log_in(guarded, back="/queues")
        assert (done.status_code, done.headers["location"]) == (303, "/queues")
        cookie = done.headers["set-cookie"].lower()
        assert "httponly" in cookie
        assert "samesite=strict" in cookie
        page = guarded.get("/queues")
        assert "Log out operator-ann" in page.text
        guarded.post("/logout", data={"form_token": form_token(page.text)})
        assert guarded.get("/queues").status_code == 303

    def test_over_tls_the_cookie_is_held_to_our_origin(self, sqlite_shop: Shop) -> None:
        client = TestClient(
            sqlite_shop.app.web(auth=AUTH),
            base_url="https://localhost",
            client=("203.0.113.7", 1),
            follow_redirects=False,
        )
        done = self.log_in(client)
        assert done.headers["set-cookie"].startswith("__Host-evenflow_session=")
        assert "secure" in done.headers["set-cookie"].lower()
        assert "strict-transport-security" in done.headers
        assert client.get("/").status_code == 200

    def test_a_wrong_password_opens_nothing(self, guarded: TestClient) -> None:
        done = self.log_in(guarded, "wrong horse")
        assert done.status_code == 401
        assert "set-cookie" not in done.headers
        assert guarded.get("/").status_code == 303

    def test_after_five_wrong_passwords_even_the_right_one_waits(self, guarded: TestClient) -> None:
        for _ in range(5):
            self.log_in(guarded, "wrong horse")
        done = self.log_in(guarded)
        assert done.status_code == 429
        assert 0 < int(done.headers["retry-after"]) <= 61

    def test_guessing_tokens_and_basic_counts_too(self, guarded: TestClient) -> None:
        for _ in range(5):
            assert (
                guarded.get("/api/jobs", headers={"authorization": "Bearer wrong-token"}).status_code == 401
            )
        assert guarded.get("/api/jobs", headers=bearer("viewer")).status_code == 429

    def test_a_cookie_that_was_changed_is_none(self, guarded: TestClient) -> None:
        self.log_in(guarded, name="viewer-ann")
        cookie = guarded.cookies["evenflow_session"]
        for forged in (
            cookie[:-1] + ("0" if cookie[-1] != "0" else "1"),
            "e30." + cookie.partition(".")[2],
            "x",
            "",
        ):
            guarded.cookies.clear()
            guarded.cookies.set("evenflow_session", forged)
            assert guarded.get("/").status_code == 303

    def test_a_login_that_was_taken_away_is_closed(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client(auth=AUTH)
        self.log_in(client)
        site = client.app.state.site  # type: ignore[attr-defined]
        site.credentials = type(site.credentials)(site.credentials.logins[:1], ())
        assert client.get("/").status_code == 303

    def test_processes_that_share_a_secret_share_their_logins(self, sqlite_shop: Shop) -> None:
        first, second, other = (
            sqlite_shop.client(auth=AUTH, secret=text)
            for text in ("a secret of ours", "a secret of ours", "another secret of ours")
        )
        self.log_in(first)
        for client in (second, other):
            client.cookies.set("evenflow_session", first.cookies["evenflow_session"])
        assert (second.get("/").status_code, other.get("/").status_code) == (200, 303)
        with pytest.raises(ConfigError, match="at least 16 characters"):
            sqlite_shop.app.web(auth=AUTH, secret="short")

    def test_the_api_takes_no_cookie(self, guarded: TestClient) -> None:
        self.log_in(guarded, name="admin-ann")
        assert guarded.get("/").status_code == 200
        assert guarded.get("/api/jobs").status_code == 401

    def test_basic_is_taken_by_pages_and_api(self, guarded: TestClient) -> None:
        pair = base64.b64encode(f"viewer-ann:{PASSWORD}".encode()).decode()
        assert guarded.get("/api/jobs", headers={"authorization": f"Basic {pair}"}).status_code == 200
        assert guarded.get("/jobs", headers={"authorization": f"Basic {pair}"}).status_code == 200
        assert guarded.get("/api/jobs", headers={"authorization": "Basic !!!"}).status_code == 401


class TestChanges:
    FIELDS = {"queue": "docs", "back": "/queues"}  # noqa: RUF012 - never changed

    def post(self, client: TestClient, fields: dict[str, str] | None = None, **headers: str) -> int:
        sent = {**self.FIELDS, "form_token": form_token(client.get("/queues").text), **(fields or {})}
        return client.post(
            "/acts/resume-queue", data=sent, headers={k.replace("_", "-"): v for k, v in headers.items()}
        ).status_code

    def test_a_form_of_ours_passes(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client()
        assert self.post(client) == 303
        assert self.post(client, sec_fetch_site="same-origin", origin="http://localhost") == 303

    def test_another_site_changes_nothing(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client()
        assert self.post(client, sec_fetch_site="cross-site") == 403
        assert self.post(client, sec_fetch_site="same-site") == 403
        assert self.post(client, origin="http://evil.example") == 403
        assert self.post(client, origin="null") == 403

    def test_a_form_without_its_token_changes_nothing(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client()
        assert self.post(client, {"form_token": ""}) == 403
        assert self.post(client, {"form_token": "0" * 64}) == 403

    def test_a_token_of_another_session_changes_nothing(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client(auth=AUTH)
        foreign = form_token(client.get("/login").text)
        TestLogin().log_in(client)
        assert self.post(client) == 303
        assert self.post(client, {"form_token": foreign}) == 403

    def test_nothing_changes_by_a_get(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client()
        assert client.get("/acts/resume-queue?queue=docs").status_code == 405
        assert client.get("/api/acts/resume-queue").status_code == 405

    def test_the_api_takes_json_alone(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client()
        text = '{"queue": "docs"}'
        for kind in ("text/plain", "application/x-www-form-urlencoded", "multipart/form-data"):
            answer = client.post("/api/acts/resume-queue", content=text, headers={"content-type": kind})
            assert answer.status_code == 415
        origin = {"origin": "http://evil.example"}
        assert (
            client.post("/api/acts/resume-queue", json={"queue": "docs"}, headers=origin).status_code == 403
        )

    def test_a_large_body_is_refused(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client()
        kind = {"content-type": "application/json"}
        assert (
            client.post("/api/acts/resume-queue", content=b"x" * 1_000_001, headers=kind).status_code == 413
        )
        unannounced = (b"x" * 100_000 for _ in range(20))
        assert client.post("/api/acts/resume-queue", content=unannounced, headers=kind).status_code == 413

    @pytest.mark.parametrize(
        "text", ["[" * 5000 + "]" * 5000, '{"queue": ' * 200 + "1" + "}" * 200, "nonsense", ""]
    )
    def test_a_body_that_is_no_sane_json_is_refused(self, sqlite_shop: Shop, text: str) -> None:
        kind = {"content-type": "application/json"}
        answer = sqlite_shop.client().post("/api/acts/resume-queue", content=text, headers=kind)
        assert answer.status_code == 422


class TestHook:
    def test_a_hook_says_whose_request_it_is(self, sqlite_shop: Shop) -> None:
        def hook(request: Any) -> Principal | None:
            name = request.headers.get("x-user")
            return Principal(name, Role.VIEWER) if name else None

        client = stranger(sqlite_shop, auth=hook)
        assert client.get("/").status_code == 401
        assert client.get("/", headers={"x-user": "ann"}).status_code == 200
        assert client.get("/audit", headers={"x-user": "ann"}).status_code == 403

    def test_a_hook_may_be_a_coroutine(self, sqlite_shop: Shop) -> None:
        async def hook(request: Any) -> Principal | None:
            return Principal("ann", Role.ADMIN)

        assert stranger(sqlite_shop, auth=hook).get("/audit").status_code == 200


class TestExposure:
    def test_an_address_of_this_machine_needs_nothing(self) -> None:
        for host in ("127.0.0.1", "::1", "localhost"):
            check_exposure(host, has_auth=False, has_tls=False, has_proxy=False)

    def test_any_other_needs_a_login_and_tls_or_a_proxy_and_both_are_said_at_once(self) -> None:
        with pytest.raises(ConfigError) as refused:
            check_exposure("0.0.0.0", has_auth=False, has_tls=False, has_proxy=False)
        assert len(refused.value.mistakes) == 2
        with pytest.raises(ConfigError, match="plain text"):
            check_exposure("10.0.0.1", has_auth=True, has_tls=False, has_proxy=False)
        check_exposure("10.0.0.1", has_auth=True, has_tls=True, has_proxy=False)
        check_exposure("10.0.0.1", has_auth=True, has_tls=False, has_proxy=True)


def test_a_seal_is_for_its_purpose_alone() -> None:
    seal = Seal()
    text = seal.sealed("notice", {"a": 1})
    assert seal.opened("notice", text) == b'{"a":1}'
    assert seal.opened("session", text) is None
    assert Seal().opened("notice", text) is None


def test_tries_are_counted_by_address() -> None:
    tries = Tries(most=2, per_s=60)
    tries.failed("a")
    assert tries.wait_s("a") == 0
    tries.failed("a")
    assert tries.wait_s("a") > 50
    assert tries.wait_s("b") == 0


class TestWrites:
    def test_are_counted_by_login_on_forms_and_api_together(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client(auth=AUTH, headers=bearer("operator"), writes_per_minute=2)
        token = form_token(client.get("/queues").text)
        form = {"form_token": token, "queue": "free"}
        assert client.post("/acts/resume-queue", data=form).status_code == 303
        assert client.post("/api/acts/resume-queue", json={"queue": "free"}).status_code == 200
        for refused in (
            client.post("/acts/resume-queue", data=form),
            client.post("/api/acts/resume-queue", json={"queue": "free"}),
        ):
            assert refused.status_code == 429
            assert "Too many changes: try again in " in refused.text
            assert 1 <= int(refused.headers["retry-after"]) <= 31
        admin = client.post("/api/acts/resume-queue", json={"queue": "free"}, headers=bearer("admin"))
        assert admin.status_code == 200
        assert client.get("/api/queues").status_code == 200

    def test_that_are_refused_change_nothing_and_are_not_in_the_log(self, sqlite_shop: Shop) -> None:
        client = sqlite_shop.client(auth=AUTH, headers=bearer("admin"), writes_per_minute=1)
        client.post("/api/acts/resume-queue", json={"queue": "free"})
        before = client.get("/api/audit").json()["acts"][0]["id"]
        assert client.post("/api/acts/pause-queue", json={"queue": "free"}).status_code == 429
        assert client.get("/api/audit").json()["acts"][0]["id"] == before

    def test_come_back_with_time(self) -> None:
        now = 0.0
        allowance = Allowance(60, clock=lambda: now)
        assert [allowance.take("ann") for _ in range(60)] == [0.0] * 60
        assert allowance.take("ann") == pytest.approx(1.0)
        assert allowance.take("bob") == 0.0
        now = 1.5
        assert allowance.take("ann") == 0.0
        assert allowance.take("ann") == pytest.approx(0.5)
        now = 1000.0
        assert [allowance.take("ann") for _ in range(61)].count(0.0) == 60

    def test_have_no_limit_where_that_is_said(self, sqlite_shop: Shop) -> None:
        assert {Allowance(None).take("ann") for _ in range(1000)} == {0.0}
        with pytest.raises(ConfigError, match="writes_per_minute: expected 1 or more"):
            sqlite_shop.app.web(writes_per_minute=0)
