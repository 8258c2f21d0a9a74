"""The answer to "why is this job not running?", for each rule, with numbers and holders."""

import threading
import time
from collections.abc import Iterator

import pytest

from evenflow import Concurrency, Evenflow, Job, Queue, Rate
from evenflow.errors import ConfigError, RateLimited
from evenflow.ids import id_number
from evenflow.store.engine import as_json
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

    first, waiting = ping.enqueue(), ping.enqueue()
    (reason,) = app.why(waiting.id)
    assert (reason.until, reason.holders) == (None, (first.id,))  # it has not started yet
    app.run_worker(until_empty=True)
    (reason,) = app.why(waiting.id)
    assert (reason.rule, reason.holders) == ("rate", ())
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
    assert rules(app, soon.id)["ended"].startswith("it has ended cancelled")


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
        GATE.wait(60)

    return body.enqueue_many([(), ()])


def test_only_what_is_full_is_told_of_several_keys_and_rates(app: Evenflow) -> None:
    @app.task(
        queue="mail",
        name="send",
        concurrency=[Concurrency(to=1, key="sender", scope="from"), Concurrency(to=5, key="to", scope="to")],
        rate=Rate("100/day", burst=3),
    )
    def send(sender: str, to: str) -> None: ...

    send.enqueue("ann", "bob")
    (reason,) = app.why(send.enqueue("ann", "bob").id)
    assert reason.text == "key 'from:ann' is full: 1/1 held"


def test_a_job_beyond_the_bound_of_a_paused_queue_tells_both(engine_url: str) -> None:
    with Evenflow(engine_url, queues=[Queue("default", max_ready=1)]) as app:

        @app.task(name="send")
        def send() -> None: ...

        send.enqueue()
        outside = send.enqueue()
        app.pause("default", why="the provider is down")
        assert list(rules(app, outside.id)) == ["overflow", "pause", "worker"]


def test_an_end_tells_its_cause(app: Evenflow) -> None:
    @app.task(queue="mail", name="send")
    def send() -> None:
        raise ValueError("no such address")

    failed, late, stopped = send.enqueue(), send.using(good_until=0).enqueue(), send.enqueue()
    app.cancel(stopped.id, "sent by post")
    app.run_worker(until_empty=True)
    assert (
        "failed: " in rules(app, failed.id)["ended"] and "no such address" in rules(app, failed.id)["ended"]
    )
    assert rules(app, late.id)["ended"].startswith("it has ended expired: it had to start before ")
    assert rules(app, stopped.id)["ended"] == "it has ended cancelled: TASK_CANCELLED, sent by post"


def test_a_name_that_begins_like_another_has_its_own_rates(app: Evenflow) -> None:
    for name in ("mail", "mailing"):
        app.task(queue="mail", name=name, rate=Rate("1/hour"))(nothing).enqueue()
    assert [row.name for row in app.rate_usage("mail")] == ["rate:task:mail/1/hour"]


def test_a_throttled_call_that_its_burst_refuses_does_not_use_up_the_count(app: Evenflow) -> None:
    rate = Rate("3/day", burst=1)
    app.throttle("api", rate)
    for _ in range(5):
        with pytest.raises(RateLimited):
            app.throttle("api", rate)
    assert {row.name: row.used for row in app.limits("rate:throttle:api")}["rate:throttle:api/3/day"] == 1


def test_a_throttle_takes_a_rate_without_a_key(app: Evenflow) -> None:
    with pytest.raises(ConfigError, match="throttle 'api': expected a Rate without key, got key='tenant'"):
        app.throttle("api", Rate("3/day", key="tenant"))
    with pytest.raises(ConfigError, match="expected a rate such as"):
        app.throttle("api", 5)  # type: ignore[arg-type]


def nothing() -> None: ...


