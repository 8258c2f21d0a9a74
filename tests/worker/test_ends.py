"""Every way in which a run can end, through the real worker and store."""

import asyncio
import time
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from evenflow import (
    Cancel,
    Context,
    Evenflow,
    Fail,
    Job,
    JobCancelled,
    JobExpired,
    JobFailed,
    Retry,
    Snooze,
    State,
)
from evenflow.services import dispatcher
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.command import Books


def drained(app: Evenflow, job: Job[Any], **options: Any) -> Job[Any]:
    """The job after a worker has run all that could run."""
    app.run_worker(until_empty=True, **options)
    return job.refresh()


def in_both_kinds(app: Evenflow, act: Any, **options: Any) -> list[Any]:
    """A plain function and a coroutine that do the same."""

    async def acts() -> Any:
        await asyncio.sleep(0)
        return act()

    return [app.task(name="function", **options)(act), app.task(name="coroutine", **options)(acts)]


def test_success_is_stored_with_its_result_and_times(app: Evenflow) -> None:
    for task in in_both_kinds(app, lambda: {"done": [1, 2]}):
        job = drained(app, task.enqueue())
        assert (job.state, job.attempt, job.error, job.result(timeout=0)) == (
            State.SUCCEEDED,
            1,
            None,
            {"done": [1, 2]},
        )
        assert job.started_at is not None and job.finished_at is not None
        assert job.created_at <= job.started_at <= job.finished_at


def test_a_failure_with_a_code_ends_the_job_with_that_code(app: Evenflow) -> None:
    def declined(raises: bool) -> Fail:
        fail = Fail("CARD_DECLINED", "the bank said no", data={"bank": "acme"})
        if raises:
            raise fail
        return fail

    task = app.task(name="charge")(declined)
    for raises in (True, False):
        job = drained(app, task.enqueue(raises))
        assert job.state is State.FAILED
        assert job.error is not None
        assert (job.error.code, job.error.message, job.error.data) == (
            "CARD_DECLINED",
            "the bank said no",
            {"bank": "acme"},
        )
        with pytest.raises(JobFailed, match="CARD_DECLINED: the bank said no"):
            job.result(timeout=0)


def test_an_exception_ends_the_job_with_class_text_and_traceback(app: Evenflow) -> None:
    def explode() -> None:
        raise KeyError("wallet")

    for task in in_both_kinds(app, explode):
        job = drained(app, task.enqueue())
        assert job.state is State.FAILED
        assert job.error is not None
        assert (job.error.code, job.error.class_name, job.error.message) == (
            "UNHANDLED_ERROR",
            "KeyError",
            "'wallet'",
        )
        assert "in explode" in (job.error.traceback or "")
        assert "worker/calling.py" not in (job.error.traceback or "")


def test_a_worker_goes_on_after_every_kind_of_exception(app: Evenflow) -> None:
    def raise_it(kind: str) -> None:
        raise {"exit": SystemExit(3), "interrupt": KeyboardInterrupt(), "base": BaseException("base"),
               "stop": StopIteration(), "generator": GeneratorExit(), "cancel": asyncio.CancelledError()}[kind]  # fmt: skip

    async def araise_it(kind: str) -> None:
        raise_it(kind)

    jobs = [
        task.enqueue(kind)
        for task in (app.task(name="f")(raise_it), app.task(name="c")(araise_it))
        for kind in ("exit", "interrupt", "base", "stop", "generator", "cancel")
    ]
    after = app.task(name="after")(lambda: 7).enqueue()
    app.run_worker(until_empty=True)
    assert after.result(timeout=0) == 7
    for job in jobs:
        assert job.refresh().state is State.FAILED
        assert job.error is not None and job.error.code == "UNHANDLED_ERROR"


@pytest.mark.parametrize("kind", [SystemExit, KeyboardInterrupt])
def test_a_worker_goes_on_after_a_task_of_the_bodys_own_wanted_to_end_the_program(
    app: Evenflow, kind: type[BaseException]
) -> None:
    is_over = asyncio.Event()

    async def end_program() -> None:
        raise kind

    async def start_it() -> None:
        asyncio.get_running_loop().stop()
        try:
            await asyncio.gather(end_program())
        finally:
            is_over.set()

    async def wait_beside() -> str:
        await is_over.wait()
        await asyncio.sleep(0)
        return "unharmed"

    job = app.task(name="start_it")(start_it).enqueue()
    neighbour = app.task(name="wait_beside")(wait_beside).enqueue()
    app.run_worker(until_empty=True)
    assert neighbour.result(timeout=0) == "unharmed"
    assert (job.refresh().state, job.attempt) == (State.FAILED, 1)
    assert job.error is not None
    assert (job.error.code, job.error.class_name) == ("UNHANDLED_ERROR", kind.__name__)


