"""Metrics: what the Prometheus parser reads of them, on every engine; bounded, and the same over restarts."""

import contextlib
import itertools
import socket
import urllib.error
import urllib.request
from collections.abc import Iterator

import pytest
from prometheus_client.parser import text_string_to_metric_families
from starlette.testclient import TestClient

from evenflow import Breaker, Concurrency, Evenflow, Fail, Queue, Retry
from evenflow.errors import StoreUnavailable
from evenflow.metrics import MOST_TASKS, Scraped, asgi, bounded, render
from evenflow.rules.histogram import BUCKETS
from evenflow.store.statistics import OTHER, Statistic
from evenflow.worker.health import serve_health
from tests.client.conftest import MakeApp

Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def scraped(app: Evenflow) -> Samples:
    """Every sample of a scrape by name and labels; a sample that stands twice fails."""
    found: Samples = {}
    for family in text_string_to_metric_families(render(app).decode()):
        assert family.type in ("gauge", "counter", "histogram")
        assert family.documentation
        for sample in family.samples:
            key = sample.name, frozenset(sample.labels.items())
            assert key not in found
            found[key] = sample.value
    return found


def value(samples: Samples, name: str, **labels: str) -> float | None:
    return samples.get((name, frozenset(labels.items())))


@pytest.fixture
def busy(engine_url: str, make_app: MakeApp) -> Evenflow:
    """An app with a bit of everything: ends of several kinds, a backlog, limits, a breaker, a pause."""
    app = make_app(
        engine_url,
        queues=[Queue("bank", max_concurrency=3), Queue("mail"), Queue("idle")],
    )

    @app.task(name="add", queue="bank")
    def add(a: int, b: int) -> int:
        return a + b

    @app.task(
        name='say "hi" \\o/',
        queue="mail",
        retry=Retry(max_attempts=2, backoff=[0]),
        breaker=Breaker(name="smtp"),
    )
    def refuse() -> None:
        raise Fail("NO")

    @app.task(name="single", queue="bank", concurrency=Concurrency(to=1, key="tenant"))
    def single(tenant: str) -> None: ...

    add.enqueue_many([(number, 1) for number in range(5)])
    refuse.enqueue()
    app.run_worker(until_empty=True)
    app.pause("idle")
    single.enqueue("a")
    single.enqueue("a")
    add.using(run_after=3600).enqueue(1, 2)
    return app


def test_every_sample_parses_and_the_counts_are_those_of_the_runs(busy: Evenflow) -> None:
    samples = scraped(busy)
    task = {"queue": "bank", "task": "add"}
    assert value(samples, "evenflow_attempts_started_total", **task) == 5
    assert value(samples, "evenflow_jobs_ended_total", **task, outcome="succeeded") == 5
    assert value(samples, "evenflow_jobs_ended_total", **task, outcome="failed") == 0
    odd = {"queue": "mail", "task": 'say "hi" \\o/'}
    assert value(samples, "evenflow_attempts_retried_total", **odd) == 1
    assert value(samples, "evenflow_jobs_ended_total", **odd, outcome="failed") == 1
    assert value(samples, "evenflow_attempts_crashed_total", **odd) == 0


def test_depths_ages_and_pauses_are_told_by_queue(busy: Evenflow) -> None:
    samples = scraped(busy)
    assert value(samples, "evenflow_jobs", queue="bank", state="ready") == 1
    assert value(samples, "evenflow_jobs", queue="bank", state="blocked") == 1
    assert value(samples, "evenflow_jobs", queue="bank", state="scheduled") == 1
    age = value(samples, "evenflow_oldest_ready_seconds", queue="bank")
    assert age is not None and 0 <= age < 60
    assert value(samples, "evenflow_oldest_ready_seconds", queue="idle") == 0
    assert value(samples, "evenflow_queue_paused", queue="idle") == 1
    assert value(samples, "evenflow_queue_paused", queue="bank") == 0


def test_what_rules_look_at_is_told_before_it_happens(busy: Evenflow) -> None:
    samples = scraped(busy)
    for state in ("ready", "running", "scheduled"):
        assert value(samples, "evenflow_jobs", queue="idle", state=state) == 0
    task = {"queue": "bank", "task": "add"}
    assert value(samples, "evenflow_jobs_ended_total", **task, outcome="quarantined") == 0
    assert value(samples, "evenflow_jobs_ended_total", **task, outcome="expired") is None


