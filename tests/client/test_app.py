"""The app: declaring tasks, bad addresses, looking at jobs and controlling them."""

import sqlite3
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evenflow import ConfigError, Evenflow, Fail, JobNotFound, Queue, State, StoreError
from evenflow.errors import DriverMissing, SchemaNewer, StoreRefused, StoreUnavailable
from tests.client.conftest import MakeApp
from tests.processes import wait_until


def echo(value: int) -> int:
    return value


def fails(value: int) -> None:
    raise Fail("BROKEN", f"value {value}")


def drain(app: Evenflow) -> None:
    app.run_worker(until_empty=True)


def assert_nobody_connected(url: str) -> None:
    count = "select count(*) from pg_stat_activity where application_name = 'evenflow' and datname = current_database()"
    with psycopg.connect(url, autocommit=True) as session:
        wait_until(lambda: session.execute(count).fetchone() == (0,), "connections to end")


def test_a_task_is_known_by_its_name(sqlite_app: Evenflow) -> None:
    task = sqlite_app.task(name="echo")(echo)
    assert sqlite_app.tasks == {"echo": task}


def test_two_functions_cannot_share_a_name(sqlite_app: Evenflow) -> None:
    sqlite_app.task(name="echo")(echo)
    with pytest.raises(ConfigError, match="task 'echo' is declared twice; give one of them another name="):
        sqlite_app.task(name="echo")(fails)
    assert sqlite_app.tasks["echo"].function is echo


