"""The PostgreSQL engine: connections that break, servers that keep silent, locks of others, and many at once."""

import select
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evenflow.database_url import parse_url
from evenflow.errors import DriverMissing, StoreRefused, StoreUnavailable
from evenflow.ids import IdSource
from evenflow.job import Limit
from evenflow.queues import Queue
from evenflow.store import postgres as module
from evenflow.store.advance import Claim, Want, advance
from evenflow.store.callers import drive_together
from evenflow.store.control import admit, declare_queue
from evenflow.store.engine import Row, as_json, drive
from evenflow.store.enqueue import Enqueued, enqueue_steps, enqueue_together
from evenflow.store.leases import in_flight
from evenflow.store.limits import take_locks
from evenflow.store.open import open_engine
from evenflow.store.postgres import POOL_SIZE, PostgresEngine, in_one_trip
from evenflow.store.reads import counts, now_us
from evenflow.store.statements import Statement, load_units
from evenflow.store.workflows import NewRun, NewStep, start_steps
from tests.processes import wait_until
from tests.store.crowd import in_fork, in_threads
from tests.store.proxy import Proxy, once
from tests.store.scene import ALICE, SECOND, CountedIds, Scene, end_of, new_job, rows_of, second_engine
from tests.store.test_plans import Recorder

QUICK_S = 20.0  # whoever waited for a lock of these tests would do so until its deadline of 30 s


@pytest.fixture
def proxy(postgres_store: PostgresEngine, folder: Path) -> Iterator[Proxy]:
    with Proxy(postgres_store._conninfo, folder) as proxy:
        yield proxy


@pytest.fixture
def proxied(proxy: Proxy) -> Iterator[PostgresEngine]:
    engine = PostgresEngine(proxy.conninfo)
    yield engine
    engine.close()


@contextmanager
def callers_transaction(engine: PostgresEngine) -> Iterator["psycopg.Connection[Row]"]:
    """A transaction that somebody keeps open for as long as the block lasts."""
    with engine.connect() as connection, connection.transaction():
        yield connection


def enqueue_inside(connection: "psycopg.Connection[Row]", *jobs: object) -> list[Enqueued]:
    """Enqueue within a caller's transaction, as a caller's connection would drive it."""
    units = load_units("postgres")
    steps = enqueue_steps(list(jobs), IdSource(), arriving=True)  # type: ignore[arg-type]
    try:
        name, parameters = next(steps)
        while True:
            rows = connection.execute(units[name].statements[0].pyformat, parameters).fetchall()
            name, parameters = steps.send(rows)
    except StopIteration as end:
        placed: list[Enqueued] = end.value
        return placed


def started_chain(scene: Scene) -> int:
    """A run of two steps whose first is ready; the id of the second."""
    steps = [NewStep("first", new_job()), NewStep("second", new_job(), parents=(0,))]
    drive_together(scene.engine, lambda: start_steps(NewRun("report", steps), scene.ids, now=scene.now))
    scene.admit()
    (second,) = [id for id, state in scene.states().items() if state == "waiting"]
    return second


