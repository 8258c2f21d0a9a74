"""Traces with OpenTelemetry: `evenflow.tracing.instrument(app)`. Needs `pip install 'evenflow[otel]'`, the API alone.

Enqueuing is a PRODUCER span ("publish"); its context travels with the job, in its headers, and each attempt is a CONSUMER
span ("process") of the same trace. Where the app is not instrumented nothing of this costs anything.
"""

import contextlib
import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from evenflow.client.app import Client
from evenflow.client.task import Call
from evenflow.context import Context
from evenflow.errors import ConfigError
from evenflow.signals import Cancel, RetryLater, Snooze, Suspend

if TYPE_CHECKING:
    from opentelemetry.trace import Link, Span, SpanContext, Tracer, TracerProvider

# The names of the semantic conventions for messaging, written down here: the package of constants is not stable.
SYSTEM = "messaging.system"
OPERATION_NAME = "messaging.operation.name"
OPERATION_TYPE = "messaging.operation.type"
DESTINATION = "messaging.destination.name"
MESSAGE_ID = "messaging.message.id"
BATCH_COUNT = "messaging.batch.message_count"
TASK = "evenflow.task"
ATTEMPT = "evenflow.attempt"
IS_RETRY_OF = "evenflow.retry_of"

# So many attempts that may be tried again are remembered by one process, to be linked by the next.
MOST_REMEMBERED = 10_000
_NO_ERRORS = (Snooze, Suspend, Cancel)
_encode = msgspec.json.Encoder().encode


def instrument(app: Client, *, tracer_provider: "TracerProvider | None" = None) -> None:
    """Make spans of what this app enqueues and runs. Call it once, where the app is made, so that workers do it too.

    Without `tracer_provider` the global one counts, as it is when the first span is made.

    >>> import evenflow.tracing
    >>> evenflow.tracing.instrument(app)  # doctest: +SKIP
    """
    try:
        from opentelemetry import trace
    except ImportError:
        raise ConfigError("traces need OpenTelemetry: pip install 'evenflow[otel]'") from None
    tracer = trace.get_tracer("evenflow", tracer_provider=tracer_provider)
    app.publish_with(_Publisher(tracer))
    app.hooks.around_run(_Processor(tracer).around)


class _Publisher:
    """Makes a span of every enqueue and writes its context into the headers of the jobs."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer

    @contextlib.contextmanager
    def __call__(self, calls: Sequence[Call[Any]], placed: list[Any]) -> Iterator[Sequence[Call[Any]]]:
        from opentelemetry.propagate import inject
        from opentelemetry.trace import SpanKind, use_span

        queues = {call.new.queue for call in calls}
        name = f"publish {min(queues)}" if len(queues) == 1 else "publish"
        span = self._tracer.start_span(name, kind=SpanKind.PRODUCER, attributes=_published(calls, queues))
        try:
            with use_span(span):
                carrier: dict[str, str] = {}
                inject(carrier)
                headers = _encode(carrier).decode() if carrier else None
                yield [Call(call.task, msgspec.structs.replace(call.new, headers=headers)) for call in calls]
        except BaseException:
            span.end()
            raise
        if len(placed) == 1:
            span.set_attribute(MESSAGE_ID, placed[0].id)
        if placed:  # else another scheduler was quicker: what was never stored is never told
            span.end()


class _Processor:
    """Makes a span of every attempt: a child of the span that enqueued it, linked to the attempt before."""

    def __init__(self, tracer: "Tracer") -> None:
        self._tracer = tracer
        self._lock = threading.Lock()
        self._attempts: OrderedDict[str, SpanContext] = OrderedDict()

    def around(self, ctx: Context) -> Iterator[None]:
        """The hook around each body."""
        from opentelemetry.propagate import extract
        from opentelemetry.trace import SpanKind, Status, StatusCode

        parent = extract(ctx.headers)
        with self._tracer.start_as_current_span(
            f"process {ctx.queue}", parent, kind=SpanKind.CONSUMER, attributes=_processed(ctx),
            links=self._links(ctx, parent), record_exception=False, set_status_on_exception=False,
        ) as span:  # fmt: skip
            try:
                yield
            except BaseException as error:
                if not isinstance(error, _NO_ERRORS):
                    self._remember(ctx.job_id, span)
                    if not isinstance(error, RetryLater):
                        span.record_exception(error)
                    span.set_status(Status(StatusCode.ERROR, f"{type(error).__name__}: {error}"))
                raise

    def _links(self, ctx: Context, parent: Any) -> "list[Link]":
        """What a retry is a retry of: the attempt before, where it was made in this process; else the enqueue."""
        from opentelemetry.trace import Link, get_current_span

        if ctx.attempt <= 1:
            return []
        with self._lock:
            before = self._attempts.pop(ctx.job_id, None)
        context = before or get_current_span(parent).get_span_context()
        return [Link(context, {IS_RETRY_OF: ctx.attempt - 1 if before else 0})] if context.is_valid else []

    def _remember(self, job_id: str, span: "Span") -> None:
        with self._lock:
            self._attempts[job_id] = span.get_span_context()
            while len(self._attempts) > MOST_REMEMBERED:
                self._attempts.popitem(last=False)


def _published(calls: Sequence[Call[Any]], queues: set[str]) -> dict[str, str | int]:
    found: dict[str, str | int] = {SYSTEM: "evenflow", OPERATION_NAME: "publish", OPERATION_TYPE: "send"}
    tasks = {call.new.task for call in calls}
    if len(queues) == 1:
        found[DESTINATION] = min(queues)
    if len(tasks) == 1:
        found[TASK] = min(tasks)
    if len(calls) > 1:
        found[BATCH_COUNT] = len(calls)
    return found


def _processed(ctx: Context) -> dict[str, str | int]:
    return {
        SYSTEM: "evenflow", OPERATION_NAME: "process", OPERATION_TYPE: "process", DESTINATION: ctx.queue,
        MESSAGE_ID: ctx.job_id, TASK: ctx.task, ATTEMPT: ctx.attempt,
    }  # fmt: skip
