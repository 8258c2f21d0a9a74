"""The handle on a job: what it shows, how its end is told, and cancelling."""

import asyncio
import threading
from dataclasses import dataclass
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from typing import Any
from uuid import UUID

import pytest

from evenflow import (
    Cancel,
    Context,
    Evenflow,
    Fail,
    JobCancelled,
    JobExpired,
    JobFailed,
    JobNotFound,
    ResultTimeout,
    Retention,
    Retry,
    Snooze,
    State,
)
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.processes import wait_until


@dataclass
class Page:
    number: int
    words: tuple[str, ...]


def drain(app: Evenflow) -> None:
    app.run_worker(until_empty=True)


def quick(url: str, make_app: MakeApp) -> Evenflow:
    """An app whose workers look for wishes to cancel many times a second."""
    # A worker that stands still for a while keeps its lease.
    return make_app(url, heartbeat_ms=50, lease_ms=60_000)


def test_the_life_of_a_job_shows_in_its_handle(app: Evenflow) -> None:
    @app.task(name="parse", queue="docs", group="tenant", priority=3, retry=Retry(max_attempts=4))
    def parse(tenant: str, *, path: str) -> int:
        return len(path)

    before = datetime.now(UTC) - timedelta(seconds=5)
    job = parse.enqueue("bob", path="a/b")
    assert (job.args, job.kwargs) == (("bob",), {"path": "a/b"})
    assert (job.task, job.queue, job.group, job.priority) == ("parse", "docs", "bob", 3)
    assert (job.attempt, job.max_attempts, job.crashes) == (0, 4, 0)
    assert (job.started_at, job.finished_at, job.good_until, job.error, job.progress) == (None,) * 5
    assert repr(job) == f"<Job {job.id} parse ready>"
    drain(app)
    assert job.state is State.READY, "a handle changes only when it is read again"
    assert job.refresh() is job
    assert (job.state, job.attempt, job.errors) == (State.SUCCEEDED, 1, [])
    assert job.started_at is not None
    assert job.finished_at is not None
    assert before < job.created_at <= job.started_at <= job.finished_at
    assert {job, app.job(job.id)} == {job}


def test_a_result_comes_back_by_the_annotation(app: Evenflow) -> None:
    @app.task
    def page() -> Page:
        return Page(7, ("a", "b"))

    @app.task
    async def many() -> dict[str, list[Decimal]]:
        return {"x": [Decimal("1.50")]}

    @app.task
    def moment() -> tuple[date, UUID, bytes]:
        return date(2030, 1, 2), UUID(int=7), b"\0\xff"

    @app.task
    def unannotated():  # type: ignore[no-untyped-def]
        return {"a": (1, {2})}

    @app.task
    def nothing() -> None:
        return None

    jobs = [page.enqueue(), many.enqueue(), moment.enqueue(), unannotated.enqueue(), nothing.enqueue()]
    drain(app)
    assert [job.result(timeout=0) for job in jobs] == [
        Page(7, ("a", "b")), {"x": [Decimal("1.50")]}, (date(2030, 1, 2), UUID(int=7), b"\0\xff"), {"a": (1, {2})}, None,
    ]  # fmt: skip


def test_arguments_are_read_back_by_the_annotations(app: Evenflow) -> None:
    @app.task(name="store")
    def store(page: Page, at: datetime, *rest: int, **extra: Decimal) -> None: ...

    at = datetime(2030, 1, 2, tzinfo=UTC)
    job = store.enqueue(Page(1, ()), at, 4, 5, tax=Decimal("0.19"))
    found = app.job(job.id)
    assert found.args == (Page(1, ()), at, 4, 5)
    assert found.kwargs == {"tax": Decimal("0.19")}


def test_a_failed_job_raises_with_its_handle_and_its_error(app: Evenflow) -> None:
    @app.task(name="broken")
    def broken() -> None:
        raise KeyError("no such tenant")

    job = broken.enqueue()
    drain(app)
    with pytest.raises(JobFailed, match=rf"job {job.id} \(broken\) ended failed: UNHANDLED_ERROR") as failed:
        job.result(timeout=0)
    assert failed.value.job is job
    assert failed.value.error == job.error
    error = job.error
    assert error is not None
    assert (error.code, error.class_name, error.attempt) == ("UNHANDLED_ERROR", "KeyError", 1)
    assert "no such tenant" in error.message
    assert error.traceback is not None
    assert "KeyError" in error.traceback
    assert "evenflow/worker" not in error.traceback


