"""Fixtures that give tests real databases, and the order in which tests run.

One private PostgreSQL serves the whole run, all xdist workers included; it starts when the first test asks
for it. Every test gets an empty database of its own. A run that cannot have PostgreSQL fails; it never skips.
"""

import json
import os
import zlib
from collections.abc import Iterator
from pathlib import Path

import hypothesis
import pytest
from psycopg.conninfo import conninfo_to_dict

from evenflow.store.open import prepare
from evenflow.store.postgres import PostgresEngine
from tests.fresh_databases import FreshDatabases
from tests.pgbouncer import PgBouncer, PgBouncerUnavailable
from tests.postgres_server import DatabaseHost, ExternalPostgres, PostgresServer
from tests.scratch_directory import Scratch
from tools.server_binaries import find_pgbouncer, find_postgres, version_text
from tools.suite import CROWDED, FAILURES_VARIABLE

EXTERNAL_URL = os.environ.get("EVENFLOW_TEST_POSTGRES_URL")
SHARED_DIRECTORY = pytest.StashKey[Path]()
LAST_MARKS = ("slow", "process", "browser", "chaos")
BOUNCER_NOT_RUN = "NOT RUN: PgBouncer leg"

# How long an example takes says something about the machine, nothing about the code.
hypothesis.settings.register_profile(
    "evenflow", deadline=None, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("evenflow")


@pytest.fixture(scope="session")
def postgres_server(request: pytest.FixtureRequest) -> DatabaseHost:
    """The server of this run: a private one, or the one that EVENFLOW_TEST_POSTGRES_URL names."""
    if EXTERNAL_URL:
        return ExternalPostgres(EXTERNAL_URL)
    return PostgresServer.shared(request.config.stash[SHARED_DIRECTORY])


@pytest.fixture(scope="session")
def postgres_template(postgres_server: DatabaseHost) -> Iterator[str]:
    """A migrated database of this process, which others are copied from: a copy takes a fifth of the migrations' time."""
    name = postgres_server.create_database()
    engine = PostgresEngine(postgres_server.url(name))
    prepare(engine)
    engine.close()
    yield name
    postgres_server.drop_database(name)


@pytest.fixture(scope="session")
def fresh_databases(postgres_server: DatabaseHost, postgres_template: str) -> Iterator[FreshDatabases]:
    """Databases like the template, for one test after the other."""
    databases = FreshDatabases(postgres_server, postgres_template)
    yield databases
    databases.close()


@pytest.fixture
def postgres_url(postgres_server: DatabaseHost, fresh_databases: FreshDatabases) -> Iterator[str]:
    """Address of a PostgreSQL database with our tables and without jobs, that only this test uses."""
    name = fresh_databases.take()
    yield postgres_server.url(name)
    fresh_databases.give_back(name)


@pytest.fixture
def empty_postgres_url(postgres_server: DatabaseHost) -> Iterator[str]:
    """Address of a PostgreSQL database in which nothing is yet."""
    name = postgres_server.create_database()
    yield postgres_server.url(name)
    postgres_server.drop_database(name)


@pytest.fixture
def sqlite_url(tmp_path: Path) -> str:
    """Address of a SQLite file that does not exist yet."""
    return f"sqlite:///{tmp_path}/evenflow.db"


@pytest.fixture(params=["sqlite", "postgres"])
def empty_url(request: pytest.FixtureRequest) -> str:
    """Address of a database without tables; the test runs once on each engine."""
    name = "sqlite_url" if request.param == "sqlite" else "empty_postgres_url"
    address: str = request.getfixturevalue(name)
    return address


@pytest.fixture(params=["sqlite", "postgres"])
def engine_url(request: pytest.FixtureRequest) -> str:
    """Address of a database without jobs; the test runs once on each engine."""
    address: str = request.getfixturevalue(f"{request.param}_url")
    return address


@pytest.fixture(scope="session")
def pgbouncer(postgres_server: DatabaseHost) -> Iterator[PgBouncer]:
    """A pooler of this worker's own in front of the server; where none can run, the test reports NOT RUN."""
    bouncer = PgBouncer(_connection_values(postgres_server))
    try:
        bouncer.start()
    except PgBouncerUnavailable as error:
        pytest.skip(f"{BOUNCER_NOT_RUN}: {error}")
    yield bouncer
    bouncer.close()


@pytest.fixture
def pgbouncer_url(postgres_server: DatabaseHost, pgbouncer: PgBouncer) -> Iterator[str]:
    """Address of an empty database behind a transaction pooler of four connections."""
    name = postgres_server.create_database()
    yield pgbouncer.url(name)
    postgres_server.drop_database(name)


def pytest_configure(config: pytest.Config) -> None:
    """Make the run's directory; the server itself waits until a test needs it."""
    worker_input = getattr(config, "workerinput", None)
    if worker_input is not None:
        config.stash[SHARED_DIRECTORY] = Path(worker_input["evenflow_directory"])
    elif not config.option.collectonly:
        config.stash[SHARED_DIRECTORY] = Scratch.create("pg", in_memory=True).path


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: object) -> None:
    """Tell an xdist worker where the shared server lives; the directory belongs to the controller."""
    node.workerinput["evenflow_directory"] = str(node.config.stash[SHARED_DIRECTORY])  # type: ignore[attr-defined]


