"""Plans of the hot statements: what they read does not grow with backlog, history or groups, whatever statistics say."""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from typing import Any, Literal, TypeVar

import psycopg
import pytest

from evenflow.job import Claimed, JobError, JudgedEnd, Verdict
from evenflow.rules.fair import Respacing
from evenflow.schedule import StoredSchedule
from evenflow.settings import Retention
from evenflow.store import gates, schedules, statistics
from evenflow.store.advance import Advanced, Bound, Claim, Want, advance, start
from evenflow.store.control import admit, declare_cluster, expire, learn_costs, retry, withdraw
from evenflow.store.engine import Parameters, Row, Steps, drive
from evenflow.store.enqueue import enqueue_steps
from evenflow.store.leases import beat, free_expired_claims, rescue, save_progress
from evenflow.store.migrate import migrate
from evenflow.store.plain import advance_plainly
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import Filter, ended_among, find, page, queues
from evenflow.store.spacing import _move
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import Statement, load_units
from evenflow.store.upkeep import turn_partitions
from tests.postgres_server import DatabaseHost
from tests.store.scene import ALICE, SECOND, START, CountedIds, end_of, new_job

pytestmark = pytest.mark.slow

READY, GROUPS, HISTORY = 50_000, 200, 20_000
# How many are ready, in how many groups.
BACKLOGS = ((1_000, 10), (10_000, 1_000), (25_000, 1_000))
MILLION = (1_000_000, 1_000)
BIG = ("job", "history")
Condition = Literal["full", "empty", "lying"]
CONDITIONS: list[Condition] = ["full", "empty", "lying"]

SEED_JOBS = """
insert into {job} (id, turn, created_at, run_at, max_attempts, priority, state, queue, task, group_key, payload, good_until)
select n, 1 + n / {groups}, {now}, {now}, 3, 0, 'ready', 'default', 't', 'g' || (n % {groups}), '[]',
  case when n % 10 = 0 then {now} + 1000000000000 end
from {numbers}
"""
SEED_HISTORY = """
insert into {history} (id, expires_at, created_at, run_at, finished_at, epoch, attempt, max_attempts, crashes, priority,
  fails_on_crash, state, queue, task, payload)
select n + 10000000, {now} + 86400000000 * (n % 5), {now}, {now}, {now}, 1, 1, 3, 0, 0, {false},
  case when n % 20 = 0 then 'failed' else 'succeeded' end, 'default', 't', '[]'
from {numbers}
"""

T = TypeVar("T")


class Recorder:
    """An engine that runs nothing: it notes which units an operation would run, with their parameters."""

    kind = "recorder"

    def __init__(self) -> None:
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.rows: list[Row] = []

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        self.calls.append((name, {"now": START, **parameters}))
        return self.rows

    def run_all(self, units: Any, *, deadline_s: float = 30.0) -> list[list[Row]]:
        return [self.run(name, parameters) for name, parameters in units]

    def together(self, make_steps: Callable[[], Steps[T]], *, deadline_s: float = 30.0) -> T:
        return drive(self, make_steps())

    def close(self) -> None:
        pass