def test_one_function_may_be_declared_anew_or_under_two_names(sqlite_app: Evenflow) -> None:
    sqlite_app.task(name="echo")(echo)
    assert sqlite_app.task(name="echo", priority=5)(echo).policy.priority == 5
    sqlite_app.task(name="other")(echo)
    assert sorted(sqlite_app.tasks) == ["echo", "other"]


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("", "at least one character"),
        ("a\0b", "NUL"),
        ("x" * 256, "at most 255 characters"),
        (7, "expected text, got int"),
    ],
)
def test_a_bad_name_is_refused(sqlite_app: Evenflow, name: Any, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        sqlite_app.task(name=name)(echo)
    assert sqlite_app.tasks == {}


def test_a_bad_name_is_told_with_the_other_mistakes(sqlite_app: Evenflow) -> None:
    with pytest.raises(ConfigError) as wrong:
        sqlite_app.task(name="", priority=1000)(echo)
    assert len(wrong.value.mistakes) == 2


def test_a_body_that_yields_is_refused_because_a_call_would_run_nothing(sqlite_app: Evenflow) -> None:
    def rows() -> Iterator[int]:
        yield 1

    async def arows() -> AsyncIterator[int]:
        yield 1

    for function in (rows, arows):
        with pytest.raises(ConfigError, match="expected a function without yield"):
            sqlite_app.task(function)
    assert sqlite_app.tasks == {}


@pytest.mark.parametrize("not_a_function", ["echo", 7, object()])
def test_only_functions_become_tasks(sqlite_app: Evenflow, not_a_function: Any) -> None:
    with pytest.raises(ConfigError, match="expected a function to make a task of"):
        sqlite_app.task(not_a_function)
    with pytest.raises(ConfigError, match="expected a function"):
        sqlite_app.task(name="named")(not_a_function)


@pytest.mark.parametrize(
    ("url", "text"),
    [
        ("", "expected a database URL"),
        ("jobs.db", "expected a database URL"),
        ("sqlite://jobs.db", "expected three slashes"),
        ("mysql://bob:secret@db/jobs", r"got 'mysql://bob:\*\*\*@db/jobs'"),
        ("postgresql+asyncpg://db/jobs", r"drop '\+asyncpg'"),
        ("postgresql://db:port/jobs", "expected a port"),
    ],
)
def test_a_malformed_address_is_refused_at_once(url: str, text: str) -> None:
    with pytest.raises(ConfigError, match=text) as refused:
        Evenflow(url)
    assert "secret" not in str(refused.value)


def test_an_unknown_setting_is_refused_with_its_nearest_name() -> None:
    wrong: dict[str, Any] = {"sceduled": 1, "schemas": "x"}
    with pytest.raises(ConfigError, match="did you mean schema"):
        Evenflow("sqlite:///:memory:", **wrong)


def test_a_missing_driver_names_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    with pytest.raises(DriverMissing, match=r"pip install 'evenflow\[postgres\]'") as refused:
        Evenflow("postgresql://localhost/jobs")
    assert refused.value.extra == "postgres"


@pytest.mark.parametrize("where", ["127.0.0.1:1", "/nowhere"])
def test_an_unreachable_server_is_named_without_the_password(make_app: MakeApp, where: str) -> None:
    host = where if ":" in where else f"?host={where}"
    url = f"postgresql://bob:secret@{host}/jobs" if ":" in where else f"postgresql://bob:secret@/jobs{host}"
    app = make_app(url)
    with pytest.raises(StoreUnavailable, match="is the server running, and is the URL right") as refused:
        app.task(name="echo")(echo).enqueue(1)
    assert "secret" not in str(refused.value)


def test_an_unreachable_database_is_met_at_the_first_use_and_not_before(make_app: MakeApp) -> None:
    app = make_app("postgresql://127.0.0.1:1/jobs")
    app.task(name="echo")(echo).job(1)
    with pytest.raises(StoreError):
        app.stats()


def test_a_read_only_file_is_refused(
    folder: Path, make_app: MakeApp, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder / "evenflow.db"
    sqlite3.connect(path).close()
    # The superuser may write everywhere, so the question is answered as it would be for anybody else.
    monkeypatch.setattr("evenflow.store.sqlite.os.access", lambda asked, mode: Path(asked) != path)
    with pytest.raises(StoreRefused, match=r"the file '.*evenflow\.db' is read-only; change its permissions"):
        make_app(f"sqlite:///{path}").task(name="echo")(echo).enqueue(1)
    assert path.read_bytes() == b""


def test_a_folder_that_does_not_exist_is_refused(folder: Path, make_app: MakeApp) -> None:
    with pytest.raises(StoreRefused, match="does not exist; create it, or correct the path"):
        make_app(f"sqlite:///{folder}/missing/evenflow.db").stats()
    assert list(folder.iterdir()) == []


def test_a_file_that_is_no_database_is_refused(folder: Path, make_app: MakeApp) -> None:
    path = folder / "notes.txt"
    path.write_text("these are notes and no database at all\n" * 100)
    with pytest.raises(StoreRefused, match="file is not a database"):
        make_app(f"sqlite:///{path}").stats()


def test_tables_of_a_newer_release_are_refused(app: Evenflow, engine_url: str) -> None:
    app.migrate()
    app.close()
    change = "insert into {} values (9999, 'from_the_future', 0)"
    if engine_url.startswith("sqlite"):
        with sqlite3.connect(engine_url.removeprefix("sqlite:///")) as connection:
            connection.execute(change.format("evenflow_migration"))
        connection.close()
    else:
        with psycopg.connect(engine_url) as session:
            session.execute(change.format("evenflow.migration").encode())
    with pytest.raises(SchemaNewer, match=r"at version 9999.*upgrade evenflow here"):
        app.task(name="echo")(echo).enqueue(1)


def test_migrate_names_what_it_applied_once(sqlite_app: Evenflow) -> None:
    assert sqlite_app.migrate()[0] == "0001_foundation"
    assert sqlite_app.migrate() == []


def test_tables_are_made_by_the_first_use(
    empty_postgres_url: str, sqlite_url: str, make_app: MakeApp
) -> None:
    for url in (empty_postgres_url, sqlite_url):
        app = make_app(url)
        assert app.stats() == {}
        assert app.migrate() == []


def test_a_job_is_found_by_its_id(app: Evenflow) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    found = app.job(job.id)
    assert found == job
    assert (found.task, found.args, found.kwargs, found.state) == ("echo", (7,), {}, State.READY)


@pytest.mark.parametrize("id", ["0123456789abc", "nonsense", "", "9" * 13])
def test_a_job_that_is_not_there_is_not_found(app: Evenflow, id: str) -> None:
    with pytest.raises(JobNotFound):
        app.job(id)
    with pytest.raises(LookupError):
        app.job(id)


def test_a_job_of_a_task_that_is_not_known_here_is_still_readable(
    app: Evenflow, engine_url: str, make_app: MakeApp
) -> None:
    job = app.task(name="echo")(echo).enqueue(7)
    drain(app)
    found = make_app(engine_url).job(job.id)
    assert (found.task, found.args, found.result(timeout=0)) == ("echo", (7,), 7)


def test_jobs_come_newest_first_by_filter(app: Evenflow) -> None:
    task, broken = app.task(name="echo")(echo), app.task(name="fails")(fails)
    done = task.enqueue(1)
    failed = broken.enqueue(2)
    drain(app)
    mail = task.using(queue="mail", group="bob").enqueue(3)
    later = task.using(run_after=3600, group="bob").enqueue(4)
    assert list(app.jobs()) == [later, mail, failed, done]
    assert list(app.jobs(state="succeeded")) == [done]
    assert list(app.jobs(state=State.FAILED)) == [failed]
    assert list(app.jobs(state="scheduled")) == [later]
    assert list(app.jobs(queue="mail")) == [mail]
    assert list(app.jobs(task="fails")) == [failed]
    assert list(app.jobs(task=broken)) == [failed]
    assert list(app.jobs(group="bob")) == [later, mail]
    assert list(app.jobs(group="bob", state="ready", queue="mail", task=task)) == [mail]
    assert list(app.jobs(group="nobody")) == []


def test_jobs_are_paged_by_limit_and_cursor(app: Evenflow) -> None:
    jobs = app.task(name="echo")(echo).enqueue_many([(number,) for number in range(450)])
    newest_first = jobs[::-1]
    assert list(app.jobs()) == newest_first
    assert list(app.jobs(limit=3)) == newest_first[:3]
    assert list(app.jobs(limit=0)) == []
    assert list(app.jobs(limit=300)) == newest_first[:300]
    assert list(app.jobs(limit=2, before=newest_first[2].id)) == newest_first[3:5]
    assert list(app.jobs(before=jobs[0].id)) == []


@pytest.mark.parametrize(
    ("filters", "error", "text"),
    [
        ({"state": "sleeping"}, ValueError, "state: expected one of arriving, scheduled.*got 'sleeping'"),
        ({"limit": -1}, ValueError, "limit: expected a whole number of 0 or more, got -1"),
        ({"limit": "5"}, ValueError, "limit: expected a whole number of 0 or more, got '5'"),
        ({"before": "nonsense"}, JobNotFound, "expected a job id"),
    ],
)
def test_a_wrong_filter_is_refused_where_it_is_written(
    sqlite_app: Evenflow, filters: dict[str, Any], error: type[Exception], text: str
) -> None:
    with pytest.raises(error, match=text):
        sqlite_app.jobs(**filters)


def test_cancel_by_ids_ends_what_is_open(app: Evenflow) -> None:
    task = app.task(name="echo")(echo)
    done = task.enqueue(0)
    drain(app)
    first, second, third = task.enqueue_many([(1,), (2,), (3,)])
    assert app.cancel(first.id, "not wanted") == 1
    assert app.cancel([second.id, done.id, first.id, "0000000000001"]) == 1
    assert app.cancel([]) == 0
    states = [job.refresh().state for job in (done, first, second, third)]
    assert states == [State.SUCCEEDED, State.CANCELLED, State.CANCELLED, State.READY]
    drain(app)
    assert third.result(timeout=0) == 3


def test_cancel_by_filter_takes_only_what_matches(app: Evenflow) -> None:
    task = app.task(name="echo")(echo)
    bob = task.using(group="bob").enqueue_many([(number,) for number in range(700)])
    alice = task.using(group="alice").enqueue(1)
    assert app.cancel(group="bob") == 700
    assert alice.refresh().state is State.READY
    assert {job.state for job in app.jobs(group="bob")} == {State.CANCELLED}
    assert len(bob) == 700
    assert app.cancel(group="bob") == 0


@pytest.mark.parametrize("act", ["cancel", "retry", "discard"])
@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({}, "expected ids or a filter"),
        ({"ids": "0000000000001", "queue": "mail"}, "and not both"),
        ({"colour": "red"}, "colour: not a filter; expected state=, queue=, task= or group="),
        ({"group": None}, "group: expected whose jobs are meant, got None"),
        ({"queue": "mail", "group": None}, "group: expected whose jobs are meant, got None"),
    ],
)
def test_bulk_acts_want_ids_or_a_filter(
    sqlite_app: Evenflow, act: str, arguments: dict[str, Any], text: str
) -> None:
    job = sqlite_app.task(name="echo", queue="mail")(echo).enqueue(1)
    with pytest.raises(TypeError, match=text):
        getattr(sqlite_app, act)(**arguments)
    assert job.refresh().state is State.READY


