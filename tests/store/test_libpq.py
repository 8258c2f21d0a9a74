"""Statements by libpq's own means: what is sent and read arrives as it was, and a session that failed is not used again."""

import contextlib
import threading
import time
from pathlib import Path
from typing import Any

import psycopg
import pytest

from evenflow.errors import StoreRefused, StoreUnavailable
from evenflow.store.libpq import UNPREPARED, Session
from evenflow.store.pipeline import Pipeline
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import counts
from evenflow.store.statements import Statement
from tests.store.proxy import Proxy
from tests.store.scene import Scene, new_job, rows_of

SOON_S = 30.0
REFUSES_AT_COMMIT = (
    "create function evenflow.refuse() returns trigger language plpgsql as"
    " $$ begin raise exception 'refused at the commit'; end $$;"
    " create constraint trigger refusing after insert on evenflow.job deferrable initially deferred"
    " for each row execute function evenflow.refuse()"
)
LONE = {"id": 7, "queue": "default", "task": "t", "priority": 0, "max_attempts": 1, "payload": "", "now": None}
SAID = Statement("select cast(:text as text), octet_length(convert_to(cast(:text as text), 'UTF8'))")
PREPARED = "select count(*) from pg_prepared_statements where name like 'evenflow%'"


def asked(session: Session, statement: Statement, **parameters: Any) -> Any:
    return session.rows(statement, parameters, time.monotonic() + SOON_S)


def session_of(engine: PostgresEngine, *, prepares: bool = True) -> Session:
    return Session(engine.connect(), prepares=prepares)


class TestACommitThatFails:
    """It is told after the rows: what has answered is not written yet. Notifications that find no room fail there, too."""

    @pytest.fixture(autouse=True)
    def refusing(self, postgres_store: PostgresEngine) -> None:
        with postgres_store.connect() as connection:
            connection.execute("insert into evenflow.band (queue, priority) values ('default', 0)")
            connection.execute(REFUSES_AT_COMMIT)

    def test_is_an_error_of_its_statement(self, postgres_store: PostgresEngine) -> None:
        for _ in range(UNPREPARED + 2):
            with pytest.raises(StoreRefused, match="refused at the commit"):
                postgres_store.run("enqueue_plainly", LONE)
        assert rows_of(postgres_store, "job") == []

    def test_is_an_error_of_a_question_ahead(self, postgres_store: PostgresEngine) -> None:
        with contextlib.closing(Pipeline(postgres_store)) as pipeline:
            pipeline.ask([("enqueue_plainly", LONE)], deadline_s=SOON_S)
            with pytest.raises(StoreRefused, match="refused at the commit"):
                pipeline.answer(deadline_s=SOON_S)
            pipeline.ask([("count_live", {})], deadline_s=SOON_S)
            assert pipeline.answer(deadline_s=SOON_S) == [[]], "what comes behind it is answered as ever"
