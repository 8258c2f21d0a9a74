"""Sentry: `evenflow.contrib.sentry.instrument(app)`. Needs `pip install 'evenflow[sentry]'`.

What an app enqueues is a `queue.publish` span, each attempt a `queue.process` transaction of the same trace, and what a
body raises an event with the job's tags. For other services see `app.hooks.around_run` and `app.publish_with`.
"""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from evenflow import Context, Evenflow
from evenflow.client.task import Call
from evenflow.errors import ConfigError
from evenflow.signals import Fail, Signal, Suspend

try:
    import sentry_sdk
    from sentry_sdk.utils import event_from_exception
except ImportError:
    raise ConfigError("evenflow.contrib.sentry needs sentry-sdk: pip install 'evenflow[sentry]'") from None

MESSAGE_ID = "messaging.message.id"
DESTINATION = "messaging.destination.name"
BODY_SIZE = "messaging.message.body.size"
RETRY_COUNT = "messaging.message.retry.count"
_encode = msgspec.json.Encoder().encode


def instrument(
    app: Evenflow, *, ignore: tuple[type[BaseException], ...] = (), reports_fail: bool = False
) -> None:
    """Report what this app enqueues and runs to Sentry. Call it once, where the app is made, so that workers do it too;
    `sentry_sdk.init(...)` is yours to call.

    Every failed attempt is an event, also one that will be tried again (its tag `evenflow.attempt` tells); `ignore` names
    exceptions that are none. A `Fail` is a body's own verdict: it is reported with `reports_fail` alone.

    >>> import evenflow.contrib.sentry                   # doctest: +SKIP
    >>> evenflow.contrib.sentry.instrument(app)          # doctest: +SKIP
    """
    app.publish_with(_publish)
    app.hooks.around_run(_Reporter(ignore, reports_fail).around)


@contextlib.contextmanager
def _publish(calls: Sequence[Call[Any]], placed: list[Any]) -> Iterator[Sequence[Call[Any]]]:
    names = {call.new.task for call in calls}
    queues = {call.new.queue for call in calls}
    name = min(names) if len(names) == 1 else f"{len(calls)} jobs"
    with sentry_sdk.start_span(op="queue.publish", name=name, origin="auto.queue.evenflow") as span:
        if len(queues) == 1:
            span.set_data(DESTINATION, min(queues))
        span.set_data(BODY_SIZE, sum(len(call.new.payload) for call in calls))
        context = {"sentry-trace": sentry_sdk.get_traceparent(), "baggage": sentry_sdk.get_baggage()}
        headers = _encode({name: value for name, value in context.items() if value}).decode()
        yield [Call(call.task, msgspec.structs.replace(call.new, headers=headers)) for call in calls]
        if len(placed) == 1:
            span.set_data(MESSAGE_ID, placed[0].id)


class _Reporter:
    """Surrounds each body."""

    def __init__(self, ignore: tuple[type[BaseException], ...], reports_fail: bool) -> None:
        self._ignore = ignore
        self._reports_fail = reports_fail

    def around(self, ctx: Context) -> Iterator[None]:
        """The hook: a transaction per attempt, with an event where it raised."""
        with sentry_sdk.isolation_scope() as scope:
            scope.clear_breadcrumbs()
            for name, value in _tags(ctx).items():
                scope.set_tag(f"evenflow.{name}", value)
            transaction = sentry_sdk.continue_trace(
                dict(ctx.headers),
                op="queue.process",
                name=ctx.task,
                source="task",
                origin="auto.queue.evenflow",
            )
            with sentry_sdk.start_transaction(transaction) as span:
                span.set_data(MESSAGE_ID, ctx.job_id)
                span.set_data(DESTINATION, ctx.queue)
                span.set_data(RETRY_COUNT, ctx.attempt - 1)
                raised: BaseException | None = None
                try:
                    yield
                except BaseException as error:
                    raised = error
                is_error = raised is not None and self._is_error(raised)
                span.set_status("internal_error" if is_error else "ok")
                if raised is not None and is_error:
                    _capture(raised)
            if raised is not None:
                raise raised  # outside of the transaction, which would take a snooze for an error

    def _is_error(self, error: BaseException) -> bool:
        if isinstance(error, (Suspend, *self._ignore)):
            return False
        return not isinstance(error, Signal) or (isinstance(error, Fail) and self._reports_fail)


def _tags(ctx: Context) -> dict[str, str]:
    found = {"job_id": ctx.job_id, "task": ctx.task, "queue": ctx.queue, "attempt": str(ctx.attempt)}
    return found if ctx.group is None else {**found, "group": ctx.group}


def _capture(error: BaseException) -> None:
    client = sentry_sdk.get_client()
    event, hint = event_from_exception(
        error, client_options=client.options, mechanism={"type": "evenflow", "handled": False}
    )
    sentry_sdk.capture_event(event, hint=hint)
