"""Every test of a command has an empty folder to stand in, and databases that only it uses."""

import os
import secrets
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.cli.stage import Stage
from tests.scratch_directory import memory_root

WriteApp = Callable[..., str]


@pytest.fixture(autouse=True)
def folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder: private, empty, in memory where there is one."""
    path = memory_root() / f"evenflow-cli-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o711)
    monkeypatch.chdir(path)
    for name in ("EVENFLOW_URL", "NO_COLOR"):
        monkeypatch.delenv(name, raising=False)
    yield path
    shutil.rmtree(path)


@pytest.fixture
def sqlite_url(folder: Path) -> str:
    """Address of a SQLite file that does not exist yet."""
    return f"sqlite:///{folder}/evenflow.db"


@pytest.fixture
def stage(engine_url: str) -> Iterator[Stage]:
    """A database with its tables, and an app; the test runs once on each engine."""
    made = Stage(engine_url)
    yield made
    made.close()


@pytest.fixture
def sqlite_stage(sqlite_url: str) -> Iterator[Stage]:
    """A stage on SQLite, where the engine makes no difference."""
    made = Stage(sqlite_url)
    yield made
    made.close()


@pytest.fixture
def write_app(folder: Path, monkeypatch: pytest.MonkeyPatch) -> WriteApp:
    """Writes a module into the current folder and returns its name, which no other test has."""
    monkeypatch.syspath_prepend(str(folder))

    def write(source: str) -> str:
        name = f"shop_{secrets.token_hex(4)}"
        (folder / f"{name}.py").write_text(source)
        return name

    return write