def test_retry_puts_failed_jobs_back_to_work(app: Evenflow) -> None:
    seen: list[int] = []

    @app.task(name="second_time")
    def second_time(number: int) -> int:
        seen.append(number)
        if seen.count(number) == 1:
            raise ValueError("the first time")
        return number

    jobs = second_time.enqueue_many([(1,), (2,), (3,)])
    drain(app)
    assert [job.refresh().state for job in jobs] == [State.FAILED] * 3
    assert app.retry(jobs[0].id) == 1
    assert app.retry(state="failed") == 2
    assert app.retry(state="failed") == 0
    drain(app)
    assert [job.result(timeout=0) for job in jobs] == [1, 2, 3]


def test_retry_revives_cancelled_jobs_and_hastens_scheduled_ones(app: Evenflow) -> None:
    task = app.task(name="echo")(echo)
    cancelled, scheduled, ready = task.enqueue(1), task.using(run_after=3600).enqueue(2), task.enqueue(3)
    app.cancel(cancelled.id)
    assert app.retry([cancelled.id, scheduled.id, ready.id]) == 2
    drain(app)
    assert [job.result(timeout=0) for job in (cancelled, scheduled, ready)] == [1, 2, 3]


def test_discard_gives_open_and_failed_jobs_up(app: Evenflow) -> None:
    failed = app.task(name="fails")(fails).enqueue(1)
    drain(app)
    waiting = app.task(name="echo")(echo).enqueue(2)
    assert app.discard([failed.id, waiting.id]) == 2
    assert [job.refresh().state for job in (failed, waiting)] == [State.DISCARDED] * 2
    assert app.discard(state="discarded") == 0
    assert list(app.jobs(state="failed")) == []


