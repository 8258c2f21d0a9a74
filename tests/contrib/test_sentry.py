"""Sentry: spans of one trace from enqueue to run, and errors with the job's tags. What would be sent is kept here."""

import subprocess
import sys
from collections.abc import Iterator
from typing import Any

import pytest
import sentry_sdk
from sentry_sdk.envelope import Envelope
from sentry_sdk.transport import Transport

from evenflow import Evenflow, Fail, Retry, Snooze
from evenflow.contrib.sentry import instrument


class Kept(Transport):
    """A transport that sends nothing."""

    def __init__(self) -> None:
        super().__init__({"dsn": "https://key@sentry.invalid/1"})
        self.items: list[dict[str, Any]] = []

    def capture_envelope(self, envelope: Envelope) -> None:
        for item in envelope.items:
            found = item.get_event() or item.get_transaction_event()
            if found is not None:
                self.items.append(dict(found))

    def of(self, kind: str | None) -> list[dict[str, Any]]:
        return [item for item in self.items if item.get("type") == kind]


@pytest.fixture
def kept() -> Iterator[Kept]:
    transport = Kept()
    sentry_sdk.init(
        dsn="https://key@sentry.invalid/1",
        transport=transport,
        traces_sample_rate=1.0,
        default_integrations=False,
    )
    yield transport
    sentry_sdk.init()


@pytest.fixture
def app(kept: Kept) -> Iterator[Evenflow]:
    with Evenflow("sqlite:///:memory:") as app:
        instrument(app, ignore=(KeyError,))
        yield app


def test_one_trace_goes_from_the_enqueue_to_every_attempt(app: Evenflow, kept: Kept) -> None:
    @app.task(name="pay", queue="shop", retry=Retry(max_attempts=2, base=0.001, jitter=False), group="tenant")
    def pay(tenant: str) -> None:
        raise ValueError("no card")

    with sentry_sdk.start_transaction(name="request"):
        job = pay.enqueue("acme")
    app.run_worker(until_empty=True)
    request, *attempts = kept.of("transaction")
    (span,) = request["spans"]
    assert (span["op"], span["description"]) == ("queue.publish", "pay")
    assert (
        span["data"]["messaging.destination.name"] == "shop"
        and span["data"]["messaging.message.id"] == job.id
    )
    trace = request["contexts"]["trace"]["trace_id"]
    assert [each["transaction"] for each in attempts] == ["pay", "pay"]
    for number, each in enumerate(attempts):
        context = each["contexts"]["trace"]
        assert (context["op"], context["trace_id"], context["status"]) == (
            "queue.process",
            trace,
            "internal_error",
        )
        assert context["parent_span_id"] == span["span_id"]
        assert context["data"]["messaging.message.retry.count"] == number
        assert context["data"]["messaging.message.id"] == job.id
    for number, event in enumerate(kept.of(None), start=1):
        assert event["tags"] == {
            "evenflow.job_id": job.id, "evenflow.task": "pay", "evenflow.queue": "shop", "evenflow.attempt": str(number),
            "evenflow.group": "acme",
        }  # fmt: skip
        (error,) = event["exception"]["values"]
        assert (error["type"], error["value"]) == ("ValueError", "no card")
        assert error["mechanism"] == {"type": "evenflow", "handled": False}
    assert len(kept.of(None)) == 2


def test_what_is_no_error_is_not_reported(app: Evenflow, kept: Kept) -> None:
    @app.task(name="other")
    async def other(way: str) -> Any:
        if way == "ignored":
            raise KeyError(way)
        if way == "snooze":
            return Snooze(3600)
        raise Fail("BAD", "as expected")

    for way in ("ignored", "snooze", "fail"):
        other.enqueue(way)
    app.run_worker(until_empty=True)
    assert kept.of(None) == []
    assert [each["contexts"]["trace"]["status"] for each in kept.of("transaction")] == ["ok"] * 3


def test_a_fail_is_reported_where_that_is_wanted(kept: Kept) -> None:
    with Evenflow("sqlite:///:memory:") as app:
        instrument(app, reports_fail=True)

        @app.task
        def refuse() -> None:
            raise Fail("BAD", "as expected")

        refuse.enqueue()
        app.run_worker(until_empty=True)
    assert [event["exception"]["values"][0]["type"] for event in kept.of(None)] == ["Fail"]


def test_traces_of_others_travel_along(app: Evenflow, kept: Kept) -> None:
    from opentelemetry.sdk.trace import TracerProvider

    from evenflow import tracing

    tracing.instrument(app, tracer_provider=TracerProvider())
    seen: list[set[str]] = []

    @app.hooks.around_run
    def look(ctx: Any) -> Iterator[None]:
        seen.append(set(ctx.headers))
        yield

    @app.task
    def nothing() -> None: ...

    nothing.enqueue()
    app.run_worker(until_empty=True)
    assert {"sentry-trace", "traceparent"} <= seen[0]


def test_evenflow_itself_does_not_import_sentry() -> None:
    code = "import sys, evenflow; print('sentry_sdk' in sys.modules)"
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.strip() == "False"