def pytest_unconfigure(config: pytest.Config) -> None:
    """The controller started the directory and ends it; workers are gone by now."""
    if not hasattr(config, "workerinput") and SHARED_DIRECTORY in config.stash:
        PostgresServer.close_shared(config.stash[SHARED_DIRECTORY])


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Fast tests first, so that most failures show within seconds. Of `either` tests one leg, the other is `large`."""
    for item in items:
        if item.get_closest_marker("either") and not _is_chosen(item):
            item.add_marker(pytest.mark.large)
    items.sort(key=_place_in_line)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Tell whoever runs the suite which tests failed, and which of them start processes."""
    path = os.environ.get(FAILURES_VARIABLE)
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if path is None or reporter is None or hasattr(session.config, "workerinput"):
        return
    failed = reporter.stats.get("failed", []) + reporter.stats.get("error", [])
    said = {report.nodeid: not set(CROWDED).isdisjoint(report.keywords) for report in failed}
    Path(path).write_text(json.dumps(said))


def pytest_report_header() -> list[str]:
    """Say which servers the tests use."""
    bouncer = find_pgbouncer()
    return [
        f"postgresql: {_postgres_in_words()}",
        f"pgbouncer: {bouncer.folder} ({bouncer.source})"
        if bouncer
        else f"pgbouncer: none; {BOUNCER_NOT_RUN}",
    ]


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """A leg that did not run is said aloud, not hidden among the skips."""
    missed = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if BOUNCER_NOT_RUN in str(report.longrepr)
    ]
    if missed:
        terminalreporter.section("PgBouncer", sep="!", yellow=True)
        terminalreporter.line(f"{BOUNCER_NOT_RUN}, {len(missed)} tests: no usable pgbouncer program here.")


def _is_chosen(item: pytest.Item) -> bool:
    """Whether this is the engine that the test's name stands for: about half of them each."""
    assert isinstance(item, pytest.Function)
    engines = {"sqlite", "postgres"}.intersection(item.name.rpartition("[")[2].rstrip("]").split("-"))
    return not engines or ("sqlite", "postgres")[zlib.crc32(item.originalname.encode()) % 2] in engines


def _place_in_line(item: pytest.Item) -> int:
    ranks = [rank for rank, mark in enumerate(LAST_MARKS, start=1) if item.get_closest_marker(mark)]
    return max(ranks, default=0)


def _postgres_in_words() -> str:
    if EXTERNAL_URL:
        return "the server of EVENFLOW_TEST_POSTGRES_URL"
    found = find_postgres()
    return (
        f"{version_text(found)} from {found.folder} ({found.source})"
        if found
        else "NONE, its tests will fail"
    )


def _connection_values(server: DatabaseHost) -> dict[str, str]:
    """What PgBouncer must know to reach the server; the database is the client's choice."""
    wanted = {"host", "port", "user", "password"}
    values = conninfo_to_dict(server.url("postgres"))
    return {name: str(value) for name, value in values.items() if name in wanted and value is not None}
