"""Other queues beside Evenflow, measured by a harness that lives elsewhere (`--harness DIR`). Nothing of theirs is here.

The harness knows how to install and drive each queue through its public API; this asks it for one run over all of them,
has pickup measured side by side (`bench.side_by_side`), and turns the answers into ratios.
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from bench.harness_driver import OWN_SLOTS, SLOTS_VARIABLE
from bench.report import Report
from bench.side_by_side import PICKUP
from bench.sizes import Sizes
from bench.workers import ROOT

HARNESS_VARIABLE = "EVENFLOW_PEER_HARNESS"
PEERS = ("graphile-batch", "pg-boss", "pgqueuer", "procrastinate", "chancy", "huey-sqlite")
OWN = {"pg": "evenflow-pg", "sqlite": "evenflow-sqlite"}
# The harness's name of each measure that it makes by itself, and what it is called here.
RATES = {"a": "enqueue", "b": "bulk", "c1": "drain by 1", "c2": "drain by 2"}
# Which number of which measure a column shows.
COLUMNS = {
    **{heading: (measure, "jobs_per_s") for measure, heading in RATES.items()},
    "pickup p50": (PICKUP, "p50_ms"),
    "pickup p99": (PICKUP, "p99_ms"),
}
DISTURBED = 1.5

Answer = dict[str, Any]
Found = dict[tuple[str | None, str], Answer]


def compare(harness: Path, peers: Sequence[str], sizes: Sizes) -> list[Report]:
    """Measure Evenflow and the peers in one run: how many times better Evenflow is, and the numbers behind it."""
    answers = ask(harness.resolve(), [*OWN.values(), *peers], sizes)
    found: Found = {(answer["peer"], answer["measure"]): answer for answer in answers}
    names = list(dict.fromkeys(answer["peer"] for answer in answers))
    backends = {answer["peer"]: answer["backend"] for answer in answers}
    ratios = [
        (name, *(_times_better(found, OWN.get(backends[name]), name, column) for column in COLUMNS))
        for name in names if name not in OWN.values()
    ]  # fmt: skip
    numbers = [(name, *(_number(found, name, column) for column in COLUMNS)) for name in names]
    return [
        Report("peers", "Evenflow ÷ peer: how many times better", {"peer": "", **dict.fromkeys(COLUMNS, ".2f")}, ratios,
               _notes(answers, sizes)),
        Report("peer-numbers", "The numbers behind it (jobs/s; pickup in ms)", {"queue": "", **dict.fromkeys(COLUMNS, ",.1f")},
               numbers),
    ]  # fmt: skip


def ask(harness: Path, names: Sequence[str], sizes: Sizes) -> list[Answer]:
    """Let the harness measure; one answer per queue and measure."""
    queues = ["--peer", ",".join(dict.fromkeys(names))]
    rates = ["--measures", ",".join(RATES), "--seconds", str(sizes.peer_seconds)]
    if sizes.peer_jobs is not None:
        rates += ["--n", str(sizes.peer_jobs)]
    pickups = ["--jobs", str(sizes.peer_pickups)]
    return [
        *_answers(harness, "bench.harness_driver", *queues, *rates),
        *_answers(harness, "bench.side_by_side", *queues, *pickups),
    ]


def _answers(harness: Path, module: str, *options: str) -> list[Answer]:
    environment = {
        **os.environ, "EVENFLOW_CHECKOUT": os.environ.get("EVENFLOW_CHECKOUT", str(ROOT)),
        "PYTHONPATH": os.pathsep.join([str(ROOT), str(harness)]), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [sys.executable, "-m", module, *options]
    with subprocess.Popen(command, env=environment, cwd=harness, stdout=subprocess.PIPE, text=True) as driver:
        try:
            output, _ = driver.communicate()
        except BaseException:
            driver.terminate()  # not killed: it has workers and servers to end
            raise
    if driver.returncode:
        raise subprocess.CalledProcessError(driver.returncode, command)
    return [json.loads(line) for line in output.splitlines() if line.startswith("{")]


def _times_better(found: Found, own: str | None, peer: str, column: str) -> float | None:
    ours, theirs = (_number(found, name, column) for name in (own, peer))
    if not ours or not theirs:
        return None
    _, field = COLUMNS[column]
    return theirs / ours if field.endswith("_ms") else ours / theirs


def _number(found: Found, name: str | None, column: str) -> float | None:
    measure, field = COLUMNS[column]
    number: float | None = found.get((name, measure), {}).get(field)
    return number


def _notes(answers: Sequence[Answer], sizes: Sizes) -> list[str]:
    versions = dict.fromkeys(f"{answer['version']}" for answer in answers if answer["version"])
    notes = [
        f"one run over {', '.join(versions)}; above 1 Evenflow is better",
        f"pickup side by side, of all queues on one kind of database at the same time: {sizes.peer_pickups} jobs each",
    ]
    if SLOTS_VARIABLE not in os.environ:
        notes.append(f"Evenflow on PostgreSQL with {OWN_SLOTS} slots a process")
    for answer in answers:
        where = f"{answer['peer']}, {RATES.get(answer['measure'], 'pickup')}"
        if trouble := answer.get("error") or answer.get("skipped"):
            notes.append(f"{where}: {trouble.strip().splitlines()[-1]}")
        elif answer.get("complete") is False:
            notes.append(f"{where}: only {answer['ran']:,} of {answer['n']:,} jobs ran in the time it had")
        elif _is_disturbed(answer):
            notes.append(f"{where}: the machine was disturbed, run it again")
    return notes


def _is_disturbed(answer: Answer) -> bool:
    if "loop_ms" not in answer or "loop_ms_after" not in answer:
        return False
    before, after = float(answer["loop_ms"]), float(answer["loop_ms_after"])
    return max(before, after) / min(before, after) > DISTURBED
