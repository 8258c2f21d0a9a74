"""Traces: one from the enqueue through retries to the end, in the exporter of the OpenTelemetry SDK."""

import asyncio
import sys
from collections.abc import Iterator

import pytest
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

import evenflow.tracing
from evenflow import ConfigError, Context, Evenflow, Fail, Job, JobFailed, Retry, Snooze, Unique
from evenflow.services.scheduler import Scheduler
from evenflow.store import schedules
from tests.client.conftest import MakeApp


@pytest.fixture
def spans() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def provider(spans: InMemorySpanExporter) -> Iterator[TracerProvider]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(spans))
    yield provider
    provider.shutdown()


@pytest.fixture
def traced(app: Evenflow, provider: TracerProvider) -> Evenflow:
    evenflow.tracing.instrument(app, tracer_provider=provider)
    return app


def run_to_end(app: Evenflow, job: "Job[object]") -> None:
    while not job.refresh().state.is_end:
        app.run_worker(until_empty=True)


def by_kind(spans: InMemorySpanExporter, kind: SpanKind) -> list[ReadableSpan]:
    found = [span for span in spans.get_finished_spans() if span.kind is kind]
    return sorted(found, key=lambda span: span.start_time or 0)


def id_of(span: ReadableSpan) -> int:
    context = span.get_span_context()
    assert context is not None
    return context.span_id


@pytest.mark.parametrize("is_async", [False, True])
def test_one_trace_leads_from_the_enqueue_through_a_retry_to_the_end(
    traced: Evenflow, provider: TracerProvider, spans: InMemorySpanExporter, is_async: bool
) -> None:
    def fail_once(ctx: Context) -> str:
        with provider.get_tracer("body").start_as_current_span("inside"):
            if ctx.attempt == 1:
                raise ValueError("not yet")
        return "done"

    async def afail_once(ctx: Context) -> str:
        await asyncio.sleep(0)
        return fail_once(ctx)

    declare = traced.task(name="work", queue="docs", retry=Retry(max_attempts=2, backoff=[0]))
    job = declare(afail_once if is_async else fail_once).enqueue()
    run_to_end(traced, job)
    assert job.result(timeout=0) == "done"

    (publish,) = by_kind(spans, SpanKind.PRODUCER)
    first, second = by_kind(spans, SpanKind.CONSUMER)
    inside = by_kind(spans, SpanKind.INTERNAL)
    assert publish.context is not None
    assert {span.context.trace_id for span in spans.get_finished_spans() if span.context} == {
        publish.context.trace_id
    }
    assert publish.parent is None
    assert [span.parent.span_id for span in (first, second) if span.parent] == [id_of(publish)] * 2
    assert [span.parent.span_id for span in inside if span.parent] == [id_of(first), id_of(second)]
    assert (first.status.status_code, second.status.status_code) == (StatusCode.ERROR, StatusCode.UNSET)
    assert [event.name for event in first.events] == ["exception"]
    assert first.links == ()
    assert [link.context.span_id for link in second.links] == [id_of(first)]
    assert publish.name == "publish docs"
    assert dict(publish.attributes or {}) == {
        "messaging.system": "evenflow", "messaging.operation.name": "publish", "messaging.operation.type": "send",
        "messaging.destination.name": "docs", "messaging.message.id": job.id, "evenflow.task": "work",
    }  # fmt: skip
    assert second.name == "process docs"
    assert dict(second.attributes or {}) == {
        "messaging.system": "evenflow", "messaging.operation.name": "process", "messaging.operation.type": "process",
        "messaging.destination.name": "docs", "messaging.message.id": job.id, "evenflow.task": "work",
        "evenflow.attempt": 2,
    }  # fmt: skip


