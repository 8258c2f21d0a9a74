"""Databases for faults: a private server that may be killed, with fsync on; a file; and the load on either."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from evenflow import Evenflow
from tests.chaos.load import Load
from tests.postgres_server import PostgresServer


@pytest.fixture(scope="module")
def durable_server() -> Iterator[PostgresServer]:
    """A server of this module's own, on disk and with fsync on."""
    with PostgresServer(durable=True, loopback=True) as server:
        yield server


@pytest.fixture
def server(durable_server: PostgresServer) -> PostgresServer:
    if durable_server.pid() is None:
        durable_server.start()
    return durable_server


@pytest.fixture(params=["sqlite", "postgres"])
def chaos_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty database; the test runs once on each engine."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/evenflow.db"
    server: PostgresServer = request.getfixturevalue("server")
    return server.url(server.create_database())


@pytest.fixture
def server_url(server: PostgresServer) -> str:
    """An empty database on the private server."""
    return server.url(server.create_database())


def loaded(url: str, folder: Path) -> Iterator[Load]:
    with Evenflow(url) as app:
        app.prepare()
        made = Load(app, folder, arguments=(0.02,))
        yield made
        made.stop()


@pytest.fixture
def load(chaos_url: str, tmp_path: Path) -> Iterator[Load]:
    """The load on `chaos_url`."""
    yield from loaded(chaos_url, tmp_path)


@pytest.fixture
def server_load(server_url: str, tmp_path: Path) -> Iterator[Load]:
    """The load on `server_url`."""
    yield from loaded(server_url, tmp_path)
