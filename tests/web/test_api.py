"""The API: described as it is, never a 5xx, and taking jobs over HTTP where that is wanted."""

from typing import Any

import msgspec
import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import not_a_server_error
from schemathesis.core.result import Ok
from schemathesis.specs.openapi.checks import response_schema_conformance
from starlette.testclient import TestClient

from evenflow import State
from evenflow.web import Token
from evenflow.web.access import read_specs
from evenflow.web.acts import ACTS
from evenflow.web.api import API
from tests.web.shop import AUTH, Shop, bearer


@pytest.fixture
def producer(shop: Shop) -> TestClient:
    """A program that may enqueue, and nothing else."""
    return shop.client(auth=AUTH, enqueue=True, headers=bearer("producer"))


class TestDescription:
    def test_every_door_of_the_api_is_described(self, client: TestClient) -> None:
        described = client.get("/api/openapi.json").json()
        assert described["openapi"] == "3.1.0"
        expected = {(door.method.lower(), door.path) for door in API if "{act}" not in door.path}
        expected |= {("post", f"/api/acts/{name}") for name in ACTS}
        assert {(method, path) for path, entry in described["paths"].items() for method in entry} == expected

    def test_every_reference_leads_somewhere(self, client: TestClient) -> None:
        text = client.get("/api/openapi.json").text
        known = msgspec.json.decode(text)["components"]["schemas"]
        named = {piece.partition('"')[0] for piece in text.split("#/components/schemas/")[1:]}
        assert named <= set(known)

    @pytest.mark.parametrize(
        "path", [door.path for door in API if door.method == "GET" and "{" not in door.path]
    )
    def test_an_answer_has_the_shape_that_is_described(self, client: TestClient, path: str) -> None:
        door = next(door for door in API if door.path == path and door.method == "GET")
        answer = client.get(path + ("?queue=docs" if path == "/api/groups" else ""))
        assert answer.headers["content-type"] == "application/json"
        msgspec.json.decode(answer.content, type=door.answers)


@pytest.mark.slow
def test_nothing_that_fits_the_description_breaks_the_server(sqlite_shop: Shop) -> None:
    headers = {"host": "localhost", **bearer("admin")}
    schema = schemathesis.openapi.from_asgi(
        "/api/openapi.json", sqlite_shop.app.web(auth=AUTH, enqueue=True), headers=headers
    )
    bounds = settings(
        max_examples=4, deadline=None, derandomize=True, database=None, phases=[Phase.generate],
        suppress_health_check=list(HealthCheck),
    )  # fmt: skip
    seen = 0
    for found in schema.get_all_operations():
        assert isinstance(found, Ok)
        operation = found.ok()

        @bounds
        @given(case=operation.as_strategy())
        def check(case: "schemathesis.Case[Any]") -> None:
            nonlocal seen
            seen += 1
            case.call_and_validate(headers=headers, checks=[not_a_server_error, response_schema_conformance])

        check()
    assert seen > 80


class TestBodies:
    @pytest.mark.parametrize(
        "body", [b"", b"{", b'{"queue": "\xff"}', b'{"\xff": 1}', b"\xff\xfe{", b"queue=docs", b"[" * 200_000]
    )
    def test_a_body_that_is_not_json_is_refused_with_words(self, shop: Shop, body: bytes) -> None:
        client = shop.client(auth=AUTH, headers={**bearer("admin"), "content-type": "application/json"})
        answer = client.post("/api/acts/pause-queue", content=body)
        assert answer.status_code == 422
        assert answer.json()["message"].startswith("The body is n")  # not JSON, or nested too deeply

    def test_a_text_of_an_act_has_a_bound(self, shop: Shop) -> None:
        client = shop.client(auth=AUTH, headers=bearer("operator"))
        answer = client.post("/api/acts/pause-queue", json={"queue": "docs", "why": "x" * 1001})
        assert (answer.status_code, answer.json()["message"]) == (
            422, "why: expected at most 1000 characters, got 1001.",
        )  # fmt: skip

    def test_an_address_that_two_methods_share_names_both(self, client: TestClient) -> None:
        refused = client.put("/api/jobs", json={})
        assert (refused.status_code, refused.headers["allow"]) == (405, "GET, HEAD, POST")