class TestATrip:
    """What goes out together."""

    BROKEN = Statement("select 1 / cast(:below as integer) as share")

    @pytest.mark.parametrize("has_pipelines", [True, False])
    def test_gives_the_rows_of_its_statements(
        self, postgres_store: PostgresEngine, monkeypatch: pytest.MonkeyPatch, has_pipelines: bool
    ) -> None:
        monkeypatch.setattr(psycopg.Pipeline, "is_supported", lambda: has_pipelines)
        with postgres_store.session() as connection:
            asked = [(self.BROKEN, {"below": below}) for below in (1, -1)]
            assert in_one_trip(connection, asked, ["BEGIN"], ["COMMIT"]) == [[(1,)], [(-1,)]]
            assert connection.info.transaction_status == psycopg.pq.TransactionStatus.IDLE

    @pytest.mark.parametrize(
        ("before", "after"), [(["BEGIN"], []), (["BEGIN"], ["COMMIT"]), ([], ["COMMIT"])]
    )
    def test_that_fails_says_what_its_statement_said(
        self, postgres_store: PostgresEngine, before: list[str], after: list[str]
    ) -> None:
        with pytest.raises(StoreRefused, match="division by zero"), postgres_store.session() as connection:
            in_one_trip(connection, [(self.BROKEN, {"below": 0})], before, after)

    def test_that_fails_leaves_nothing_of_it(self, postgres_store: PostgresEngine) -> None:
        units = [("declare_cluster", {"cap": cap}) for cap in (3, "many")]
        with pytest.raises(StoreRefused, match="many"):
            postgres_store.run_all(units)
        with postgres_store.session() as connection:
            assert connection.execute("select cap from evenflow.cluster").fetchall() == []

    def test_that_ends_a_step_waits_for_no_begin_and_no_commit(
        self, postgres_store: PostgresEngine, alone: list[tuple[object, bool]]
    ) -> None:
        scene = Scene(postgres_store)
        child = started_chain(scene)
        (job,) = scene.claim()
        alone.clear()
        scene.finish(job)
        assert alone == [(b"BEGIN", False), (b"COMMIT", False)]
        assert scene.states() == {job.id: "succeeded", child: "ready"}

    def test_of_a_claim_under_a_cap_waits_for_no_begin_and_no_commit(
        self, postgres_store: PostgresEngine, alone: list[tuple[object, bool]]
    ) -> None:
        """S0-52: it is answered once, as one without a cap is."""
        scene = Scene(postgres_store)
        declare_queue(postgres_store, Queue("default", max_concurrency=1))
        jobs = scene.enqueue(new_job(), new_job())
        alone.clear()
        answer = scene.advance(ALICE, claim=Claim([Want("default", 0, 2)], 2, under_caps=True))
        assert [job.id for job in answer.claimed] == jobs[:1]
        assert alone == [(b"BEGIN", False), (b"COMMIT", False)]


@pytest.fixture
def alone(monkeypatch: pytest.MonkeyPatch) -> list[tuple[object, bool]]:
    """Commands that go out, and whether each is waited for by itself."""
    said: list[tuple[object, bool]] = []
    execute = psycopg.Connection.execute

    def noted(connection: Any, query: Any, *values: Any, **options: Any) -> Any:
        said.append((query, not connection.pgconn.pipeline_status))
        return execute(connection, query, *values, **options)

    monkeypatch.setattr(psycopg.Connection, "execute", noted)
    return said


