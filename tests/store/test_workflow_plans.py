"""Plans of the statements that tell steps on: each looks up by key, whatever statistics say; none walks over all runs."""

import re
from collections.abc import Iterator
from typing import Any, Literal

import psycopg
import pytest

from evenflow.store.arrays import as_array
from evenflow.store.engine import Row, as_json
from evenflow.store.migrate import migrate
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import load_units
from tests.postgres_server import DatabaseHost
from tests.store.scene import START

pytestmark = pytest.mark.slow

Condition = Literal["full", "lying"]
STEPS = 20_000
IDS = list(range(1, 200))
TABLES = {"run", "step", "edge", "job"}
FINISH = {
    "ids": as_array(IDS), "epochs": as_array([0] * len(IDS)), "keeps": as_array([1] * len(IDS)), "results": as_array(["1"] * len(IDS)),
    "worker": 1, "now": START,
}  # fmt: skip
PARAMETERS: dict[str, dict[str, Any]] = {
    "end_steps": {
        "steps": as_json([{"id": id, "epoch": 0, "state": "succeeded", "result": "1"} for id in IDS]), "worker": 1, "now": START,
    },
    "finish_steps": FINISH,
    "finish_lone_steps": FINISH,
    "decide_held": {"keep_us": 1, "now": START},
    "paused_steps": {"ids": as_json(IDS)},
    "note_open_steps": {"ids": as_json(IDS)},
    "forget_step_ends": {"ids": as_json(IDS)},
    "share_children": {"ids": as_json(IDS)},
    "take_step_ends": {"runs": as_json(IDS)},
    "bad_step_ends": {"runs": as_json(IDS)},
    "pass_on": {"ended": as_json(IDS)},
    "weigh_steps": {"ids": as_json(IDS)},
    "release_steps": {"ids": as_json(IDS), "now": START},
    "skip_steps": {"skips": as_json([{"id": id, "error": "{}"} for id in IDS]), "keep_us": 1, "now": START},
    "members_of": {"containers": as_json(IDS)},
    "end_containers": {"ends": as_json([{"id": id, "state": "failed", "error": None} for id in IDS]), "now": START},
    "runs_without_open": {"runs": as_json(IDS)},
    "outer_steps": {"runs": as_json(IDS), "particular": as_json(IDS)},
    "end_runs": {"ends": as_json([{"id": id, "state": "failed", "error": None, "keep_us": 1} for id in IDS]), "now": START},
    "step_inputs": {"ids": as_json(IDS)},
    "unsettled": {"top": 100},
    "add_edges": {"edges": as_json([{"parent": id, "child": id + 1} for id in IDS])},
    "lock_runs": {"runs": as_json(IDS)},
    "browse_steps": {"run": 1000, "after": 0, "top": 150, "few": 100, "most": 10_000},
    "count_steps": {"run": 1000, "top": 10_000},
}  # fmt: skip
SEEDS = (
    """insert into {step} (id, run_id, ordinal, allow_failed, kind, name, state)
       select n, n / 10, n % 10, {false}, 'job', 's', case when n % 2 = 0 then 'succeeded' end from {numbers}""",
    "insert into {edge} (parent, child) select n, n + 1 from {numbers}",
    """insert into {run} (id, created_at, state, on_error, name)
       select n, 1, 'running', 'fail', 'w' from {numbers} where n <= 2000""",
    """insert into {job} (id, created_at, run_at, run_id, max_attempts, priority, state, queue, task, payload)
       select n, 1, 1, n / 10, 1, 0, 'waiting', 'default', 't', '[]' from {numbers}""",
)


@pytest.fixture(scope="module", params=["full", "lying"])
def connection(
    request: pytest.FixtureRequest, postgres_server: DatabaseHost
) -> Iterator["psycopg.Connection[Row]"]:
    """A connection as the engine opens it; statistics are true, or from a time when nothing was there."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    migrate(engine)
    connection = engine.connect()
    for table in TABLES:
        connection.execute(f"alter table evenflow.{table} set (autovacuum_enabled = off)".encode())
    connection.execute("analyze")
    names = {table: f"evenflow.{table}" for table in TABLES}
    for seed in SEEDS:
        numbers = f"generate_series(1, {STEPS}) as t (n)"
        connection.execute(seed.format(**names, false="false", numbers=numbers).encode())
    if request.param == "full":
        connection.execute("vacuum analyze")
    yield connection
    connection.close()
    engine.close()
    postgres_server.drop_database(name)


@pytest.fixture(scope="module")
def sqlite() -> Iterator[SqliteEngine]:
    engine = SqliteEngine(None)
    migrate(engine)
    numbers = f"(with recursive t (n) as (select 1 union all select n + 1 from t where n < {STEPS}) select n from t)"
    names = {table: f"evenflow_{table}" for table in TABLES}
    with engine.exclusive() as connection:
        for seed in SEEDS:
            connection.execute(seed.format(**names, false="0", numbers=numbers))
        connection.execute("analyze")
    yield engine
    engine.close()


@pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
@pytest.mark.parametrize("unit", PARAMETERS)
def test_on_postgres_every_row_is_found_by_its_key(
    connection: "psycopg.Connection[Row]", unit: str, mode: str
) -> None:
    for statement in load_units("postgres")[unit].statements:
        values = {name: PARAMETERS[unit].get(name) for name in statement.parameters}
        with connection.transaction(force_rollback=True):
            connection.execute(f"set local plan_cache_mode = {mode}".encode())
            rows = connection.execute(
                f"explain (format json) {statement.pyformat}".encode(), values
            ).fetchall()
        walks = [node for node in nodes(rows[0][0]) if node.get("Relation Name") in TABLES and is_walk(node)]
        assert walks == []


@pytest.mark.parametrize(
    "unit", [unit for unit in PARAMETERS if not load_units("postgres")[unit].is_only_here]
)
def test_on_sqlite_every_row_is_found_by_its_key(sqlite: SqliteEngine, unit: str) -> None:
    for statement in load_units("sqlite")[unit].statements:
        values = {name: PARAMETERS[unit].get(name, START) for name in statement.parameters}
        with sqlite.reading() as connection:
            lines = [
                row[3]
                for row in connection.execute(f"explain query plan {statement.text}", values).fetchall()
            ]
        walks = [line for line in lines if re.match(r"SCAN (evenflow_(run|step|edge|job)\b|[srpj]$)", line)]
        assert walks == []


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_ends_of_other_jobs_ask_nothing_about_steps(kind: str) -> None:
    texts = " ".join(statement.text for statement in load_units(kind)["advance"].statements)
    assert not re.search(r"evenflow[._](step|edge|step_end)\b", texts)


def nodes(plan: Any) -> Iterator[dict[str, Any]]:
    """Every node of a plan, at any depth."""
    if isinstance(plan, dict):
        if "Node Type" in plan:
            yield plan
        for each in plan.values():
            yield from nodes(each)
    elif isinstance(plan, list):
        for each in plan:
            yield from nodes(each)


def is_walk(node: dict[str, Any]) -> bool:
    """Whether a node reads a table from end to end."""
    return node["Node Type"] == "Seq Scan" or ("Index" in node["Node Type"] and "Index Cond" not in node)
