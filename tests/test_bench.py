"""The benchmarks still run, on both engines, and say what they found. Sizes are tiny: no number is judged here."""

import contextlib
import importlib.util
import json
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import ModuleType

import pytest

from bench import __main__ as command
from bench import side_by_side
from bench.claim import large, walk_of
from bench.harness_driver import OWN_SLOTS
from bench.peers import ask, compare
from bench.report import Report
from bench.sizes import SMOKE
from bench.stores import ENGINES, Stores
from bench.suite import BENCHMARKS, measured
from bench.timing import Samples, percentile
from bench.workers import ROOT
from tests.postgres_server import DatabaseHost
from tests.processes import wait_until
from tests.scratch_directory import start_time

HARNESS = """
import fcntl, json, os, pathlib, struct, sys
HERE = PG_DATA = TMP = os.path.dirname(os.path.abspath(__file__))
LOCK = os.path.join(HERE, "lock")
BACKENDS = {"evenflow-sqlite": "sqlite", "cached": "redis"}
PEERS = {name: {"name": name, "backend": BACKENDS.get(name, "pg"), "ready": 0} for name in (
    "evenflow-pg", "evenflow-sqlite", "slow", "cached", "broken", "unborn", "dead",
    "absent", "silent", "forgetful", "hanging", "stubborn", "dying")}
def start_servers():
    raise FileNotFoundError(2, "no such program", "redis-cli")
def install(peer):
    if peer["name"] == "absent":
        raise SystemExit("no python 3.99")
def version(peer):
    if peer["name"] == "absent":
        raise FileNotFoundError(2, "no such file", "package.json")
    return " ".join([peer["name"], *peer.get("env", {}).values()])
def psql(statement):
    with open(LOCK) as lock, open(os.path.join(HERE, "statements"), "a") as statements:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            statements.write(statement + "\\n")
        else:
            raise RuntimeError("nobody holds the lock")
def command(peer, *arguments):
    return [sys.executable, os.path.join(HERE, "peer.py"), peer["name"], *map(str, arguments)]
def environ(peer, record):
    return {**os.environ, "BENCH_RECORD": record, "BENCH_PIDS": os.path.join(HERE, "pids")}
def records(path):
    return struct.iter_unpack("<qq", pathlib.Path(path).read_bytes()) if os.path.exists(path) else []
def main():
    start_servers()
    names, measures = (sys.argv[sys.argv.index(option) + 1].split(",") for option in ("--peer", "--measures"))
    assert "d" not in measures
    for name in names:
        for measure in measures:
            rate = {"jobs_per_s": 500 if name == "slow" else 1000, "loop_ms": 10}
            found = {"error": "Oops: it fell"} if name == "broken" else rate
            peer = PEERS[name]
            print(json.dumps({"peer": name, "measure": measure, "backend": peer["backend"], "version": version(peer), **found}))
"""

# Its worker makes the times up, so that waits are what they shall be: the last job's is longer than those of the others.
PEER = """
import json, os, signal, struct, subprocess, sys, time
name, act, *arguments = sys.argv[1:]
sent, worked = (os.path.join(os.environ["BENCH_TMP"], file) for file in ("sent", "worked"))
def note(pid):
    with open(os.environ["BENCH_PIDS"], "a") as pids:
        pids.write(f"{pid} {act}\\n")
def wait_for(path):
    while not os.path.exists(path):
        time.sleep(0.01)
def write(path, data):
    with open(path + ".new", "wb") as file:
        file.write(data)
    os.replace(path + ".new", path)
note(os.getpid())
if fault := {("unborn", "setup"): "no schema", ("dead", "worker"): "no server", ("broken", "latency"): "it fell"}.get((name, act)):
    sys.exit(f"a line before the last\\nOops: {fault}")
if act == "latency":
    if name == "hanging":
        signal.pause()
    starts = [number * 10**9 for number in range(int(arguments[0]))]
    write(sent, json.dumps(starts).encode())
    if name in ("forgetful", "stubborn", "dying"):
        wait_for(worked)
    print("RESULT " + json.dumps({"starts": starts, "calls": [float(arguments[1]) * 1e6] * len(starts)}))
if act == "worker":
    if name in ("stubborn", "dying"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        note(subprocess.Popen(["sleep", "600"]).pid)
    wait_for(sent)
    usual_ms, longest_ms = (8, 40) if name == "slow" else (2, 4)
    starts = dict(enumerate(json.load(open(sent))))
    began = [(number, at + (longest_ms if number == len(starts) - 1 else usual_ms) * 10**6) for number, at in starts.items()]
    if name in ("forgetful", "dying"):
        began.pop()
    if name != "silent":
        write(os.environ["BENCH_RECORD"], b"".join(struct.pack("<qq", *each) for each in [(-1, 0), *began, (0, 10**12)]))
    write(worked, b"")
    if name == "dying":
        sys.exit(3)
    signal.pause()
"""


@pytest.fixture
def harness(tmp_path: Path) -> Path:
    """A harness whose queues need no server; they are named after what is wrong with them."""
    (tmp_path / "run.py").write_text(HARNESS)
    (tmp_path / "peer.py").write_text(PEER)
    return tmp_path


