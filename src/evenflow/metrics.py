"""Metrics in the text format of Prometheus: `evenflow.metrics.render(app)`. No library is needed for it.

A scrape reads a bounded number of rows, whatever the backlog. Counters and histograms come from the totals that workers
keep in the store, so they go on over restarts and are the same whoever is asked: scrape one place, not all.
"""

import asyncio
import threading
import time
from collections.abc import Awaitable, Callable, Iterable, Iterator, MutableMapping, Sequence
from typing import Any

from evenflow.client.app import Client
from evenflow.client.limit_rows import LimitRow
from evenflow.client.snapshot import Snapshot
from evenflow.errors import EvenflowError
from evenflow.rules.histogram import BOUNDS_S, added
from evenflow.store.statistics import COUNTS, OTHER, Statistic
from evenflow.worker.health import METRICS_TYPE

CONTENT_TYPE = METRICS_TYPE
# So many pairs of queue and task have series of their own, the busiest; the others are one. So many limits, the fullest.
MOST_TASKS = 200
MOST_LIMITS = 200
BREAKER_STATES = ("closed", "open", "half_open")
_OUTCOMES = ("succeeded", "failed", "expired", "cancelled", "skipped", "discarded", "quarantined")
# Told as 0 too: a gauge that vanishes leaves a gap, and `increase` does not see the step of a counter that begins at 1.
_STATES_TOLD = ("ready", "running", "scheduled")
_OUTCOMES_TOLD = ("succeeded", "failed", "quarantined")

Scope = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Any]]
Send = Callable[[MutableMapping[str, Any]], Awaitable[None]]
Labels = dict[str, str]
Sample = tuple[str, Labels, float]


def render(app: Client) -> bytes:
    """Everything as one text, as `/metrics` answers it.

    >>> render(app).decode().splitlines()[0]  # doctest: +SKIP
    '# HELP evenflow_jobs Open jobs by queue and state; counting stops at 10000.'
    """
    began = time.perf_counter()
    snapshot, totals = app.snapshot(), bounded(app.statistics())
    families = [*_of_queues(snapshot), *_of_tasks(totals), *_of_limits(snapshot), *_of_workers(snapshot)]
    families.append(
        _family(
            "evenflow_scrape_seconds",
            "gauge",
            "What it took to gather these metrics.",
            [("", {}, time.perf_counter() - began)],
        )
    )
    return "".join(families).encode()


class Scraped:
    """`render`, at most once in a while, whoever asks how often: `/metrics` of several scrapers costs what one does."""

    def __init__(self, app: Client, *, every_s: float = 1.0) -> None:
        self._app = app
        self._every_s = every_s
        self._lock = threading.Lock()
        self._text = b""
        self._again_at = 0.0

    def __call__(self) -> bytes:
        with self._lock:
            if time.monotonic() >= self._again_at:
                self._text = render(self._app)
                self._again_at = time.monotonic() + self._every_s
            return self._text


def asgi(app: Client) -> Callable[[Scope, Receive, Send], Awaitable[None]]:
    """An ASGI app that answers GET with the metrics; mount it anywhere: `Mount("/metrics", evenflow.metrics.asgi(app))`."""
    scrape = Scraped(app)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            raise ValueError(f"expected an http request, got {scope['type']!r}")
        status, kind, body = 200, CONTENT_TYPE, b""
        if scope["method"] not in ("GET", "HEAD"):
            status, kind = 405, "text/plain; charset=utf-8"
        else:
            try:
                body = await asyncio.to_thread(scrape)
            except EvenflowError as error:
                status, kind, body = 503, "text/plain; charset=utf-8", str(error).encode()
        headers = [(b"content-type", kind.encode()), (b"content-length", str(len(body)).encode())]
        await send({"type": "http.response.start", "status": status, "headers": headers})
        await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})

    return answer


def bounded(totals: Sequence[Statistic], most: int = MOST_TASKS) -> list[Statistic]:
    """The totals with at most `most` pairs of queue and task told apart: the busiest. The rest is added up."""
    ordered = sorted(totals, key=lambda row: (row.task == OTHER, -row.started, row.queue, row.task))
    if len(ordered) <= most:
        return sorted(totals, key=lambda row: (row.queue, row.task))
    rest = Statistic(OTHER, OTHER)
    for row in ordered[most - 1 :]:
        for name in (*COUNTS, "wait_us", "run_us"):
            setattr(rest, name, getattr(rest, name) + getattr(row, name))
        rest.waits, rest.runs = added(rest.waits, row.waits), added(rest.runs, row.runs)
    return sorted([*ordered[: most - 1], rest], key=lambda row: (row.queue, row.task))


def _of_queues(snapshot: Snapshot) -> Iterator[str]:
    jobs = [
        ("", {"queue": queue.name, "state": state}, queue.jobs[state].jobs if state in queue.jobs else 0)
        for queue in snapshot.queues
        for state in sorted({*_STATES_TOLD, *queue.jobs})
    ]
    yield _family("evenflow_jobs", "gauge", "Open jobs by queue and state; counting stops at 10000.", jobs)
    oldest = [("", {"queue": queue.name}, queue.oldest_s or 0.0) for queue in snapshot.queues]
    yield _family(
        "evenflow_oldest_ready_seconds", "gauge", "How long the oldest ready job has been waiting.", oldest
    )
    paused = [("", {"queue": queue.name}, float(queue.is_paused)) for queue in snapshot.queues]
    yield _family("evenflow_queue_paused", "gauge", "1 where an operator has paused the queue.", paused)


