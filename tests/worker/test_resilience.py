"""What a worker bears on PostgreSQL: servers that stop, die or are not there yet, backends that are ended, silent networks.

In each story the ledgers decide: every job that was accepted ended exactly once, and none ran twice under one claim.
"""

import random
import signal
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg
import pytest

from evenflow import Resilience
from evenflow.store import signals as signals_module
from tests.chaos.load import Load
from tests.chaos.network import Network
from tests.client.serving import serving
from tests.postgres_server import PostgresServer
from tests.processes import wait_until
from tests.worker.command import SHORT_LEASE, SHORT_LEASE_S, Books
from tests.worker.conftest import MakeApp, StartWorker
from tests.worker.jobs import declared

pytestmark = pytest.mark.process

PATIENT = {
    "EVENFLOW_DB_RETRY_INITIAL_MS": "100",
    "EVENFLOW_DB_RETRY_MAX_MS": "1000",
    "EVENFLOW_CIRCUIT_BREAKER_THRESHOLD": "10000",
}

LISTENERS = b"select pid from pg_stat_activity where query like 'listen%evenflow_wake%' and datname = current_database()"


@pytest.fixture(scope="module")
def private_server() -> Iterator[PostgresServer]:
    """A server that these tests may do anything to."""
    with PostgresServer(loopback=True) as server:
        yield server


@pytest.fixture
def server(private_server: PostgresServer) -> PostgresServer:
    if private_server.pid() is None:
        private_server.start()
    return private_server


@pytest.fixture
def url(server: PostgresServer) -> str:
    return server.url(server.create_database())


@pytest.fixture
def load(url: str, make_app: MakeApp, tmp_path: Path) -> Iterator[Load]:
    app = make_app(url)
    app.prepare()
    made = Load(app, tmp_path)
    yield made
    made.stop()


def assert_nothing_lost(load: Load, url: str, *, faults: int) -> None:
    books = Books(url)
    load.drained(books)
    report = load.report(books, faults=faults)
    print(report)
    assert report.violations == []
    assert report.jobs >= 50


@pytest.mark.parametrize("how", ["fast", pytest.param("immediate", marks=pytest.mark.large), "kill -9"])
def test_a_server_that_goes_away_under_load_and_comes_back_costs_no_job(
    start_worker: StartWorker, server: PostgresServer, url: str, load: Load, how: str
) -> None:
    worker = start_worker(url, "--processes", "2", **PATIENT).ready(2)
    load.start()
    load.flows(30)
    pids = worker.children()
    server.kill9() if how == "kill -9" else server.stop(how)
    worker.said("the database is unavailable")
    server.start()
    up = time.monotonic()
    load.flows(30)
    print(f"runs again {time.monotonic() - up:.2f} s after the server was there")
    assert_nothing_lost(load, url, faults=1)
    assert worker.children() == pids, "no process was lost over it"
    assert worker.stop() == 0


def test_backends_that_are_ended_at_random_cost_no_job(
    start_worker: StartWorker, url: str, load: Load
) -> None:
    worker = start_worker(url, "--processes", "2", **PATIENT).ready(2)
    load.start()
    load.flows(10)
    faults = 0
    chance = random.Random(7)
    with psycopg.connect(url, autocommit=True, application_name="storm") as storm:
        gives_up_at = time.monotonic() + 60.0
        while faults < 30 and time.monotonic() < gives_up_at:
            pids = [
                pid
                for (pid,) in storm.execute(
                    "select pid from pg_stat_activity where application_name = 'evenflow'"
                )
            ]
            for pid in pids:
                if chance.random() < 0.05:
                    verb = chance.choice(["pg_terminate_backend", "pg_cancel_backend"])
                    storm.execute(f"select {verb}(%s)".encode(), (pid,))
                    faults += 1
            time.sleep(0.02)  # the storm's own pace
    assert faults >= 30
    load.flows(40)
    assert_nothing_lost(load, url, faults=faults)
    assert worker.stop() == 0


