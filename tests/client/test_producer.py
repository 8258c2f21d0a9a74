"""The producer: batches are stored as a whole or not at all, on our own connection and in a caller's transaction."""

import sqlite3
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

import msgspec
import psycopg
import pytest

from evenflow import Concurrency, DuplicateJob, EnqueueError, Evenflow, Job, Queue, State, Unique
from evenflow.client.task import Call, Task
from evenflow.errors import StoreUnavailable
from evenflow.store.postgres import PostgresEngine
from tests.client.conftest import MakeApp
from tests.processes import wait_until


def bill(tenant: str, amount: int = 0) -> int:
    return amount


def strict(app: Evenflow) -> Task[..., int, int]:
    return app.task(name="bill", unique=Unique("tenant", on_conflict="error"), group="tenant")(bill)


def tenants(app: Evenflow) -> list[str]:
    return [job.args[0] for job in app.jobs()][::-1]


def connect(url: str) -> Any:
    if url.startswith("sqlite"):
        return sqlite3.connect(url.removeprefix("sqlite:///"))
    return psycopg.connect(url)


@pytest.mark.parametrize("place", [0, 1, 2])
def test_a_batch_with_a_duplicate_that_is_an_error_leaves_nothing(app: Evenflow, place: int) -> None:
    holder = strict(app).enqueue("bob")
    calls = [("eve",), ("ann",)]
    calls.insert(place, ("bob",))
    with pytest.raises(
        DuplicateJob, match=f"task 'bill': job {holder.id} with the same unique key is open"
    ) as refused:
        strict(app).enqueue_many(calls)
    assert refused.value.job_id == holder.id
    assert tenants(app) == ["bob"]
    assert [job.is_new for job in strict(app).enqueue_many([("eve",), ("ann",)])] == [True, True]


def test_a_batch_that_is_its_own_duplicate_leaves_nothing(app: Evenflow) -> None:
    with pytest.raises(DuplicateJob, match="two calls of this batch have the same unique key") as refused:
        strict(app).enqueue_many([("eve",), ("ann",), ("eve",)])
    assert refused.value.job_id == ""
    assert tenants(app) == []


def test_a_batch_without_duplicates_is_stored_ready_to_run(app: Evenflow) -> None:
    jobs = strict(app).enqueue_many([("eve", 1), ("ann", 2)])
    assert [job.refresh().state for job in jobs] == [State.READY] * 2
    app.run_worker(until_empty=True)
    assert [job.result(timeout=0) for job in jobs] == [1, 2]


def test_one_strict_call_undoes_the_others_of_its_batch(app: Evenflow) -> None:
    plain = app.task(name="plain")(bill)
    relaxed = strict(app).using(unique=Unique("tenant"))
    holder = strict(app).enqueue("bob")
    jobs = app.enqueue_many([plain.job("x"), relaxed.job("bob")])
    assert [job.is_new for job in jobs] == [True, False]
    with pytest.raises(DuplicateJob):
        app.enqueue_many([plain.job("y"), relaxed.job("new"), strict(app).job("bob")])
    assert tenants(app) == ["bob", "x"]
    assert jobs[1] == holder


async def test_the_awaited_batch_is_all_or_nothing_too(app: Evenflow) -> None:
    strict(app).enqueue("bob")
    with pytest.raises(DuplicateJob):
        await strict(app).aenqueue_many([("eve",), ("bob",)])
    assert tenants(app) == ["bob"]


def test_a_duplicate_leaves_the_caller_s_transaction_as_it_was(app: Evenflow, engine_url: str) -> None:
    task = strict(app)
    task.enqueue("bob")
    connection = connect(engine_url)
    first = task.enqueue("first", connection=connection)
    with pytest.raises(DuplicateJob):
        task.enqueue_many([("eve",), ("bob",), ("ann",)], connection=connection)
    with pytest.raises(DuplicateJob):
        task.enqueue("bob", connection=connection)
    last = task.enqueue("last", connection=connection)
    connection.commit()
    connection.close()
    assert tenants(app) == ["bob", "first", "last"]
    assert [app.job(job.id).state for job in (first, last)] == [State.ARRIVING] * 2


@pytest.mark.parametrize("commits", [True, False])
def test_a_batch_that_waits_for_an_open_transaction_decides_by_how_it_ends(
    postgres_app: Evenflow, postgres_url: str, commits: bool
) -> None:
    # The race that a look beforehand cannot see: the key is taken, but not committed yet.
    task = strict(postgres_app)
    ends: list[list[Job[int]] | DuplicateJob] = []

    def enqueue() -> None:
        try:
            ends.append(task.enqueue_many([("eve",), ("bob",), ("ann",)]))
        except DuplicateJob as refused:
            ends.append(refused)

    with psycopg.connect(postgres_url) as connection:
        holder = task.enqueue("bob", connection=connection)
        waiter = threading.Thread(target=enqueue)
        waiter.start()
        wait_until(lambda: _is_somebody_blocked(postgres_url), "the batch to wait for the key")
        connection.commit() if commits else connection.rollback()
        waiter.join(30)
    if commits:
        assert isinstance(ends[0], DuplicateJob)
        assert ends[0].job_id == holder.id
        assert tenants(postgres_app) == ["bob"]
    else:
        assert isinstance(ends[0], list)
        assert sorted(tenants(postgres_app)) == ["ann", "bob", "eve"]


def _is_somebody_blocked(url: str) -> bool:
    count = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = current_database()"
    with psycopg.connect(url) as connection:
        return connection.execute(count).fetchone() != (0,)