@pytest.mark.parametrize("name", ["evenflow_wait_seconds", "evenflow_run_seconds"])
def test_a_histogram_has_all_buckets_and_they_grow_up_to_the_count(busy: Evenflow, name: str) -> None:
    family = next(f for f in text_string_to_metric_families(render(busy).decode()) if f.name == name)
    of_add = [sample for sample in family.samples if sample.labels["task"] == "add"]
    buckets = [sample.value for sample in of_add if sample.name.endswith("_bucket")]
    assert len(buckets) == BUCKETS
    assert buckets == sorted(buckets)
    (count,) = (sample.value for sample in of_add if sample.name.endswith("_count"))
    (total,) = (sample.value for sample in of_add if sample.name.endswith("_sum"))
    assert buckets[-1] == count == 5
    assert total > 0


def test_limits_breakers_and_workers_are_told(busy: Evenflow) -> None:
    samples = scraped(busy)
    assert value(samples, "evenflow_limit_max", limit="queue:bank", kind="queue cap") == 3
    assert value(samples, "evenflow_limit_used", limit="queue:bank", kind="queue cap") == 0
    (key,) = {dict(labels)["limit"] for name, labels in samples if dict(labels).get("kind") == "key"}
    assert value(samples, "evenflow_limit_waiting", limit=key, kind="key") == 1
    assert value(samples, "evenflow_breaker_state", breaker="smtp", state="closed") == 1
    assert value(samples, "evenflow_breaker_state", breaker="smtp", state="open") == 0
    assert value(samples, "evenflow_breaker_failures", breaker="smtp") == 2
    assert value(samples, "evenflow_workers", kind="worker") == 0
    assert value(samples, "evenflow_slots") == 0
    busy.breaker("smtp").open()
    assert value(scraped(busy), "evenflow_breaker_state", breaker="smtp", state="open") == 1


def test_counters_go_on_over_restarts(busy: Evenflow) -> None:
    busy.tasks["add"].enqueue(1, 2)
    busy.close()
    busy.run_worker(until_empty=True)
    task = {"queue": "bank", "task": "add"}
    assert value(scraped(busy), "evenflow_attempts_started_total", **task) == 6


def test_an_empty_database_gives_metrics_too(app: Evenflow) -> None:
    assert value(scraped(app), "evenflow_workers", kind="worker") == 0


def test_tasks_beyond_the_bound_are_one_series_and_nothing_is_lost() -> None:
    totals = [Statistic("q", f"t{number}", started=number, wait_us=1) for number in range(MOST_TASKS + 100)]
    shown = bounded(totals)
    assert len(shown) == MOST_TASKS
    assert sum(row.started for row in shown) == sum(row.started for row in totals)
    (rest,) = (row for row in shown if row.task == OTHER)
    assert rest.wait_us == 101
    assert bounded(totals[:5]) == totals[:5]


def test_many_scrapers_cost_what_one_does(app: Evenflow, monkeypatch: pytest.MonkeyPatch) -> None:
    numbers = itertools.count(1)
    monkeypatch.setattr("evenflow.metrics.render", lambda _: b"%d" % next(numbers))
    scrape = Scraped(app, every_s=3600)
    assert [scrape() for _ in range(5)] == [b"1"] * 5


def test_an_asgi_app_answers_metrics_and_nothing_but_reading(busy: Evenflow) -> None:
    client = TestClient(asgi(busy))
    answer = client.get("/")
    assert answer.status_code == 200
    assert "evenflow_jobs_ended_total{" in answer.text
    assert client.head("/").content == b""
    assert client.post("/").status_code == 405


@contextlib.contextmanager
def answering(metrics: Scraped) -> Iterator[str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    with serve_health(port, lambda: {"alive": True, "ready": True}, metrics):
        yield f"http://127.0.0.1:{port}/metrics"


def test_the_health_port_answers_metrics(busy: Evenflow) -> None:
    with answering(Scraped(busy)) as url, urllib.request.urlopen(url, timeout=10) as answer:
        assert answer.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"
        assert b"evenflow_jobs_ended_total{" in answer.read()


def test_the_health_port_says_so_where_the_database_is_away(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    def away(_: Evenflow) -> bytes:
        raise StoreUnavailable("the database is away")

    monkeypatch.setattr("evenflow.metrics.render", away)
    with answering(Scraped(app)) as url, pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url, timeout=10)
    assert refused.value.code == 503
    assert b"the database is away" in refused.value.read()
