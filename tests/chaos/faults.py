"""Faults, each injected once per call, and the cluster that they are injected into."""

import contextlib
import os
import random
import resource
import signal
import time
from pathlib import Path
from typing import Any

import psycopg

from tests.chaos.load import Load
from tests.chaos.network import Network
from tests.ledger import Interval, now_ns
from tests.postgres_server import PostgresServer
from tests.processes import kill_now, wait_until
from tests.worker.command import WorkerCommand

SCALE = float(os.environ.get("EVENFLOW_CHAOS_SCALE", "1"))
LEASE_S = 3.0
FULL_AT = 2 * 1024**2
SETTINGS = {
    "EVENFLOW_DB_RETRY_INITIAL_MS": "100",
    "EVENFLOW_DB_RETRY_MAX_MS": "1000",
    "EVENFLOW_CIRCUIT_BREAKER_THRESHOLD": "10000",
    "EVENFLOW_LEASE_MS": str(int(LEASE_S * 1000)),
}


def times(count: int) -> int:
    """How often a fault is injected: the count, scaled by EVENFLOW_CHAOS_SCALE."""
    return max(1, round(count * SCALE))


class Cluster:
    """Some `evenflow worker` commands on one database, kept at their number."""

    def __init__(
        self, url: str, folder: Path, load: Load, *, commands: int = 1, processes: int = 2, **settings: Any
    ) -> None:
        self.url = url
        self.load = load
        self._folder = folder
        self._processes = processes
        self._settings = SETTINGS | settings
        self.stops: list[tuple[int, set[int]]] = []
        """When commands were told to stop, and the worker processes that they had."""
        self._options = ("--processes", str(processes), "--concurrency", "4", "--shutdown-timeout", "2")
        self.commands = [self._started() for _ in range(commands)]

    def __enter__(self) -> "Cluster":
        try:
            self.settle()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for command in self.commands:
            command.__exit__()

    def settle(self) -> None:
        """Wait until every command serves with all its processes, and watch them all for their death.

        A command that has ended by itself, as one does that was declared dead, is started anew.
        """
        for command in list(self.commands):
            (command if command.is_running() else self.replace(command)).ready(self._processes)
        self.watch()

    def watch(self) -> None:
        for command in self.commands:
            self.load.deaths.watch(command.pid, *command.children())

    def any_child(self, chance: random.Random) -> int:
        """A worker process that lives now."""
        wait_until(lambda: any(command.children() for command in self.commands), "a worker process")
        return chance.choice([pid for command in self.commands for pid in command.children()])

    def replace(self, command: WorkerCommand) -> WorkerCommand:
        """A new command in the place of one that has ended."""
        command.__exit__()
        successor = self._started()
        self.commands[self.commands.index(command)] = successor
        return successor

    def stop(self) -> list[int]:
        """Stop them all: their exit codes."""
        return [command.stop() for command in self.commands]

    def _started(self) -> WorkerCommand:
        return WorkerCommand(self.url, self._folder, *self._options, **self._settings).__enter__()


def kill_a_child(cluster: Cluster, chance: random.Random) -> None:
    cluster.settle()
    kill_now(cluster.any_child(chance))


def kill_a_supervisor(cluster: Cluster, chance: random.Random) -> None:
    """And start another command in its place, as a service manager would."""
    cluster.settle()
    command = chance.choice(cluster.commands)
    kill_now(command.pid)
    command.ended()
    cluster.replace(command).ready()


def lose_a_host(cluster: Cluster, chance: random.Random) -> None:
    """Supervisor and children at one instant: nobody is left to give anything back."""
    cluster.settle()
    command = chance.choice(cluster.commands)
    tree = [command.pid, *command.children()]
    for number in (signal.SIGSTOP, signal.SIGKILL):
        for pid in tree:
            command.send(number, pid)
    command.ended()
    cluster.replace(command)


def freeze_a_child(cluster: Cluster, chance: random.Random) -> None:
    """Beyond its lease; then it goes on, if it was not ended meanwhile."""
    cluster.watch()
    pid = cluster.any_child(chance)
    os.kill(pid, signal.SIGSTOP)
    time.sleep(LEASE_S * chance.uniform(0.5, 2.0))
    try:
        os.kill(pid, signal.SIGCONT)
    except ProcessLookupError:
        return


def restart_gracefully(cluster: Cluster, chance: random.Random) -> None:
    """TERM, wait, start again: a deployment."""
    cluster.settle()
    command = chance.choice(cluster.commands)
    pids = set(command.children())
    cluster.stops.append((now_ns(), pids))
    command.stop()
    assert command.left_behind() == []
    cluster.replace(command).ready()


def last_starts_s(cluster: Cluster, runs: list[Interval]) -> list[float]:
    """For each command that was told to stop: how many seconds after that its last body began; 0 where none did."""
    return [
        max([0.0, *((run.began - stopped) / 1e9 for run in runs if run.pid in pids)])
        for stopped, pids in cluster.stops
    ]


def fill_the_disk(command: WorkerCommand, *, most_bytes: int = FULL_AT) -> None:
    """No process of this command can let a file grow beyond the bound any more: SQLite's log meets it first.

    What a full disk says to SQLite, without a disk to fill. The ledgers stay below the bound.
    """
    _bound_files(command, most_bytes)


def clear_the_disk(command: WorkerCommand) -> None:
    _bound_files(command, resource.RLIM_INFINITY)


def _bound_files(command: WorkerCommand, most_bytes: int) -> None:
    for pid in (command.pid, *command.children()):
        with contextlib.suppress(ProcessLookupError):
            _, hard = resource.prlimit(pid, resource.RLIMIT_FSIZE)
            resource.prlimit(pid, resource.RLIMIT_FSIZE, (most_bytes, hard))


def set_the_clock(url: str, step_s: float) -> None:
    """The database's clock as Evenflow reads it, so many seconds from the true time."""
    with psycopg.connect(url, autocommit=True) as session:
        session.execute(
            "create or replace function evenflow.now_us() returns bigint language sql volatile parallel safe as $$"
            f" select cast((extract(epoch from clock_timestamp()) + {step_s}) * 1000000 as bigint) $$".encode()
        )


def kill_the_server(server: PostgresServer, chance: random.Random) -> None:
    server.kill9()
    time.sleep(chance.uniform(0.0, 2.0))
    server.start()


def stop_the_server(server: PostgresServer, chance: random.Random) -> None:
    server.stop(chance.choice(["fast", "immediate"]))
    time.sleep(chance.uniform(0.0, 2.0))
    server.start()


def end_backends(url: str, chance: random.Random, *, share: float) -> int:
    """End or cancel this share of the backends that serve us: how many."""
    count = 0
    with psycopg.connect(url, autocommit=True, application_name="storm") as storm:
        for (pid,) in storm.execute(
            "select pid from pg_stat_activity where application_name = 'evenflow'"
        ).fetchall():
            if chance.random() < share:
                verb = chance.choice(["pg_terminate_backend", "pg_cancel_backend"])
                storm.execute(f"select {verb}(%s)".encode(), (pid,))
                count += 1
    return count


def silence_the_network(network: Network, chance: random.Random) -> None:
    network.freeze()
    time.sleep(LEASE_S * chance.uniform(0.2, 2.0))
    network.thaw()
