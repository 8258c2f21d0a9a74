"""Upkeep: what is forgotten and when, on every engine; the turning of partitions, on PostgreSQL."""

import threading
from datetime import UTC, datetime, timedelta

import pytest

from evenflow.clock import to_us
from evenflow.database_url import parse_url
from evenflow.queues import Queue
from evenflow.settings import Retention
from evenflow.store.control import declare_queue, learn_costs, set_weights, withdraw
from evenflow.store.engine import Conflict
from evenflow.store.open import open_engine, prepare
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import find, tails
from evenflow.store.retention import kept_us
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.upkeep import DAYS_AHEAD, forget_idle_groups, forget_old_costs, prune, turn_partitions
from tests.processes import wait_until
from tests.store.scene import DAY, SECOND, Scene, new_job, rows_of, second_engine

MIDNIGHT = to_us(datetime(2027, 1, 15, tzinfo=UTC))


class TestPruning:
    def test_deletes_what_has_served_its_time_at_that_very_microsecond(self, scene: Scene) -> None:
        short, long = scene.running(), scene.running()
        scene.finish(short, keep_us=10)
        scene.finish(long, keep_us=11)
        assert prune(scene.engine, now=scene.now + 9) == 0
        assert prune(scene.engine, now=scene.now + 10) == 1
        assert scene.states() == {long.id: "succeeded"}
        assert prune(scene.engine, now=scene.now + 11) == 1

    def test_goes_in_batches(self, scene: Scene) -> None:
        for _ in range(5):
            scene.finish(scene.running(), keep_us=1)
        assert [prune(scene.engine, top=2, now=scene.now + 1) for _ in range(4)] == [2, 2, 1, 0]

    def test_keeps_each_outcome_for_its_own_time(self, scene: Scene) -> None:
        keep = Retention(cancelled="1 day", discarded="2 days", skipped=None)
        jobs = scene.enqueue(new_job(), new_job(), new_job())
        for job, state in zip(jobs, ["cancelled", "discarded", "skipped"], strict=True):
            withdraw(scene.engine, [job], state, keep, now=scene.now)
        left = []
        for days in (1, 2, 4000):
            prune(scene.engine, now=scene.now + days * DAY)
            left.append(sorted(scene.states()))
        assert left == [jobs[1:], jobs[2:], jobs[2:]]

    def test_never_touches_live_jobs(self, scene: Scene) -> None:
        job = scene.running()
        assert prune(scene.engine, now=2**62) == 0
        assert scene.states() == {job.id: "running"}


class TestIdleGroups:
    def test_are_forgotten_when_their_next_turn_is_that_of_a_new_group(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group="bob") for _ in range(3)), new_job(group="eve"))
        scene.claim(3)
        assert forget_idle_groups(scene.engine) == 1
        assert set(tails(scene.engine)) == {("default", 0, "bob")}
        scene.claim()
        assert forget_idle_groups(scene.engine) == 1
        assert tails(scene.engine) == {}

    def test_are_remembered_while_nobody_has_claimed(self, scene: Scene) -> None:
        scene.enqueue(new_job(group="bob"))
        assert forget_idle_groups(scene.engine) == 0

    def test_go_in_batches(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group=f"g{number}") for number in range(5)))
        scene.claim()
        assert [forget_idle_groups(scene.engine, top=2) for _ in range(4)] == [2, 2, 1, 0]

    @pytest.mark.parametrize("strategy", ["weight", "time"])
    def test_of_heavy_jobs_are_remembered_until_their_last_turn_is_paid_for(
        self, scene: Scene, strategy: str
    ) -> None:
        # bob's jobs lie two rounds apart: one turn of his is worth two of anybody else.
        declare_queue(scene.engine, Queue("default", fair="time" if strategy == "time" else "round-robin"))
        if strategy == "time":
            learn_costs(
                scene.engine, {("default", "bob"): (1, 200), ("default", "eve"): (3, 200)}, now=scene.now
            )
        else:
            set_weights(scene.engine, "default", {"bob": 0.5})
        scene.enqueue(new_job(group="bob"))
        scene.claim()
        assert forget_idle_groups(scene.engine) == 0
        (second,) = scene.enqueue(new_job(group="bob"))
        assert scene.live(second)["turn"] == 3.0
        scene.enqueue(*(new_job(group="eve") for _ in range(9)))
        scene.claim()
        assert forget_idle_groups(scene.engine) >= 1
        assert ("default", 0, "bob") not in tails(scene.engine)


def test_costs_that_nobody_reported_on_are_forgotten(scene: Scene) -> None:
    learn_costs(scene.engine, {("q", "old"): (1, 5)}, now=scene.now)
    learn_costs(scene.engine, {("q", "new"): (1, 5)}, now=scene.now + 10)
    assert forget_old_costs(scene.engine, scene.now + 10) == 1
    assert [row["group_key"] for row in rows_of(scene.engine, "group_cost")] == ["new"]


