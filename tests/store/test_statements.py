"""Statements: the twin files hold the same units, each valid as it stands and used by some operation."""

import ast
import re
from pathlib import Path

import pytest

import evenflow
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.statements import Statement, Unit, load_units, parse_units, split_statements, with_schema

SQLITE, POSTGRES = load_units("sqlite"), load_units("postgres")
NAMES = sorted(SQLITE.keys() & POSTGRES.keys())
STATEMENTS = [(name, statement) for name in sorted(POSTGRES) for statement in POSTGRES[name].statements]
LISTS = {
    "batch",
    "cells",
    "lines",
    "kinds",
    "ends",
    "wants",
    "bounds",
    "workers",
    "starts",
    "progress",
    "ids",
    "epochs",
    "kept",
    "reached",
    "queues",
    "weights",
    "costs",
    "steps",
    "particular",
    "edges",
    "runs",
    "ended",
    "skips",
    "containers",
    "names",
    "changes",
    "marks",
    "limiters",
    "breakers",
    "guards",
    "free",
    "verdicts",
    "schedules",
    "fires",
    "fingerprints",
    "tasks",
}
VALUES = {
    "claim_state": "running",
    "state": "failed",
    "fair": "fifo",
    "on_full": "reject",
    "name": "mail",
    "queue": "mail",
    "kind": "worker",
    "on_error": "fail",
    "value": "1",
    "payload": "1",
}


def test_both_engines_have_the_same_units() -> None:
    sqlite, postgres = (
        {name for name, unit in units.items() if not unit.is_only_here} for units in (SQLITE, POSTGRES)
    )
    assert sqlite == postgres


# Over all units at once: hundreds of cases of microseconds each would cost every test process seconds to collect.


def test_a_unit_takes_the_same_parameters_on_both_engines() -> None:
    # `now` apart: PostgreSQL has a clock of its own, SQLite is told the time. And flights: SQLite has none. And plain rounds: they
    # take their lists in the form that each reads quickest.
    apart = {"now", "flight", "landed"}
    sqlite, postgres = (
        {name: units[name].parameters - apart for name in NAMES if not name.startswith("plain_")}
        for units in (SQLITE, POSTGRES)
    )
    assert sqlite == postgres


def test_a_unit_declares_the_same_result_on_both_engines() -> None:
    sqlite, postgres = ({name: units[name].returns for name in NAMES} for units in (SQLITE, POSTGRES))
    assert sqlite == postgres


def test_sqlite_returns_the_columns_that_the_unit_declares(sqlite_store: SqliteEngine) -> None:
    found: dict[str, set[tuple[str, ...]]] = {name: set() for name in SQLITE}
    with sqlite_store.exclusive() as connection:
        connection.execute("savepoint nothing_written")
        for name in SQLITE:
            for statement in SQLITE[name].statements:
                cursor = connection.execute(statement.text, arguments(statement))
                if cursor.description is not None:
                    found[name].add(tuple(column[0] for column in cursor.description))
                    cursor.fetchall()
            connection.execute("rollback to nothing_written")
    assert found == {name: {unit.returns} for name, unit in SQLITE.items()}


def test_sqlite_3_38_knows_every_statement() -> None:
    # What came with 3.39; there is no older version to ask here.
    newer = re.compile(r"\bis (not )?distinct from\b|\b(right|full)( outer)? join\b")
    for name, unit in SQLITE.items():
        for statement in unit.statements:
            assert not newer.search(statement.text), name
            assert "group by" in statement.text or not re.search(r"\bhaving\b", statement.text), name


def test_postgres_returns_the_columns_that_the_unit_declares(postgres_store: PostgresEngine) -> None:
    found: dict[str, set[tuple[str, ...]]] = {name: set() for name in POSTGRES}
    with postgres_store.session() as connection:
        for name, statement in STATEMENTS:
            prepared = connection.pgconn.prepare(b"unit", statement.dollar.encode())
            assert prepared.error_message == b"", name
            described = connection.pgconn.describe_prepared(b"unit")
            names = [described.fname(column) or b"" for column in range(described.nfields)]
            found[name].add(tuple(column.decode() for column in names))
            connection.execute("deallocate unit")
    assert {name: columns - {()} for name, columns in found.items()} == {
        name: {unit.returns} for name, unit in POSTGRES.items()
    }


def test_every_parameter_on_postgres_has_its_type_written_down() -> None:
    # Without a cast the server guesses from the place, and drivers that send types may disagree with the guess.
    for name, statement in STATEMENTS:
        for parameter in statement.parameters:
            uses = re.findall(rf"(cast\()?:{parameter}\b(?: as \w+)?", statement.text)
            assert all(uses), f"{name}: {parameter} stands without a cast"


def test_rows_on_postgres_are_taken_once_by_whatever_plan() -> None:
    # The inner side of a nested loop is read again for each row of the outer one, and SKIP LOCKED finds other rows then.
    for name, statement in STATEMENTS:
        for found in re.finditer("skip locked", statement.text):
            around = _around(statement.text, found.start())
            assert not around or any(before.endswith("as materialized") for before in around), name


def _around(text: str, at: int) -> list[str]:
    """What stands before each bracket that is open at a place of a text."""
    opened = list[int]()
    for place, character in enumerate(text[:at]):
        if character == "(":
            opened.append(place)
        elif character == ")":
            opened.pop()
    return [text[:place].rstrip() for place in opened]


