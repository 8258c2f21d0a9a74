"""Locks under kill -9, in numbers: `EVENFLOW_LOCK_RUNS` says how many runs (100,000)."""

import contextlib
import os
from pathlib import Path

import pytest

from evenflow import Evenflow
from tests.worker.command import WorkerCommand
from tests.worker.jobs import declared
from tests.worker.locks import Crowd, enqueue, run_and_kill

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

RUNS = int(os.environ.get("EVENFLOW_LOCK_RUNS", "100000"))


def test_runs_of_one_lock_never_overlap(chaos_url: str, tmp_path: Path) -> None:
    crowd = Crowd(RUNS, locks=32, kills=max(2, RUNS // 1000), within_s=3000)
    with Evenflow(chaos_url) as app, contextlib.ExitStack() as stack:
        app.prepare()
        enqueue(declared(app), crowd)
        workers = [
            stack.enter_context(WorkerCommand(chaos_url, tmp_path, "--processes", "2", "--concurrency", "4"))
            for _ in range(2)
        ]
        most = run_and_kill(app, workers, tmp_path / "bodies", crowd)
    print(
        f"\n{crowd.runs} runs under {crowd.locks} locks, {crowd.kills} kills: at once at most {max(most.values())}"
    )
    assert set(most.values()) == {1}
