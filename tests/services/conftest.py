"""Stores with their tables in place, as the store's tests have them, for both engines."""

from collections.abc import Iterator

import pytest

from evenflow.store.open import AnyEngine
from evenflow.store.signals import settle_wakers
from tests.store.conftest import (
    folder,
    fresh_databases,
    kept_engines,
    postgres_store,
    postgres_template,
    sqlite_store,
    sqlite_template,
)
from tests.store.scene import Scene

__all__ = [
    "folder",
    "fresh_databases",
    "kept_engines",
    "postgres_store",
    "postgres_template",
    "sqlite_store",
    "sqlite_template",
]


@pytest.fixture(params=["sqlite", "postgres"])
def store(request: pytest.FixtureRequest) -> Iterator[AnyEngine]:
    """A migrated, empty store; the test runs once on each engine."""
    engine: AnyEngine = request.getfixturevalue(f"{request.param}_store")
    yield engine
    settle_wakers(engine)


@pytest.fixture
def scene(store: AnyEngine) -> Scene:
    """The store with known workers and jobs; the clock of its own statements stands still."""
    return Scene(store)
