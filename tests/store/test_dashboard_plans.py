"""Looks of the dashboard read a bounded part, measured: ten times the jobs, the same work."""

from collections.abc import Iterator
from typing import Any

import psycopg
import pytest

from evenflow.store.engine import Row
from evenflow.store.migrate import migrate
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import NEWEST
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import load_units
from tests.postgres_server import DatabaseHost
from tests.store.scene import START
from tests.store.test_plans import analyze, is_big, nodes, seed_postgres, seed_sqlite

pytestmark = pytest.mark.slow

TOP, GROUPS = 100, 50
NOBODY = {"state": None, "queue": None, "task": "nobody", "group_key": None, "among": '["g1", "g2"]'}
LOOKS: dict[str, dict[str, Any]] = {
    "sample_live": {"top": TOP},
    "count_by_index": {"top": TOP},
    "count_ends": {"top": TOP},
    "oldest_ready": {"top": TOP},
    "live_edge": {"before": NEWEST, "depth": TOP},
    "history_edge": {"before": NEWEST, "depth": TOP},
    "trouble_edge": {"before": NEWEST, "depth": TOP, "state": "failed"},
    "browse_live": {"before": 1001, "after": 1001 - TOP, "top": 50, **NOBODY},
    "browse_history": {"before": 10_001_001, "after": 10_001_001 - TOP, "top": 50, **NOBODY},
    "browse_trouble": {
        "before": NEWEST,
        "after": 0,
        "top": 50,
        **NOBODY,
        "task": None,
        "among": None,
        "state": "failed",
    },
    "some_in_state": {"state": "ready", "top": TOP},
    "browse_some": {"ids": "[5, 6, 7]", "top": 50, **NOBODY, "state": "ready"},
    "in_flight_by_worker": {},
    "in_flight_by_group": {"queue": "default"},
    "next_turns": {"queue": "default", "top": TOP},
}
MOST_ROWS = 20 * TOP


@pytest.fixture(scope="module")
def connection(postgres_server: DatabaseHost) -> Iterator["psycopg.Connection[Row]"]:
    """A connection as the engine opens it, to a store with 20,000 live and 20,000 finished jobs."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    migrate(engine)
    connection = engine.connect()
    seed_postgres(connection, 20_000, GROUPS, 20_000)
    connection.execute("vacuum analyze")
    yield connection
    connection.close()
    engine.close()
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def engines() -> Iterator[list[SqliteEngine]]:
    """A small store, and one ten times as large."""
    made = [SqliteEngine(None), SqliteEngine(None)]
    for engine, size in zip(made, (2_000, 20_000), strict=True):
        migrate(engine)
        with engine.exclusive() as file:
            seed_sqlite(file, size, GROUPS, size)
    yield made
    for engine in made:
        engine.close()


@pytest.mark.parametrize("unit", LOOKS)
def test_on_postgres_a_look_reads_few_rows_of_many(connection: "psycopg.Connection[Row]", unit: str) -> None:
    plan = analyze(connection, load_units("postgres")[unit].statements[0], LOOKS[unit])
    scans = [
        node for node in nodes(plan) if "Scan" in node["Node Type"] and is_big(node.get("Relation Name", ""))
    ]
    assert [node["Node Type"] for node in scans if node["Node Type"] == "Seq Scan"] == []
    read = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0)) for node in scans
    )
    assert read <= MOST_ROWS


@pytest.mark.parametrize("unit", LOOKS)
def test_on_sqlite_a_look_takes_the_same_steps_with_ten_times_the_jobs(
    engines: list[SqliteEngine], unit: str
) -> None:
    few, many = (steps(engine, unit) for engine in engines)
    assert many <= few * 2 + 50


def steps(engine: SqliteEngine, unit: str) -> int:
    """How many hundred instructions SQLite needs for a unit."""
    counted = 0

    def count() -> int:
        nonlocal counted
        counted += 1
        return 0

    statement = load_units("sqlite")[unit].statements[0]
    values = {"now": START, **LOOKS[unit]}
    with engine.reading() as file:
        file.set_progress_handler(count, 100)
        file.execute(statement.text, {name: values[name] for name in statement.parameters}).fetchall()
        file.set_progress_handler(None, 100)
    return counted
