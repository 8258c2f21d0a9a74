"""An app that names a database which does not exist: whatever works here works on the kit's own."""

from collections.abc import Iterator

import pytest

from evenflow import Evenflow
from evenflow.testing import Kit, manual
from tests.client.conftest import folder, make_app, sqlite_url

__all__ = ["folder", "make_app", "sqlite_url"]


@pytest.fixture
def app() -> Iterator[Evenflow]:
    with Evenflow("sqlite:////nowhere/jobs.db") as made:
        yield made


@pytest.fixture
def kit(app: Evenflow, engine_url: str) -> Iterator[Kit]:
    """The kit in manual mode; the test runs once on each engine."""
    with manual(app, url=engine_url) as made:
        yield made
