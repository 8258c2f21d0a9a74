"""Breakers through an app: declared with tasks and queues, read, explained, and worked by hand."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenflow import Breaker, Evenflow, Queue, Rate
from evenflow.errors import PayloadError
from evenflow.store.gates import BATCH
from tests.client.conftest import MakeApp


def guarded(app: Evenflow, **options: Any) -> Any:
    """A task that fails, behind the breaker `bank`."""

    @app.task(name="charge", breaker=Breaker(failure_threshold=2, name="bank", **options))
    def charge() -> None:
        raise ConnectionError("the bank is down")

    return charge


def run(app: Evenflow) -> None:
    app.run_worker(until_empty=True, concurrency=1)


def test_a_declared_breaker_is_listed_before_it_has_heard_anything(app: Evenflow) -> None:
    guarded(app)
    (row,) = app.breakers()
    assert (row.name, row.state, row.failures, row.failure_threshold) == ("bank", "closed", 0, 2)
    assert (row.opened_at, row.opens_at, row.probe, row.waiting) == (None, None, None, 0)
    assert row.guards == ("task:charge",)


def test_an_open_breaker_says_since_when_until_when_and_who_waits(app: Evenflow) -> None:
    guarded(app).enqueue_many([()] * 5)
    run(app)
    (row,) = app.breakers()
    assert (row.state, row.failures, row.waiting) == ("open", 2, 3)
    assert row.opened_at is not None and row.opens_at is not None
    assert (row.opens_at - row.opened_at).total_seconds() == 60
    assert abs((datetime.now(UTC) - row.opened_at).total_seconds()) < 60


def test_without_a_name_each_task_and_queue_has_its_own(engine_url: str, make_app: MakeApp) -> None:
    """S3-32"""
    app = make_app(engine_url, queues=[Queue("default"), Queue("mail", breaker=Breaker())])

    @app.task(name="charge", breaker=Breaker())
    def charge() -> None: ...

    assert [(row.name, row.guards) for row in app.breakers()] == [
        ("queue_mail", ("queue:mail",)),
        ("task_charge", ("task:charge",)),
    ]


def test_a_waiting_job_says_which_breaker_it_waits_for(app: Evenflow) -> None:
    *_, waiting = guarded(app).enqueue_many([()] * 3)
    run(app)
    (reason,) = app.why(waiting.id)
    assert reason.rule == "breaker"
    assert reason.text.startswith("breaker 'bank' was opened at ")
    assert "(2 failures in a row); a probe may run at" in reason.text
    assert reason.until == app.breaker("bank").status().opens_at


def test_a_job_before_a_breaker_that_was_opened_by_hand_says_who_and_why(app: Evenflow) -> None:
    job = guarded(app).enqueue()
    app.breaker("bank").open(who="ann", why="the bank moves")
    run(app)
    (reason,) = app.why(job.id)
    assert "opened by ann at" in reason.text
    assert reason.text.endswith("(the bank moves); it stays so until it is closed by hand")
    assert app.breaker("bank").close()
    assert not app.breaker("bank").close()


def test_a_ready_job_of_a_shut_queue_says_so(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url, queues=[Queue("default", breaker=Breaker(name="bank"))])

    @app.task(name="mail")
    def mail() -> None: ...

    job = mail.enqueue()
    app.breaker("bank").open()
    assert [reason.rule for reason in app.why(job.id)][:1] == ["breaker"]


def test_a_used_up_rate_is_told_before_an_open_breaker(engine_url: str, make_app: MakeApp) -> None:
    """S3-48"""
    app = make_app(engine_url, queues=[Queue("default", rate=Rate("1/hour"), breaker=Breaker(name="bank"))])

    @app.task(name="ping")
    def ping() -> None: ...

    ping.enqueue()
    waiting = ping.enqueue()
    run(app)
    app.breaker("bank").open()
    assert [reason.rule for reason in app.why(waiting.id)] == ["rate", "breaker"]


def test_rate_breaker_and_caps_work_together_on_one_queue(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(
        engine_url,
        queues=[Queue("default", rate=Rate("5/hour"), max_concurrency=1, breaker=Breaker(2, name="bank"))],
    )

    @app.task(name="ping")
    def ping() -> None:
        raise ConnectionError("down")

    ping.enqueue_many([()] * 8)
    run(app)
    assert app.breaker("bank").status().state == "open"
    assert sum(1 for _ in app.jobs(state="failed")) == 2


def test_a_reset_forgets_the_failures(app: Evenflow) -> None:
    charge = guarded(app)
    charge.enqueue()
    run(app)
    assert app.breaker("bank").status().failures == 1
    assert app.breaker("bank").reset() is False
    assert app.breaker("bank").status().failures == 0


def test_a_name_that_nobody_declared_is_refused(app: Evenflow) -> None:
    guarded(app)
    five: Any = 5
    with pytest.raises(PayloadError, match="who: expected text, got int"):
        app.pause("default", who=five)
    with pytest.raises(PayloadError, match="who: expected text, got int"):
        app.pause(task="charge", who=five)
    with pytest.raises(PayloadError, match="who: expected text, got int"):
        app.breaker("bank").open(who=five)
    with pytest.raises(ValueError, match="task: expected the name of a task, got ''"):
        app.pause(task="")
    assert app.paused_tasks() == [] and app.breaker("bank").status().state == "closed"


def test_many_jobs_of_a_resumed_task_run_also_where_no_dispatcher_is(app: Evenflow) -> None:
    ran: list[int] = []

    @app.task(name="note")
    def note(number: int) -> None:
        ran.append(number)

    many = 2 * BATCH + 10
    note.enqueue_many([(number,) for number in range(many)])
    app.pause(task="note")
    app.run_worker(until_empty=True, concurrency=100)
    assert (ran, app.stats()) == ([], {"default": {"blocked": many}})
    app.resume(task="note")
    app.run_worker(until_empty=True, concurrency=100, services=False)
    assert sorted(ran) == list(range(many))


def test_paused_tasks_are_listed(app: Evenflow) -> None:
    app.pause(task="charge", who="ann", why="closing time")
    (gate,) = app.paused_tasks()
    assert (gate.name, gate.shut_by, gate.shut_why) == ("charge", "ann", "closing time")
