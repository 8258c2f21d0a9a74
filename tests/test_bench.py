"""The benchmarks still run, on both engines, and say what they found. Sizes are tiny: no number is judged here."""

import contextlib
import json
from pathlib import Path

import pytest

from bench import __main__ as command
from bench.claim import large, walk_of
from bench.harness_driver import OWN_SLOTS
from bench.peers import ask, compare
from bench.report import Report
from bench.sizes import SMOKE
from bench.stores import ENGINES, Stores
from bench.suite import BENCHMARKS, measured
from bench.timing import Samples, percentile
from tests.postgres_server import DatabaseHost

HARNESS = """
import json, os, sys
PG_DATA = TMP = os.path.dirname(os.path.abspath(__file__))
PEERS = {name: {"backend": backend} for name, backend in
         [("evenflow-pg", "pg"), ("evenflow-sqlite", "sqlite"), ("slow", "pg"), ("cached", "redis"), ("broken", "pg")]}
def start_servers():
    raise FileNotFoundError(2, "no such program", "redis-cli")
def main():
    start_servers()
    names, measures = (sys.argv[sys.argv.index(option) + 1].split(",") for option in ("--peer", "--measures"))
    for name in names:
        for measure in measures:
            rate = {"jobs_per_s": 500 if name == "slow" else 1000, "p50_ms": 8 if name == "slow" else 2, "loop_ms": 10}
            found = {"error": "Oops: it fell"} if name == "broken" else rate
            found["slots"] = PEERS[name].get("env", {}).get("BENCH_CONCURRENCY")
            print(json.dumps({"peer": name, "measure": measure, "backend": PEERS[name]["backend"], "version": name, **found}))
"""


@pytest.fixture
def stores(postgres_server: DatabaseHost, tmp_path: Path) -> Stores:
    return Stores(postgres_server, tmp_path, tmp_path)


# Those that start dozens of workers, which others of the suite start as well.
SLOW = {"drain", "flow", "workflow", "delay", "pickup", "snapshot", "web"}


@pytest.mark.process
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.large] if name in SLOW else []) for name in BENCHMARKS]
)
def test_a_benchmark_reports_every_engine(name: str, stores: Stores) -> None:
    report = measured(name, stores, SMOKE)
    assert {row[0] for row in report.rows} == set(ENGINES.values())
    numbers = [cell for row in report.rows for cell in row if isinstance(cell, float) and cell == cell]
    assert numbers
    assert report.markdown().count("\n|") == len(report.rows) + 2


@pytest.mark.parametrize("kind", ENGINES)
def test_a_claim_walks_the_index_of_ready_jobs_and_nothing_else(kind: str, stores: Stores) -> None:
    with large(stores, kind, SMOKE) as scale:
        walk = walk_of(scale)
    assert any("job_ready" in line for line in walk.plan)
    assert walk.rows in (None, 100)


def test_peers_are_compared_by_ratio_and_their_failures_are_told(tmp_path: Path) -> None:
    (tmp_path / "run.py").write_text(HARNESS)
    ratios, numbers = compare(tmp_path, ["slow", "cached", "broken"], SMOKE)
    assert ratios.rows == [("slow", 2.0, 2.0, 2.0, 2.0, 4.0), ("broken", None, None, None, None, None)]
    assert [row[0] for row in numbers.rows] == ["evenflow-pg", "evenflow-sqlite", "slow", "broken"]
    assert any("broken, drain by 1: Oops: it fell" in note for note in ratios.notes)


def test_our_own_workers_have_slots_for_rounds_as_large_as_those_of_peers(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "run.py").write_text(HARNESS)
    names = ["evenflow-pg", "evenflow-sqlite", "slow"]
    monkeypatch.delenv("BENCH_CONCURRENCY", raising=False)
    told = {answer["peer"]: answer["slots"] for answer in ask(tmp_path, names, SMOKE)}
    assert told == {"evenflow-pg": str(OWN_SLOTS), "evenflow-sqlite": None, "slow": None}
    monkeypatch.setenv("BENCH_CONCURRENCY", "10")
    assert {answer["slots"] for answer in ask(tmp_path, names, SMOKE)} == {None}, "the caller says it for all"


def test_a_report_becomes_a_markdown_table_and_plain_values() -> None:
    report = Report(
        "x", "X", {"engine": "", "ratio": ".2f"}, [("SQLite", 1.239), ("PostgreSQL", None)], ["note"]
    )
    assert report.markdown() == (
        "## X\n\n| engine | ratio |\n|---|--:|\n| SQLite | 1.24 |\n| PostgreSQL | – |\n\n- note"
    )
    assert report.values()["rows"] == [
        {"engine": "SQLite", "ratio": 1.239},
        {"engine": "PostgreSQL", "ratio": None},
    ]


def test_the_command_writes_its_numbers_as_json(
    stores: Stores, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(command, "QUICK", SMOKE)
    monkeypatch.setattr(command, "private_stores", lambda: contextlib.nullcontext(stores))
    assert command.main(["bulk", "--quick", "--json", str(tmp_path / "numbers.json")]) == 0
    assert capsys.readouterr().out.startswith("## Bulk enqueue\n")
    (written,) = json.loads((tmp_path / "numbers.json").read_text())
    assert written["name"] == "bulk"
    assert written["rows"][0]["time ÷ floor"] == 1.0


@pytest.mark.parametrize(
    ("arguments", "says"),
    [(["nothing"], "no benchmark 'nothing'"), (["--peers"], "--peers needs the harness")],
)
def test_the_command_refuses_what_it_cannot_do(
    arguments: list[str], says: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.delenv("EVENFLOW_PEER_HARNESS", raising=False)
    with pytest.raises(SystemExit, match="2"):
        command.main(arguments)
    assert says in capsys.readouterr().err


def test_a_percentile_is_one_of_the_values() -> None:
    assert percentile([3, 1, 2, 4], 50) == 2
    assert percentile([3, 1, 2, 4], 99) == 4
    assert percentile([7], 50) == 7


def test_samples_are_judged_by_their_median() -> None:
    assert Samples([3.0, 100.0, 1.0], [1.0, 2.0, 50.0]).median_s == 3.0