def test_a_failure_of_one_s_own_carries_code_message_and_data(app: Evenflow) -> None:
    @app.task(name="refuse")
    def refuse() -> Fail:
        return Fail("CARD_DECLINED", "insufficient funds", {"left": 3})

    job = refuse.enqueue()
    drain(app)
    with pytest.raises(JobFailed) as failed:
        job.result(timeout=0)
    error = failed.value.error
    assert (error.code, error.message, error.data) == ("CARD_DECLINED", "insufficient funds", {"left": 3})


def test_every_attempt_leaves_its_error(app: Evenflow) -> None:
    @app.task(name="flaky", retry=Retry(max_attempts=3, base=0, jitter=False))
    def flaky(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    job = flaky.enqueue()
    drain(app)
    assert [error.message for error in job.refresh().errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert job.error == job.errors[-1]
    assert job.attempt == 3


def test_an_expired_job_raises_and_its_body_does_not_run(app: Evenflow) -> None:
    ran: list[int] = []

    @app.task(name="late")
    def late() -> None:
        ran.append(1)

    job = late.using(good_until=datetime(2020, 1, 1, tzinfo=UTC)).enqueue()
    with serving(app), pytest.raises(JobExpired, match="ended expired") as expired:
        job.result(timeout=30)
    assert expired.value.job is job
    assert ran == []


def test_a_body_may_cancel_its_own_job(app: Evenflow) -> None:
    @app.task(name="stop")
    def stop() -> None:
        raise Cancel("nothing to do")

    job = stop.enqueue()
    drain(app)
    with pytest.raises(JobCancelled, match="TASK_CANCELLED: nothing to do") as cancelled:
        job.result(timeout=0)
    assert cancelled.value.job is job
    assert cancelled.value.error.code == "TASK_CANCELLED"


def test_a_discarded_job_raises_cancelled(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    app.discard(job.id)
    with pytest.raises(JobCancelled, match="ended discarded"):
        job.result(timeout=0)


def _page(number: int) -> int:
    return number


def test_a_snoozed_job_is_not_over(app: Evenflow) -> None:
    @app.task(name="later")
    def later() -> None:
        raise Snooze(3600)

    job = later.enqueue()
    drain(app)
    assert job.refresh().state is State.SCHEDULED
    assert job.attempt == 0
    with pytest.raises(ResultTimeout):
        job.result(timeout=0)


def test_timeout_0_only_looks(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    before = threading.active_count()
    with pytest.raises(ResultTimeout, match=rf"job {job.id} has not ended within 0 s; it goes on"):
        job.result(timeout=0)
    assert threading.active_count() == before, "a look starts no watching"
    assert job.refresh().state is State.READY


async def test_timeout_0_of_aresult_only_looks(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    with pytest.raises(ResultTimeout, match="has not ended within 0 s"):
        await job.aresult(timeout=0)


def test_a_timeout_ends_the_wait_and_not_the_job(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    with pytest.raises(TimeoutError, match=r"has not ended within 0\.05 s; it goes on"):
        job.result(timeout=0.05)
    drain(app)
    assert job.result(timeout=0.05) == 1


async def test_a_timeout_of_aresult_ends_the_wait_and_not_the_job(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    with pytest.raises(ResultTimeout, match=r"has not ended within 0\.05 s; it goes on"):
        await job.aresult(timeout=0.05)
    await app.arun_worker(until_empty=True)
    assert await job.aresult(timeout=0.05) == 1


def test_keep_result_0_leaves_no_row(app: Evenflow) -> None:
    job = app.task(name="page", keep_result=0)(_page).enqueue(1)
    drain(app)
    with pytest.raises(
        JobNotFound, match=f"no job {job.id}: it was never committed, kept no result, or its retention"
    ):
        job.result(timeout=0)
    with pytest.raises(JobNotFound):
        job.refresh()
    assert list(app.jobs()) == []


def test_a_retention_of_0_leaves_no_row(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(engine_url, retention=Retention(succeeded=0, failed=0))
    jobs = [app.task(name="page")(_page).enqueue(1), app.task(name="broken")(_broken).enqueue()]
    drain(app)
    assert list(app.jobs()) == []
    for job in jobs:
        with pytest.raises(JobNotFound):
            job.result(timeout=0)


def _broken() -> None:
    raise ValueError("broken")


def test_a_waiter_for_a_job_that_keeps_nothing_is_told_so(app: Evenflow) -> None:
    job = app.task(name="page", keep_result=0)(_page).using(run_after=0.2).enqueue(1)
    with serving(app), pytest.raises(JobNotFound):
        job.result(timeout=30)


def test_cancel_ends_a_waiting_job_at_once(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    assert job.cancel("not wanted") is True
    assert job.cancel() is False
    with pytest.raises(JobCancelled, match="ended cancelled"):
        job.result(timeout=0)
    drain(app)
    assert job.refresh().attempt == 0


def test_words_of_operators_are_stored_whatever_they_hold(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    assert job.cancel("cut\0off \ud800") is True
    error = job.refresh().error
    assert error is not None and error.message == "cut\\0off ?"
    app.pause("mail", who="\0", why="\udfff")
    app.pause(task="charge", who="\0", why="\udfff")
    assert [(gate.shut_by, gate.shut_why) for gate in app.paused_tasks()] == [("\\0", "?")]


def test_a_waiter_is_told_at_once_when_its_job_is_cancelled(app: Evenflow) -> None:
    job = app.task(name="page")(_page).enqueue(1)
    ends: list[BaseException] = []

    def wait() -> None:
        try:
            job.result(timeout=30)
        except JobCancelled as cancelled:
            ends.append(cancelled)

    waiter = threading.Thread(target=wait)
    waiter.start()
    wait_until(lambda: bool(app._producer.results._waiting), "the waiter to wait")
    assert app.cancel(job.id) == 1
    waiter.join(30)
    assert len(ends) == 1


def test_a_running_function_sees_that_it_is_cancelled(engine_url: str, make_app: MakeApp) -> None:
    app = quick(engine_url, make_app)
    started, seen = threading.Event(), threading.Event()

    @app.task(name="long")
    def long(ctx: Context) -> None:
        started.set()
        wait_until(lambda: ctx.cancelled, "the wish to cancel")
        seen.set()
        raise Cancel(f"stopped: {ctx.cancel_reason}")

    with serving(app):
        job = long.enqueue()
        assert started.wait(30)
        assert job.cancel("not wanted") is True
        assert seen.wait(30)
        with pytest.raises(JobCancelled, match="stopped: not wanted"):
            job.result(timeout=30)


def test_a_running_coroutine_is_cancelled(engine_url: str, make_app: MakeApp) -> None:
    app = quick(engine_url, make_app)
    started, cleaned = threading.Event(), threading.Event()

    @app.task(name="long")
    async def long() -> None:
        started.set()
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.set()

    with serving(app):
        job = long.enqueue()
        assert started.wait(30)
        assert job.refresh().state is State.RUNNING
        assert app.cancel(job.id, "not wanted") == 1
        assert cleaned.wait(30)
        with pytest.raises(JobCancelled, match="TASK_CANCELLED: not wanted"):
            job.result(timeout=30)
    assert job.state is State.CANCELLED


def test_progress_is_stored_while_the_job_runs(engine_url: str, make_app: MakeApp) -> None:
    app = quick(engine_url, make_app)
    go_on = threading.Event()

    @app.task(name="steps")
    def steps(ctx: Context) -> None:
        ctx.progress(3, 10, "reading")
        assert go_on.wait(60)

    with serving(app):
        job = steps.enqueue()
        wait_until(lambda: job.refresh().progress is not None, "the progress")
        assert job.progress == {"done": 3, "total": 10, "note": "reading"}
        assert job.state is State.RUNNING
        go_on.set()
        assert job.result(timeout=30) is None


def test_a_result_that_no_longer_fits_is_an_error_that_says_so(sqlite_url: str, make_app: MakeApp) -> None:
    writer, reader = make_app(sqlite_url), make_app(sqlite_url)

    @writer.task(name="page")
    def page() -> Page:
        return Page(1, ("a",))

    def changed() -> int:
        return 1

    job = page.enqueue()
    drain(writer)
    found: Any = reader.task(name="page")(changed)
    assert found.name == "page"
    assert reader.job(job.id).result(timeout=0) == {"number": 1, "words": ("a",)}