def test_a_unit_that_only_reads_says_so() -> None:
    for name in NAMES:
        unit = SQLITE[name]
        writes = any(
            word in f" {s.text} "
            for s in unit.statements
            for word in ("insert into", "update ", "delete from")
        )
        locks = any(
            word in s.text for s in POSTGRES[name].statements for word in ("for no key update", "for share")
        )
        assert (writes or locks) == (unit.mode == "write"), name


def test_every_unit_is_used_by_some_operation() -> None:
    used: set[str] = set()
    for path in Path(evenflow.__file__).parent.rglob("*.py"):
        tree = ast.parse(path.read_text("utf-8"))
        used |= {
            node.value
            for node in ast.walk(tree)
            if isinstance(node, ast.Constant) and isinstance(node.value, str)
        }
    assert (SQLITE.keys() | POSTGRES.keys()) - used == set()


@pytest.mark.parametrize("kind", ["sqlite", "postgres"])
def test_every_statement_has_its_text_in_three_styles(kind: str) -> None:
    for unit in load_units(kind).values():
        for statement in unit.statements:
            assert statement.pyformat.count("%(") >= len(statement.parameters)
            numbers = [f"${place}" for place in range(1, len(statement.parameters) + 1)]
            assert all(number in statement.dollar for number in numbers)
            assert not any(f":{name}" in statement.dollar for name in statement.parameters)


def test_a_parameter_is_bound_wherever_it_stands_but_not_in_texts_or_casts() -> None:
    statement = Statement("select ':no', a::text, :one, 10 % 3, :two, :one, 'it''s :not'")
    assert statement.parameters == ("one", "two")
    assert statement.dollar == "select ':no', a::text, $1, 10 % 3, $2, $1, 'it''s :not'"
    assert statement.pyformat == "select ':no', a::text, %(one)s, 10 %% 3, %(two)s, %(one)s, 'it''s :not'"


def test_a_unit_has_its_name_mode_and_columns_from_its_header() -> None:
    (unit,) = parse_units("-- name: x\n-- mode: read\n-- returns: a, b\n-- why\nselect :p as a, 1 as b;\n")
    assert unit == Unit("x", "read", ("a", "b"), (Statement("select :p as a, 1 as b"),))


def test_a_unit_may_hold_several_statements_that_share_parameters() -> None:
    (unit,) = parse_units("-- name: x\n-- returns: a\ndelete from t where a = :a;\n\nselect :b as a;\n")
    assert unit.mode == "write"
    assert unit.parameters == {"a", "b"}
    assert len(unit.statements) == 2


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(ValueError, match="'x': unknown mode 'rread'"):
        parse_units("-- name: x\n-- mode: rread\n-- returns: a\nselect 1 as a;\n")


WHOLE = """-- name: whole
-- returns: a
select :p as a
  -- [rare
  + :q
  -- rare]
;

-- [other
select 2 as a;
-- other]

"""


def test_a_unit_can_leave_a_part_of_another_out() -> None:
    whole, less = parse_units(WHOLE + "-- name: less\n-- leaves out: rare of whole\n-- why\n")
    assert [statement.parameters for statement in whole.statements] == [("p", "q"), ()]
    assert (less.name, less.returns, less.mode) == ("less", whole.returns, whole.mode)
    assert [" ".join(statement.text.split()) for statement in less.statements] == [
        "select :p as a",
        "select 2 as a",
    ]


def test_a_unit_can_leave_several_parts_out_also_one_within_another() -> None:
    nested = WHOLE.replace("  + :q\n", "  + :q\n  -- [rarer\n  + :r\n  -- rarer]\n")
    said = "-- name: less\n-- leaves out: rarer, other of whole\n\n-- name: least\n-- leaves out: rare of whole\n"
    _, less, least = parse_units(nested + said)
    assert [" ".join(statement.text.split()) for statement in less.statements] == ["select :p as a + :q"]
    assert least.parameters == {"p"}


def test_what_a_smaller_unit_says_of_itself_counts() -> None:
    said = (
        "-- name: less\n-- mode: read\n-- only here: why\n-- returns: other\n-- leaves out: rare of whole\n"
    )
    whole, less = parse_units(WHOLE + said)
    assert (less.mode, less.is_only_here, less.returns) == ("read", True, ("other",))
    assert (whole.mode, whole.is_only_here) == ("write", False)
    assert len(less.statements) == len(whole.statements)


def test_a_unit_cannot_leave_out_what_is_not_there() -> None:
    with pytest.raises(ValueError, match="'less': 'whole' has no part 'raar'"):
        parse_units(WHOLE + "-- name: less\n-- leaves out: raar of whole\n")


def test_a_unit_that_leaves_something_out_stands_behind_the_whole() -> None:
    with pytest.raises(ValueError, match="'less': 'whole' does not stand before it"):
        parse_units("-- name: less\n-- leaves out: rare of whole\n\n" + WHOLE)


def test_a_semicolon_in_a_function_body_or_comment_ends_no_statement() -> None:
    script = "-- one; two;\ncreate function f() as $$\n select 1;\n$$;\nselect 2;\n"
    assert split_statements(script) == ["create function f() as $$\n select 1;\n$$", "select 2"]


def test_another_schema_replaces_every_name() -> None:
    assert with_schema("select evenflow.now_us() from evenflow.job", "Jobs-2") == (
        'select "Jobs-2".now_us() from "Jobs-2".job'
    )
    for unit in load_units("postgres", "tasks").values():
        assert not any("evenflow." in statement.text for statement in unit.statements)


def arguments(statement: Statement) -> dict[str, object]:
    """Values with which a unit runs and finds nothing to do."""
    plain: dict[str, object] = {name: VALUES.get(name, 1) for name in statement.parameters}
    return {name: "[]" if name in LISTS else value for name, value in plain.items()}