@pytest.mark.parametrize("raises", [True, False])
def test_a_snoozed_job_is_scheduled_again_without_using_an_attempt(app: Evenflow, raises: bool) -> None:
    def later() -> Snooze:
        if raises:
            raise Snooze(60)
        return Snooze(60)

    for task in in_both_kinds(app, later):
        before = datetime.now(UTC)
        job = drained(app, task.enqueue())
        assert (job.state, job.attempt, job.errors) == (State.SCHEDULED, 0, [])
        assert timedelta(seconds=50) < job.run_at - before < timedelta(seconds=90)


@pytest.mark.parametrize("raises", [True, False])
def test_a_body_may_cancel_its_job(app: Evenflow, raises: bool) -> None:
    def give_up() -> Cancel:
        if raises:
            raise Cancel("the order was withdrawn")
        return Cancel("the order was withdrawn")

    for task in in_both_kinds(app, give_up, retry=Retry(max_attempts=5)):
        job = drained(app, task.enqueue())
        assert job.state is State.CANCELLED
        assert job.error is not None and job.error.code == "TASK_CANCELLED"
        with pytest.raises(JobCancelled, match="the order was withdrawn"):
            job.result(timeout=0)


@pytest.mark.parametrize("raises", [True, False])
def test_retry_later_uses_an_attempt_and_waits_as_told(app: Evenflow, raises: bool) -> None:
    def later() -> Any:
        if raises:
            raise Retry.later(60)
        return Retry.later(60)

    for task in in_both_kinds(app, later, retry=Retry(max_attempts=2, base=1)):
        before = datetime.now(UTC)
        job = drained(app, task.enqueue())
        assert (job.state, job.attempt) == (State.SCHEDULED, 1)
        assert timedelta(seconds=50) < job.run_at - before < timedelta(seconds=90)


def test_a_failing_job_is_tried_again_by_its_policy_and_fails_when_that_is_used_up(
    app: Evenflow, books: Books
) -> None:
    def explode(ctx: Context) -> None:
        raise ValueError(f"attempt {ctx.attempt}")

    task = app.task(name="explode", retry=Retry(max_attempts=3, backoff=[40, 80], jitter=False))(explode)
    job = task.enqueue()
    for attempt, delay_s in ((1, 40), (2, 80)):
        before = datetime.now(UTC)
        drained(app, job)
        assert (job.state, job.attempt) == (State.SCHEDULED, attempt)
        assert timedelta(seconds=delay_s - 1) < job.run_at - before < timedelta(seconds=delay_s + 20)
        books.rows("update {job} set run_at = 0")
    drained(app, job)
    assert (job.state, job.attempt) == (State.FAILED, 3)
    assert [error.message for error in job.errors] == ["attempt 1", "attempt 2", "attempt 3"]
    assert [error.attempt for error in job.errors] == [1, 2, 3]


def test_a_retry_that_is_due_soon_runs_soon(app: Evenflow, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dispatcher, "LOOK_EVERY_S", 60.0)

    def explode(ctx: Context) -> int:
        if ctx.attempt == 1:
            raise ValueError("once")
        return ctx.attempt

    task = app.task(name="explode", retry=Retry(max_attempts=2, base=0.1, jitter=False))(explode)
    with serving(app):
        started = time.monotonic()
        assert task.enqueue().result(timeout=30) == 2
        assert time.monotonic() - started < 15.0, "the dispatcher was told, it did not find it by looking"


def test_a_coroutine_past_its_timeout_is_cancelled(app: Evenflow) -> None:
    cleaned: list[str] = []

    async def endless() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            cleaned.append("up")

    job = drained(app, app.task(name="endless", timeout=0.1)(endless).enqueue())
    assert job.state is State.FAILED
    assert job.error is not None
    assert (job.error.code, job.error.message) == ("TASK_TIMEOUT", "task 'endless' ran longer than 0.1 s")
    assert cleaned == ["up"]


def test_a_timeout_of_the_bodys_own_is_not_the_tasks(app: Evenflow) -> None:
    async def impatient() -> None:
        async with asyncio.timeout(0.01):
            await asyncio.Event().wait()

    job = drained(app, app.task(name="impatient", timeout=30)(impatient).enqueue())
    assert job.error is not None
    assert (job.error.code, job.error.class_name) == ("UNHANDLED_ERROR", "TimeoutError")