def test_a_paused_queue_starts_nothing_until_it_is_resumed(app: Evenflow) -> None:
    task = app.task(name="echo", queue="mail")(echo)
    app.pause("mail", who="eve", why="the server moves")
    held, other = task.enqueue(1), task.using(queue="docs").enqueue(2)
    (paused,) = [queue for queue in app.queues() if queue.name == "mail"]
    assert (paused.paused_by, paused.paused_why, paused.paused_at is not None) == (
        "eve",
        "the server moves",
        True,
    )
    app.run_worker(until_empty=True, queues=["docs"])
    assert (held.refresh().state, other.refresh().state) == (State.READY, State.SUCCEEDED)
    assert app.resume("mail") is True
    assert app.resume("mail") is False
    drain(app)
    assert held.result(timeout=0) == 1


def test_a_pause_of_a_malformed_queue_is_refused(sqlite_app: Evenflow) -> None:
    with pytest.raises(Exception, match="queue '9 lives': expected a letter"):
        sqlite_app.pause("9 lives")


def test_stats_count_open_jobs_by_queue_and_state(app: Evenflow) -> None:
    task = app.task(name="echo")(echo)
    assert app.stats() == {}
    task.enqueue_many([(1,), (2,)])
    task.using(queue="mail").enqueue(3)
    task.using(run_after=3600).enqueue(4)
    assert app.stats() == {"default": {"ready": 2, "scheduled": 1}, "mail": {"ready": 1}}
    drain(app)
    assert app.stats() == {"default": {"scheduled": 1}}