@pytest.mark.parametrize(
    ("kept", "expected"), [(None, 2**60), (0, 0), ("2h", 7200 * SECOND), (timedelta(days=1), DAY)]
)
def test_retention_is_counted_in_microseconds(kept: object, expected: int) -> None:
    assert kept_us(Retention(failed=kept), "failed") == expected  # type: ignore[arg-type]


class TestPartitions:
    def names(self, engine: PostgresEngine) -> list[str]:
        with engine.session() as session:
            rows = session.execute(
                "select inhrelid::regclass::text from pg_inherits"
                " where inhparent = 'evenflow.history'::regclass order by 1"
            ).fetchall()
        return [name.removeprefix("evenflow.") for (name,) in rows]

    def home(self, engine: PostgresEngine, job: int) -> str:
        with engine.session() as session:
            row = session.execute(
                "select tableoid::regclass::text from evenflow.history where id = %s", (job,)
            ).fetchone()
        assert row is not None
        return str(row[0]).removeprefix("evenflow.")

    def test_are_made_for_today_and_the_coming_days(self, postgres_store: PostgresEngine) -> None:
        created, dropped = turn_partitions(postgres_store, days_ahead=2, now=MIDNIGHT)
        assert (created, dropped) == (["history_20270115", "history_20270116", "history_20270117"], [])
        assert self.names(postgres_store) == [
            "history_20270115",
            "history_20270116",
            "history_20270117",
            "history_default",
        ]

    def test_are_made_once(self, postgres_store: PostgresEngine) -> None:
        turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT)
        assert turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT + DAY - 1) == ([], [])

    def test_are_dropped_when_their_whole_day_has_passed(self, postgres_store: PostgresEngine) -> None:
        turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT)
        assert turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT + DAY) == (
            ["history_20270117"],
            ["history_20270115"],
        )

    def test_take_an_end_by_the_day_on_which_it_may_be_forgotten(
        self, postgres_store: PostgresEngine
    ) -> None:
        scene = Scene(postgres_store)
        scene.now = MIDNIGHT
        turn_partitions(postgres_store, days_ahead=3, now=scene.now)
        kept = {}
        for keep_us in (1, DAY - 1, DAY, 3 * DAY, 4 * DAY, 2**60):
            job = scene.running()
            scene.finish(job, keep_us=keep_us)
            kept[keep_us] = self.home(postgres_store, job.id)
        assert kept == {
            1: "history_20270115", DAY - 1: "history_20270115", DAY: "history_20270116", 3 * DAY: "history_20270118",
            4 * DAY: "history_default", 2**60: "history_default",
        }  # fmt: skip

    def test_forget_each_outcome_after_its_own_time_by_dropping(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        scene.now = MIDNIGHT
        turn_partitions(postgres_store, days_ahead=4, now=scene.now)
        keep = Retention(cancelled="1 day", discarded="3 days", skipped=None)
        jobs = scene.enqueue(new_job(), new_job(), new_job())
        for job, state in zip(jobs, ["cancelled", "discarded", "skipped"], strict=True):
            withdraw(scene.engine, [job], state, keep, now=scene.now)
        left = []
        for day in range(6):
            turn_partitions(postgres_store, days_ahead=4, now=MIDNIGHT + day * DAY)
            left.append(sorted(find(scene.engine, jobs)))
        assert left == [jobs, jobs, jobs[1:], jobs[1:], jobs[2:], jobs[2:]]

    def test_take_over_rows_that_waited_in_the_default_one(self, postgres_store: PostgresEngine) -> None:
        scene = Scene(postgres_store)
        scene.now = MIDNIGHT
        early, late = scene.running(), scene.running()
        scene.finish(early, keep_us=2 * DAY)
        scene.finish(late, keep_us=9 * DAY)
        before = scene.kept(early.id)
        turn_partitions(postgres_store, days_ahead=3, now=scene.now)
        assert self.home(postgres_store, early.id) == "history_20270117"
        assert self.home(postgres_store, late.id) == "history_default"
        assert scene.kept(early.id) == before
        assert turn_partitions(postgres_store, days_ahead=9, now=scene.now)[0] != []
        assert self.home(postgres_store, late.id) == "history_20270124"

    def test_have_the_indexes_of_their_parent(self, postgres_store: PostgresEngine) -> None:
        turn_partitions(postgres_store, days_ahead=0, now=MIDNIGHT)
        with postgres_store.session() as session:
            rows = session.execute(
                "select pg_get_indexdef(indexrelid) from pg_index where indrelid = 'evenflow.history_20270115'::regclass"
            ).fetchall()
        definitions = " ".join(text for (text,) in rows)
        assert "(id)" in definitions
        assert "(state, id) WHERE (state <> 'succeeded'::text)" in definitions

    def test_are_made_for_a_month_by_the_first_preparation(self, postgres_url: str) -> None:
        engine = open_engine(parse_url(postgres_url))
        assert isinstance(engine, PostgresEngine)
        assert prepare(engine)[0] == "0001_foundation"
        assert len(self.names(engine)) == DAYS_AHEAD + 2
        assert prepare(engine) == []
        engine.close()

    def test_are_left_for_the_next_time_while_a_long_reader_holds_the_history(
        self, postgres_store: PostgresEngine
    ) -> None:
        scene = Scene(postgres_store)
        turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT)
        job = scene.running()
        with postgres_store.connect() as reader, reader.transaction():
            reader.execute("select count(*) from evenflow.history")
            assert turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT + DAY)[1] == []
            assert scene.finish(job).lost == []
        assert turn_partitions(postgres_store, days_ahead=1, now=MIDNIGHT + DAY)[1] == ["history_20270115"]

    def test_turned_by_many_processes_at_once_are_made_once(self, postgres_store: PostgresEngine) -> None:
        created: list[str] = []
        failures: list[BaseException] = []
        together = threading.Barrier(4)

        def turn() -> None:
            engine = second_engine(postgres_store)
            assert isinstance(engine, PostgresEngine)
            try:
                together.wait(60)
                created.extend(turn_partitions(engine, days_ahead=5, now=MIDNIGHT)[0])
            except BaseException as error:
                failures.append(error)
            finally:
                engine.close()

        threads = [threading.Thread(target=turn) for _ in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        created += turn_partitions(postgres_store, days_ahead=5, now=MIDNIGHT)[0]
        assert failures == []
        assert len(self.names(postgres_store)) == 7
        assert len(set(created)) == 6

    def test_that_come_while_a_finish_is_on_its_way_do_not_refuse_it(
        self, postgres_store: PostgresEngine
    ) -> None:
        scene = Scene(postgres_store)
        job, told = scene.running(), list[object]()
        day = scene.now // DAY * DAY
        with postgres_store.connect() as maker, maker.transaction():
            maker.execute("lock table evenflow.history_default in share row exclusive mode")
            maker.execute("create table evenflow.history_now (like evenflow.history including constraints)")
            attached = f"attach partition evenflow.history_now for values from ({day}) to ({day + 9 * DAY})"
            maker.execute(f"alter table evenflow.history {attached}".encode())
            finish = threading.Thread(target=lambda: told.append(scene.finish(job, keep_us=DAY).lost))
            finish.start()
            wait_until(
                lambda: self.is_somebody_waiting(postgres_store), "the finish to wait for the partition"
            )
        finish.join(30)
        assert told == [[]]
        assert scene.states() == {job.id: "succeeded"}

    @staticmethod
    def is_somebody_waiting(engine: PostgresEngine) -> bool:
        with engine.session() as session:
            rows = session.execute(
                "select from pg_locks where not granted and pid in"
                " (select pid from pg_stat_activity where datname = current_database())"  # not of the tests beside us
            ).fetchall()
        return bool(rows)

    def test_live_in_the_schema_of_their_installation(self, postgres_url: str) -> None:
        engine = PostgresEngine(postgres_url, "tasks")
        prepare(engine)
        with engine.session() as session:
            rows = session.execute(
                "select distinct schemaname from pg_tables where tablename like 'history_%'"
            ).fetchall()
        assert rows == [("tasks",)]
        engine.close()


def test_preparing_a_sqlite_file_makes_its_tables(sqlite_url: str) -> None:
    engine = open_engine(parse_url(sqlite_url))
    assert isinstance(engine, SqliteEngine)
    assert prepare(engine)[0] == "0001_foundation"
    assert prepare(engine) == []
    engine.close()


def test_many_processes_may_turn_partitions_at_the_same_moment(postgres_store: PostgresEngine) -> None:
    start = threading.Barrier(6)
    wrong: list[BaseException] = []

    def turn() -> None:
        engine = PostgresEngine(postgres_store._conninfo)
        try:
            start.wait()
            for _ in range(3):
                turn_partitions(engine)
        except BaseException as error:
            wrong.append(error)
        finally:
            engine.close()

    threads = [threading.Thread(target=turn) for _ in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []
    turn_partitions(postgres_store)
    with postgres_store.session() as connection:
        made = connection.execute(
            "select count(*) from pg_class where relname ~ '^history_[0-9]{8}$'"
        ).fetchone()
    assert made == (DAYS_AHEAD + 1,)


def test_a_row_on_its_way_to_a_partition_that_has_shrunk_is_tried_again(
    postgres_store: PostgresEngine,
) -> None:
    """As when a day's partition is attached while an end waits for the lock of the default one."""
    turn_partitions(postgres_store)
    row = "select 1, evenflow.now_us(), 1, 1, null, 1, null, null, null, 1, 1, 1, 0, 0, false, 'failed', 'mail', 'send'"
    with pytest.raises(Conflict), postgres_store.session() as connection:
        connection.execute(
            f"""insert into evenflow.history_default (id, expires_at, created_at, run_at, started_at, finished_at, good_until,
                worker, run_id, epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, payload)
                {row}, '[[],{{}}]'""".encode()
        )
