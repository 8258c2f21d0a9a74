"""Isolated bodies on a host that cannot start a process for them: its trouble, and no fault of theirs."""

import logging
import sys
from pathlib import Path

import pytest

from evenflow import Evenflow, State
from tests.client.serving import serving
from tests.processes import wait_until
from tests.worker.isolated_jobs import declared

pytestmark = [pytest.mark.process, pytest.mark.either]


def test_a_job_whose_process_cannot_be_started_runs_when_the_host_has_recovered(
    sqlite_app: Evenflow, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    job = declared(sqlite_app).tasks["pid"].enqueue()
    with caplog.at_level(logging.ERROR, "evenflow.worker"), monkeypatch.context() as host:
        # An OSError of the start, as where there are no more processes, files or memory.
        host.setattr(sys, "executable", str(tmp_path / "no-python"))
        with serving(sqlite_app):
            wait_until(
                lambda: "could not be started" in caplog.text or job.refresh().state.is_end, "the try", 60
            )
            wait_until(lambda: job.refresh().state is not State.RUNNING, "the end of the try", 60)
            assert (job.state, job.attempt, job.crashes, job.errors) == (State.SCHEDULED, 0, 0, [])
            host.undo()
            job.result(timeout=60)
    assert (job.refresh().attempt, job.crashes) == (1, 0)
    assert f"job {job.id} goes back: an isolated process could not be started" in caplog.text
