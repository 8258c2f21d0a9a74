"""The answer to "why is this job not running?", for each rule, with numbers and holders."""

import threading
import time
from collections.abc import Iterator

import pytest

from evenflow import Concurrency, Evenflow, Job, Queue, Rate
from evenflow.errors import RateLimited
from tests.client.serving import serving
from tests.processes import wait_until


def rules(app: Evenflow, job: str) -> dict[str, str]:
    return {reason.rule: reason.text for reason in app.why(job)}


@pytest.fixture
def app(engine_url: str) -> Iterator[Evenflow]:
    queues = [Queue("mail"), Queue("held", max_concurrency=0), Queue("slow", rate=Rate("1/hour"))]
    with Evenflow(engine_url, queues=queues) as app:
        yield app


def test_nobody_serves_the_queue(app: Evenflow) -> None:
    @app.task(queue="mail", name="send")
    def send() -> None: ...

    first, second = send.enqueue(), send.enqueue()
    assert "no worker that is alive serves queue 'mail'" in rules(app, first.id)["worker"]
    assert rules(app, second.id)["turn"].startswith("1 ready jobs")


def test_a_paused_queue_says_who_and_why(app: Evenflow) -> None:
    @app.task(queue="mail", name="send")
    def send() -> None: ...

    app.pause("mail", who="ann", why="the provider is down")
    text = rules(app, send.enqueue().id)["pause"]
    assert "paused by ann" in text
    assert "the provider is down" in text


def test_a_queue_that_is_held_says_so(app: Evenflow) -> None:
    @app.task(queue="held", name="send")
    def send() -> None: ...

    assert rules(app, send.enqueue().id)["queue cap"] == "queue 'held' is held: max_concurrency is 0"


def test_a_full_key_names_its_holders(app: Evenflow) -> None:
    @app.task(queue="mail", name="bill", concurrency=Concurrency(to=1, key="tenant"))
    def bill(tenant: str) -> None: ...

    holder, waiting = bill.enqueue("bob"), bill.enqueue("bob")
    (reason,) = app.why(waiting.id)
    assert (reason.rule, reason.holders) == ("concurrency", (holder.id,))
    assert "'bill:bob' is full: 1/1 held" in reason.text


def test_a_used_up_rate_says_how_far(app: Evenflow) -> None:
    @app.task(queue="slow", name="ping")
    def ping() -> None: ...

    ping.enqueue()
    waiting = ping.enqueue()
    app.run_worker(until_empty=True)
    (reason,) = app.why(waiting.id)
    assert reason.rule == "rate"
    assert "1/1 in this window" in reason.text
    assert reason.until is not None
    (usage,) = app.rate_usage("slow")
    assert (usage.most, usage.spent, usage.waiting) == (1, 1, 1)
    assert app.rate_reset("slow") == 1
    assert app.job(waiting.id).state == "ready"


def test_a_scheduled_job_says_when_it_is_due(app: Evenflow) -> None:
    @app.task(queue="mail", name="send")
    def send() -> None: ...

    (reason,) = app.why(send.using(run_after=3600).enqueue().id)
    assert reason.rule == "scheduled"
    assert reason.until is not None
    assert reason.until.timestamp() > time.time() + 3000


def test_an_expiry_and_an_end_are_told(app: Evenflow) -> None:
    @app.task(queue="mail", name="send")
    def send() -> None: ...

    soon = send.using(good_until=3600).enqueue()
    assert "must start before" in rules(app, soon.id)["expiry"]
    soon.cancel()
    assert rules(app, soon.id) == {"ended": "it has ended cancelled"}


def test_throttle_raises_with_the_time_to_wait(app: Evenflow) -> None:
    app.throttle("api", "2/minute")
    app.throttle("api", "2/minute")
    with pytest.raises(RateLimited) as refused:
        app.throttle("api", "2/minute")
    assert 50 < refused.value.retry_after <= 60


def test_a_queue_at_its_cap_names_what_runs(app: Evenflow) -> None:
    app.set_limit("mail", max_concurrency=1)
    first, second = held(app)
    with serving(app, concurrency=2):
        wait_until(lambda: app.job(first.id).state == "running", "the first one to run")
        reason = next(reason for reason in app.why(second.id) if reason.rule == "queue cap")
        assert (reason.text, reason.holders) == ("queue 'mail' is at its cap: 1/1 in flight", (first.id,))
        GATE.set()


def test_a_cluster_at_its_cap_names_what_runs(engine_url: str) -> None:
    with Evenflow(engine_url, cluster_wide_cap=1) as app:
        first, second = held(app)
        with serving(app, concurrency=2):
            wait_until(lambda: app.job(first.id).state == "running", "the first one to run")
            reason = next(reason for reason in app.why(second.id) if reason.rule == "cluster cap")
            assert (reason.text, reason.holders) == ("the cluster is at its cap: 1/1 in flight", (first.id,))
            GATE.set()


GATE = threading.Event()


def held(app: Evenflow) -> list[Job[None]]:
    """Two jobs whose bodies wait for the gate."""
    GATE.clear()

    @app.task(queue="mail", name="held")
    def body() -> None:
        GATE.wait(20)

    return body.enqueue_many([(), ()])
