"""Enqueue by SQL: the function's jobs are those of Python, what it cannot do is refused, and psql can call it."""

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import psycopg
import pytest

from evenflow import Concurrency, ConfigError, Evenflow, Queue, Rate, Retry, State, Unique
from evenflow.store.control import admit
from tests.client.conftest import MakeApp
from tests.psql import run_psql


class Shop:
    """An app with published tasks, and a connection that knows nothing of Python."""

    def __init__(self, app: Evenflow, connection: "psycopg.Connection[Any]") -> None:
        self.app = app
        self.connection = connection

        @app.task(
            name="mail",
            queue="mail",
            priority=5,
            retry=Retry(max_attempts=4),
            group="tenant",
            on_crash="fail",
        )
        def mail(tenant: str, to: str, text: str = "hello", *, copies: int = 1) -> str:
            return f"{tenant} {to} {text} {copies}"

        @app.task(name="any")
        def take_any(*args: Any, **kwargs: Any) -> list[Any]:
            return [args, kwargs]

        self.mail, self.take_any = mail, take_any

    def enqueue(self, task: str, args: Any = (), **options: Any) -> str:
        named = "".join(f", {name} => %({name})s" for name in options)
        row = self.connection.execute(
            f"select evenflow.enqueue(%(task)s, %(args)s::jsonb{named})".encode(),
            {"task": task, "args": json.dumps(args), **options},
        ).fetchone()
        assert row is not None
        return str(row[0])

    def refused(self, task: str, args: Any = (), **options: Any) -> str:
        with pytest.raises(psycopg.Error) as refusal:
            self.enqueue(task, args, **options)
        return str(refusal.value)


@pytest.fixture
def connection(postgres_url: str) -> Any:
    with psycopg.connect(postgres_url, autocommit=True) as connection:
        yield connection


@pytest.fixture
def shop(make_app: MakeApp, postgres_url: str, connection: "psycopg.Connection[Any]") -> Shop:
    shop = Shop(make_app(postgres_url), connection)
    shop.app.publish()
    return shop


def stored(connection: "psycopg.Connection[Any]", job: str) -> dict[str, Any]:
    with connection.cursor(row_factory=psycopg.rows.dict_row) as cursor:
        cursor.execute("select * from evenflow.job where evenflow.id_text(id) = %s", (job,))
        row = cursor.fetchone()
    assert row is not None
    return row


@pytest.mark.parametrize(
    ("args", "call"),
    [
        (["bob", "b@example.org"], (("bob", "b@example.org"), {})),
        ({"to": "b@example.org", "tenant": "bob"}, (("bob", "b@example.org"), {})),
        ({"to": "x", "tenant": "bob", "copies": 2}, (("bob", "x"), {"copies": 2})),
    ],
)
def test_a_job_of_sql_is_that_of_python(shop: Shop, args: Any, call: Any) -> None:
    by_sql = stored(shop.connection, shop.enqueue("mail", args))
    with psycopg.connect(shop.connection.info.dsn, password=shop.connection.info.password) as own:
        mine = shop.mail.using(connection=own).enqueue(*call[0], **call[1])
    by_python = stored(shop.connection, mine.id)
    assert json.loads(by_sql.pop("payload")) == json.loads(by_python.pop("payload"))
    for row in (by_sql, by_python):
        assert row.pop("created_at") == row.pop("run_at")
        del row["id"]
    assert by_sql == by_python


def test_its_options_are_stored_as_those_of_python_are(shop: Shop) -> None:
    until = datetime(2030, 1, 1, tzinfo=UTC)
    job = shop.app.job(
        shop.enqueue(
            "mail",
            ["bob", "x"],
            queue="slow",
            priority=-7,
            group_key="acme",
            run_after=timedelta(hours=1),
            good_until=until,
        )
    )
    assert (job.queue, job.priority, job.group, job.good_until) == ("slow", -7, "acme", until)
    assert job.run_at - job.created_at == timedelta(hours=1)
    later = shop.app.job(shop.enqueue("any", run_at=until))
    assert later.run_at == until
    assert shop.app.job(shop.enqueue("any", run_at=datetime(2020, 1, 1, tzinfo=UTC))).run_at >= job.created_at


def test_it_is_admitted_in_its_turn_and_run_by_a_worker(shop: Shop) -> None:
    ids = [shop.enqueue("mail", ["bob", str(number)]) for number in range(3)] + [
        shop.enqueue("mail", ["alice", "x"])
    ]
    admit(shop.app._producer.engine)
    turns = dict(shop.connection.execute("select evenflow.id_text(id), turn from evenflow.job").fetchall())
    assert [turns[each] for each in ids] == [1.0, 2.0, 3.0, 1.0]
    odd = shop.enqueue("any", [1, {"$plain": None}, "ü\n", 1.5, 2**70])
    shop.app.run_worker(until_empty=True)
    assert shop.app.job(odd).result(timeout=0) == [(1, {"$plain": None}, "ü\n", 1.5, 2**70), {}]
    jobs = [shop.app.job(each) for each in ids]
    assert [job.state for job in jobs] == [State.SUCCEEDED] * 4
    assert jobs[0].result(timeout=0) == "bob 0 hello 1"


def test_it_follows_the_caller_s_transaction_and_wakes_workers_with_it(shop: Shop) -> None:
    with psycopg.connect(shop.connection.info.dsn, password=shop.connection.info.password) as listener:
        listener.autocommit = True
        listener.execute("listen evenflow_wake")
        with pytest.raises(ZeroDivisionError), shop.connection.transaction():
            gone = shop.enqueue("any")
            raise ZeroDivisionError
        with pytest.raises(LookupError):
            shop.app.job(gone)
        shop.enqueue("any")
        assert [note.payload for note in listener.notifies(timeout=30, stop_after=1)] == ["+"]