class TestALostConnection:
    @pytest.fixture(autouse=True)
    def no_connection_is_fresh(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """One that answered a tenth of a second ago is not looked at, and a test may take less than that."""
        monkeypatch.setattr("evenflow.store.libpq.FRESH_S", 0.0)

    @pytest.mark.parametrize("fate", ["lose message", "lose answer"])
    @pytest.mark.parametrize("count", [1, 200])
    def test_around_an_enqueue_neither_loses_nor_doubles_a_job(
        self, proxy: Proxy, proxied: PostgresEngine, fate: str, count: int
    ) -> None:
        drive(proxied, enqueue_steps([new_job(payload="[0]")], IdSource()))
        proxy.fate = once(fate, b"insert into evenflow.job")  # type: ignore[arg-type]
        jobs = [
            new_job(payload=f"[{number}]", group="g", unique_key=f"k{number % 150}")
            for number in range(1, count + 1)
        ]
        placed = drive(proxied, enqueue_steps(jobs, IdSource()))
        expected = ["[0]", *(f"[{number}]" for number in range(1, min(count, 150) + 1))]
        assert sorted(row["payload"] for row in rows_of(proxied, "job")) == sorted(expected)
        assert len({job.id for job in placed}) == min(count, 150)

    @pytest.mark.parametrize("fate", ["lose message", "lose answer"])
    @pytest.mark.parametrize(
        "special",
        [
            {"limits": (Limit("k", 1, SECOND),)},
            {"unique_key": "u", "unique_for_us": 60_000_000},
            {"unique_key": "u", "replaces": True},
            {"queue": "small"},
        ],
        ids=["keyed", "throttled", "replacing", "bounded"],
    )
    def test_around_the_commit_of_several_statements_neither_loses_nor_doubles_a_job(
        self, proxy: Proxy, proxied: PostgresEngine, fate: str, special: dict[str, Any]
    ) -> None:
        declare_queue(proxied, Queue("small", max_ready=10))
        is_arriving = "limits" in special or "unique_for_us" in special
        jobs = [new_job(payload="[1]", **special), new_job(payload="[2]")]
        proxy.fate = once(fate, b"COMMIT")  # type: ignore[arg-type]
        placed = enqueue_together(proxied, jobs, IdSource(), arriving=is_arriving, bounded={"small"})
        assert proxy.fate(b"COMMIT") == "pass", "the commit was met"
        assert sorted(row["payload"] for row in rows_of(proxied, "job")) == ["[1]", "[2]"]
        assert [job.is_new for job in placed] == [True, True]
        assert {job.id for job in placed} == {row["id"] for row in rows_of(proxied, "job")}
        assert len(rows_of(proxied, "hold")) == ("limits" in special)

    @pytest.mark.parametrize("fate", ["lose message", "lose answer"])
    def test_around_a_finish_leaves_the_truth_to_the_next_answer(
        self, proxy: Proxy, proxied: PostgresEngine, fate: str
    ) -> None:
        scene = Scene(proxied)
        job = scene.running()
        proxy.fate = once(fate, b"jsonb_to_recordset")  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            scene.finish(job)
        assert scene.finish(job).lost == ([(job.id, job.epoch)] if fate == "lose answer" else [])
        assert scene.states() == {job.id: "succeeded"}

    @pytest.mark.parametrize("fate", ["lose message", "lose answer"])
    def test_around_the_end_of_a_step_leaves_the_truth_to_the_next_answer(
        self, proxy: Proxy, proxied: PostgresEngine, fate: str
    ) -> None:
        scene = Scene(proxied)
        child = started_chain(scene)
        (job,) = scene.claim()
        proxy.fate = once(fate, b"COMMIT")  # type: ignore[arg-type]
        with pytest.raises(StoreUnavailable):
            scene.finish(job)
        answer = scene.finish(job)
        assert answer.lost == ([(job.id, job.epoch)] if fate == "lose answer" else [])
        assert scene.states() == {job.id: "succeeded", child: "ready"}

    def test_that_died_while_idle_is_replaced_for_a_read(self, postgres_store: PostgresEngine) -> None:
        assert counts(postgres_store) == {}
        self.end_all_sessions(postgres_store)
        assert counts(postgres_store) == {}

    def test_that_died_while_idle_is_replaced_for_a_write(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        job = scene.running()
        self.end_all_sessions(postgres_store)
        assert scene.finish(job).lost == []
        assert scene.states() == {job.id: "succeeded"}

    def test_does_not_leave_its_idle_siblings_to_the_next_calls(self, postgres_store: PostgresEngine) -> None:
        with ExitStack() as sessions:
            for _ in range(POOL_SIZE):
                sessions.enter_context(postgres_store.session())
        self.end_all_sessions(postgres_store)
        for number in range(POOL_SIZE):
            postgres_store.run_all([("count_live", {}), ("reserve_ids", {"blocks": number + 1})])

    def test_is_not_seen_in_a_notice(self, postgres_store: PostgresEngine) -> None:
        """What the server says unasked, such as a changed setting, makes an idle connection no worse."""
        with postgres_store.session() as session:
            session.execute("listen said")
            pid = session.info.backend_pid
            socket = session.fileno()
        with postgres_store.connect() as other:
            other.execute("notify said")
        assert select.select([socket], [], [], 30) == ([socket], [], [])
        with postgres_store.session() as session:
            assert session.info.backend_pid == pid

    def end_all_sessions(self, engine: PostgresEngine) -> None:
        with engine.connect() as other:
            other.execute(
                "select pg_terminate_backend(pid, 5000) from pg_stat_activity"
                " where datname = current_database() and pid <> pg_backend_pid()"
            )


class TestADeadline:
    def test_ends_a_write_that_gets_no_answer(self, proxy: Proxy, proxied: PostgresEngine) -> None:
        counts(proxied)
        proxy.fate = lambda message: "mute"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            advance(proxied, ALICE, deadline_s=0.3)
        assert time.monotonic() - began < 15.0
        proxy.fate = lambda message: "pass"
        assert counts(proxied) == {}

    def test_holds_for_a_read_too(self, proxy: Proxy, proxied: PostgresEngine) -> None:
        counts(proxied)
        proxy.fate = lambda message: "mute"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            proxied.run("count_live", {}, deadline_s=0.3)
        assert time.monotonic() - began < 15.0

    def test_holds_for_a_server_that_never_greets(self, proxy: Proxy, proxied: PostgresEngine) -> None:
        proxy.fate = lambda message: "mute"
        began = time.monotonic()
        with pytest.raises(StoreUnavailable):
            proxied.run("count_live", {}, deadline_s=0.3)
        assert time.monotonic() - began < 15.0

    def test_ends_a_wait_for_somebody_s_lock(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        job = scene.running()
        with callers_transaction(postgres_store) as other:
            other.execute("select 1 from evenflow.job for update")
            began = time.monotonic()
            with pytest.raises(StoreUnavailable):
                postgres_store.run("await_job", {"id": job.id}, deadline_s=0.3)
            assert time.monotonic() - began < 15.0
        assert scene.finish(job).lost == []

    def test_leaves_calls_alone_that_end_in_time(self, postgres_store: PostgresEngine) -> None:
        for _ in range(3):
            assert postgres_store.run("count_live", {}, deadline_s=20) == []
        backends = {self.backend(postgres_store) for _ in range(3)}
        assert len(backends) == 1

    def backend(self, engine: PostgresEngine) -> int:
        with engine.session() as session:
            return session.info.backend_pid


class TestOthersLocks:
    def test_on_the_row_of_a_lock_hold_up_who_takes_it(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        job = scene.running(limits=(Limit("lock:nightly", 1, SECOND, at_start=True),))
        assert take_locks(postgres_store, ALICE, [job], now=scene.now) == {job.id}
        again = {"runs": as_json([{"id": job.id, "epoch": job.epoch}]), "worker": ALICE, "now": scene.now}
        with callers_transaction(postgres_store) as other:
            other.execute("select 1 from evenflow.limiter for no key update")
            with pytest.raises(StoreUnavailable):
                postgres_store.run("take_locks", again, deadline_s=0.3)
        assert take_locks(postgres_store, ALICE, [job], now=scene.now) == {job.id}

    def test_on_the_row_of_a_capped_queue_hold_up_its_claims(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        declare_queue(postgres_store, Queue("default", max_concurrency=1))
        (job,) = scene.enqueue(new_job())
        claim = Claim([Want("default", 0, 1)], 1, under_caps=True)
        with callers_transaction(postgres_store) as other:
            other.execute("select 1 from evenflow.queue for no key update")
            with pytest.raises(StoreUnavailable):
                advance(postgres_store, ALICE, (), claim, now=scene.now, deadline_s=1.0)
            assert scene.states() == {job: "ready"}
        # All was sent in one trip, so the server carries it out once it can, though nobody hears of it. A worker looks for
        # such claims of its own after every call that it gave up (see evenflow.worker.lease).
        wait_until(lambda: in_flight(postgres_store, ALICE) == {(job, 1)}, "the claim to be carried out")
        assert scene.advance(ALICE, claim=claim).claimed == []

    def test_on_the_row_of_a_capped_queue_hold_up_nobody_outside_of_it(
        self, postgres_store: PostgresEngine
    ) -> None:
        """S0-56"""
        scene = Scene(postgres_store)
        for name in ("stalled", "capped"):
            declare_queue(postgres_store, Queue(name, max_concurrency=1))
        scene.enqueue(*(new_job(queue=name) for name in ("stalled", "capped", "free", "free")))
        with callers_transaction(postgres_store) as other:
            other.execute("select 1 from evenflow.queue where name = 'stalled' for no key update")
            for names, under_caps in ((["free"], False), (["capped", "free"], True)):
                claim = Claim([Want(name, 0, 1) for name in names], 2, under_caps=under_caps)
                answer = advance(postgres_store, ALICE, (), claim, deadline_s=30)
                assert [job.queue for job in answer.claimed] == names

    def test_of_a_claim_without_caps_are_on_no_queue(self, postgres_store: PostgresEngine) -> None:
        """S0-56"""
        scene = Scene(postgres_store)
        declare_queue(postgres_store, Queue("default"))
        scene.enqueue(new_job())
        claim = Recorder()
        advance(claim, ALICE, (), Claim([Want("default", 0, 1)], 1))
        ((name, parameters),) = claim.calls
        with callers_transaction(postgres_store) as other:
            other.execute(load_units("postgres")[name].statements[0].pyformat.encode(), parameters)
            with postgres_store.session() as session:
                free = session.execute("select name from evenflow.queue for update skip locked").fetchall()
        assert free == [("default",)]

    def test_for_a_cap_end_soon_where_their_holder_stalls(self, postgres_store: PostgresEngine) -> None:
        """S0-56: the server ends the transaction of a client that took the lock and then does nothing."""
        patience = "select current_setting('idle_in_transaction_session_timeout')"
        declare_queue(postgres_store, Queue("default", max_concurrency=1))
        with postgres_store.connect() as session:
            before = session.execute(patience).fetchone()
            with session.transaction():
                lock = load_units("postgres")["lock_caps"].statements[0]
                assert session.execute(lock.pyformat.encode(), {"queues": '["default"]'}).fetchall()
                assert session.execute(patience).fetchone() == ("5s",)
            assert session.execute(patience).fetchone() == before, "only for its transaction"

    def test_on_the_first_rows_do_not_stop_a_claim(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        jobs = scene.enqueue(*(new_job() for _ in range(10)))
        with callers_transaction(postgres_store) as other:
            other.execute("select 1 from evenflow.job where id = any(%s) for update", (jobs[:3],))
            began = time.monotonic()
            assert scene.claim_ids(4) == jobs[3:7]
            assert time.monotonic() - began < QUICK_S
        assert scene.claim_ids() == [*jobs[:3], *jobs[7:]]

    def test_on_due_or_late_or_orphaned_rows_are_stepped_over(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        orphans = [scene.running() for _ in range(2)]
        first, second = scene.enqueue(*(new_job(run_at=scene.now) for _ in range(2)))
        with callers_transaction(postgres_store) as other:
            other.execute(
                "select 1 from evenflow.job where id = any(%s) for update", ([orphans[0].id, first],)
            )
            began = time.monotonic()
            assert [job.id for job in scene.rescue()] == [orphans[1].id]
            assert scene.admit() == {"default": 1}
            assert scene.claim_ids() == [second]
            assert time.monotonic() - began < QUICK_S

    def test_of_a_caller_s_enqueue_stop_nobody_of_its_group(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        scene.enqueue(*(new_job(group="bob") for _ in range(3)))
        with callers_transaction(postgres_store) as other:
            (arriving,) = enqueue_inside(other, new_job(group="bob"))
            began = time.monotonic()
            scene.enqueue(new_job(group="bob"))
            (job,) = scene.claim(1)
            assert scene.finish(job).lost == []
            assert scene.admit() == {}
            assert time.monotonic() - began < QUICK_S
        assert scene.admit() == {"default": 1}
        assert scene.states()[arriving.id] == "ready"

    def test_of_a_caller_who_rolls_back_leave_no_job(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        with postgres_store.connect() as other, other.transaction(force_rollback=True):
            enqueue_inside(other, new_job(), new_job(unique_key="k"))
        assert scene.states() == {}
        assert scene.enqueued(new_job(unique_key="k"))[0].is_new

    def test_on_a_unique_key_are_waited_for_until_its_fate_is_known(
        self, postgres_store: PostgresEngine
    ) -> None:
        answers: list[Enqueued] = []
        scene = Scene(postgres_store)
        with callers_transaction(postgres_store) as other:
            (holder,) = enqueue_inside(other, new_job(unique_key="k"))
            waiter = threading.Thread(
                target=lambda: answers.extend(scene.enqueued(new_job(unique_key="k"))), daemon=True
            )
            waiter.start()
            self.wait_for_waiters(other, 1)
            assert answers == []
        waiter.join(30)
        assert answers == [Enqueued(holder.id, is_new=False)]

    def test_that_outlast_the_server_s_patience_are_reported(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        job = scene.running()
        with postgres_store.connect() as admin:
            admin.execute(f"alter database \"{admin.info.dbname}\" set lock_timeout = '20ms'".encode())
        impatient = second_engine(postgres_store)
        with callers_transaction(postgres_store) as other:
            other.execute("select 1 from evenflow.job for update")
            with pytest.raises(StoreUnavailable, match="lock timeout"):
                impatient.run("await_job", {"id": job.id})
        impatient.close()

    def wait_for_waiters(self, connection: "psycopg.Connection[Row]", count: int) -> None:
        waiting = (
            "select count(*) from pg_locks where not granted and pid in"
            " (select pid from pg_stat_activity where datname = current_database())"
        )
        wait_until(lambda: connection.execute(waiting).fetchone() == (count,), "somebody to wait")


class TestManyAtOnce:
    def test_ten_claimers_of_a_hundred_get_ten_full_batches_without_overlap(
        self, postgres_store: PostgresEngine
    ) -> None:
        """S4-36"""
        scene = Scene(postgres_store)
        jobs = scene.enqueue(*(new_job(group=f"g{number % 20}") for number in range(1000)))
        engines = [second_engine(postgres_store) for _ in range(10)]
        for engine in engines:
            counts(engine)
        claim = Claim([Want("default", 0, 100)], 100)
        batches = in_threads(
            10, lambda number: [job.id for job in advance(engines[number], number, (), claim).claimed]
        )
        for engine in engines:
            engine.close()
        assert [len(batch) for batch in batches] == [100] * 10
        assert sorted(job for batch in batches for job in batch) == jobs
        rounds = rows_of(postgres_store, "round")
        assert [row["v"] for row in rounds] <= [50.0]

    def test_grouped_enqueues_in_opposite_order_never_deadlock(self, postgres_store: PostgresEngine) -> None:
        """S4-37"""
        groups = [f"g{number:02}" for number in range(30)]
        queues = [f"q{number}" for number in range(6)]
        batch = [
            new_job(group=group, queue=queues[place % 6], priority=place % 3)
            for place, group in enumerate(groups)
        ]

        def enqueue(number: int) -> int:
            engine = second_engine(postgres_store)
            ids = IdSource()
            jobs = batch if number % 2 else batch[::-1]
            placed = sum(len(drive(engine, enqueue_steps(jobs, ids))) for _ in range(15))
            engine.close()
            return placed

        before = self.deadlocks(postgres_store)  # the database may have served a test that made one
        assert in_threads(4, enqueue) == [450] * 4
        assert len(rows_of(postgres_store, "job")) == 1800
        assert self.deadlocks(postgres_store) == before

    def deadlocks(self, engine: PostgresEngine) -> object:
        with engine.session() as session:
            return session.execute(
                "select deadlocks from pg_stat_database where datname = current_database()"
            ).fetchone()

    def test_one_unique_key_has_one_winner(self, postgres_store: PostgresEngine) -> None:
        def enqueue(number: int) -> list[Enqueued]:
            engine = second_engine(postgres_store)
            placed = drive(engine, enqueue_steps([new_job(unique_key="k")], IdSource()))
            engine.close()
            return placed

        placed = [job for jobs in in_threads(8, enqueue) for job in jobs]
        assert len({job.id for job in placed}) == 1
        assert sum(job.is_new for job in placed) == 1

    def test_many_threads_share_the_connections_of_one_engine(self, postgres_store: PostgresEngine) -> None:
        ids = IdSource()
        in_threads(
            12, lambda number: [drive(postgres_store, enqueue_steps([new_job()], ids)) for _ in range(20)]
        )
        assert counts(postgres_store) == {"default": {"ready": 240}}
        # Those of engines that the test before has closed may take a moment to end.
        wait_until(
            lambda: 1 <= self.backends(postgres_store) <= module.POOL_SIZE, "no more than the pool has"
        )

    def backends(self, engine: PostgresEngine) -> int:
        with engine.session() as session:
            (found,) = session.execute(
                "select count(*) from pg_stat_activity where datname = current_database() and application_name = 'evenflow'"
            ).fetchall()
        return int(found[0])

    def test_the_end_of_a_job_has_one_winner(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        jobs = [scene.running() for _ in range(20)]

        def finish(number: int) -> int:
            engine = second_engine(postgres_store)
            if number % 2:
                lost = len(advance(engine, ALICE, [end_of(job) for job in jobs]).lost)
            else:
                lost = 20 - len(Scene(engine).rescue())
            engine.close()
            return lost

        lost = in_threads(2, finish)
        assert sum(lost) == 20
        assert set(scene.states().values()) <= {"ready", "succeeded"}


class TestThePool:
    def test_lends_no_more_than_its_size_and_says_so(self, postgres_store: PostgresEngine) -> None:
        small = PostgresEngine(postgres_store._conninfo, pool_size=1)
        with small.session(), pytest.raises(StoreUnavailable, match=r"no connection was free within 0\.05 s"):
            small.run("count_live", {}, deadline_s=0.05)
        assert counts(small) == {}
        small.close()

    def test_closes_a_connection_on_which_something_failed(self, postgres_store: PostgresEngine) -> None:
        def fail() -> None:
            with postgres_store.session() as session:
                session.execute("set statement_timeout = '4321ms'")
                raise KeyError("in the middle")

        with pytest.raises(KeyError):
            fail()
        with postgres_store.session() as session:
            assert session.execute("show statement_timeout").fetchone() == ("0",)

    def test_opens_again_after_it_was_closed(self, postgres_store: PostgresEngine) -> None:
        counts(postgres_store)
        postgres_store.close()
        postgres_store.close()
        assert counts(postgres_store) == {}

    def test_is_not_shared_with_a_forked_child(self, postgres_store: PostgresEngine) -> None:
        Scene(postgres_store).enqueue(new_job(queue="before"))

        def child() -> str:
            drive(postgres_store, enqueue_steps([new_job(queue="child")], IdSource()))
            found = sorted(counts(postgres_store))
            postgres_store.close()
            return ",".join(found)

        mine = self.backend(postgres_store)
        assert in_fork(child) == "before,child"
        assert in_fork(lambda: str(self.backend(postgres_store) != mine)) == "True"
        assert self.backend(postgres_store) == mine
        assert sorted(counts(postgres_store)) == ["before", "child"]

    def test_keeps_its_size_in_a_forked_child(self, postgres_store: PostgresEngine) -> None:
        small = PostgresEngine(postgres_store._conninfo, pool_size=1)

        def child() -> str:
            with small.session():
                try:
                    small.run("count_live", {}, deadline_s=0.05)
                except StoreUnavailable as error:
                    return str(error)
            return "two were lent"

        assert "no connection was free" in in_fork(child)
        small.close()

    def backend(self, engine: PostgresEngine) -> int:
        with engine.session() as session:
            return session.info.backend_pid


class TestErrors:
    def test_of_a_server_that_is_not_there_give_advice(self, folder: Path) -> None:
        engine = PostgresEngine(f"postgresql://postgres@/x?host={folder}")
        with pytest.raises(StoreUnavailable, match="is the server running, and is the URL right"):
            counts(engine)

    def test_of_a_port_where_nobody_listens_give_advice(self) -> None:
        engine = PostgresEngine("postgresql://postgres@127.0.0.1:1/x")
        with pytest.raises(StoreUnavailable, match=r"Connection refused.*is the server running"):
            counts(engine)

    def test_of_a_malformed_address_are_refused(self) -> None:
        engine = PostgresEngine("host=x nonsense")
        with pytest.raises(StoreRefused, match="PostgreSQL: "):
            counts(engine)

    def test_of_an_unknown_database_name_it(self, postgres_store: PostgresEngine) -> None:
        engine = PostgresEngine(f"{postgres_store._conninfo}&dbname=nowhere_to_be_found")
        with pytest.raises(StoreRefused, match=r'"nowhere_to_be_found" does not exist; correct the URL'):
            counts(engine)

    def test_of_an_unknown_user_are_refused_with_its_name(self, postgres_store: PostgresEngine) -> None:
        engine = PostgresEngine(f"{postgres_store._conninfo}&user=nobody_at_all")
        with pytest.raises(StoreRefused, match='role "nobody_at_all" does not exist; correct the URL'):
            counts(engine)

    def test_of_missing_tables_are_refused_with_their_state(self, postgres_url: str) -> None:
        engine = PostgresEngine(postgres_url)
        with pytest.raises(StoreRefused, match=r'relation "evenflow.job" does not exist \(SQLSTATE 42P01\)'):
            counts(engine)
        engine.close()

    def test_of_a_broken_constraint_are_refused_with_their_state(
        self, postgres_store: PostgresEngine
    ) -> None:
        with pytest.raises(StoreRefused, match=r"SQLSTATE 23514"):
            Scene(postgres_store).enqueue(new_job(priority=101))

    def test_of_a_read_only_server_are_worth_another_try(self, postgres_store: PostgresEngine) -> None:
        with postgres_store.connect() as admin:
            admin.execute(
                f'alter database "{admin.info.dbname}" set default_transaction_read_only = on'.encode()
            )
        engine = second_engine(postgres_store)
        with pytest.raises(StoreUnavailable):
            Scene(engine).enqueue(new_job())
        engine.close()

    def test_of_a_missing_driver_name_the_extra(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setitem(sys.modules, "psycopg", None)
        with pytest.raises(DriverMissing, match=r"pip install 'evenflow\[postgres\]'"):
            open_engine(parse_url("postgresql://db/x"))

    def test_tell_no_password(self) -> None:
        engine = PostgresEngine("postgresql://bob:secret@127.0.0.1:1/x")
        with pytest.raises(StoreUnavailable) as error:
            counts(engine)
        assert "secret" not in str(error.value)


class TestTheClock:
    def test_of_the_server_decides_where_no_time_is_given(self, postgres_store: PostgresEngine) -> None:
        with postgres_store.session() as session:
            session.execute(
                "create or replace function evenflow.now_us() returns bigint language sql as 'select 5000000::bigint'"
            )
        assert now_us(postgres_store) == 5 * SECOND
        drive(postgres_store, enqueue_steps([new_job(), new_job(run_at=5 * SECOND)], CountedIds()))
        assert {row["created_at"] for row in rows_of(postgres_store, "job")} == {5 * SECOND}
        admit(postgres_store)
        claimed = advance(postgres_store, ALICE, (), Claim([Want("default", 0, 9)], 9)).claimed
        assert [job.started_at for job in claimed] == [5 * SECOND] * 2


def test_nothing_is_opened_before_the_first_use(folder: Path) -> None:
    engine = open_engine(parse_url(f"postgresql://postgres@/x?host={folder}"), "tasks", pool_size=2)
    assert isinstance(engine, PostgresEngine)
    assert engine.schema == "tasks"
    engine.close()


def test_connections_tell_their_name_and_plan_as_told(postgres_store: PostgresEngine) -> None:
    with postgres_store.session() as session:
        assert session.execute("show application_name").fetchone() == ("evenflow",)
        assert session.execute("show enable_seqscan").fetchone() == ("off",)


def test_what_an_address_says_about_sessions_is_kept(postgres_store: PostgresEngine) -> None:
    address = f"{postgres_store._conninfo}&application_name=shop&options=-c%20statement_timeout%3D7s%20-c%20jit%3Don"
    engine = PostgresEngine(address)
    with engine.session() as session:
        told = [
            session.execute(f"show {name}".encode()).fetchone()
            for name in ("application_name", "statement_timeout", "jit", "enable_seqscan")
        ]
    assert told == [("shop",), ("7s",), ("on",), ("off",)]
    engine.close()


def test_a_prepared_statement_that_somebody_took_away_is_done_without(postgres_store: PostgresEngine) -> None:
    engine = PostgresEngine(postgres_store._conninfo)  # of its own: it will believe in a pooler from then on
    for _ in range(7):
        counts(engine)
    with engine.session() as session:  # hidden from the driver, which would notice a plain one
        assert session.execute("select count(*) > 0 from pg_prepared_statements").fetchone() == (True,)
        session.execute("do $$ begin execute 'deallocate all'; end $$")
    assert counts(engine) == {}
    with engine.session() as session:
        assert session.prepare_threshold is None
    engine.close()
