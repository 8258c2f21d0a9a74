"""The lifespan of a web service with a worker inside: its mistakes, and the state of a lifespan of one's own."""

import contextlib
import re
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
from litestar import Litestar, asgi
from litestar.testing import TestClient as LitestarClient
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse
from starlette.routing import Route
from starlette.testclient import TestClient

from evenflow import ConfigError, Evenflow
from evenflow.contrib.asgi import lifespan, mounted
from evenflow.contrib.wsgi import running_worker
from evenflow.web import Token


@pytest.fixture
def app(tmp_path: Path) -> Iterator[Evenflow]:
    with Evenflow(f"sqlite:///{tmp_path}/jobs.db") as app:
        yield app


WRONG: list[tuple[dict[str, Any], str]] = [
    ({"concurrency": 0}, "concurrency: expected a whole number"),
    ({"queues": ["no such!"]}, "queue 'no such!'"),
    ({"queues": "mail"}, "expected a list of names"),
]


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_service_does_not_start_without_the_worker_it_asked_for(
    app: Evenflow, options: dict[str, Any], said: str
) -> None:
    with (
        pytest.raises(ConfigError, match=said),
        TestClient(Starlette(lifespan=lifespan(app, **options))),
    ):
        pytest.fail("it started")


@pytest.mark.parametrize(("options", "said"), WRONG)
def test_a_block_does_not_begin_without_the_worker_it_asked_for(
    app: Evenflow, options: dict[str, Any], said: str
) -> None:
    with pytest.raises(ConfigError, match=said), running_worker(app, **options):
        pytest.fail("it began")


def test_the_state_of_a_lifespan_inside_is_the_service_s(app: Evenflow) -> None:
    @contextlib.asynccontextmanager
    async def inside(_: Any) -> AsyncIterator[dict[str, str]]:
        yield {"greeting": "hello"}

    async def greet(request: Request) -> PlainTextResponse:
        return PlainTextResponse(request.state.greeting)

    service = Starlette(routes=[Route("/", greet)], lifespan=lifespan(app, inside=inside))
    with TestClient(service) as browser:
        assert browser.get("/").text == "hello"


def test_a_dashboard_in_litestar_knows_where_it_stands(app: Evenflow) -> None:
    site = app.web(auth=[Token("a-long-secret-token", "reader")])
    dashboard = asgi("/tools/dashboard", is_mount=True, copy_scope=True)(mounted(site, "/tools/dashboard"))
    with app, LitestarClient(Litestar([dashboard]), base_url="http://127.0.0.1") as browser:
        browser.headers["authorization"] = "Bearer a-long-secret-token"
        page = browser.get("/tools/dashboard/jobs")
        assert page.status_code == 200
        links = set(re.findall(r'(?:href|src)="(/[^"]*)"', page.text))
        assert links and all(link.startswith("/tools/dashboard/") for link in links)
        assert all(browser.get(link).status_code == 200 for link in links if "/static/" in link)
        assert browser.get("/tools/dashboard/api/jobs").json()["jobs"] == []
        missing = browser.get("/tools/dashboard/nothing")
        assert (missing.status_code, "There is no such page." in missing.text) == (404, True)


@pytest.mark.parametrize("path", ["", "/", "dashboard", "/dashboard/"])
def test_a_path_that_nothing_can_be_mounted_at_is_refused(app: Evenflow, path: str) -> None:
    with pytest.raises(ConfigError, match="path: expected one such as '/dashboard'"):
        mounted(None, path)
