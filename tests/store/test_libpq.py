"""Statements by libpq's own means: what is sent and read arrives as it was, and a session that failed is not used again."""

import contextlib
import time
from decimal import Decimal
from typing import Any

import pytest
from psycopg.conninfo import make_conninfo

from evenflow.errors import StoreRefused, StoreUnavailable
from evenflow.store.libpq import UNPREPARED, Session
from evenflow.store.pipeline import Pipeline
from evenflow.store.postgres import POOL_SIZE, PostgresEngine
from evenflow.store.reads import counts
from evenflow.store.statements import Statement, Unit
from tests.store.scene import Scene, new_job, rows_of

SOON_S = 30.0
REFUSES_AT_COMMIT = (
    "create function evenflow.refuse() returns trigger language plpgsql as"
    " $$ begin raise exception 'refused at the commit'; end $$;"
    " create constraint trigger refusing after insert on evenflow.job deferrable initially deferred"
    " for each row execute function evenflow.refuse()"
)
LONE = {
    "id": 7,
    "queue": "default",
    "task": "t",
    "priority": 0,
    "max_attempts": 1,
    "payload": "",
    "now": None,
}


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
        with (
            contextlib.closing(Pipeline(postgres_store)) as pipeline,
            pytest.raises((StoreRefused, UnicodeEncodeError)),
        ):
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


class TestASession:
    def test_prepares_what_is_asked_often_and_nothing_else(self, postgres_store: PostgresEngine) -> None:
        session, often, seldom = session_of(postgres_store), Statement("select 1"), Statement("select 2")
        for _ in range(UNPREPARED + 3):
            assert asked(session, often) == [(1,)]
        assert asked(session, seldom) == [(2,)]
        assert prepared(session) == ["select 1"]
        session.connection.close()

    def test_leaves_nothing_on_a_session_that_a_pooler_gives_to_others(
        self, postgres_store: PostgresEngine
    ) -> None:
        session = session_of(postgres_store, prepares=False)
        for _ in range(UNPREPARED + 3):
            assert asked(session, Statement("select 1")) == [(1,)]
        assert prepared(session) == []
        session.connection.close()

    def test_remembers_each_statement_once(self, postgres_store: PostgresEngine) -> None:
        session = session_of(postgres_store)
        for _ in range(3 * UNPREPARED):
            assert asked(session, Statement("select 1")) == [(1,)]
        assert (len(session._times), len(session._names)) == (1, 1)
        session.connection.close()

    def test_keeps_no_answer_that_was_read(self, postgres_store: PostgresEngine) -> None:
        """It may be large, and the session idle for hours."""
        session = session_of(postgres_store)
        assert asked(session, Statement("select repeat('x', 100000)")) == [("x" * 100_000,)]
        assert session._loader.pgresult is None
        session.connection.close()

    def test_that_could_not_prepare_is_not_used_again(self, postgres_store: PostgresEngine) -> None:
        """What is prepared is planned anew where a table has changed, and that may fail."""
        with postgres_store.connect() as other:
            other.execute("create table evenflow.odd as select 1 as one")
        unit = Statement("select one from evenflow.odd")
        postgres_store._units = {**postgres_store._units, "odd": Unit("odd", "read", ("one",), (unit,))}
        for _ in range(UNPREPARED):
            assert postgres_store.run("odd", {}) == [(1,)]
        backends = [backend(postgres_store)]
        with postgres_store.connect() as other:
            other.execute("alter table evenflow.odd rename to even")
        with pytest.raises(StoreRefused, match="does not exist"):
            postgres_store.run("odd", {})
        with postgres_store.connect() as other:
            other.execute("alter table evenflow.even rename to odd")
        for _ in range(UNPREPARED + 2):
            assert postgres_store.run("odd", {}) == [(1,)]
        backends.append(backend(postgres_store))
        with postgres_store.connect() as other:
            other.execute("alter table evenflow.odd alter column one type text")
        with pytest.raises(StoreRefused, match="result type"):
            postgres_store.run("odd", {})
        assert postgres_store.run("odd", {}) == [("1",)], "on a session that never knew it otherwise"
        assert len({*backends, backend(postgres_store)}) == 3

    def test_whose_call_was_interrupted_is_not_used_again(
        self, postgres_store: PostgresEngine, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Its answer is still to come, and would be taken for that of the next call."""
        assert counts(postgres_store) == {}
        former = backend(postgres_store)
        await_result = Session.await_result

        def interrupt(session: Session, ends_at: float) -> None:
            monkeypatch.setattr(Session, "await_result", await_result)
            raise KeyboardInterrupt

        monkeypatch.setattr(Session, "await_result", interrupt)
        with pytest.raises(KeyboardInterrupt):
            postgres_store.run("reserve_ids", {"blocks": 3})
        assert counts(postgres_store) == {}
        assert backend(postgres_store) != former

    def test_that_ends_within_a_call_says_so(self, postgres_store: PostgresEngine) -> None:
        """Between the rows and the commit, too: nobody knows then whether it was carried out."""
        with postgres_store.connect() as other:
            other.execute(
                "create function evenflow.end_session() returns trigger language plpgsql as"
                " $$ begin perform pg_terminate_backend(pg_backend_pid()); perform pg_sleep(0); return null; end $$;"
                " create constraint trigger ending after insert on evenflow.job deferrable initially deferred"
                " for each row execute function evenflow.end_session();"
                " insert into evenflow.band (queue, priority) values ('default', 0)"
            )
        with pytest.raises(StoreUnavailable):
            postgres_store.run("enqueue_plainly", LONE)
        assert rows_of(postgres_store, "job") == []

    def test_gives_its_place_back_whatever_becomes_of_it(self, postgres_store: PostgresEngine) -> None:
        for _ in range(2 * POOL_SIZE):
            with pytest.raises(StoreRefused):
                postgres_store.run("await_job", {"id": "no number"})
        for _ in range(2 * POOL_SIZE):
            with pytest.raises(KeyError):
                postgres_store.run("await_job", {})
        assert postgres_store.run("count_live", {}, deadline_s=5.0) == []


def prepared(session: Session) -> list[str]:
    found = session.connection.execute("select statement from pg_prepared_statements where not from_sql")
    return [text for (text,) in found if "pg_prepared_statements" not in text]


def backend(engine: PostgresEngine) -> int:
    with engine.session() as connection:
        return connection.info.backend_pid
