"""Statements by libpq's own means: what is sent and read arrives as it was, and a session that failed is not used again."""

import contextlib
import threading
import time
from decimal import Decimal
from pathlib import Path
from typing import Any

import psycopg
import pytest
from psycopg.conninfo import make_conninfo

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


class TestWhatIsSent:
    @pytest.mark.parametrize("prepares", [True, False])
    @pytest.mark.parametrize(
        ("kind", "given", "read"),
        [
            ("text", "ü€ \\ ' \" $1 :now %s \n\t", "ü€ \\ ' \" $1 :now %s \n\t"),
            ("text", "", ""),
            ("text", None, None),
            ("text", True, "t"),
            ("boolean", False, False),
            ("bigint", -(2**63), -(2**63)),
            ("double precision", 0.1 + 0.2, 0.1 + 0.2),
            ("double precision", 1.8e15 + 0.5, 1.8e15 + 0.5),
            ("double precision", float("-inf"), float("-inf")),
            ("jsonb", '{"a": [1, null]}', {"a": [1, None]}),
            ("bigint[]", "{1,2}", [1, 2]),
            ("text[]", '{"a",null}', ["a", None]),
            ("numeric", "1.50", Decimal("1.50")),
            ("bytea", "\\x00ff", b"\x00\xff"),
        ],
    )
    def test_is_read_as_a_cursor_would_read_it(
        self, postgres_store: PostgresEngine, prepares: bool, kind: str, given: Any, read: Any
    ) -> None:
        session = session_of(postgres_store, prepares=prepares)
        statement = Statement(f"select cast(:given as {kind})")
        for _ in range(UNPREPARED + 2):
            assert asked(session, statement, given=given) == [(read,)]
        session.connection.close()

    @pytest.mark.parametrize("wrong", ["a\0b", "a\ud800b"])
    def test_is_never_cut_short(self, postgres_store: PostgresEngine, wrong: str) -> None:
        """libpq takes a text up to the first zero."""
        with pytest.raises((StoreRefused, UnicodeEncodeError)):
            postgres_store.run("enqueue_plainly", {**LONE, "payload": wrong})
        with contextlib.closing(Pipeline(postgres_store)) as pipeline:
            with pytest.raises((StoreRefused, UnicodeEncodeError)):
                pipeline.ask([("enqueue_plainly", {**LONE, "payload": wrong})], deadline_s=SOON_S)
        assert counts(postgres_store) == {}

    def test_is_what_others_read_whatever_the_encoding_of_the_session(
        self, postgres_store: PostgresEngine
    ) -> None:
        """A database may have another one, and so may the environment ask for it."""
        engine = PostgresEngine(make_conninfo(postgres_store._conninfo, client_encoding="latin1"))
        with contextlib.closing(engine), contextlib.closing(Pipeline(engine)) as pipeline:
            scene = Scene(engine)
            scene.enqueue(new_job(payload='"groß"'))
            scene.enqueue(new_job(payload='"größer"'))
            pipeline.ask([("enqueue_plainly", {**LONE, "payload": '"ahead: ü"'})], deadline_s=SOON_S)
            pipeline.answer(deadline_s=SOON_S)
            said = ['"groß"', '"größer"', '"ahead: ü"']
            assert sorted(job.payload for job in scene.claim()) == sorted(said)
        assert sorted(row["payload"] for row in rows_of(postgres_store, "job")) == sorted(said)
