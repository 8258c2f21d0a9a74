"""What sweeps, locks, bounds and replacements read does not grow with who waits, holds or is outside."""

import functools
from collections.abc import Iterator
from typing import Any

import pytest

from evenflow.job import Claimed
from evenflow.store import bounds, limits
from evenflow.store.engine import drive
from evenflow.store.enqueue import enqueue_steps
from evenflow.store.migrate import migrate
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import load_units
from tests.store.scene import ALICE, START, CountedIds, new_job
from tests.store.test_plans import Recorder, analyze, claimed, nodes

pytestmark = pytest.mark.slow

FEW, MANY, TOP = 3_000, 40_000, 500
UNITS = [
    "sweep_held",
    "sweep_gone",
    "sweep_names",
    "take_locks",
    "fill_queues",
    "room_of",
    "replace_open",
    "take_marks",
]
COUNTED = ("hold", "job", "limiter", "unique_mark", "spent")

# n jobs blocked at one key, n jobs that each hold a key of their own, n jobs outside of a bounded queue, n marks.
SEEDS = (
    "insert into {queue} (name, max_ready, on_full) values ('narrow', 100, 'reject')",
    (
        "insert into {job} (id, turn, created_at, run_at, max_attempts, priority, state, queue, task, payload) "
        "select n, n, {now}, {now}, 3, 0, case n % 3 when 0 then 'blocked' when 1 then 'ready' else 'overflow' end, "
        "case n % 3 when 2 then 'narrow' else 'default' end, 't', '[]' from {numbers}"
    ),
    (
        "insert into {hold} (job_id, turn, held_at, keep_us, most, ordinal, phase, priority, limiter) "
        "select n, n, case n % 3 when 1 then {now} + n end, 180000000, 1, 1, case n % 3 when 1 then 2 else 1 end, 0, "
        "case n % 3 when 1 then 'key-' || n else 'full' end from {numbers} where n % 3 < 2"
    ),
    (
        "insert into {hold} (job_id, turn, held_at, keep_us, most, ordinal, phase, priority, limiter) "
        "select -n, n, {now} + n, 180000000, 1, 1, 2, 0, 'full' from {one}"
    ),
    "insert into {limiter} (name, most) select distinct limiter, 1 from {hold}",
    "insert into {mark} (unique_key, job_id, until) select 'u' || n, n, {now} + n from {numbers}",
)
TABLES = ("queue", "job", "hold", "limiter")


def parameters_of(unit: str) -> dict[str, Any]:
    note = Recorder()
    runs: list[Claimed] = [claimed(number) for number in range(1, 20)]
    match unit:
        case "sweep_held" | "sweep_gone" | "sweep_names":
            limits.sweep(note, top=TOP, now=START)
        case "take_locks":
            limits.take_locks(note, ALICE, runs, now=START)
        case "fill_queues":
            bounds.fill(note, ["narrow"], top=TOP)
        case _:
            job = new_job(queue="narrow", unique_key="u7", replaces=True, unique_for_us=5)
            answers: dict[str, list[Any]] = {
                "enqueue": [(0,)],
                "enqueue_lone": [],
                "find_duplicates": [(1000, 7)],
            }
            steps = enqueue_steps([job], CountedIds(), bounded=["narrow"], now=START)
            drive(Answering(note, answers), steps)
    return next(parameters for name, parameters in note.calls if name == unit)


class Answering:
    """An engine that notes what it is asked, and says what it was told to say."""

    kind = "answering"

    def __init__(self, note: Recorder, answers: dict[str, list[Any]]) -> None:
        self._note = note
        self._answers = answers

    def run(self, name: str, parameters: Any, *, deadline_s: float = 30.0) -> list[Any]:
        self._note.run(name, parameters)
        if name == "enqueue" and any(called == "replace_open" for called, _ in self._note.calls):
            return [(1,)]
        return self._answers.get(name, [])

    def run_all(self, units: Any, *, deadline_s: float = 30.0) -> list[list[Any]]:
        return [self.run(name, parameters) for name, parameters in units]

    def close(self) -> None: ...