def test_a_retry_in_another_process_is_linked_to_the_enqueue(
    engine_url: str, make_app: MakeApp, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    def body(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("not yet")
        return ctx.attempt

    # Two apps share the database and nothing in memory, as two processes do.
    apps = [make_app(engine_url) for _ in range(2)]
    for app in apps:
        evenflow.tracing.instrument(app, tracer_provider=provider)
        app.task(name="work", retry=Retry(max_attempts=2, backoff=[3600]))(body)
    job = apps[0].tasks["work"].enqueue()
    apps[0].run_worker(until_empty=True)
    apps[1].retry(job.id)
    run_to_end(apps[1], job)
    (publish,), (_, second) = by_kind(spans, SpanKind.PRODUCER), by_kind(spans, SpanKind.CONSUMER)
    assert [link.context.span_id for link in second.links] == [id_of(publish)]


def test_what_a_body_enqueues_belongs_to_its_trace(traced: Evenflow, spans: InMemorySpanExporter) -> None:
    @traced.task(name="child")
    def child() -> None: ...

    @traced.task(name="parent")
    def parent() -> None:
        child.enqueue()

    parent.enqueue()
    traced.run_worker(until_empty=True)
    outer, inner = by_kind(spans, SpanKind.PRODUCER)
    assert outer.context is not None and inner.context is not None and inner.parent is not None
    assert inner.context.trace_id == outer.context.trace_id
    assert inner.parent.span_id == id_of(by_kind(spans, SpanKind.CONSUMER)[0])


def test_steps_of_a_run_belong_to_the_trace_that_started_it(
    traced: Evenflow, spans: InMemorySpanExporter
) -> None:
    @traced.task(name="numbers")
    def numbers() -> list[int]:
        return [1, 2]

    @traced.task(name="double")
    def double(number: int) -> int:
        return 2 * number

    flow = traced.workflow("sums")
    flow.map(double, flow.step(numbers).output)
    run = flow.start()
    traced.run_worker(until_empty=True)
    assert run.result(timeout=0) == [2, 4]
    (publish,) = by_kind(spans, SpanKind.PRODUCER)
    assert dict(publish.attributes or {})["messaging.message.id"] == run.id
    processed = by_kind(spans, SpanKind.CONSUMER)
    assert [(span.attributes or {})["evenflow.task"] for span in processed].count("double") == 2
    assert {span.parent.span_id for span in processed if span.parent} == {id_of(publish)}
    assert all(span.parent for span in processed)


def test_the_job_of_a_schedule_belongs_to_the_trace_of_its_slot(
    traced: Evenflow, spans: InMemorySpanExporter
) -> None:
    @traced.recurring("0 6 * * *", key="daily")
    @traced.task(name="clean")
    def clean() -> None: ...

    job = traced.schedules.run_now("daily")
    engine = traced._producer.engine
    due = schedules.found(engine, "daily")[0].next_run
    Scheduler(engine, traced.schedules, clock=lambda: due).step()
    traced.run_worker(until_empty=True, services=False)
    by_hand, at_slot = by_kind(spans, SpanKind.PRODUCER)
    assert dict(by_hand.attributes or {})["messaging.message.id"] == job.id
    assert (at_slot.attributes or {})["evenflow.task"] == "clean"
    parents = {span.parent.span_id for span in by_kind(spans, SpanKind.CONSUMER) if span.parent}
    assert parents == {id_of(by_hand), id_of(at_slot)}


def test_a_scheduler_that_came_second_tells_of_nothing(traced: Evenflow, spans: InMemorySpanExporter) -> None:
    @traced.task(name="clean")
    def clean() -> None: ...

    with traced.schedules.published([clean.job().new]) as (jobs, _):
        assert jobs[0].headers is not None
    assert spans.get_finished_spans() == ()


def test_a_batch_is_one_span_that_counts_its_jobs(traced: Evenflow, spans: InMemorySpanExporter) -> None:
    @traced.task(name="one")
    def one(number: int) -> None: ...

    @traced.task(name="two", queue="other")
    def two(number: int) -> None: ...

    one.enqueue_many([(1,), (2,), (3,)])
    asyncio.run(traced.aenqueue_many([one.job(4), two.job(5)]))
    same, mixed = by_kind(spans, SpanKind.PRODUCER)
    assert same.attributes is not None and mixed.attributes is not None
    assert (same.name, same.attributes["messaging.batch.message_count"]) == ("publish default", 3)
    assert (mixed.name, mixed.attributes["messaging.batch.message_count"]) == ("publish", 2)
    assert "messaging.destination.name" not in mixed.attributes
    traced.run_worker(until_empty=True)
    parents = {span.parent.span_id for span in by_kind(spans, SpanKind.CONSUMER) if span.parent}
    assert parents == {id_of(same), id_of(mixed)}


def test_a_fail_that_is_returned_is_an_error_and_a_snooze_is_none(
    traced: Evenflow, spans: InMemorySpanExporter
) -> None:
    @traced.task(name="refuse")
    def refuse() -> Fail:
        return Fail("NO", "no money")

    @traced.task(name="later")
    def later() -> None:
        raise Snooze(3600)

    job = refuse.enqueue()
    later.enqueue()
    traced.run_worker(until_empty=True)
    statuses = {
        (span.attributes or {})["evenflow.task"]: span.status.status_code
        for span in by_kind(spans, SpanKind.CONSUMER)
    }
    assert statuses == {"refuse": StatusCode.ERROR, "later": StatusCode.UNSET}
    with pytest.raises(JobFailed, match="no money"):
        job.result(timeout=0)


def test_an_enqueue_that_is_refused_is_an_error_of_its_span(
    traced: Evenflow, spans: InMemorySpanExporter
) -> None:
    @traced.task(name="once", unique=Unique(on_conflict="error"))
    def once() -> None: ...

    once.enqueue()
    with pytest.raises(evenflow.DuplicateJob):
        once.enqueue()
    _, refused = by_kind(spans, SpanKind.PRODUCER)
    assert refused.status.status_code is StatusCode.ERROR


def test_jobs_of_an_app_that_is_not_traced_have_no_headers(app: Evenflow) -> None:
    seen: list[object] = []

    @app.task(name="look")
    def look(ctx: Context) -> None:
        seen.append(dict(ctx.headers))

    look.enqueue()
    app.run_worker(until_empty=True)
    assert seen == [{}]


def test_a_traced_worker_runs_jobs_that_nobody_traced(
    engine_url: str, make_app: MakeApp, provider: TracerProvider, spans: InMemorySpanExporter
) -> None:
    plain, traced = make_app(engine_url), make_app(engine_url)
    evenflow.tracing.instrument(traced, tracer_provider=provider)
    for app in (plain, traced):
        app.task(name="add")(len)
    plain.tasks["add"].enqueue("x")
    traced.run_worker(until_empty=True)
    (span,) = by_kind(spans, SpanKind.CONSUMER)
    assert span.parent is None


def test_without_opentelemetry_the_error_names_the_extra(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "opentelemetry", None)
    with pytest.raises(ConfigError, match=r"pip install 'evenflow\[otel\]'"):
        evenflow.tracing.instrument(app)