def test_queues_lists_what_was_declared_and_what_was_used(engine_url: str, make_app: MakeApp) -> None:
    app = make_app(
        engine_url, queues=[Queue("mail", priority=10), Queue("docs", fair="fifo")], queue_mode="open"
    )
    app.task(name="echo", queue="other")(echo).enqueue(1)
    assert [(queue.name, queue.priority, queue.fair) for queue in app.queues()] == [
        ("docs", 50, "fifo"), ("mail", 10, "round-robin"), ("other", 50, "round-robin"),
    ]  # fmt: skip


def test_a_closed_app_can_be_used_again(app: Evenflow) -> None:
    task = app.task(name="echo")(echo)
    first = task.enqueue(1)
    app.close()
    app.close()
    drain(app)
    assert first.result(timeout=0) == 1
    app.close()
    assert app.job(first.id).state is State.SUCCEEDED


def test_a_closed_app_in_memory_begins_anew(make_app: MakeApp) -> None:
    app = make_app("sqlite:///:memory:")
    task = app.task(name="echo")(echo)
    task.enqueue(1)
    app.close()
    job = task.enqueue(2)
    assert list(app.jobs()) == [job]


def test_an_app_is_closed_by_its_with_block(postgres_url: str) -> None:
    with Evenflow(postgres_url) as app:
        app.task(name="echo")(echo).enqueue(1)
        app.run_worker(until_empty=True)
    assert_nobody_connected(postgres_url)


def test_a_burst_that_ends_with_close_leaves_no_connection(postgres_url: str) -> None:
    # The last wake-up of a burst is delayed; it must not open a closed app again.
    with Evenflow(postgres_url) as app:
        task = app.task(name="echo")(echo)
        for number in range(20):
            task.enqueue(number)
    assert_nobody_connected(postgres_url)


def test_two_apps_in_two_schemas_of_one_database_are_apart(postgres_url: str, make_app: MakeApp) -> None:
    first, second = make_app(postgres_url), make_app(postgres_url, schema="other")
    job = first.task(name="echo")(echo).enqueue(1)
    second.task(name="echo")(echo).enqueue(2)
    drain(second)
    assert job.refresh().state is State.READY
    assert [each.args for each in second.jobs()] == [(2,)]


def test_the_smallest_app_has_one_queue_and_runs_its_jobs(engine_url: str, make_app: MakeApp) -> None:
    """S0-58"""
    app = make_app(engine_url, queue_mode="default")
    job = app.task(name="add")(lambda one, two: one + two).enqueue(1, 2)
    app.run_worker(until_empty=True)
    assert job.result(timeout=0) == 3


def test_a_worker_serves_the_queues_of_its_mode(engine_url: str, make_app: MakeApp) -> None:
    """S0-16"""
    everywhere = make_app(engine_url)
    jobs = {
        queue: everywhere.task(name=f"in-{queue}", queue=queue)(lambda: None).enqueue()
        for queue in ("default", "mail", "docs", "other")
    }

    def run(app: Evenflow) -> list[str]:
        for name in everywhere.tasks:
            app.task(name=name)(lambda: None)
        app.run_worker(until_empty=True)
        return [queue for queue, job in jobs.items() if job.refresh().state == "succeeded"]

    assert run(make_app(engine_url, queue_mode="default")) == ["default"]
    listed = [Queue("mail", priority=1, max_concurrency=1), Queue("docs", priority=2)]
    assert run(make_app(engine_url, queues=[*listed, Queue("default")])) == ["default", "mail", "docs"]
    assert jobs["other"].refresh().state == "ready"


def test_only_workers_say_what_the_cap_of_the_cluster_is(engine_url: str) -> None:
    with Evenflow(engine_url, cluster_wide_cap=3) as capped, Evenflow(engine_url) as other:
        capped.prepare()
        assert cluster_caps(other) == []
        capped.run_worker(until_empty=True)
        other.prepare()  # it only enqueues, and knows of no cap
        assert cluster_caps(other) == [3]
        other.run_worker(until_empty=True)
        assert cluster_caps(capped) == []


def cluster_caps(app: Evenflow) -> list[int]:
    return [row.limit for row in app.limits() if row.kind == "cluster cap"]