def parameters_of(unit: str, kind: str = "recorder") -> dict[str, Any]:
    """The parameters with which an operation runs a unit, as in daily work, on this kind of database where it matters."""
    note = Recorder()
    jobs = [new_job(group=f"g{number % 7}") for number in range(20)]
    ids = list(range(1, 50))
    match unit:
        case "enqueue_plainly":
            note.calls.append(next(enqueue_steps([new_job()], CountedIds(), now=START)))
        case "enqueue_lone":
            note.calls.append(next(enqueue_steps([new_job(unique_key="u")], CountedIds(), now=START)))
        case "enqueue":
            note.calls.append(next(enqueue_steps(jobs, CountedIds(), now=START)))
        case "advance" | "advance_onward":
            states = ["succeeded"] * 19 + ["ready"] * (unit == "advance")
            ends = [end_of(claimed(number), state) for number, state in enumerate(states, start=1)]
            wants = [Want("default", 0, 100), Want("other", 1, 100)]
            advance(note, ALICE, ends, Claim(wants, 100, [Bound("default", 0, 3.0, 600)]), now=START)
        case "advance_plainly":
            ends = [end_of(claimed(number)) for number in range(1, 20)]
            wants = [Want("default", 0, 100), Want("other", 1, 100)]
            claim = Claim(wants, 100, [Bound("default", 0, 3.0, 600)], moves_v=False)
            advance(note, ALICE, ends, claim, now=START)
        case "let_go" | "end_successes":
            note.kind = kind
            advance(note, ALICE, [end_of(claimed(number)) for number in range(1, 20)], now=START)
        case "claim":
            wants = [Want("default", 0, 100), Want("other", 1, 100)]
            advance(note, ALICE, (), Claim(wants, 100, [Bound("default", 0, 3.0, 600)]), now=START)
        case "plain_advance" | "plain_advance_still" | "plain_claim" | "plain_claim_still":
            ends = [end_of(claimed(number)) for number in range(1, 20)] if "advance" in unit else []
            wants = [Want("default", 0, 100), Want("other", 1, 100)]
            moves_v = not unit.endswith("_still")
            note.kind = kind
            claim = Claim(wants, 100, [Bound("default", 0, 3.0, 600)], moves_v=moves_v)
            advance_plainly(note, ALICE, ends, claim, now=START)
        case "admit":
            admit(note, now=START)
        case "expire":
            expire(note, Retention(), now=START)
        case "beat":
            beat(note, ALICE, claim_lease_us=SECOND, now=START)
        case "rescue":
            rescue(note, JobError("X", "x"), Retention(), now=START)
        case "free_expired_claims":
            free_expired_claims(note, now=START)
        case "start_claimed":
            start(note, ALICE, [claimed(number) for number in ids], now=START)
        case "record_verdicts":
            said = JudgedEnd(1, 1, "failed", verdicts=(Verdict("bank", "failure"),))
            advance(note, ALICE, [said], now=START)
        case "set_aside":
            gates.set_aside(note, ["default"])
        case "release_gated":
            gates.release(note)
        case "elect_probe":
            gates.elect_probe(note, "bank", ["default"], now=START)
        case "save_progress":
            save_progress(note, ALICE, [(number, 1, "null") for number in ids])
        case "revive" | "hasten":
            retry(note, ids, now=START)
        case "withdraw":
            withdraw(note, ids, "cancelled", Retention(), now=START)
        case "list_live" | "list_history":
            page(note, Filter())
        case "jobs_by_id":
            find(note, ids)
        case "ended_among":
            ended_among(note, ids)
        case "due_schedules":
            schedules.due(note, ["f"] * 20, ["t"] * 20, top=100, now=START)
        case "take_slots":
            note.calls.append(
                next(schedules._fire_steps(stored_schedule(), [], START, CountedIds(), None, START))
            )
        case "add_statistics":
            note.rows = [(START,)]
            statistics.add(note, [statistics.Statistic("default", f"t{number}") for number in range(20)])
        case "learn_costs":
            learn_costs(note, {("default", f"g{number}"): (1, 100) for number in range(20)}, now=START)
        case "stretch_jobs" | "close_up_jobs":
            key = {"queue": "default", "priority": 0, "group_key": "g1"}
            tail = 2.0 if unit == "stretch_jobs" else 0.5
            note.calls += [next(_move(key, Respacing.begun(1.0, 100.0, 1.0, tail), 100.0, 1000))]
        case "find_duplicates":
            steps = enqueue_steps(jobs, CountedIds(), now=START)
            next(steps)
            note.calls.append(steps.send([(0,)]))
    return next(parameters for name, parameters in note.calls if name == unit)


def claimed(number: int) -> Claimed:
    """A claimed job of which nothing but its fence matters."""
    return Claimed(
        number, 1, "default", "t", None, 0, 1.0, 1, 3, 0, START, START, START, None, "[]", None, None, None
    )


def stored_schedule() -> StoredSchedule:
    """A schedule of which nothing but its fence matters."""
    return StoredSchedule(
        "k", "code", "f", "t", "[]", "* * * * *", None, "UTC", None, None, "skip", "skip", 0, None, START, START, START,
        None, None, None, None, None, None, True,
    )  # fmt: skip


