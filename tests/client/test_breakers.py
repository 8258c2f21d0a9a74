"""Breakers through an app: declared with tasks and queues, read, explained, and worked by hand."""

from datetime import UTC, datetime
from typing import Any

import pytest

from evenflow import Breaker, ConfigError, Evenflow, Queue, Rate
from evenflow.errors import UnknownBreaker
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.processes import wait_until


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
    for act in ("open", "close", "reset", "status"):
        with pytest.raises(UnknownBreaker, match="did you mean 'bank'"):
            getattr(app.breaker("bnak"), act)()


def test_two_breakers_of_one_name_with_other_numbers_are_refused(app: Evenflow) -> None:
    guarded(app)
    with pytest.raises(ConfigError, match="task 'refund': breaker 'bank' has other numbers at task 'charge'"):
        app.task(name="refund", breaker=Breaker(failure_threshold=9, name="bank"))(lambda: None)


def test_queues_with_breakers_of_one_name_and_other_numbers_are_refused(sqlite_url: str) -> None:
    queues = [Queue("a", breaker=Breaker(name="x")), Queue("b", breaker=Breaker(1, name="x"))]
    with pytest.raises(ConfigError, match="queue 'b': breaker 'x' has other numbers at queue 'a'"):
        Evenflow(sqlite_url, queues=queues)


def test_what_is_no_breaker_is_refused_with_advice(app: Evenflow) -> None:
    with pytest.raises(
        ConfigError, match=r"task 'x': breaker: expected Breaker, got 5; write breaker=Breaker\(\)"
    ):
        app.task(name="x", breaker=5)(lambda: None)  # type: ignore[call-overload]


def test_a_task_that_drops_its_breaker_is_not_kept_shut(engine_url: str, make_app: MakeApp) -> None:
    first = make_app(engine_url)
    jobs = guarded(first).enqueue_many([()] * 3)
    run(first)
    assert first.breaker("bank").status().state == "open"
    later = make_app(engine_url)

    @later.task(name="charge")
    def charge() -> None: ...

    with serving(later):
        wait_until(lambda: later.job(jobs[2].id).state.is_end, "the job behind the breaker to run")
    assert [later.job(job.id).state for job in jobs] == ["failed", "failed", "succeeded"]


def test_a_pause_needs_a_queue_or_a_task(app: Evenflow) -> None:
    for act in (app.pause, app.resume):
        with pytest.raises(TypeError, match="a queue or task=, and not both"):
            act()
    with pytest.raises(TypeError):
        app.pause("default", task="charge")


def test_paused_tasks_are_listed(app: Evenflow) -> None:
    app.pause(task="charge", who="ann", why="closing time")
    (gate,) = app.paused_tasks()
    assert (gate.name, gate.shut_by, gate.shut_why) == ("charge", "ann", "closing time")
