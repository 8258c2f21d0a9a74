"""The test servers themselves: what they promise to the tests that use them."""

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from tests.postgres_server import DatabaseHost, ExternalPostgres, PostgresServer
from tests.processes import wait_until
from tests.scratch_directory import Scratch, remove_abandoned, start_time

ROOT = Path(__file__).resolve().parent.parent
OWNER_PROGRAM = """
import sys
from tests.postgres_server import PostgresServer
server = PostgresServer().start()
print(server.directory, server.pid(), flush=True)
sys.stdin.read()
"""


@pytest.fixture(scope="module")
def private_server() -> Iterator[PostgresServer]:
    with PostgresServer(loopback=True) as server:
        yield server


def test_every_test_gets_an_empty_database(postgres_url: str) -> None:
    with psycopg.connect(postgres_url) as connection:
        tables = connection.execute("select count(*) from pg_tables where schemaname = 'public'").fetchone()
    assert tables == (0,)
    assert "evenflow_test_" in postgres_url


def test_a_dropped_database_disconnects_its_users(postgres_server: DatabaseHost) -> None:
    name = postgres_server.create_database()
    with psycopg.connect(postgres_server.url(name)) as connection:
        postgres_server.drop_database(name)
        with pytest.raises(psycopg.OperationalError):
            connection.execute("select 1")


@pytest.mark.slow
def test_committed_rows_survive_kill9_and_a_new_start(private_server: PostgresServer) -> None:
    url = private_server.url(private_server.create_database())
    with psycopg.connect(url) as connection:
        connection.execute("create table kept as select 1 as one")
    first = private_server.pid()
    private_server.kill9()
    assert private_server.pid() is None
    with pytest.raises(psycopg.OperationalError):
        psycopg.connect(url)
    private_server.start()
    assert private_server.pid() not in (None, first)
    with psycopg.connect(url) as connection:
        assert connection.execute("select one from kept").fetchone() == (1,)


@pytest.mark.slow
def test_a_loopback_server_asks_for_its_password(private_server: PostgresServer) -> None:
    with psycopg.connect(private_server.tcp_url()) as connection:
        assert connection.execute("select 1").fetchone() == (1,)
    with pytest.raises(psycopg.OperationalError, match="password"):
        psycopg.connect(f"postgresql://postgres:wrong@127.0.0.1:{private_server.port}/postgres")


@pytest.mark.slow
def test_a_server_dies_with_its_killed_owner() -> None:
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER_PROGRAM],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    with owner:
        assert owner.stdout is not None
        directory, pid = owner.stdout.readline().split()
        assert start_time(int(pid)) is not None
        owner.send_signal(signal.SIGKILL)
    wait_until(lambda: not Path(directory).exists(), "the guardian to remove the directory")
    wait_until(lambda: start_time(int(pid)) is None, "the server to end")


def test_an_abandoned_directory_is_removed_by_the_next_one() -> None:
    gone = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    scratch = Scratch.create("test", owner_pid=gone.pid)
    live = Scratch.create("test")
    try:
        assert scratch.path.exists()
        gone.communicate(b"\n")
        remove_abandoned()
        assert not scratch.path.exists()
        assert live.path.exists()
    finally:
        live.remove()
        scratch.remove()


def test_a_reused_process_id_does_not_keep_a_directory_alive() -> None:
    pid = os.getpid()
    started = start_time(pid)
    assert started is not None
    assert Scratch(Path(f"/tmp/evenflow-test-{pid}-{started}-aaaaaa")).owner_is_alive()
    assert not Scratch(Path(f"/tmp/evenflow-test-{pid}-{started - 1}-aaaaaa")).owner_is_alive()


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("postgresql://u:p@db:5433/main?sslmode=require", "postgresql://u:p@db:5433/other?sslmode=require"),
        ("postgresql:///main?host=/run/pg", "postgresql:///other?host=/run/pg"),
        ("postgresql://db", "postgresql://db/other"),
    ],
)
def test_an_external_address_keeps_everything_but_the_database(address: str, expected: str) -> None:
    assert ExternalPostgres(address).url("other") == expected
