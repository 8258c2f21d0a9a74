"""A folder and, where a page speaks of PostgreSQL, a database of its own for every page."""

import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.scratch_directory import memory_root


@pytest.fixture
def folder() -> Iterator[Path]:
    """A private, empty folder; in memory where there is one: what a disk's flush costs is no part of these tests."""
    path = memory_root() / f"evenflow-docs-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o711)
    yield path
    shutil.rmtree(path)
