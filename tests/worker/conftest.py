"""Apps on fresh databases, as the client's tests have them, and `evenflow worker` as a command that tests can run."""

import contextlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenflow import Evenflow
from tests.client.conftest import (
    MakeApp,
    app,
    folder,
    make_app,
    postgres_app,
    sqlite_app,
    sqlite_url,
)
from tests.worker.command import Books, WorkerCommand
from tests.worker.jobs import declared

__all__ = [
    "MakeApp",
    "app",
    "folder",
    "make_app",
    "postgres_app",
    "sqlite_app",
    "sqlite_url",
]

StartWorker = Callable[..., WorkerCommand]


@pytest.fixture
def start_worker(tmp_path: Path) -> Iterator[StartWorker]:
    """Starts `evenflow worker` with the app of `tests.worker.jobs`; ended with everything it started."""
    with contextlib.ExitStack() as stack:

        def start(url: str, *options: str, **settings: Any) -> WorkerCommand:
            return stack.enter_context(WorkerCommand(url, tmp_path, *options, **settings))

        yield start


@pytest.fixture
def books(engine_url: str) -> Books:
    """The books behind Evenflow's back; the test runs once on each engine."""
    return Books(engine_url)


@pytest.fixture
def jobs_app(engine_url: str, make_app: MakeApp) -> Evenflow:
    """The app that `start_worker` serves, for the side of the test; the test runs once on each engine."""
    return declared(make_app(engine_url))
