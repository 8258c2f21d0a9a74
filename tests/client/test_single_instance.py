"""Single-instance tasks as users declare and run them: the lock's name, its time, and what contention does."""

import threading
from collections.abc import Callable
from typing import Any

import pytest

from evenflow import Breaker, ConfigError, Evenflow, JobCancelled, JobFailed, Queue, Rate, Retry
from tests.client.conftest import MakeApp
from tests.client.serving import serving
from tests.processes import wait_until

SECOND = 1_000_000


class Overlap:
    """A body that notes how many of its kind run at once, and can be held open."""

    def __init__(self) -> None:
        self.most = self.running = self.runs = 0
        self.has_begun = threading.Event()
        self.may_end = threading.Event()
        self._lock = threading.Lock()

    def __call__(self) -> None:
        with self._lock:
            self.running += 1
            self.runs += 1
            self.most = max(self.most, self.running)
        self.has_begun.set()
        self.may_end.wait(60)
        with self._lock:
            self.running -= 1


@pytest.fixture
def app(engine_url: str, make_app: MakeApp) -> Evenflow:
    return make_app(engine_url)


@pytest.fixture
def body() -> Overlap:
    return Overlap()


def task(app: Evenflow, run: Callable[[], None], **options: Any) -> Any:
    def report(number: int = 0) -> None:
        run()

    return app.task(**{"name": "report", "single_instance": True, **options})(report)


def lock_of(app: Evenflow, call: Any) -> tuple[str, int]:
    (limit,) = call.new.limits
    return limit.name, limit.keep_us // SECOND


def test_one_runs_at_a_time_and_all_run_without_a_failed_attempt(app: Evenflow, body: Overlap) -> None:
    body.may_end.set()
    jobs = task(app, body).enqueue_many([(number,) for number in range(12)])
    app.run_worker(until_empty=True, concurrency=6)
    assert (body.runs, body.most) == (12, 1)
    ended = [app.job(job.id) for job in jobs]
    assert {(job.state, job.attempt, job.error) for job in ended} == {("succeeded", 1, None)}


def test_one_that_waits_takes_no_slot_and_says_who_holds_the_lock(app: Evenflow, body: Overlap) -> None:
    reports = task(app, body)

    @app.task(name="quick")
    def quick() -> str:
        return "done"

    with serving(app, concurrency=2):
        first = reports.enqueue()
        assert body.has_begun.wait(30)
        second = reports.enqueue()
        assert quick.enqueue().result(timeout=30) == "done"
        (reason,) = app.why(second.id)
        assert (reason.rule, reason.holders) == ("single instance", (first.id,))
        assert reason.text == f"single instance 'report' is held by job {first.id}"
        (row,) = app.limits("lock:")
        assert (row.name, row.kind, row.used, row.limit, row.waiting) == ("lock:report", "lock", 1, 1, 1)
        assert row.holders == (first.id,)
        body.may_end.set()
        second.result(timeout=30)
    assert app.job(second.id).attempt == 1


@pytest.mark.parametrize("on_conflict", ["snooze", "skip", "fail"])
def test_the_lock_is_held_before_the_body_begins(app: Evenflow, on_conflict: Any) -> None:
    seen: list[tuple[str, ...]] = []
    reports = task(
        app, lambda: seen.extend(row.holders for row in app.limits("lock:")), on_conflict=on_conflict
    )
    job = reports.enqueue()
    app.run_worker(until_empty=True)
    assert seen == [(job.id,)]


def test_the_lock_has_the_name_given_with_the_job_or_that_of_the_task(app: Evenflow) -> None:
    mine = task(app, lambda: None)
    assert lock_of(app, mine.job())[0] == "lock:report"
    assert lock_of(app, mine.using(single_instance="nightly").job())[0] == "lock:nightly"
    named = app.task(name="other", single_instance="nightly")(lambda: None)
    assert lock_of(app, named.job())[0] == "lock:nightly"
    unnamed = app.task(single_instance=True)(_plain)
    assert lock_of(app, unnamed.job())[0] == f"lock:{unnamed.name}"
    assert mine.using(single_instance=False).job().new.limits == ()


def test_two_tasks_with_one_name_share_one_lock(app: Evenflow, body: Overlap) -> None:
    body.may_end.set()
    one = task(app, body, single_instance="shared")
    two = task(app, body, name="second", single_instance="shared")
    app.enqueue_many([each.job() for each in [one, two] * 6])
    app.run_worker(until_empty=True, concurrency=6)
    assert (body.runs, body.most) == (12, 1)


@pytest.mark.parametrize(("timeout", "kept_s"), [(None, 120), (30, 120), (60, 120), (61, 121), (3600, 3660)])
def test_the_lock_outlives_the_timeout(app: Evenflow, timeout: float | None, kept_s: int) -> None:
    assert lock_of(app, task(app, lambda: None, timeout=timeout).job())[1] == kept_s


def test_a_body_that_raises_or_times_out_lets_the_next_one_run(app: Evenflow) -> None:
    def fails() -> None:
        raise ValueError("no")

    may_end = threading.Event()
    failing = task(app, fails, name="failing", single_instance="shared")
    slow = app.task(name="slow", single_instance="shared", timeout=0.2)(lambda: may_end.wait(60))
    jobs = [failing.enqueue(), slow.enqueue(), failing.enqueue()]
    with serving(app, concurrency=3):
        try:
            for job in jobs:
                with pytest.raises(JobFailed):
                    job.result(timeout=30)
        finally:
            may_end.set()  # the thread itself cannot be ended