def test_a_unique_key_gives_the_open_job_and_is_that_of_python(shop: Shop) -> None:
    first = shop.enqueue("any", unique_key="daily")
    assert shop.enqueue("any", unique_key="daily") == first
    assert shop.take_any.using(unique="daily").enqueue().id == first
    assert shop.enqueue("any", unique_key="hourly") != first


@pytest.mark.parametrize(
    ("args", "options", "said"),
    [
        (["bob"], {}, "the argument 'to' is missing"),
        (["bob", "x", "y", 1], {}, "expected at most 3 arguments in order, got 4"),
        ({"tenant": "bob", "to": "x", "bcc": 1}, {}, "the argument 'bcc' is unknown, or given twice"),
        ("bob", {}, "expected a JSON array or object, got string"),
        (["bob", "x"], {"priority": 101}, "priority: expected -100 to 100, got 101"),
        (["bob", "x"], {"queue": "no way"}, "queue 'no way': it is not declared"),
        ([["bob"], "x"], {}, "its group is worked out in Python; give group_key => ..."),
        (["bob", "x"], {"group_key": "a" * 256}, "expected at most 255 characters"),
        (["bob", "x"], {"group_key": "a\nb"}, "without control characters"),
        (["bob", "x" * 300_000], {}, "expected at most 262144 bytes"),
        (["bob", "x"], {"run_after": timedelta(1), "run_at": datetime(2030, 1, 1, tzinfo=UTC)}, "run_after or run_at, got both"),
        (["bob", "x\0"], {}, "\\u0000"),
    ],
)  # fmt: skip
def test_a_wrong_call_is_refused_and_the_error_says_what_was_expected(
    shop: Shop, args: Any, options: dict[str, Any], said: str
) -> None:
    assert said in shop.refused("mail", args, **options)
    assert shop.connection.execute("select count(*) from evenflow.job").fetchone() == (0,)


def test_a_task_that_is_not_published_is_refused_and_one_can_be_withdrawn(shop: Shop) -> None:
    assert "task 'other': it is not published; run: evenflow publish MODULE:APP" in shop.refused("other")
    assert shop.app.withdraw(shop.take_any, "never") == ["any"]
    assert "it is not published" in shop.refused("any")


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"concurrency": Concurrency(1)}, "it has a concurrency key, a rate or a lock"),
        ({"rate": Rate("1/minute")}, "it has a concurrency key, a rate or a lock"),
        ({"single_instance": True}, "it has a concurrency key, a rate or a lock"),
        ({"unique": Unique()}, "it is declared unique"),
    ],
)
def test_what_only_python_can_work_out_is_refused(shop: Shop, options: Any, said: str) -> None:
    @shop.app.task(name="limited", **options)
    def limited() -> None: ...

    refusal = shop.app.publish(limited)["limited"]
    assert refusal is not None and refusal.startswith(said)
    assert said in shop.refused("limited")


def test_signed_apps_rated_queues_and_unknown_queues_are_refused(
    make_app: MakeApp, postgres_url: str, connection: "psycopg.Connection[Any]"
) -> None:
    signed = Shop(make_app(postgres_url, signing_keys="k1:" + "ab" * 32), connection)
    signed.app.publish()
    assert "jobs of this app are signed" in signed.refused("any")
    strict = Shop(
        make_app(postgres_url, queues=[Queue("mail"), Queue("default"), Queue("rated", rate=Rate("1/s"))]),
        connection,
    )
    strict.app.publish()
    assert "queue 'other': it is not declared" in strict.refused("any", queue="other")
    assert "queue 'rated': it has a rate" in strict.refused("any", queue="rated")
    assert strict.enqueue("any", queue="mail")


def test_sqlite_has_no_functions(make_app: MakeApp, sqlite_url: str) -> None:
    with pytest.raises(ConfigError, match="expected a PostgreSQL database, got SQLite"):
        make_app(sqlite_url).publish()


def test_another_schema_has_a_function_of_its_own(
    make_app: MakeApp, postgres_url: str, connection: "psycopg.Connection[Any]"
) -> None:
    app = make_app(postgres_url, schema="other_jobs")

    @app.task(name="nothing")
    def nothing() -> None: ...

    app.publish()
    connection.execute("listen other_jobs_wake")
    row = connection.execute("select other_jobs.enqueue('nothing')").fetchone()
    assert row is not None and app.job(row[0]).state is State.ARRIVING
    assert [note.payload for note in connection.notifies(timeout=30, stop_after=1)] == ["+"]


def test_every_function_that_runs_as_its_owner_pins_its_search_path(shop: Shop) -> None:
    rows = shop.connection.execute(
        """select p.proname, p.proconfig, p.proacl::text from pg_proc p join pg_namespace n on n.oid = p.pronamespace
           where n.nspname = 'evenflow' and p.prosecdef"""
    ).fetchall()
    assert [(name, config) for name, config, _ in rows] == [("enqueue", ["search_path=pg_catalog, pg_temp"])]
    assert [
        grant for grant in rows[0][2].strip("{}").split(",") if grant.startswith("=")
    ] == []  # none for PUBLIC


def test_psql_enqueues(shop: Shop) -> None:
    text = 'select evenflow.enqueue(\'mail\', \'{"tenant": "bob", "to": "x"}\', run_after => \'1 hour\')'
    printed = run_psql(str(shop.app.settings.database.conninfo), "-c", text)
    job = shop.app.job(printed.strip())
    assert job.args == ("bob", "x") and job.group == "bob"