def test_a_function_past_its_timeout_ends_and_its_late_result_is_dropped(app: Evenflow) -> None:
    told: list[bool] = []

    def slow(ctx: Context) -> int:
        wait_until(lambda: ctx.cancelled, "the timeout to be told")
        told.append(True)
        return 1

    job = app.task(name="slow", timeout=0.2)(slow).enqueue()
    drained(app, job, concurrency=1)
    assert job.error is not None and job.error.code == "TASK_TIMEOUT"
    wait_until(lambda: bool(told), "the body to notice")
    assert job.refresh().state is State.FAILED


def test_a_function_past_its_timeout_does_not_keep_its_slot(app: Evenflow) -> None:
    def stuck(ctx: Context) -> None:
        wait_until(lambda: ctx.cancelled and after.refresh().state.is_end, "the other job to end")

    job = app.task(name="stuck", timeout=0.2)(stuck).enqueue()
    after = app.task(name="after")(lambda: 5).enqueue()
    drained(app, job, concurrency=1)
    assert after.result(timeout=0) == 5


def test_a_coroutine_that_will_not_be_cancelled_ends_without_its_consent(app: Evenflow) -> None:
    async def stubborn(ctx: Context) -> None:
        while not app.job(ctx.job_id).state.is_end:
            try:
                await asyncio.sleep(0.05)
            except asyncio.CancelledError:
                continue

    job = drained(app, app.task(name="stubborn", timeout=0.1)(stubborn).enqueue())
    assert job.error is not None and job.error.code == "TASK_TIMEOUT"


def test_a_job_past_its_good_until_is_not_claimed(app: Evenflow) -> None:
    ran: list[int] = []
    task = app.task(name="note")(lambda: ran.append(1))
    job = task.using(good_until=0.05).enqueue()
    wait_until(lambda: datetime.now(UTC) > job.good_until, "the job to expire")  # type: ignore[operator]
    with serving(app), pytest.raises(JobExpired):
        job.result(timeout=30)
    assert ran == []