def test_skip_ends_a_contended_job_without_running_it(app: Evenflow, body: Overlap) -> None:
    reports = task(app, body, on_conflict="skip")
    with serving(app, concurrency=3):
        first = reports.enqueue()
        assert body.has_begun.wait(30)
        second = reports.enqueue()
        with pytest.raises(JobCancelled):
            second.result(timeout=30)
        ended = app.job(second.id)
        assert ended.state == "skipped"
        assert ended.error is not None
        assert ended.error.code == "LOCK_CONTENDED"
        assert ended.error.message == f"already running: lock:report is held by job {first.id}"
        body.may_end.set()
        first.result(timeout=30)
        reports.enqueue().result(timeout=30)
    assert (body.runs, body.most) == (2, 1)


def test_fail_is_a_failed_attempt_that_the_retry_policy_decides_about(app: Evenflow, body: Overlap) -> None:
    reports = task(
        app,
        body,
        on_conflict="fail",
        retry=Retry(max_attempts=5_000, backoff="fixed", base=0.05, jitter=False),
    )
    with serving(app, concurrency=3):
        reports.enqueue()
        assert body.has_begun.wait(30)
        second = reports.enqueue()
        wait_until(lambda: app.job(second.id).attempt >= 2, "a second attempt")
        waiting = app.job(second.id)
        assert waiting.error is not None
        assert waiting.error.code == "LOCK_CONTENDED"
        body.may_end.set()
        second.result(timeout=30)
        assert app.job(second.id).attempt >= 3
    assert (body.runs, body.most) == (2, 1)


def test_fail_without_retries_ends_the_job(app: Evenflow, body: Overlap) -> None:
    reports = task(app, body, on_conflict="fail")
    with serving(app, concurrency=3):
        reports.enqueue()
        assert body.has_begun.wait(30)
        with pytest.raises(JobFailed, match="already running"):
            reports.enqueue().result(timeout=30)
        body.may_end.set()


@pytest.mark.parametrize("on_conflict", ["skip", "fail"])
def test_jobs_that_only_wait_are_not_contended(app: Evenflow, body: Overlap, on_conflict: Any) -> None:
    """One slot: they run one after the other, so nobody ever finds the lock taken."""
    body.may_end.set()
    jobs = task(app, body, on_conflict=on_conflict).enqueue_many([(number,) for number in range(5)])
    app.run_worker(until_empty=True, concurrency=1)
    assert {app.job(job.id).state for job in jobs} == {"succeeded"}


@pytest.mark.parametrize("on_conflict", ["skip", "fail"])
def test_prefetched_jobs_take_their_locks_when_they_start(
    engine_url: str, make_app: MakeApp, body: Overlap, on_conflict: Any
) -> None:
    app = make_app(engine_url, prefetch_buffer=10, claim_lease_ms=30_000)
    body.may_end.set()
    jobs = task(app, body, on_conflict=on_conflict).enqueue_many([(number,) for number in range(5)])
    app.run_worker(until_empty=True, concurrency=1)
    assert {app.job(job.id).state for job in jobs} == {"succeeded"}


def test_one_expression_says_everything_and_sends_the_job(app: Evenflow) -> None:
    reports = task(app, lambda: None, single_instance=False)
    retry = Retry(max_attempts=3)
    job = reports.using(queue="nightly", single_instance="books", on_conflict="fail", retry=retry).enqueue()
    app.run_worker(until_empty=True)
    ended = app.job(job.id)
    assert (ended.state, ended.queue, ended.max_attempts) == ("succeeded", "nightly", 3)


def test_a_lock_a_rate_and_a_breaker_are_used_together(
    engine_url: str, make_app: MakeApp, body: Overlap
) -> None:
    queue = Queue("mail", rate=Rate("2/hour"), breaker=Breaker(failure_threshold=1), max_concurrency=2)
    app = make_app(engine_url, queues=[queue])
    body.may_end.set()
    jobs = task(app, body, queue="mail").enqueue_many([(number,) for number in range(4)])
    app.run_worker(until_empty=True, concurrency=4)
    assert (body.runs, body.most) == (2, 1)
    assert sorted(app.job(job.id).state for job in jobs) == ["blocked", "blocked", "succeeded", "succeeded"]
    (breaker,) = app.breakers()
    assert (breaker.name, breaker.state) == ("queue_mail", "closed")


def test_contention_says_nothing_to_a_breaker(engine_url: str, make_app: MakeApp, body: Overlap) -> None:
    app = make_app(engine_url)
    reports = task(app, body, on_conflict="fail", breaker=Breaker(failure_threshold=1))
    with serving(app, concurrency=3):
        first = reports.enqueue()
        assert body.has_begun.wait(30)
        with pytest.raises(JobFailed, match="already running"):
            reports.enqueue().result(timeout=30)
        body.may_end.set()
        first.result(timeout=30)
    assert [breaker.state for breaker in app.breakers()] == ["closed"]


@pytest.mark.parametrize(
    ("options", "mistake"),
    [
        (
            {"single_instance": 1},
            "single_instance: expected True, False or a name of 1 to 200 characters, got 1",
        ),
        (
            {"single_instance": ""},
            "single_instance: expected a text of 1 to 200 characters, got ''",
        ),
        (
            {"single_instance": True, "on_conflict": "wait"},
            "on_conflict: expected 'snooze' or 'skip' or 'fail', got 'wait'",
        ),
        (
            {"single_instance": False, "on_conflict": "skip"},
            "on_conflict='skip' has no effect without single_instance; write single_instance=True",
        ),
    ],
)
def test_mistakes_are_refused_at_the_declaration(
    app: Evenflow, options: dict[str, Any], mistake: str
) -> None:
    with pytest.raises(ConfigError) as refused:
        task(app, lambda: None, **options)
    assert refused.value.mistakes == [f"task 'report': {mistake}"]


def _plain() -> None: ...
