"""The supervisor with real processes."""
import os
import signal
from pathlib import Path

import pytest
from tests.worker.command import Books
from tests.worker.conftest import StartWorker
from tests.processes import wait_until
from tests.worker import jobs

pytestmark = pytest.mark.process


def test_smoke(start_worker: StartWorker, engine_url: str, make_app, tmp_path: Path) -> None:
    worker = start_worker(engine_url, "--processes", "2").ready(2)
    assert worker.stop() == 0
