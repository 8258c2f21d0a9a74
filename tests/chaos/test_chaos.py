"""Faults under load for minutes, then the count. `EVENFLOW_CHAOS_SCALE` multiplies how many; `make chaos` runs them all.

Figures are printed with the number of faults behind them; a violation of the ledgers fails the test.
"""

import os
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from evenflow import Evenflow
from tests.chaos import faults
from tests.chaos.faults import Cluster, times
from tests.chaos.load import Load, seeded
from tests.chaos.network import Network
from tests.ledger import Report, intervals, percentiles
from tests.postgres_server import PostgresServer
from tests.processes import kill_now
from tests.worker.command import Books

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(3600)]

SEED = os.environ.get("EVENFLOW_CHAOS_SEED")


@pytest.fixture
def seed() -> int:
    return seeded(int(SEED) if SEED else None)[0]


def counted(load: Load, url: str, name: str, *, count: int, seed: int) -> Report:
    """Heal, drain, count; the report is printed whatever it says."""
    books = Books(url)
    load.drained(books, within_s=300)
    report = load.report(books, faults=count, seed=seed)
    print(f"\n{name}: {report}")
    assert report.violations == []
    assert report.jobs > count
    return report


@pytest.mark.parametrize(
    ("name", "inject", "count", "commands", "recovery_s"),
    [
        ("kill -9 of a child", faults.kill_a_child, 60, 1, 5.0),
        ("kill -9 of a supervisor", faults.kill_a_supervisor, 15, 2, faults.LEASE_S + 5.0),
        ("loss of a host", faults.lose_a_host, 8, 2, faults.LEASE_S + 5.0),
        ("graceful restart", faults.restart_gracefully, 15, 2, None),
    ],
)
def test_killed_and_stopped_workers(
    chaos_url: str, load: Load, seed: int, name: str, inject: Callable[[Cluster, random.Random], None], count: int, commands: int,
    recovery_s: float | None,
) -> None:  # fmt: skip
    chance = random.Random(seed)
    with Cluster(chaos_url, load.folder, load, commands=commands) as cluster:
        load.start(pause_s=0.02)
        for _ in range(times(count)):
            load.flows(chance.randrange(1, 30))
            inject(cluster, chance)
        load.flows(10)
        report = counted(load, chaos_url, name, count=times(count), seed=seed)
        assert set(cluster.stop()) == {0}
    if recovery_s is not None and report.recoveries_s:
        assert percentiles(report.recoveries_s)[1] <= recovery_s
    if name == "kill -9 of a child":
        assert percentiles(report.recoveries_s)[0] <= 1.0, "by its proven death"
    if name == "graceful restart":
        lasts_s = faults.last_starts_s(cluster, intervals(load.folder / "bodies"))
        print(
            "from TERM to the last start: p50 {:.3f} s, p99 {:.3f} s, max {:.3f} s".format(
                *percentiles(lasts_s)
            )
        )
        assert percentiles(lasts_s)[0] <= 0.2
        assert set(Books(chaos_url).column("crashes")) == {0}, "a deployment counts no crash"
        assert set(Books(chaos_url).column("attempt")) == {1}, "and costs no attempt"


def test_four_workers_killed_at_random_for_a_minute(chaos_url: str, load: Load, seed: int) -> None:
    chance = random.Random(seed)
    count = 0
    with Cluster(chaos_url, load.folder, load, commands=2) as cluster:
        load.start(pause_s=0.02)
        ends_at = time.monotonic() + 60 * faults.SCALE
        while time.monotonic() < ends_at:
            time.sleep(chance.uniform(0.05, 2.0))
            cluster.watch()
            kill_now(cluster.any_child(chance))  # also one that has hardly begun to start
            count += 1
        load.flows(10)
        report = counted(load, chaos_url, "random kill -9 of four workers", count=count, seed=seed)
        assert set(cluster.stop()) == {0}
    if report.recoveries_s:
        assert percentiles(report.recoveries_s)[1] <= faults.LEASE_S + 5.0


def test_a_database_clock_that_jumps(server_url: str, server_load: Load, seed: int) -> None:
    """An hour, a day, a moment, to and fro: no lease is freed early, nothing runs twice, nothing waits for the clock."""
    chance = random.Random(seed)
    kept: dict[str, Any] = {
        "EVENFLOW_RETENTION_SUCCEEDED": "forever"
    }  # a day ahead, nothing may be forgotten
    with Cluster(server_url, server_load.folder, server_load, commands=2, **kept) as cluster:
        server_load.start()
        for _ in range(times(12)):
            server_load.flows(10)
            faults.set_the_clock(server_url, chance.choice([-86_400, -3_600, -5, 0, 5, 3_600, 86_400]))
            server_load.flows(10, within_s=30)
        faults.set_the_clock(server_url, 0)
        counted(server_load, server_url, "jumps of the clock", count=times(12), seed=seed)
        assert set(cluster.stop()) == {0}
    books = Books(server_url)
    assert set(books.column("crashes")) == {0}, "nobody was taken for dead"
    assert set(books.column("attempt")) == {1}