def test_a_listener_that_is_ended_is_replaced_and_work_is_found_meanwhile(
    start_worker: StartWorker, url: str, make_app: MakeApp
) -> None:
    app = declared(make_app(url))
    start_worker(url, "--processes", "1", "--no-services", **PATIENT).ready()
    app.tasks["note"].enqueue("first").result(timeout=30)
    with psycopg.connect(url, autocommit=True) as session:
        wait_until(lambda: session.execute(LISTENERS).fetchone() is not None, "a listener")
        before = session.execute(LISTENERS).fetchone()
        assert before is not None
        session.execute("select pg_terminate_backend(%s)", before)
        started = time.monotonic()
        app.tasks["note"].enqueue("second").result(timeout=30)
        assert time.monotonic() - started < 15.0, "the poll interval is one second"
        wait_until(lambda: session.execute(LISTENERS).fetchone() not in (None, before), "a new listener")


def test_a_listener_that_is_deaf_is_noticed_and_replaced(
    make_app: MakeApp, url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(signals_module, "CANARY_EVERY_S", 0.3)
    monkeypatch.setattr(signals_module, "CANARY_WITHIN_S", 0.5)
    monkeypatch.setattr(signals_module, "RECONNECT_S", 0.2)
    app = make_app(url, resilience=Resilience(notify_poll_interval_ms=1_000))
    task = app.task(name="note")(lambda: 1)
    with serving(app, services=False), psycopg.connect(url, autocommit=True) as session:
        task.enqueue().result(timeout=30)
        wait_until(lambda: session.execute(LISTENERS).fetchone() is not None, "a listener")
        before = session.execute(LISTENERS).fetchone()
        monkeypatch.setattr(signals_module.Listener, "_heard", _nothing_heard)
        wait_until(lambda: session.execute(LISTENERS).fetchone() not in (None, before), "a new listener")
        assert task.enqueue().result(timeout=30) == 1


def _nothing_heard(listener: signals_module.Listener, connection: object) -> set[str]:
    """A listener whose notifications are lost on the way; its canary is asked for as ever."""
    listener._check_canary(is_heard=False)
    return set()


def test_a_server_that_is_not_there_at_the_start_is_waited_for(
    start_worker: StartWorker, server: PostgresServer, url: str, load: Load
) -> None:
    load.enqueue(60)
    server.stop()
    worker = start_worker(url, "--processes", "1", **PATIENT)
    worker.said("the database is unavailable")
    server.start()
    worker.ready()
    assert_nothing_lost(load, url, faults=1)
    assert worker.stop() == 0


def test_a_database_that_does_not_exist_is_refused_at_the_start_and_not_waited_for(
    start_worker: StartWorker, server: PostgresServer
) -> None:
    worker = start_worker(server.url("nowhere_to_be_found"), "--processes", "1", **PATIENT)
    assert worker.ended() == 1
    assert (
        'database "nowhere_to_be_found" does not exist; correct the URL, or create what it names'
        in worker.log
    )
    assert "Traceback" not in worker.log
    assert "the database is unavailable" not in worker.log


def test_a_stop_while_the_server_is_not_there_yet_is_obeyed(
    start_worker: StartWorker, server: PostgresServer, url: str
) -> None:
    server.stop()
    worker = start_worker(url, "--processes", "1", **PATIENT)
    worker.said("the database is unavailable")
    assert worker.stop() == 0
    assert "stopped before the database was there" in worker.log


def test_a_command_that_waits_long_between_its_tries_is_not_taken_for_dead_after_an_outage(
    start_worker: StartWorker, server: PostgresServer, url: str, make_app: MakeApp
) -> None:
    make_app(url).prepare()
    slow = PATIENT | {"EVENFLOW_DB_RETRY_INITIAL_MS": "60000", "EVENFLOW_DB_RETRY_MAX_MS": "60000"}
    quick = start_worker(url, "--processes", "1", **PATIENT).ready()
    worker = start_worker(url, "--processes", "1", **slow, **SHORT_LEASE).ready()
    children = worker.children()
    server.stop()
    worker.said("services: the database is unavailable")
    worker.said("worker: the database is unavailable")
    quick.said("the database is unavailable")
    server.start()
    books = Books(url)
    (supervisor,) = books.rows(f"select beat from {{worker}} where pid = {worker.pid}")
    healed = time.monotonic()
    # More than the lease, in which the quick one looks and would bury who does not beat.
    wait_until(lambda: time.monotonic() > healed + SHORT_LEASE_S + 3.0, "a lease to pass")
    (later,) = books.rows(f"select beat from {{worker}} where pid = {worker.pid}")
    assert later > supervisor
    assert worker.is_running(), worker.log
    worker.ready()
    assert worker.children() == children, "nor was its process, in which nothing ran"
    assert [worker.stop(), quick.stop()] == [0, 0]


def test_patience_that_has_an_end_ends_the_command_with_a_code(
    start_worker: StartWorker, server: PostgresServer, url: str
) -> None:
    worker = start_worker(url, "--processes", "1", **PATIENT, EVENFLOW_DB_RETRY_MAX_ATTEMPTS=4).ready()
    server.stop()
    at_start = start_worker(url, "--processes", "1", **PATIENT, EVENFLOW_DB_RETRY_MAX_ATTEMPTS=4)
    assert worker.ended() == 1
    assert at_start.ended() == 1
    assert "unavailable 4 times in a row" in at_start.log
    assert worker.left_behind() == []


def test_a_network_that_falls_silent_is_given_up_and_the_worker_recovers(
    start_worker: StartWorker, server: PostgresServer, make_app: MakeApp, tmp_path: Path
) -> None:
    name = server.create_database()
    app = make_app(server.url(name))
    app.prepare()
    load = Load(app, tmp_path)
    with Network(server.tcp_url(name)) as network:
        worker = start_worker(network.url, "--processes", "1", **PATIENT, **SHORT_LEASE)
        worker.books = Books(server.url(name))
        worker.ready()
        load.start()
        load.flows(30)
        network.freeze()
        worker.said("the database is unavailable", 60)  # by our own deadline: the kernel sees nothing wrong
        network.thaw()
        healed = time.monotonic()
        load.flows(30)  # within a minute: the kernel alone would notice nothing for hours
        print(f"runs again {time.monotonic() - healed:.2f} s after the network healed")
        assert_nothing_lost(load, server.url(name), faults=1)
        assert worker.stop() == 0


def test_connections_that_are_reset_cost_no_job(
    start_worker: StartWorker, server: PostgresServer, make_app: MakeApp, tmp_path: Path
) -> None:
    name = server.create_database()
    app = make_app(server.url(name))
    app.prepare()
    load = Load(app, tmp_path)
    with Network(server.tcp_url(name)) as network:
        worker = start_worker(network.url, "--processes", "1", **PATIENT)
        worker.books = Books(server.url(name))
        worker.ready()
        load.start()
        for _ in range(10):
            load.flows(10)
            network.cut()
        assert_nothing_lost(load, server.url(name), faults=10)
        assert worker.stop() == 0


def test_behind_a_pooler_work_is_found_by_polling(
    start_worker: StartWorker, pgbouncer_url: str, make_app: MakeApp
) -> None:
    app = declared(make_app(pgbouncer_url))
    app.prepare()
    worker = start_worker(pgbouncer_url, "--processes", "1", **PATIENT).ready()
    worker.said("wake-up: poll")
    for number in range(3):
        started = time.monotonic()
        app.tasks["note"].enqueue(f"job{number}").result(timeout=30)
        assert time.monotonic() - started < 15.0, "the poll interval is one second"
    with psycopg.connect(pgbouncer_url, autocommit=True, prepare_threshold=None) as session:
        listening = session.execute("select count(*) from pg_listening_channels()").fetchone()
    assert listening == (0,), "nothing was left on the pooler's sessions"
    assert worker.stop() == 0


def test_a_killed_process_during_an_outage_is_rescued_when_the_database_is_back(
    start_worker: StartWorker, server: PostgresServer, url: str, make_app: MakeApp, tmp_path: Path
) -> None:
    app = declared(make_app(url))
    worker = start_worker(url, "--processes", "1", **PATIENT, EVENFLOW_LEASE_MS=60_000).ready()
    job = app.tasks["hold"].enqueue("job")
    wait_until(lambda: (tmp_path / "bodies").exists(), "the job to run", 60)
    (victim,) = worker.children()
    server.stop()
    worker.said("the database is unavailable")
    worker.send(signal.SIGKILL, victim)
    worker.said("was ended by SIGKILL")
    server.start()
    (tmp_path / "gate").touch()
    job.result(timeout=45)
    assert job.crashes == 1, "by its proven death, not by the lease of a minute"