# Which index each statement must walk on the live jobs; None where it may not look at them at all.
WALKS: dict[str, str | None] = {
    "enqueue": None,
    "enqueue_lone": None,
    "enqueue_plainly": None,
    "advance": "job_ready",
    "advance_onward": "job_ready",
    "advance_plainly": "job_ready",
    **dict.fromkeys(
        ("plain_advance", "plain_advance_still", "plain_claim", "plain_claim_still"), "job_ready"
    ),
    "claim": "job_ready",
    "admit": "job_due",
    "expire": "job_expiring",
    "beat": "job_in_flight",
    "rescue": "job_in_flight",
    "free_expired_claims": "job_in_flight",
    "start_claimed": "job_pkey",
    "save_progress": "job_pkey",
    "revive": None,
    "withdraw": "job_pkey",
    "list_live": "job_pkey",
    "jobs_by_id": "job_pkey",
    "ended_among": "job_pkey",
    "find_duplicates": "job_pkey",
    "due_schedules": None,
    "take_slots": "job_pkey",
    "record_verdicts": "job_pkey",
    "set_aside": "job_ready",
    "release_gated": "job_gated",
    "elect_probe": "job_gated",
    "learn_costs": None,
    "add_statistics": None,
    "stretch_jobs": "job_timed",
    "close_up_jobs": "job_timed",
}
# On PostgreSQL what is in flight is found by its flights, then by its key.
POSTGRES_WALKS = WALKS | dict.fromkeys(("beat", "rescue", "free_expired_claims"), "job_pkey")
SQLITE_WALKS = WALKS | dict.fromkeys(("let_go", "end_successes"), "job_pkey")