def _of_tasks(totals: Sequence[Statistic]) -> Iterator[str]:
    yield _counter(
        "evenflow_attempts_started", "Attempts that were started.", totals, lambda row: row.started
    )
    ended = [
        ("_total", {"queue": row.queue, "task": row.task, "outcome": outcome}, getattr(row, outcome))
        for row in totals
        for outcome in _OUTCOMES
        if getattr(row, outcome) or outcome in _OUTCOMES_TOLD
    ]
    yield _family("evenflow_jobs_ended", "counter", "Jobs that came to an end, by how.", ended)
    yield _counter(
        "evenflow_attempts_retried",
        "Attempts that failed and are tried again.",
        totals,
        lambda row: row.retried,
    )
    yield _counter(
        "evenflow_attempts_crashed", "Attempts whose process died.", totals, lambda row: row.crashed
    )
    waits = [(row, row.waits, row.wait_us) for row in totals]
    yield _histogram("evenflow_wait_seconds", "From when a job was due to its start.", waits)
    runs = [(row, row.runs, row.run_us) for row in totals]
    yield _histogram("evenflow_run_seconds", "What bodies took.", runs)


def _of_limits(snapshot: Snapshot) -> Iterator[str]:
    shown = sorted(snapshot.limits, key=_fullness)[:MOST_LIMITS]
    labelled = [
        ({"limit": row.name, "kind": row.kind}, row) for row in sorted(shown, key=lambda row: row.name)
    ]
    yield _family(
        "evenflow_limit_used",
        "gauge",
        "How much of a limit is used.",
        [("", labels, row.used) for labels, row in labelled],
    )
    yield _family(
        "evenflow_limit_max", "gauge", "The limit.", [("", labels, row.limit) for labels, row in labelled]
    )
    yield _family(
        "evenflow_limit_waiting",
        "gauge",
        "Jobs that wait for room under a limit; counting stops at 10000.",
        [("", labels, row.waiting) for labels, row in labelled],
    )
    states = [
        ("", {"breaker": row.name, "state": state}, float(row.state == state))
        for row in snapshot.breakers
        for state in BREAKER_STATES
    ]
    yield _family("evenflow_breaker_state", "gauge", "1 for the state that the breaker is in.", states)
    failures = [("", {"breaker": row.name}, row.failures) for row in snapshot.breakers]
    yield _family(
        "evenflow_breaker_failures", "gauge", "Failures in a row that the breaker has seen.", failures
    )
    waiting = [("", {"breaker": row.name}, row.waiting) for row in snapshot.breakers]
    yield _family(
        "evenflow_breaker_waiting", "gauge", "Jobs behind the breaker; counting stops at 10000.", waiting
    )


def _of_workers(snapshot: Snapshot) -> Iterator[str]:
    alive = [row for row in snapshot.workers if row.is_alive]
    kinds = sorted({"worker", "supervisor"} | {row.kind for row in snapshot.workers})
    counted = [("", {"kind": kind}, sum(row.kind == kind for row in alive)) for kind in kinds]
    yield _family("evenflow_workers", "gauge", "Processes whose heartbeat is fresh.", counted)
    silent = len(snapshot.workers) - len(alive)
    yield _family(
        "evenflow_workers_silent",
        "gauge",
        "Processes that have not given a sign of life in time.",
        [("", {}, silent)],
    )
    slots = sum(row.concurrency or 0 for row in alive)
    yield _family("evenflow_slots", "gauge", "Slots of all living workers.", [("", {}, slots)])
    busy = sum(row.running or 0 for row in alive)
    yield _family("evenflow_slots_busy", "gauge", "Slots in which a job runs.", [("", {}, busy)])


def _fullness(row: LimitRow) -> tuple[bool, int, float, str]:
    """Caps of queues and the cluster first, then what jobs wait for, then what is used most."""
    return ("cap" not in row.kind, -row.waiting, -row.used / max(1, row.limit), row.name)


def _counter(name: str, about: str, totals: Sequence[Statistic], value: Callable[[Statistic], int]) -> str:
    samples = [("_total", {"queue": row.queue, "task": row.task}, value(row)) for row in totals]
    return _family(name, "counter", about, samples)


def _histogram(name: str, about: str, rows: Iterable[tuple[Statistic, Sequence[int], int]]) -> str:
    samples: list[Sample] = []
    for row, counts, sum_us in rows:
        labels, reached = {"queue": row.queue, "task": row.task}, 0
        for bound, count in zip(BOUNDS_S, counts, strict=False):
            reached += count
            samples.append(("_bucket", {**labels, "le": f"{bound:g}"}, reached))
        samples.append(("_bucket", {**labels, "le": "+Inf"}, sum(counts)))
        samples += [("_sum", labels, sum_us / 1_000_000), ("_count", labels, sum(counts))]
    return _family(name, "histogram", about, samples)


def _family(name: str, kind: str, about: str, samples: Iterable[Sample]) -> str:
    # The name of a counter ends with _total wherever it stands in this format.
    full = f"{name}_total" if kind == "counter" else name
    lines = [f"# HELP {full} {about}", f"# TYPE {full} {kind}"]
    lines += [f"{name}{suffix}{_labels(labels)} {value:.10g}" for suffix, labels, value in samples]
    return "\n".join(lines) + "\n"


def _labels(labels: Labels) -> str:
    if not labels:
        return ""
    return "{" + ",".join(f'{name}="{_escaped(value)}"' for name, value in labels.items()) + "}"


def _escaped(value: str) -> str:
    r"""A label's value as the format wants it.

    >>> _escaped('say "hi"\n')
    'say \\"hi\\"\\n'
    """
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
