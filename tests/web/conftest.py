"""One shop for each engine and module, and fresh ones where a test changes what others look at."""

import contextlib
import os
import secrets
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest
from starlette.testclient import TestClient

from tests.postgres_server import DatabaseHost
from tests.scratch_directory import memory_root
from tests.web.shop import AUTH, Shop


@pytest.fixture(scope="module")
def folder() -> Iterator[Path]:
    """A private folder in memory where there is one."""
    path = memory_root() / f"evenflow-web-{os.getpid()}-{secrets.token_hex(4)}"
    path.mkdir(mode=0o711)
    yield path
    shutil.rmtree(path, ignore_errors=True)


@pytest.fixture(scope="module", params=["sqlite", "postgres"])
def shop(request: pytest.FixtureRequest, folder: Path) -> Iterator[Shop]:
    """A filled shop that the tests of a module share: they look, or change what is their own."""
    url = f"sqlite:///{folder}/shop.db"
    with contextlib.ExitStack() as after:
        if request.param == "postgres":
            server: DatabaseHost = request.getfixturevalue("postgres_server")
            name = server.create_database()
            after.callback(server.drop_database, name)
            url = server.url(name)
        made = Shop(url)
        after.callback(made.close)
        made.fill()
        yield made


@pytest.fixture(scope="module")
def sqlite_shop(folder: Path) -> Iterator[Shop]:
    """A filled shop where the engine makes no difference."""
    made = Shop(f"sqlite:///{folder}/only.db")
    made.fill()
    yield made
    made.close()


@pytest.fixture
def client(shop: Shop) -> TestClient:
    """Somebody on this machine, where nobody has to log in."""
    return shop.client()


@pytest.fixture
def guarded(sqlite_shop: Shop) -> TestClient:
    """A site with logins and tokens for every role."""
    return sqlite_shop.client(auth=AUTH)
