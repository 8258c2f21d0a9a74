"""Behind a pooler in transaction mode: no session state is needed, and none is left behind."""

import psycopg
import pytest

from evenflow.ids import IdSource
from evenflow.store.advance import Claim, Want, advance
from evenflow.store.engine import drive
from evenflow.store.enqueue import enqueue_steps
from evenflow.store.migrate import check_schema
from evenflow.store.open import prepare
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import counts
from evenflow.store.upkeep import turn_partitions
from tests.pgbouncer import PgBouncer
from tests.store.crowd import in_threads
from tests.store.scene import ALICE, DAY, START, Scene, new_job, second_engine

pytestmark = pytest.mark.pooler


def test_a_pooler_is_recognised_and_statements_are_not_prepared(pgbouncer_store: PostgresEngine) -> None:
    for _ in range(20):  # a driver prepares what it has run five times
        counts(pgbouncer_store)
    assert pgbouncer_store._has_pooler
    with pgbouncer_store.session() as session:
        assert session.prepare_threshold is None
        assert session.execute("select count(*) from pg_prepared_statements").fetchone() == (0,)


def test_a_pooler_that_ignores_our_options_is_found_out_before_anything_is_prepared(
    pgbouncer: PgBouncer, postgres_database: str
) -> None:
    with PgBouncer(pgbouncer._target, ignored="extra_float_digits,options") as silent:
        engine = PostgresEngine(silent.url(postgres_database))
        assert prepare(engine) == []  # a connection by now, and not refused
        assert engine._has_pooler

        def work(number: int) -> None:
            ids = IdSource()
            for _ in range(20):  # a driver prepares what it has run five times, on whichever session it was
                drive(engine, enqueue_steps([new_job(group=f"g{number}")], ids))
                check_schema(engine)

        in_threads(4, work)
        assert counts(engine) == {"default": {"ready": 80}}
        engine.close()


def test_a_server_without_a_pooler_is_not_taken_for_one(postgres_store: PostgresEngine) -> None:
    counts(postgres_store)
    assert not postgres_store._has_pooler


def test_everything_is_prepared_through_the_pooler(pgbouncer_url: str) -> None:
    engine = PostgresEngine(pgbouncer_url)
    assert prepare(engine) != []
    assert check_schema(engine)
    assert turn_partitions(engine, days_ahead=0, now=START + 100 * DAY)[0] != []
    engine.close()


def test_more_clients_than_server_connections_share_them(pgbouncer_store: PostgresEngine) -> None:
    def work(number: int) -> int:
        engine = second_engine(pgbouncer_store)
        ids, done = IdSource(), 0
        claim = Claim([Want("default", 0, 5)], 5)
        for _ in range(10):
            drive(engine, enqueue_steps([new_job(group=f"g{number}") for _ in range(3)], ids))
            done += len(advance(engine, number, (), claim).claimed)
        engine.close()
        return done

    done = sum(in_threads(10, work))
    left = len(Scene(pgbouncer_store).claim(1000))
    assert done + left == 300


def test_server_connections_are_given_back_as_they_were(
    pgbouncer: PgBouncer, pgbouncer_store: PostgresEngine
) -> None:
    scene = Scene(pgbouncer_store)
    scene.register(ALICE)
    scene.finish(scene.running())
    turn_partitions(pgbouncer_store, days_ahead=1, now=START)
    with psycopg.connect(pgbouncer_store._conninfo, autocommit=True, prepare_threshold=None) as client:
        changed = client.execute(
            "select name, setting from pg_settings where source = 'session' and name not in"
            " ('application_name', 'client_encoding', 'DateStyle', 'TimeZone', 'standard_conforming_strings')"
        ).fetchall()
        locks = client.execute(
            "select count(*) from pg_locks where locktype = 'advisory'"
            " and database = (select oid from pg_database where datname = current_database())"
        ).fetchone()
    assert changed == []
    assert locks == (0,)
    assert "ERROR" not in pgbouncer.log_text()