@pytest.fixture
def run(harness: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("run_of_a_harness", harness / "run.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


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


def test_peers_are_compared_by_ratio_and_their_failures_are_told(harness: Path) -> None:
    ratios, numbers = compare(harness, ["slow", "cached", "broken", "unborn", "dead"], SMOKE)
    assert list(ratios.columns)[-2:] == ["pickup p50", "pickup p99"]
    assert ratios.rows == [
        ("slow", 2.0, 2.0, 2.0, 2.0, 4.0, 10.0),
        ("broken", None, None, None, None, None, None),
        ("unborn", 1.0, 1.0, 1.0, 1.0, None, None),
        ("dead", 1.0, 1.0, 1.0, 1.0, None, None),
    ]
    own = (1000, 1000, 1000, 1000, 2.0, 4.0)
    assert numbers.rows[:2] == [("evenflow-pg", *own), ("evenflow-sqlite", *own)]
    assert any(
        "pickup side by side" in note and f"{SMOKE.peer_pickups} jobs each" in note for note in ratios.notes
    )
    assert [note for note in ratios.notes if "Oops" in note] == [
        *(f"broken, {rate}: Oops: it fell" for rate in ("enqueue", "bulk", "drain by 1", "drain by 2")),
        "broken, pickup: RuntimeError: its client ended with 1: Oops: it fell",
        "unborn, pickup: RuntimeError: its setup ended with 1: Oops: no schema",
        "dead, pickup: RuntimeError: its worker ended with 1: Oops: no server",
    ]  # fmt: skip


def test_our_own_workers_have_slots_for_rounds_as_large_as_those_of_peers(
    harness: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["evenflow-pg", "evenflow-sqlite", "slow"]
    monkeypatch.delenv("BENCH_CONCURRENCY", raising=False)
    told = {(answer["peer"], answer["version"]) for answer in ask(harness, names, SMOKE)}
    own = ("evenflow-pg", f"evenflow-pg {OWN_SLOTS}")
    assert told == {own, ("evenflow-sqlite", "evenflow-sqlite"), ("slow", "slow")}
    monkeypatch.setenv("BENCH_CONCURRENCY", "10")
    told = {(answer["peer"], answer["version"]) for answer in ask(harness, names, SMOKE)}
    assert told == {(name, name) for name in names}, "the caller says it for all"


def test_pickup_is_measured_with_as_many_jobs_as_the_size_says(harness: Path) -> None:
    answers = ask(harness, ["slow"], replace(SMOKE, peer_pickups=2))
    assert [answer["n"] for answer in answers if answer["measure"] == side_by_side.PICKUP] == [2]


def test_side_by_side_every_queue_gets_its_turn_and_clients_do_not_keep_step(run: ModuleType) -> None:
    first, second = side_by_side.measured(run, ["evenflow-pg", "slow"], 4)
    assert (first["n"], first["ran"], first["complete"]) == (4, 4, True)
    assert (first["p50_ms"], first["max_ms"]) == (2.0, 4.0), "warming up and a second run do not count"
    assert (second["p50_ms"], second["max_ms"]) == (8.0, 40.0)
    gaps = [answer["enqueue_call_p50_ms"] for answer in (first, second)]
    assert gaps == [2 * side_by_side.GAP_MS, 2.5 * side_by_side.GAP_MS]
    assert _left_of(run) == []


def test_side_by_side_a_queue_that_runs_few_jobs_or_none_is_told(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "LAST_WITHIN_S", 0.0)
    absent, silent, forgetful = side_by_side.measured(run, ["absent", "silent", "forgetful"], 3)
    assert absent == {
        "peer": "absent", "measure": "d", "backend": "pg", "version": "", "error": "SystemExit: no python 3.99",
    }  # fmt: skip
    assert silent["error"] == "RuntimeError: no job ran"
    assert (forgetful["n"], forgetful["ran"], forgetful["complete"]) == (3, 2, False)


def test_side_by_side_a_client_that_hangs_is_ended(run: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(side_by_side, "GAP_MS", 0)
    monkeypatch.setattr(side_by_side, "SPARE_S", 0.0)
    (hanging,) = side_by_side.measured(run, ["hanging"], 1)
    assert hanging["error"] == "RuntimeError: its client was not done in time: it said nothing"
    assert _left_of(run) == []


def test_side_by_side_what_a_worker_started_is_ended_though_it_resists_or_is_gone(
    run: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(side_by_side, "STOP_WITHIN_S", 0.1)
    stubborn, dying = side_by_side.measured(run, ["stubborn", "dying"], 3)
    assert stubborn["complete"] is True
    assert dying["error"] == "RuntimeError: its worker ended with 3: it said nothing"
    assert len(_pids(run, "worker")) == 4
    wait_until(lambda: _left_of(run) == [], "all workers and their children to be gone")


def test_side_by_side_leaves_nothing_behind_when_it_is_told_to_end(run: ModuleType) -> None:
    command = [sys.executable, "-m", "bench.side_by_side", "--peer", "hanging", "--jobs", "3"]
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(ROOT), run.HERE])}
    with subprocess.Popen(command, cwd=run.HERE, env=environment, stderr=subprocess.DEVNULL) as driver:
        wait_until(lambda: bool(_pids(run, "worker") and _pids(run, "latency")), "the worker and the client")
        driver.terminate()
        assert driver.wait(30) != 0
    assert _left_of(run) == []
    assert Path(run.HERE, "statements").read_text().splitlines()[-1].startswith("drop database")
    assert not list(Path(run.TMP).glob("side_by_side_*"))


def _pids(run: ModuleType, act: str) -> list[int]:
    """The processes that queues of the harness started for this."""
    noted = Path(run.HERE, "pids")
    lines = noted.read_text().splitlines() if noted.exists() else []
    return [int(line.split()[0]) for line in lines if line.endswith(f" {act}")]


def _left_of(run: ModuleType) -> list[int]:
    started = [pid for act in ("setup", "worker", "latency") for pid in _pids(run, act)]
    return [pid for pid in started if start_time(pid) is not None]


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