class TestEnqueue:
    def test_a_call_becomes_a_job_by_the_annotations_of_its_task(
        self, producer: TestClient, shop: Shop
    ) -> None:
        body = {
            "task": "shop.add",
            "args": [5],
            "kwargs": {"tenant": "carol"},
            "priority": -3,
            "queue": "free",
        }
        answer = producer.post("/api/jobs", json=body)
        assert answer.status_code == 201
        job = shop.app.job(answer.json()["id"])
        assert (job.task, job.args, job.kwargs) == ("shop.add", (5,), {"tenant": "carol"})
        assert (job.group, job.priority, job.queue) == ("carol", -3, "free")

    def test_the_same_key_gives_the_same_job_also_after_its_end(
        self, producer: TestClient, shop: Shop
    ) -> None:
        body = {"task": "shop.quick", "args": [1], "idempotency_key": "order-1"}
        first = producer.post("/api/jobs", json=body)
        shop.app.cancel(first.json()["id"])
        second = producer.post("/api/jobs", json=body)
        assert (first.status_code, second.status_code) == (201, 200)
        assert first.json()["id"] == second.json()["id"]
        assert not second.json()["is_new"]

    def test_another_caller_s_key_is_another_key(self, producer: TestClient, shop: Shop) -> None:
        body = {"task": "shop.quick", "args": [1], "idempotency_key": "order-2"}
        admin = shop.client(auth=AUTH, enqueue=True, headers=bearer("admin"))
        assert (
            producer.post("/api/jobs", json=body).json()["id"]
            != admin.post("/api/jobs", json=body).json()["id"]
        )

    def test_tokens_that_the_command_line_names_are_callers_apart(self, shop: Shop) -> None:
        auth = read_specs(["token/web:a:secret:here:producer", "token/cron:another-secret:producer"])
        assert auth == [
            Token("a:secret:here", "producer", "web"),
            Token("another-secret", "producer", "cron"),
        ]
        body = {"task": "shop.quick", "args": [1], "idempotency_key": "order-6"}
        client = shop.client(auth=auth, enqueue=True)
        answers = [
            client.post("/api/jobs", json=body, headers={"authorization": f"Bearer {secret}"})
            for secret in ("a:secret:here", "another-secret", "another-secret")
        ]
        assert [answer.status_code for answer in answers] == [201, 201, 200]

    @pytest.mark.parametrize(
        ("change", "told"),
        [
            ({"args": [2]}, "other arguments"),
            ({"queue": "free"}, "another queue"),
            ({"task": "shop.add", "queue": "default"}, "another task"),
        ],
    )
    def test_a_key_is_not_taken_for_another_call(
        self, producer: TestClient, shop: Shop, change: dict[str, object], told: str
    ) -> None:
        body = {"task": "shop.quick", "args": [1], "idempotency_key": "order-3"}
        first = producer.post("/api/jobs", json=body).json()["id"]
        answer = producer.post("/api/jobs", json={**body, **change})
        assert answer.status_code == 422
        assert f"used for job {first} with {told}; nothing was enqueued" in answer.json()["message"]
        assert next(shop.app.jobs()).id == first
        shop.app.cancel(first)
        assert producer.post("/api/jobs", json={**body, **change}).status_code == 422
        assert producer.post("/api/jobs", json=body).json()["id"] == first

    def test_another_priority_or_time_is_the_same_call_and_changes_nothing(
        self, producer: TestClient, shop: Shop
    ) -> None:
        body = {"task": "shop.quick", "args": [1], "idempotency_key": "order-5", "priority": 3}
        first = producer.post("/api/jobs", json=body)
        for change in ({"priority": -5}, {"run_after": 3600}):
            again = producer.post("/api/jobs", json={**body, **change})
            assert (again.status_code, again.json()["id"]) == (200, first.json()["id"])
        job = shop.app.job(first.json()["id"])
        assert job.priority == 3
        assert job.state is not State.SCHEDULED

    def test_the_same_arguments_in_another_order_are_the_same_call(self, producer: TestClient) -> None:
        named = {"a": 1, "tenant": "bob"}
        answers = [
            producer.post(
                "/api/jobs", json={"task": "shop.add", "kwargs": kwargs, "idempotency_key": "order-4"}
            )
            for kwargs in (named, dict(reversed(named.items())))
        ]
        assert [answer.status_code for answer in answers] == [201, 200]

    @pytest.mark.parametrize(
        ("body", "status"),
        [
            ({"task": "shop.nothing"}, 404),
            ({"task": "os.system", "args": ["ls"]}, 404),
            ({"task": "shop.quick", "args": ["x"]}, 422),
            ({"task": "shop.quick"}, 422),
            ({"task": "shop.quick", "args": [1, 2, 3]}, 422),
            ({"args": [1]}, 422),
            ({"task": "shop.quick", "args": [1], "queue": "nowhere"}, 422),
            ({"task": "shop.quick", "args": [1], "priority": 1000}, 422),
            ({"task": "shop.quick", "args": [1], "idempotency_key": ""}, 422),
            ({"task": "shop.quick", "args": [1], "run_after": -1}, 422),
        ],
    )
    def test_a_call_that_does_not_fit_is_refused(
        self, producer: TestClient, body: dict[str, object], status: int
    ) -> None:
        answer = producer.post("/api/jobs", json=body)
        assert answer.status_code == status, answer.text

    def test_arguments_may_be_as_long_as_a_body(self, producer: TestClient, shop: Shop) -> None:
        text = "long " * 20_000
        body = {"task": "shop.fail", "args": [text], "idempotency_key": "letter-1"}
        answer = producer.post("/api/jobs", json=body)
        assert answer.status_code == 201, answer.text
        assert shop.app.job(answer.json()["id"]).args == (text,)
        by_name = producer.post("/api/jobs", json={"task": "shop.fail", "kwargs": {"why": text}})
        assert by_name.status_code == 201, by_name.text

    @pytest.mark.parametrize("field", ["task", "queue", "idempotency_key"])
    def test_names_and_keys_may_not(self, producer: TestClient, field: str) -> None:
        answer = producer.post("/api/jobs", json={"task": "shop.quick", "args": [1], field: "x" * 1001})
        assert (answer.status_code, f"{field}: expected" in answer.json()["message"]) == (422, True)

    @pytest.mark.parametrize("arguments", [{"args": ["a\0b"]}, {"kwargs": {"why": ["a\0b"]}}])
    def test_arguments_that_no_database_holds_are_refused(
        self, producer: TestClient, arguments: dict[str, object]
    ) -> None:
        answer = producer.post("/api/jobs", json={"task": "shop.fail", **arguments})
        assert (answer.status_code, "control characters" in answer.json()["message"]) == (422, True)

    def test_jobs_are_taken_only_where_that_is_wanted(self, shop: Shop) -> None:
        closed = shop.client(auth=AUTH, headers=bearer("producer"))
        assert closed.post("/api/jobs", json={"task": "shop.quick", "args": [1]}).status_code == 404