@pytest.fixture(scope="module", params=CONDITIONS)
def connection(
    request: pytest.FixtureRequest, postgres_server: DatabaseHost
) -> Iterator["psycopg.Connection[Row]"]:
    """A connection as the engine opens it, to a store in one of three conditions."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    migrate(engine)
    turn_partitions(engine, days_ahead=5, now=START)
    connection = engine.connect()
    prepare_postgres(connection, request.param)
    yield connection
    connection.close()
    engine.close()
    postgres_server.drop_database(name)


@pytest.fixture(scope="module", params=CONDITIONS)
def engine(request: pytest.FixtureRequest) -> Iterator[SqliteEngine]:
    """A file in memory, in one of three conditions."""
    engine = SqliteEngine(None)
    migrate(engine)
    with engine.exclusive() as connection:
        if request.param == "lying":
            connection.execute("analyze")
        if request.param != "empty":
            seed_sqlite(connection, READY, GROUPS, HISTORY)
        if request.param == "full":
            connection.execute("analyze")
    yield engine
    engine.close()


class TestOnPostgres:
    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    @pytest.mark.parametrize("unit", POSTGRES_WALKS)
    def test_a_hot_statement_walks_its_index(
        self, connection: "psycopg.Connection[Row]", unit: str, mode: str
    ) -> None:
        plan = explain(connection, unit, mode)
        scans = [
            (node["Node Type"], node.get("Relation Name", ""), node.get("Index Name")) for node in nodes(plan)
        ]
        assert [scan for scan in scans if scan[0] == "Seq Scan" and is_big(scan[1])] == []
        walked = {index for _, relation, index in scans if relation == "job" and index}
        bitmaps = {index for kind, _, index in scans if kind == "Bitmap Index Scan" and index}
        wanted = POSTGRES_WALKS[unit]
        assert walked | bitmaps == set() if wanted is None else wanted in walked | bitmaps

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    @pytest.mark.parametrize("unit", POSTGRES_WALKS)
    def test_no_index_of_all_jobs_is_read_from_end_to_end(
        self, connection: "psycopg.Connection[Row]", unit: str, mode: str
    ) -> None:
        has_jobs = bool(connection.execute("select from evenflow.job limit 1").fetchall())
        if unit.startswith("plain_") and mode == "force_custom_plan" and not has_jobs:
            return  # such a plan is made for one run, and sees that there is nothing to be read
        of_all = [
            node
            for node in nodes(explain(connection, unit, mode))
            if node.get("Index Name") in ("job_pkey", "job_ready")
        ]
        assert [node["Node Type"] for node in of_all if "Index Cond" not in node] == []

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    @pytest.mark.parametrize(
        "unit",
        [
            "advance",
            "advance_onward",
            "advance_plainly",
            "claim",
            "plain_advance",
            "plain_claim_still",
            "admit",
            "expire",
            "list_live",
            "list_history",
            "stretch_jobs",
            "close_up_jobs",
        ],
    )
    def test_a_backlog_is_never_sorted(
        self, connection: "psycopg.Connection[Row]", unit: str, mode: str
    ) -> None:
        sorts = [node for node in nodes(explain(connection, unit, mode)) if "Sort" in node["Node Type"]]
        assert [node for sort in sorts for node in nodes(sort) if is_big(node.get("Relation Name", ""))] == []

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    def test_an_end_finds_its_job_by_the_primary_key(
        self, connection: "psycopg.Connection[Row]", mode: str
    ) -> None:
        deletes = [
            node
            for node in nodes(explain(connection, "advance", mode))
            if node.get("Operation") in ("Delete", "Update")
        ]
        on_jobs = [node for node in deletes if node.get("Relation Name") == "job"]
        assert len(on_jobs) == 3  # ended, returned, claimed
        found = {node.get("Index Name") or node["Node Type"] for top in on_jobs for node in nodes(top)}
        assert "job_pkey" in found
        assert "Tid Scan" in found
        assert found & {"job_ready", "job_due"} == set()

    @pytest.mark.parametrize("mode", ["force_custom_plan", "force_generic_plan"])
    def test_statistics_are_added_to_their_row_by_its_key(
        self, connection: "psycopg.Connection[Row]", mode: str
    ) -> None:
        plan = explain(connection, "add_statistics", mode)
        assert not [
            node
            for node in nodes(plan)
            if node.get("Relation Name") == "statistic" and "Scan" in node["Node Type"]
        ]

    def test_a_claim_reads_no_more_rows_of_a_larger_backlog(self, postgres_store: PostgresEngine) -> None:
        """S4-19, S4-24, S4-25, S4-35"""
        self.expect_equal_reads(postgres_store, BACKLOGS)

    @pytest.mark.large
    def test_a_claim_reads_no_more_rows_of_a_million(self, postgres_store: PostgresEngine) -> None:
        """S4-19, S4-35"""
        self.expect_equal_reads(postgres_store, (*BACKLOGS, MILLION))

    def expect_equal_reads(self, engine: PostgresEngine, backlogs: Sequence[tuple[int, int]]) -> None:
        """A claim of a hundred jobs reads a hundred entries of one index by one plan, whatever the backlog."""
        for unit, no_ends in (("advance", {"ends": "[]"}), ("plain_claim", {})):
            self.expect_equal_reads_of(unit, no_ends, engine, backlogs)

    @staticmethod
    def expect_equal_reads_of(
        unit: str, no_ends: dict[str, str], engine: PostgresEngine, backlogs: Sequence[tuple[int, int]]
    ) -> None:
        blocks, shapes = [], []
        connection = engine.connect()
        for ready, groups in backlogs:
            seed_postgres(connection, ready, groups, 0)
            connection.execute("vacuum analyze evenflow.job")
            parameters = parameters_of(unit) | no_ends | {"bounds": "[]"}
            plan = analyze(connection, load_units("postgres")[unit].statements[0], parameters)
            scans = [node for node in nodes(plan) if node.get("Index Name") == "job_ready"]
            removed = "Rows Removed by Filter"
            rows = sum(node["Actual Loops"] * (node["Actual Rows"] + node.get(removed, 0)) for node in scans)
            assert rows == 100, ready
            blocks.append(sum(node["Shared Hit Blocks"] + node["Shared Read Blocks"] for node in scans))
            looked = [node for top in candidates(plan) for node in nodes(top)]
            shapes.append([(node["Node Type"], node.get("Index Name")) for node in looked])
        connection.close()
        assert max(blocks) <= blocks[0] + 20
        assert shapes[0] and shapes == [shapes[0]] * len(backlogs), "one plan for all of them"

    def test_no_count_over_the_cluster_is_made_without_its_cap(self, postgres_store: PostgresEngine) -> None:
        """S0-52"""
        counted = {}
        connection = postgres_store.connect()
        seed_postgres(connection, 1_000, 10, 0)
        run_elsewhere = "update evenflow.job set state = 'running', queue = 'elsewhere', worker = 1, flight = 1 where id > 500"
        connection.execute(run_elsewhere.encode())
        noted = "insert into evenflow.flight select 1, 1, 'elsewhere', array_agg(id) from evenflow.job where flight = 1"
        connection.execute(noted.encode())
        parameters = parameters_of("advance") | {"ends": "[]", "bounds": "[]", "caps_locked": True}
        for cap in (None, 600):
            declare_cluster(postgres_store, cap)
            plan = analyze(connection, load_units("postgres")["advance"].statements[0], parameters)
            scans = [node for node in nodes(plan) if node.get("Alias", "").startswith("o")]
            counted[cap] = sum(node["Actual Loops"] * node["Actual Rows"] for node in scans)
        connection.close()
        assert counted == {None: 0, 600: 500}

    def test_the_names_of_queues_are_read_from_queues_not_from_jobs(
        self, postgres_store: PostgresEngine
    ) -> None:
        """S1-29"""
        read = {}
        connection = postgres_store.connect()
        for ready in (100, 5_000):
            seed_postgres(connection, ready, 10, 0)
            connection.execute(b"insert into evenflow.band select 'q' || n, 0 from generate_series(1, 30) n")
            plan = analyze(connection, load_units("postgres")["list_queues"].statements[0], {})
            scans = [node for node in nodes(plan) if "Relation Name" in node]
            assert {node["Relation Name"] for node in scans} == {"queue", "band"}
            read[ready] = sum(node["Actual Loops"] * node["Actual Rows"] for node in scans)
        connection.close()
        assert read[100] == read[5_000] <= 2 * 31

    def test_a_claim_reads_no_more_rows_beside_a_larger_history(self, postgres_store: PostgresEngine) -> None:
        connection = postgres_store.connect()
        seed_postgres(connection, 1_000, 10, HISTORY)
        plan = analyze(
            connection,
            load_units("postgres")["advance"].statements[0],
            parameters_of("advance") | {"ends": "[]"},
        )
        touched = [
            node
            for node in nodes(plan)
            if is_history(node.get("Relation Name", "")) and "Scan" in node["Node Type"]
        ]
        connection.close()
        assert touched == []


class TestOnSqlite:
    @pytest.mark.parametrize("unit", SQLITE_WALKS)
    def test_a_hot_statement_walks_its_index(self, engine: SqliteEngine, unit: str) -> None:
        lines = [line for lines in query_plan(engine, unit) for line in lines]
        assert [
            line
            for line in lines
            if re.search(r"SCAN (evenflow_)?(job|j|history|h)\b(?!.*USING.*INDEX)", line)
        ] == []
        wanted = SQLITE_WALKS[unit]
        walked = " ".join(line for line in lines if "SEARCH" in line or "SCAN" in line)
        if wanted == "job_pkey":
            assert "USING INTEGER PRIMARY KEY" in walked
        elif wanted is not None:
            assert f"evenflow_{wanted}" in walked

    @pytest.mark.parametrize("unit", ["expire", "list_live", "list_history"])
    def test_a_backlog_is_never_sorted(self, engine: SqliteEngine, unit: str) -> None:
        assert not any("USE TEMP B-TREE" in line for lines in query_plan(engine, unit) for line in lines)

    # Besides the claim, one looks for jobs of shut tasks, and the other whether something was left.
    @pytest.mark.parametrize("unit", ["advance", "plain_advance"])
    def test_a_claim_takes_its_jobs_along_the_index_without_a_sort(
        self, engine: SqliteEngine, unit: str
    ) -> None:
        walks = [
            lines[place:]
            for lines in query_plan(engine, unit)
            for place, line in enumerate(lines)
            if "evenflow_job_ready" in line
        ]
        assert len(walks) == 2
        for walk in walks:
            assert walk[0].count("queue=? AND priority=?") == 1
            depth = len(walk[0]) - len(walk[0].lstrip())
            beside = [line for line in walk if len(line) - len(line.lstrip()) == depth]
            assert not any("TEMP B-TREE" in line for line in beside)

    def test_a_claim_takes_no_more_steps_for_a_larger_backlog(self) -> None:
        """S4-19, S4-24, S4-25, S4-35"""
        for form in (advance, advance_plainly):
            steps = [claim_steps(ready, groups, form=form) for ready, groups in BACKLOGS]
            assert max(steps) <= steps[0] * 1.2 + 2

    @pytest.mark.large
    def test_a_claim_takes_no_more_steps_for_a_million(self) -> None:
        """S4-19, S4-35"""
        for form in (advance, advance_plainly):
            assert claim_steps(*MILLION, form=form) <= claim_steps(*BACKLOGS[0], form=form) * 1.2 + 2

    def test_no_count_over_the_cluster_is_made_without_its_cap(self) -> None:
        """S0-52"""
        for form in (advance, advance_plainly):
            steps = {(elsewhere, cap): claim_steps(1_000, 10, elsewhere=elsewhere, cap=cap, form=form)
                     for elsewhere in (0, 2_000) for cap in (None, 5_000)}  # fmt: skip
            assert steps[2_000, None] <= steps[0, None] + 2
            assert steps[2_000, 5_000] >= steps[0, 5_000] + 2_000 / 100, "a count can be seen by its steps"

    def test_a_plain_claim_takes_steps_in_the_number_of_its_queues(self) -> None:
        few, many = (idle_claim_steps(queues) for queues in (50, 500))
        assert many <= few * 10 * 1.2 + 2

    def test_the_names_of_queues_are_read_from_queues_not_from_jobs(self) -> None:
        """S1-29"""
        assert (
            steps_of(5_000, lambda engine: queues(engine)) <= steps_of(100, lambda engine: queues(engine)) + 1
        )

    def test_an_enqueue_takes_no_more_steps_for_a_larger_backlog_or_more_groups(self) -> None:
        """S4-37"""
        jobs = [new_job(group=f"g{number % 7}") for number in range(50)]
        ids = CountedIds()
        ids._next = 10**9
        steps = [
            steps_of(ready, lambda engine: drive(engine, enqueue_steps(jobs, ids, now=START)), groups)
            for ready, groups in ((1_000, 10), (20_000, 10), (20_000, 5_000))
        ]
        assert max(steps) <= steps[0] * 1.2 + 2

    def test_an_end_takes_no_more_steps_for_a_larger_backlog(self) -> None:
        for form in (advance, advance_plainly):
            steps = {ready: claim_steps(ready, 10, ends=20, form=form) for ready in (1_000, READY)}
            assert steps[READY] <= steps[1_000] * 1.2 + 2


def prepare_postgres(connection: "psycopg.Connection[Row]", condition: Condition) -> None:
    """`full`: what statistics say is true. `empty`: nothing is there. `lying`: they were taken when nothing was there."""
    for table in ("job", *partitions(connection)):
        connection.execute(f"alter table evenflow.{table} set (autovacuum_enabled = off)".encode())
    if condition == "lying":
        connection.execute("analyze")
    if condition != "empty":
        seed_postgres(connection, READY, GROUPS, HISTORY)
    if condition == "full":
        connection.execute("vacuum analyze")


def partitions(connection: "psycopg.Connection[Row]") -> list[str]:
    rows = connection.execute(
        "select relname from pg_class where relname like 'history\\_%' and relkind = 'r'"
    ).fetchall()
    return [name for (name,) in rows]


def seed_postgres(connection: "psycopg.Connection[Row]", ready: int, groups: int, history: int) -> None:
    connection.execute("truncate evenflow.job, evenflow.history, evenflow.band")
    connection.execute("insert into evenflow.band values ('default', 0)")
    values = {
        "job": "evenflow.job",
        "history": "evenflow.history",
        "now": START,
        "false": "false",
        "groups": groups,
    }
    for text, count in ((SEED_JOBS, ready), (SEED_HISTORY, history)):
        connection.execute(text.format(**values, numbers=f"generate_series(1, {count}) n").encode())


def seed_sqlite(connection: Any, ready: int, groups: int, history: int) -> None:
    connection.execute("insert into evenflow_band values ('default', 0)")
    values = {
        "job": "evenflow_job",
        "history": "evenflow_history",
        "now": START,
        "false": "0",
        "groups": groups,
    }
    for text, count in ((SEED_JOBS, ready), (SEED_HISTORY, history)):
        numbers = f"(with recursive s (n) as (select 1 union all select n + 1 from s where n < {count}) select n from s)"
        connection.execute(text.format(**values, numbers=numbers))


def explain(connection: "psycopg.Connection[Row]", unit: str, mode: str) -> dict[str, Any]:
    """The plan of a prepared unit, as custom or as generic plan."""
    statement = load_units("postgres")[unit].statements[-1]  # the others take locks
    parameters = parameters_of(unit)
    connection.execute(f"set plan_cache_mode = {mode}".encode())
    connection.execute(f"prepare hot as {statement.dollar}".encode())
    try:
        places = ", ".join(["%s"] * len(statement.parameters))
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(
            f"explain (format json) execute hot({places})".encode(),
            [parameters[name] for name in statement.parameters],
        )
        return plan_in(cursor.fetchone())
    finally:
        connection.execute("deallocate hot")


def analyze(
    connection: "psycopg.Connection[Row]", statement: Statement, parameters: dict[str, Any]
) -> dict[str, Any]:
    """What really happened: runs the statement and takes it back."""
    with connection.transaction(force_rollback=True):
        cursor = psycopg.ClientCursor(connection)
        cursor.execute(f"explain (analyze, buffers, format json) {statement.pyformat}".encode(), parameters)
        return plan_in(cursor.fetchone())


def plan_in(row: Any) -> dict[str, Any]:
    plan = row[0] if isinstance(row[0], list) else json.loads(row[0])
    found: dict[str, Any] = plan[0]["Plan"]
    return found


def nodes(plan: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield plan
    for child in plan.get("Plans", ()):
        yield from nodes(child)


def candidates(plan: dict[str, Any]) -> list[dict[str, Any]]:
    """The part of an advance that looks for ready jobs."""
    return [node for node in nodes(plan) if node.get("Subplan Name") == "CTE candidates"]


def is_big(relation: str) -> bool:
    return relation == "job" or is_history(relation)


def is_history(relation: str) -> bool:
    return relation.startswith("history")


def query_plan(engine: SqliteEngine, unit: str) -> list[list[str]]:
    """The plan of each statement of a unit, indented by depth."""
    parameters = {"now": START, **parameters_of(unit, "sqlite")}
    found = []
    with engine.reading() as connection:
        for statement in load_units("sqlite")[unit].statements:
            chosen = {name: parameters[name] for name in statement.parameters}
            depths = {0: 0}
            lines = []
            for node, parent, _, text in connection.execute(
                f"explain query plan {statement.text}", chosen
            ).fetchall():
                depths[node] = depths[parent] + 1
                lines.append("  " * depths[node] + text)
            found.append(lines)
    return found


def claim_steps(
    ready: int, groups: int, ends: int = 0, elsewhere: int = 0, cap: int | None = None, *,
    form: Callable[..., Advanced],
) -> int:  # fmt: skip
    """How many hundreds of virtual machine steps a round takes in one form: 100 claims, or some ends; while jobs run elsewhere."""
    claim = Claim() if ends else Claim([Want("default", 0, 100)], 100, under_caps=cap is not None)
    ended = [end_of(claimed(number)) for number in range(1, ends + 1)]

    def prepare(connection: Any) -> None:
        connection.execute(
            f"update evenflow_job set state = 'running', epoch = 1, worker = {ALICE} where id <= {ends}"
        )
        connection.execute(
            "update evenflow_job set state = 'running', queue = 'elsewhere' where id > ?", (ready,)
        )

    def act(engine: SqliteEngine) -> None:
        answer = form(engine, ALICE, ended, claim, now=START)
        assert (len(answer.claimed), answer.lost) == (0 if ends else 100, [])

    return steps_of(ready + elsewhere, act, groups, prepare, cap)


def idle_claim_steps(queues: int) -> int:
    """How many hundreds of steps a plain claim takes that finds nothing in so many queues, and has claimed from each before."""
    names = [f"mail-{number}" for number in range(queues)]
    wants = [Want(name, place, 10) for place, name in enumerate(names)]
    claim = Claim(wants, 10, [Bound(name, 0, 3.0, 600) for name in names])

    def prepare(connection: Any) -> None:
        connection.executemany("insert into evenflow_band (queue, priority) values (?, 0)", zip(names))

    return steps_of(10, lambda engine: advance_plainly(engine, ALICE, (), claim, now=START), prepare=prepare)


def steps_of(
    ready: int, act: Callable[[SqliteEngine], object], groups: int = 10,
    prepare: Callable[[Any], None] = lambda _: None, cap: int | None = None,
) -> int:  # fmt: skip
    """How many hundreds of virtual machine steps an act takes in a store with so many ready jobs, and as many that have ended."""
    engine = SqliteEngine(None)
    migrate(engine)
    declare_cluster(engine, cap)
    with engine.exclusive() as connection:
        seed_sqlite(connection, ready, groups, ready)
        prepare(connection)
        ticks: list[int] = []
        connection.set_progress_handler(lambda: ticks.append(1), 100)
    act(engine)
    engine.close()
    return len(ticks)
