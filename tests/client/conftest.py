"""Apps on fresh databases. A migrated template makes PostgreSQL cheap; files live in memory where there is one."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evenflow import Evenflow
from tests.scratch_directory import memory_root

MakeApp = Callable[..., Evenflow]


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private folder in memory where there is one: what a disk's flush costs is no part of these tests."""
    path = memory_root() / f"evenflow-client-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)  # a worker that ends just now takes its journal away by itself
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture
def sqlite_url(folder: Path) -> str:
    """Address of a SQLite file that does not exist yet."""
    return f"sqlite:///{folder}/evenflow.db"


@pytest.fixture
def make_app() -> Iterator[MakeApp]:
    """Makes apps and closes them after the test."""
    made: list[Evenflow] = []

    def make(url: str | None = None, **options: Any) -> Evenflow:
        made.append(Evenflow(url, **options))
        return made[-1]

    yield make
    for app in made:
        app.close()


@pytest.fixture
def app(engine_url: str, make_app: MakeApp) -> Evenflow:
    """An app; the test runs once on each engine."""
    return make_app(engine_url)


@pytest.fixture
def sqlite_app(sqlite_url: str, make_app: MakeApp) -> Evenflow:
    return make_app(sqlite_url)


@pytest.fixture
def postgres_app(postgres_url: str, make_app: MakeApp) -> Evenflow:
    return make_app(postgres_url)
