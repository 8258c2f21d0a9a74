"""How a database finds the jobs of a claim, by its own account: EXPLAIN of the very statement that workers run."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

import psycopg

from bench.claimer import Claimer
from evenflow.store.advance import advance
from evenflow.store.engine import Parameters, Row, Steps, drive
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import Statement, load_units

T = TypeVar("T")
READY_INDEX = "job_ready"


@dataclass(slots=True)
class Walk:
    """What one claim read: entries and pages of the index of ready jobs, and pages in all. None where it is not told."""

    rows: float | None = None
    buffers: int | None = None
    all_buffers: int | None = None
    plan: list[str] = field(default_factory=list)


class Recorder:
    """Stands where an engine stands, and keeps what it was asked to run last."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self.unit = ""
        self.parameters: dict[str, Any] = {}

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        self.unit, self.parameters = name, dict(parameters)
        return []

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        return [self.run(name, parameters) for name, parameters in units]

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        return drive(self, make_steps())

    def close(self) -> None: ...


def postgres_walk(engine: PostgresEngine, claimer: Claimer) -> Walk:
    """Run the claim once more under EXPLAIN, and roll it back."""
    recorder = Recorder(engine.kind)
    advance(recorder, claimer.worker, (), claimer.request())
    walk = Walk(0, 0, 0)
    with engine.session(60.0) as session, session.transaction(force_rollback=True):
        # Workers prepare their statements, so what they run is the plan that fits all parameters.
        session.execute("set local plan_cache_mode = force_generic_plan")
        for statement in load_units(engine.kind, engine.schema)[recorder.unit].statements:
            _add(walk, list(_nodes(_explain(session, statement, recorder.parameters))))
    return walk


def sqlite_walk(engine: SqliteEngine) -> Walk:
    """The steps that SQLite plans for live jobs; it counts neither rows nor pages."""
    found: dict[str, None] = {}
    with engine.reading() as file:
        for statement in load_units(engine.kind)["claim"].statements:
            nulls = dict.fromkeys(statement.parameters)
            steps = [row[3] for row in file.execute(f"explain query plan {statement.text}", nulls)]
            found |= dict.fromkeys(step for step in steps if " j " in f"{step} " or "evenflow_job" in step)
    return Walk(plan=list(found))


def _explain(session: "psycopg.Connection[Row]", statement: Statement, parameters: dict[str, Any]) -> Any:
    session.execute(f"prepare walk as {statement.dollar}".encode())
    places = ", ".join(["%s"] * len(statement.parameters))
    values = [parameters[name] for name in statement.parameters]
    cursor = psycopg.ClientCursor(session)
    row = cursor.execute(
        f"explain (analyze, buffers, format json) execute walk ({places})".encode(), values
    ).fetchone()
    session.execute("deallocate walk")
    assert row is not None
    return row[0][0]["Plan"]


def _nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from _nodes(child)


def _add(walk: Walk, nodes: list[dict[str, Any]]) -> None:
    assert walk.rows is not None and walk.buffers is not None and walk.all_buffers is not None
    for node in nodes:
        walk.all_buffers += _own_pages(node)
        if node.get("Index Name") == READY_INDEX:
            read = node["Actual Rows"] + node.get("Rows Removed by Filter", 0)
            walk.rows += read * node["Actual Loops"]
            walk.buffers += _pages(node)
            walk.plan.append(
                f"{node['Node Type']} on {READY_INDEX}, {node.get('Index Cond', 'no condition')}"
            )


def _own_pages(node: dict[str, Any]) -> int:
    """Pages that a node touched by itself. A node counts those of its children too, and whoever reads a CTE counts
    the pages of the CTE, which has a place of its own in the tree."""
    if node["Node Type"] == "CTE Scan":
        return 0
    below = [child for child in node.get("Plans", ()) if not child.get("Subplan Name", "").startswith("CTE ")]
    return max(0, _pages(node) - sum(map(_pages, below)))


def _pages(node: dict[str, Any]) -> int:
    return int(node.get("Shared Hit Blocks", 0)) + int(node.get("Shared Read Blocks", 0))