def test_a_disk_that_is_full(sqlite_url: str, tmp_path: Path, seed: int) -> None:
    chance = random.Random(seed)
    delays = []
    with Evenflow(sqlite_url) as app:
        app.prepare()
        load = Load(app, tmp_path, arguments=(0.02,))
        with Cluster(sqlite_url, tmp_path, load, commands=1) as cluster:
            load.start()
            (command,) = cluster.commands
            for _ in range(times(10)):
                load.flows(10)
                faults.fill_the_disk(command)
                time.sleep(chance.uniform(0.5, 1.5 * faults.LEASE_S))
                faults.clear_the_disk(command)
                cleared = time.monotonic()
                load.flows(10)
                delays.append(time.monotonic() - cleared)
            assert "the database is unavailable" in command.log
            counted(load, sqlite_url, "full disks", count=times(10), seed=seed)
            assert Books(sqlite_url).rows("pragma integrity_check") == [("ok",)]
            assert set(cluster.stop()) == {0}
    print(
        "from room on the disk to the next ends: p50 {:.2f} s, p99 {:.2f} s, max {:.2f} s".format(
            *percentiles(delays)
        )
    )
    assert percentiles(delays)[1] <= 10.0


def test_frozen_workers(server_url: str, server_load: Load, seed: int) -> None:
    chance = random.Random(seed)
    with Cluster(server_url, server_load.folder, server_load, commands=2) as cluster:
        server_load.start()
        for _ in range(times(10)):
            server_load.flows(5)
            faults.freeze_a_child(cluster, chance)
        server_load.flows(10)
        counted(server_load, server_url, "freezes around the lease", count=times(10), seed=seed)
        cluster.stop()


@pytest.mark.parametrize(
    ("name", "inject"),
    [("kill -9 of the server", faults.kill_the_server), ("stops of the server", faults.stop_the_server)],
)
def test_killed_and_stopped_servers(
    server: PostgresServer, server_url: str, server_load: Load, seed: int, name: str,
    inject: Callable[[PostgresServer, random.Random], None],
) -> None:  # fmt: skip
    chance = random.Random(seed)
    delays = []
    with Cluster(server_url, server_load.folder, server_load, commands=1) as cluster:
        server_load.start()
        for _ in range(times(12)):
            server_load.flows(chance.randrange(1, 40))
            inject(server, chance)
            up = time.monotonic()
            server_load.flows(1)
            delays.append(time.monotonic() - up)
        counted(server_load, server_url, name, count=times(12), seed=seed)
        cluster.stop()
    print(
        "from the server's return to the next end: p50 {:.2f} s, p99 {:.2f} s, max {:.2f} s".format(
            *percentiles(delays)
        )
    )
    assert percentiles(delays)[1] <= 10.0


def test_a_storm_of_ended_backends(server_url: str, server_load: Load, seed: int) -> None:
    chance = random.Random(seed)
    count = 0
    with Cluster(server_url, server_load.folder, server_load, commands=2) as cluster:
        server_load.start()
        ends_at = time.monotonic() + 60 * faults.SCALE
        while time.monotonic() < ends_at:
            count += faults.end_backends(server_url, chance, share=0.1)
            time.sleep(0.1)
        server_load.flows(10)
        counted(server_load, server_url, "ended backends", count=count, seed=seed)
        cluster.stop()


def test_silent_networks(server: PostgresServer, server_url: str, server_load: Load, seed: int) -> None:
    chance = random.Random(seed)
    database = urlsplit(server_url).path.removeprefix("/")
    delays = []
    with (
        Network(server.tcp_url(database)) as network,
        Cluster(server_url, server_load.folder, server_load, commands=1, EVENFLOW_URL=network.url) as cluster,
    ):
        server_load.start()
        for _ in range(times(10)):
            server_load.flows(10)
            faults.silence_the_network(network, chance)
            healed = time.monotonic()
            server_load.flows(1)
            delays.append(time.monotonic() - healed)
            network.cut()
        counted(server_load, server_url, "silences and cuts of the network", count=2 * times(10), seed=seed)
        cluster.stop()
    print(
        "from healing to the next end: p50 {:.2f} s, p99 {:.2f} s, max {:.2f} s".format(*percentiles(delays))
    )
    assert percentiles(delays)[1] <= 10.0


def test_everything_at_random(server: PostgresServer, server_url: str, server_load: Load, seed: int) -> None:
    chance = random.Random(seed)
    count = 0
    with Cluster(server_url, server_load.folder, server_load, commands=2) as cluster:
        server_load.start()
        ends_at = time.monotonic() + 120 * faults.SCALE
        while time.monotonic() < ends_at:
            server_load.flows(chance.randrange(1, 20), within_s=120)
            fault = chance.choice(["child", "supervisor", "host", "freeze", "server", "backends", "restart"])
            match fault:
                case "child":
                    faults.kill_a_child(cluster, chance)
                case "supervisor":
                    faults.kill_a_supervisor(cluster, chance)
                case "host":
                    faults.lose_a_host(cluster, chance)
                case "freeze":
                    faults.freeze_a_child(cluster, chance)
                case "server":
                    faults.kill_the_server(server, chance)
                case "restart":
                    faults.restart_gracefully(cluster, chance)
                case _:
                    faults.end_backends(server_url, chance, share=0.3)
            count += 1
        counted(server_load, server_url, "everything", count=count, seed=seed)
        cluster.stop()
