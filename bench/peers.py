"""Other queues beside Evenflow, measured by a harness that lives elsewhere (`--harness DIR`). Nothing of theirs is here.

The harness knows how to install and drive each queue through its public API; this asks it for one run over all of them
and turns its answers into ratios.
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
from bench.sizes import Sizes
from bench.workers import ROOT

HARNESS_VARIABLE = "EVENFLOW_PEER_HARNESS"
PEERS = ("graphile-batch", "pg-boss", "pgqueuer", "procrastinate", "chancy", "huey-sqlite")
OWN = {"pg": "evenflow-pg", "sqlite": "evenflow-sqlite"}
# The harness's name of each measure, what it is called here, and the number that counts.
MEASURES = {
    "a": ("enqueue", "jobs_per_s"),
    "b": ("bulk", "jobs_per_s"),
    "c1": ("drain by 1", "jobs_per_s"),
    "c2": ("drain by 2", "jobs_per_s"),
    "d": ("pickup p50", "p50_ms"),
}
DISTURBED = 1.5

Answer = dict[str, Any]


def compare(harness: Path, peers: Sequence[str], sizes: Sizes) -> list[Report]:
    """Measure Evenflow and the peers in one run: how many times better Evenflow is, and the numbers behind it."""
    answers = ask(harness.resolve(), [*OWN.values(), *peers], sizes)
    found = {(answer["peer"], answer["measure"]): answer for answer in answers}
    names = list(dict.fromkeys(answer["peer"] for answer in answers))
    backends = {answer["peer"]: answer["backend"] for answer in answers}
    headings = [heading for heading, _ in MEASURES.values()]
    ratios = [
        (name, *(_times_better(found, OWN.get(backends[name]), name, measure) for measure in MEASURES))
        for name in names if name not in OWN.values()
    ]  # fmt: skip
    numbers = [
        (name, *(_number(found.get((name, measure)), measure) for measure in MEASURES)) for name in names
    ]
    return [
        Report("peers", "Evenflow ÷ peer: how many times better", {"peer": "", **dict.fromkeys(headings, ".2f")}, ratios,
               _notes(answers)),
        Report("peer-numbers", "The numbers behind it (jobs/s; pickup in ms)", {"queue": "", **dict.fromkeys(headings, ",.1f")},
               numbers),
    ]  # fmt: skip


def ask(harness: Path, names: Sequence[str], sizes: Sizes) -> list[Answer]:
    """Let the harness measure; one answer per queue and measure."""
    options = [
        "--peer",
        ",".join(dict.fromkeys(names)),
        "--measures",
        ",".join(MEASURES),
        "--seconds",
        str(sizes.peer_seconds),
    ]
    if sizes.peer_jobs is not None:
        options += ["--n", str(sizes.peer_jobs)]
    driver = Path(__file__).with_name("harness_driver.py")
    checkout = os.environ.get("EVENFLOW_CHECKOUT", str(ROOT))
    environment = {
        **os.environ, "EVENFLOW_CHECKOUT": checkout, "PYTHONPATH": str(harness), "PYTHONDONTWRITEBYTECODE": "1",
    }  # fmt: skip
    command = [sys.executable, str(driver), *options]
    done = subprocess.run(
        command, env=environment, cwd=harness, stdout=subprocess.PIPE, text=True, check=True
    )
    return [json.loads(line) for line in done.stdout.splitlines() if line.startswith("{")]


def _times_better(
    found: dict[tuple[str, str], Answer], own: str | None, peer: str, measure: str
) -> float | None:
    ours, theirs = (_number(found.get((name or "", measure)), measure) for name in (own, peer))
    if not ours or not theirs:
        return None
    return theirs / ours if MEASURES[measure][1].endswith("_ms") else ours / theirs


def _number(answer: Answer | None, measure: str) -> float | None:
    number: float | None = (answer or {}).get(MEASURES[measure][1])
    return number


def _notes(answers: Sequence[Answer]) -> list[str]:
    versions = dict.fromkeys(f"{answer['version']}" for answer in answers if answer["version"])
    notes = [f"one run over {', '.join(versions)}; above 1 Evenflow is better"]
    if SLOTS_VARIABLE not in os.environ:
        notes.append(f"Evenflow on PostgreSQL with {OWN_SLOTS} slots a process")
    for answer in answers:
        where = f"{answer['peer']}, {MEASURES[answer['measure']][0]}"
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