def test_a_job_that_expires_between_claim_and_start_does_not_run(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    ran: list[int] = []
    task = app.task(name="note")(lambda: ran.append(1))
    monkeypatch.setattr("evenflow.worker.calling.Run.now", lambda run: run.job.good_until)
    job = drained(app, task.using(good_until=3600).enqueue())
    assert job.state is State.EXPIRED
    assert job.error is not None and job.error.code == "TASK_EXPIRED"
    assert ran == []


def test_an_unknown_task_fails_with_its_name(app: Evenflow, make_app: Any, engine_url: str) -> None:
    job = app.task(name="known.elsewhere")(lambda: 1).enqueue()
    make_app(engine_url).run_worker(until_empty=True)
    assert job.refresh().error is not None
    assert job.error is not None
    assert (job.state, job.error.code) == (State.FAILED, "WORKER_RESOLUTION_ERROR")
    assert "'known.elsewhere'" in job.error.message


@pytest.mark.parametrize("payload", ['[["x"],{}]', "[[1,2],{}]", "[[],{}]", "{", "[[1],{},3]"])
def test_arguments_that_cannot_be_decoded_fail_the_job_for_good(
    app: Evenflow, books: Books, payload: str
) -> None:
    ran: list[int] = []

    def note(number: int) -> None:
        ran.append(number)

    job = app.task(name="note", retry=Retry(max_attempts=5))(note).enqueue(1)
    books.rows(f"update {{job}} set payload = '{payload}'")
    drained(app, job)
    assert job.error is not None
    assert (job.state, job.error.code) == (State.FAILED, "WORKER_SERIALIZATION_ERROR")
    assert ran == []


def test_options_that_cannot_be_read_fail_the_job_and_not_the_worker(app: Evenflow, books: Books) -> None:
    job = app.task(name="note")(lambda: 1).enqueue()
    books.rows("update {job} set options = '{broken'")
    after = app.task(name="after")(lambda: 2).enqueue()
    drained(app, job)
    assert job.error is not None
    assert (job.state, job.error.code) == (State.FAILED, "WORKER_SERIALIZATION_ERROR")
    assert after.result(timeout=0) == 2


def test_a_result_that_cannot_be_stored_fails_the_job_and_is_not_tried_again(app: Evenflow) -> None:
    ran: list[int] = []

    def strange() -> object:
        ran.append(1)
        return object()

    job = drained(app, app.task(name="strange", retry=Retry(max_attempts=5))(strange).enqueue())
    assert job.error is not None
    assert (job.state, job.error.code, len(ran)) == (State.FAILED, "WORKER_SERIALIZATION_ERROR", 1)


def test_texts_that_databases_refuse_do_not_keep_a_job_from_ending(app: Evenflow) -> None:
    def explode(text: str) -> None:
        raise ValueError(f"nul \0 and {chr(0xD800)} of {text}")

    job = drained(app, app.task(name="explode")(explode).enqueue("x\0y"))
    assert job.error is not None
    assert job.error.message == "nul \\0 and ? of x\\0y"


def test_a_huge_traceback_is_stored_cut(app: Evenflow) -> None:
    def endless(depth: int) -> None:
        try:
            raise ValueError("x" * 5000)
        finally:
            if depth:
                endless(depth - 1)

    job = drained(app, app.task(name="endless")(endless).enqueue(50))
    assert job.error is not None and job.error.traceback is not None
    assert 10_000 < len(job.error.traceback) < 20_000
    assert len(job.error.message) < 5_000


def test_a_running_coroutine_is_cancelled_on_request(make_app: Any, engine_url: str) -> None:
    app = make_app(engine_url, heartbeat_ms=50, lease_ms=60_000)

    async def endless() -> None:
        await asyncio.Event().wait()

    job = app.task(name="endless", retry=Retry(max_attempts=5))(endless).enqueue()
    with serving(app):
        wait_until(lambda: job.refresh().state is State.RUNNING, "the job to run")
        assert job.cancel("not wanted any more")
        with pytest.raises(JobCancelled, match="not wanted any more"):
            job.result(timeout=30)


def test_a_running_function_is_told_and_its_failure_is_then_final(make_app: Any, engine_url: str) -> None:
    app = make_app(engine_url, heartbeat_ms=50, lease_ms=60_000)

    began: list[bool] = []

    def long(ctx: Context, fails: bool) -> str:
        began.append(fails)
        wait_until(lambda: ctx.cancelled, "the wish")
        if fails:
            raise ValueError("interrupted")
        return f"stopped: {ctx.cancel_reason}"

    task = app.task(name="long", retry=Retry(max_attempts=5))(long)
    failing, returning = task.enqueue(True), task.enqueue(False)
    with serving(app):
        wait_until(lambda: len(began) == 2, "both bodies to begin")  # one that has not is simply not run
        assert app.cancel([failing.id, returning.id], reason="enough") == 2
        with pytest.raises(JobCancelled, match="enough"):
            failing.result(timeout=30)
        assert returning.result(timeout=30) == "stopped: enough", "what was done was done"


def test_progress_is_stored_while_the_body_runs(make_app: Any, engine_url: str) -> None:
    app = make_app(engine_url)

    def long(ctx: Context) -> None:
        for done in range(1, 4):
            ctx.progress(done, 10, note="page")
        wait_until(
            lambda: app.job(ctx.job_id).progress == {"done": 3, "total": 10, "note": "page"}, "the progress"
        )

    job = app.task(name="long")(long).enqueue()
    drained(app, job)
    assert job.state is State.SUCCEEDED
    assert job.progress == {"done": 3, "total": 10, "note": "page"}


@pytest.mark.parametrize("wrong", [{"note": chr(0xD800)}, {"note": "x" * 20_000}, {"done": object()}])
def test_a_progress_report_that_cannot_be_stored_is_the_bodys_error(
    app: Evenflow, wrong: dict[str, Any]
) -> None:
    def report(ctx: Context) -> None:
        ctx.progress(**({"done": 1} | wrong))

    job = drained(app, app.task(name="report")(report).enqueue())
    assert job.state is State.FAILED
    assert job.error is not None and "ctx.progress" in (job.error.traceback or "")


def test_a_job_that_keeps_no_result_leaves_no_row(app: Evenflow, books: Books) -> None:
    app.task(name="note", keep_result=0)(lambda: 5).enqueue()
    app.run_worker(until_empty=True)
    assert books.states() == {}


def test_the_result_is_stored_in_the_type_of_the_annotation(app: Evenflow) -> None:
    def moment(at: datetime) -> datetime:
        assert isinstance(at, datetime)
        return at + timedelta(seconds=1)

    at = datetime(2026, 1, 2, 3, 4, 5, 678, tzinfo=UTC)
    assert drained(app, app.task(name="moment")(moment).enqueue(at)).result(timeout=0) == at + timedelta(
        seconds=1
    )