def test_the_limit_of_a_key_is_that_of_the_next_in_line(app: Evenflow) -> None:
    @app.task(queue="mail", name="bill", concurrency=Concurrency(to=lambda seats: seats))
    def bill(seats: int) -> None: ...

    bill.enqueue(1)
    tight, loose = bill.enqueue(1), bill.enqueue(2)
    assert rules(app, tight.id) == {"concurrency": "key 'bill' is full: 1/1 held"}
    assert rules(app, loose.id) == {"concurrency": "key 'bill' is full: 1/1 held, 1 before it in line"}


def test_a_key_or_rate_that_nobody_has_passed_on_yet_has_room(app: Evenflow) -> None:
    limits = {"rate": Rate("1/hour"), "concurrency": Concurrency(key="tenant")}

    @app.task(queue="mail", name="bill", **limits)  # type: ignore[call-overload, untyped-decorator]
    def bill(tenant: str) -> None: ...

    bill.enqueue("bob")
    same, other = bill.enqueue("bob"), bill.enqueue("ann")
    assert rules(app, same.id)["concurrency"] == "key 'bill:bob' is full: 1/1 held"
    assert rules(app, other.id) == {"rate": "rate 'task:bill/1/hour' is used up: 1/1 in this window"}
    release_holds(app)
    assert rules(app, same.id) == {"concurrency": "key 'bill:bob' has room again: 0/1 held"}
    assert rules(app, other.id) == {"rate": "rate 'task:bill/1/hour' has room again: 0/1 in this window"}


def release_holds(app: Evenflow) -> None:
    """As a worker that dies between the end of a job and the promotion of its keys: nobody is told."""
    app._producer.engine.run(
        "release_holds", {"ids": as_json([id_number(job.id) for job in app.jobs(state="ready")])}
    )


def test_pauses_are_told_beside_what_holds_a_job_up_first(app: Evenflow) -> None:
    @app.task(queue="mail", name="bill", concurrency=Concurrency())
    def bill() -> None: ...

    bill.enqueue()
    blocked, scheduled = bill.enqueue(), bill.using(run_after=3600).enqueue()
    app.pause("mail", who="ann")
    app.pause(task="bill", who="bob")
    assert [reason.rule for reason in app.why(blocked.id)] == ["concurrency", "pause", "pause"]
    assert [reason.rule for reason in app.why(scheduled.id)] == ["scheduled", "pause", "pause"]
    assert ["bob" in app.why(blocked.id)[1].text, "ann" in app.why(blocked.id)[2].text] == [True, True]


@pytest.mark.parametrize("prefetch_buffer", [0, 1])
def test_busy_slots_are_told_with_what_fills_them(engine_url: str, prefetch_buffer: int) -> None:
    gate = threading.Event()
    lease = {"prefetch_buffer": 1, "claim_lease_ms": 30_000} if prefetch_buffer else {}
    with Evenflow(engine_url, **lease) as app:  # type: ignore[arg-type]

        @app.task(name="send")
        def send() -> None:
            gate.wait(60)

        with serving(app, concurrency=2):
            jobs = send.enqueue_many([()] * 5)
            taken = 2 + prefetch_buffer
            wait_until(lambda: sum(job.refresh().state.is_in_flight for job in jobs) == taken, "full slots")
            slots, turn = app.why(jobs[4].id)
            assert slots.text == "all 2 slots of the workers that serve queue 'default' are busy"
            assert slots.holders == tuple(job.id for job in jobs[:taken])
            assert turn.rule == "turn"
            if prefetch_buffer:
                (reason,) = app.why(jobs[2].id)
                assert (reason.rule, "when a slot is free" in reason.text) == ("claimed", True)
            gate.set()


def test_a_limit_is_found_by_its_name_however_many_there_are(app: Evenflow) -> None:
    @app.task(queue="mail", name="bill", concurrency=Concurrency(key="tenant"))
    def bill(tenant: int) -> None: ...

    bill.enqueue_many([(number,) for number in range(10_000, 11_050)])
    (row,) = app.limits("key:bill:11049")
    assert (row.used, row.limit) == (1, 1)
    assert len(app.limits()) == 1000 + 1  # the held queue, and as many keys as are listed