@pytest.mark.process
def test_batches_that_race_for_keys_are_whole_or_absent(app: Evenflow) -> None:
    task = strict(app)
    refused: list[int] = []
    failures: list[BaseException] = []

    def enqueue(number: int) -> None:
        try:
            task.enqueue_many(
                [(f"own-{number}", number), (f"shared-{number % 3}", number), (f"other-{number}", number)]
            )
        except DuplicateJob:
            refused.append(number)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=enqueue, args=(number,)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
    assert failures == []
    stored = [job.args[1] for job in app.jobs()]
    assert len(refused) == 9
    assert {number: stored.count(number) for number in stored} == dict.fromkeys(
        set(range(12)) - set(refused), 3
    )


def test_a_refused_batch_keeps_its_connection(postgres_app: Evenflow) -> None:
    task, engine = strict(postgres_app), postgres_app._producer.engine
    assert isinstance(engine, PostgresEngine)
    task.enqueue("bob")
    before = _backend(engine)
    with pytest.raises(DuplicateJob):
        task.enqueue_many([("eve",), ("bob",)])
    assert _backend(engine) == before


def _backend(engine: PostgresEngine) -> Any:
    with engine.session() as connection:
        return connection.execute("select pg_backend_pid()").fetchone()


def test_a_batch_is_stored_as_a_whole_when_a_row_is_refused(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch
) -> None:
    calls = [strict(app).job(name) for name in ("eve", "ann")]
    calls[1] = Call(calls[1].task, msgspec.structs.replace(calls[1].new, priority=20_000))
    with pytest.raises(Exception, match=r"(?i)constraint|out of range"):
        app.enqueue_many(calls)
    assert tenants(app) == []


def test_declared_queues_are_known_to_the_store_before_the_first_job(
    engine_url: str, make_app: MakeApp
) -> None:
    app = make_app(engine_url, queues=[Queue("docs", priority=7, fair="fifo", weights={"gold": 3})])
    app.task(name="bill", queue="docs")(bill).enqueue("bob")
    assert [(queue.name, queue.priority, queue.fair) for queue in app.queues()] == [("docs", 7, "fifo")]


@pytest.mark.parametrize("waits", [False, True], ids=["enqueue", "aenqueue"])
async def test_an_unavailable_database_is_said_and_the_next_call_succeeds(
    app: Evenflow, monkeypatch: pytest.MonkeyPatch, waits: bool
) -> None:
    task, engine = app.task(name="bill")(bill), app._producer.engine
    task.enqueue("first")
    real: Callable[..., Any] = engine.run

    def lost(name: str, *arguments: Any, **options: Any) -> Any:
        if name.startswith("enqueue") or name == "find_duplicates":
            raise StoreUnavailable("the database is away")
        return real(name, *arguments, **options)

    monkeypatch.setattr(engine, "run", lost)
    with pytest.raises(StoreUnavailable, match="the database is away"):
        await task.aenqueue("second") if waits else task.enqueue("second")
    monkeypatch.setattr(engine, "run", real)
    task.enqueue("third")
    assert tenants(app) == ["first", "third"]


def test_a_lost_answer_does_not_make_two_jobs(app: Evenflow, monkeypatch: pytest.MonkeyPatch) -> None:
    task, engine = app.task(name="bill")(bill), app._producer.engine
    task.enqueue("first")
    real: Callable[..., Any] = engine.run
    losses = iter([True])

    def answers_lost(name: str, *arguments: Any, **options: Any) -> Any:
        rows = real(name, *arguments, **options)
        if name == "enqueue" and next(losses, False):
            raise StoreUnavailable("lost after the commit")
        return rows

    monkeypatch.setattr(engine, "run", answers_lost)
    jobs = task.enqueue_many([("second",), ("third",)])
    assert tenants(app) == ["first", "second", "third"]
    assert [job.refresh().args[0] for job in jobs] == ["second", "third"]


def test_a_discarding_key_holds_for_more_jobs_than_one_admission_takes(app: Evenflow) -> None:
    @app.task(concurrency=Concurrency(on_conflict="discard"))
    def sync(number: int) -> None: ...

    jobs = sync.enqueue_many([(number,) for number in range(1_050)])
    assert Counter(job.state for job in jobs) == {"ready": 1, "discarded": 1_049}


def test_jobs_get_the_ids_that_were_reserved_for_them(app: Evenflow) -> None:
    task = strict(app)
    ids = app.reserve_ids(2)
    jobs = app.enqueue_many([task.job("eve"), task.job("ann")], ids=ids)
    assert [job.id for job in jobs] == ids == sorted(set(ids))
    later = task.enqueue("bob")
    assert later.id > ids[-1]
    assert tenants(app) == ["eve", "ann", "bob"]


def test_reserved_ids_are_kept_in_a_caller_s_transaction_and_refused_where_they_do_not_fit(
    app: Evenflow, engine_url: str
) -> None:
    task = strict(app)
    ids = app.reserve_ids(1)
    connection = connect(engine_url)
    app.enqueue_many([task.job("eve")], connection=connection, ids=ids)
    connection.commit()
    connection.close()
    assert [job.id for job in app.jobs()] == ids
    with pytest.raises(EnqueueError, match="expected one for each of the 1 calls, got 2"):
        app.enqueue_many([task.job("ann")], ids=[*ids, *ids])
    with pytest.raises(EnqueueError, match=r"take them from app\.reserve_ids"):
        app.enqueue_many([task.job("ann")], ids=["nonsense"])
    with pytest.raises(ValueError, match="count: expected a whole number from 1"):
        app.reserve_ids(0)