@pytest.fixture(scope="module", params=["analyzed", "lying"])
def read(request: pytest.FixtureRequest, postgres_server: Any) -> Iterator[dict[int, dict[str, float]]]:
    """How many rows each unit reads on PostgreSQL, with few and with many rows there."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    migrate(engine)
    connection = engine.connect()
    for table in (*TABLES, "unique_mark", "spent"):  # or what statistics say would be a matter of time
        connection.execute(f"alter table evenflow.{table} set (autovacuum_enabled = off)".encode())
    found: dict[int, dict[str, float]] = {}
    for count in (FEW, MANY):
        connection.execute(
            "truncate evenflow.job, evenflow.hold, evenflow.limiter, evenflow.queue, evenflow.unique_mark"
        )
        names = {table: f"evenflow.{table}" for table in TABLES} | {"mark": "evenflow.unique_mark"}
        if request.param == "lying":
            connection.execute("analyze")
        for text in SEEDS:
            numbers = {"numbers": f"generate_series(1, {count}) n", "one": "generate_series(1, 1) n"}
            connection.execute(text.format(**names, **numbers, now=START).encode())
        if request.param == "analyzed":
            connection.execute("vacuum analyze")
        found[count] = {unit: rows_read(connection, unit) for unit in UNITS}
    yield found
    connection.close()
    engine.close()
    postgres_server.drop_database(name)


def rows_read(connection: Any, unit: str) -> float:
    parameters = parameters_of(unit)
    plans = [
        analyze(connection, statement, {name: parameters[name] for name in statement.parameters})
        for statement in load_units("postgres")[unit].statements
    ]
    rows: float = sum(
        node["Actual Loops"] * (node["Actual Rows"] + node.get("Rows Removed by Filter", 0))
        for plan in plans
        for node in nodes(plan)
        if node.get("Relation Name") in COUNTED and "Scan" in node["Node Type"]
    )
    return rows


@pytest.mark.parametrize("unit", UNITS)
def test_postgres_reads_no_more_rows_of_many(read: dict[int, dict[str, float]], unit: str) -> None:
    assert read[MANY][unit] <= read[FEW][unit] * 1.2 + 50
    assert read[MANY][unit] <= 12 * TOP


@pytest.fixture(scope="module")
def steps() -> dict[int, dict[str, int]]:
    """How many hundreds of steps each unit takes on SQLite, with few and with many rows there."""
    return {count: steps_taken(count) for count in (FEW, MANY)}


def steps_taken(count: int) -> dict[str, int]:
    engine = SqliteEngine(None)
    migrate(engine)
    names = {table: f"evenflow_{table}" for table in TABLES} | {"mark": "evenflow_unique_mark"}
    series = "(with recursive s (n) as (select 1 union all select n + 1 from s where n < {}) select n from s)"
    taken = {}
    with engine.exclusive() as connection:
        for text in SEEDS:
            numbers = {"numbers": series.format(count), "one": series.format(1)}
            connection.execute(text.format(**names, **numbers, now=START))
        connection.execute("savepoint begin_of_measuring")
        for unit in UNITS:
            parameters = {"now": START, **parameters_of(unit)}
            ticks: list[int] = []
            connection.set_progress_handler(functools.partial(ticks.append, 1), 100)
            for statement in load_units("sqlite")[unit].statements:
                connection.execute(
                    statement.text, {name: parameters[name] for name in statement.parameters}
                ).fetchall()
            connection.set_progress_handler(None, 0)
            connection.execute("rollback to begin_of_measuring")
            taken[unit] = len(ticks)
    engine.close()
    return taken


@pytest.mark.parametrize("unit", [unit for unit in UNITS if unit != "room_of"])
def test_sqlite_takes_no_more_steps_for_many(steps: dict[int, dict[str, int]], unit: str) -> None:
    # room_of apart: SQLite has no LIMIT by column, and a queue that rejects has few outside.
    assert steps[MANY][unit] <= steps[FEW][unit] * 1.2 + 20
