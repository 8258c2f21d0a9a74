"""`evenflow worker`: the supervisor and its worker processes."""

import contextlib
import logging
import math
import os
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import click

from evenflow.app import Evenflow
from evenflow.cli.texts import count_of
from evenflow.errors import ConfigError
from evenflow.metrics import Scraped
from evenflow.worker.health import serve_health
from evenflow.worker.loading import load_object
from evenflow.worker.logs import FORMAT_VARIABLE, FORMATS, LEVELS, configure_logging
from evenflow.worker.options import MOST_SLOTS
from evenflow.worker.orders import Orders
from evenflow.worker.serving import QueueList
from evenflow.worker.supervisor import Supervisor

log = logging.getLogger("evenflow.supervisor")

_COUNT = click.IntRange(1, MOST_SLOTS)
_CEILING = click.IntRange(0, 1_000_000_000)


class _Seconds(click.FloatRange):
    """A finite number of seconds, 0 or more."""

    def __init__(self) -> None:
        super().__init__(min=0)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> float:
        seconds: float = super().convert(value, param, ctx)
        if not math.isfinite(seconds):
            self.fail(f"expected a number of seconds, 0 or more, got {value}", param, ctx)
        return seconds


@dataclass(frozen=True, slots=True)
class Ceilings:
    """The effective limits of one `evenflow worker` command, shared by its processes."""

    processes: int
    concurrency: int
    prefetch: int
    max_claim_per_worker: int
    max_claim_batch: int

    @property
    def slots(self) -> int:
        return self.processes * self.concurrency

    def share(self, total: int, place: int) -> int:
        """What one process gets of a total: equal parts, the first ones take the rest."""
        return total // self.processes + (place < total % self.processes)

    def bounds(self, place: int) -> tuple[int, int]:
        """(max_claim, prefetch) of one process. One whose share of the ceiling is nothing holds nothing beyond what it
        runs, but it may claim what it can start at once."""
        max_claim = self.share(self.effective()[0], place)
        return (max_claim, self.share(self.prefetch, place)) if max_claim else (1, 0)

    def effective(self) -> tuple[int, int]:
        """(max_claim_per_worker, max_claim_batch) as they take effect where 0 was given."""
        return (
            self.max_claim_per_worker or self.slots + self.prefetch,
            self.max_claim_batch or self.slots + self.prefetch,
        )


@click.command()
@click.argument("locator", metavar="MODULE:APP")
@click.option(
    "--queues", metavar="A,B,PREFIX*", help="Queues to serve, exact or by prefix. Default: all of the app."
)
@click.option("--processes", type=_COUNT, metavar="N", help="Worker processes. Default: the number of CPUs.")
@click.option(
    "--concurrency", type=_COUNT, default=10, show_default=True, metavar="N", help="Slots of each process."
)
@click.option(
    "--max-claim-batch",
    type=_CEILING,
    default=0,
    metavar="N",
    help="Most jobs taken from one queue in one pass.",
)
@click.option(
    "--max-claim-per-worker",
    type=_CEILING,
    default=0,
    metavar="N",
    help="Most jobs held beyond those running.",
)
@click.option("--shutdown-timeout", type=_Seconds(), default=30.0, show_default=True, metavar="S",
              help="Seconds that running jobs get after TERM.")  # fmt: skip
@click.option(
    "--coalesce-notifies",
    type=_COUNT,
    default=100,
    show_default=True,
    metavar="N",
    help="Wake-ups taken at once.",
)
@click.option(
    "--max-jobs-per-process", type=_CEILING, default=0, metavar="N", help="Replace a process after N jobs."
)
@click.option(
    "--max-memory-mb", type=_CEILING, default=0, metavar="MB", help="Replace a process that grew beyond this."
)
@click.option(
    "--max-age",
    type=_Seconds(),
    default=0.0,
    metavar="S",
    help="Replace a process after S seconds.",
)
@click.option(
    "--no-services",
    is_flag=True,
    help="Only run jobs: no dispatcher, scheduler, rescuer, pruner or spacer here.",
)
@click.option(
    "--health-port",
    type=click.IntRange(0, 65_535),
    metavar="P",
    help="Answer /healthz, /readyz and /metrics on 127.0.0.1:P.",
)
@click.option("--pidfile", type=click.Path(path_type=Path), help="Write the supervisor's process id here.")
@click.option(
    "--loglevel", type=click.Choice(LEVELS, case_sensitive=False), default="info", show_default=True
)
@click.option(
    "--log-format",
    type=click.Choice(FORMATS, case_sensitive=False),
    envvar=FORMAT_VARIABLE,
    default=FORMATS[0],
    show_default=True,
    help="One line of text, or one JSON object, per record.",
)
def worker(
    locator: str, queues: str | None, processes: int | None, concurrency: int, max_claim_batch: int,
    max_claim_per_worker: int, shutdown_timeout: float, coalesce_notifies: int, max_jobs_per_process: int,
    max_memory_mb: int, max_age: float, no_services: bool, health_port: int | None, pidfile: Path | None,
    loglevel: str, log_format: str,
) -> None:  # fmt: skip
    """Run the jobs of an app: a supervisor with worker processes and the services.

    TERM and INT (Ctrl-C) stop claiming at once, give running jobs the shutdown timeout, then return the rest to the
    queue. A second one hurries; QUIT returns everything at once. A failed start or a dead service exits non-zero.
    """
    configure_logging(loglevel, log_format)
    app: Evenflow = load_object(locator, Evenflow)
    served = _served(app, queues)
    if app.settings.database.memory:
        raise ConfigError(
            "a database in memory belongs to one process: use app.run_worker(), or sqlite:///jobs.db"
        )
    ceilings = Ceilings(
        processes or os.cpu_count() or 1,
        concurrency,
        app.settings.prefetch_buffer,
        max_claim_per_worker,
        max_claim_batch,
    )
    _say_what_starts(app, ceilings, served)
    orders = [
        Orders(
            locator=locator, path=[os.getcwd()], queues=served, parent=0, concurrency=concurrency,
            max_claim_batch=max_claim_batch,
            max_claim=ceilings.bounds(place)[0], prefetch=ceilings.bounds(place)[1],
            shutdown_timeout_s=shutdown_timeout, coalesce_notifies=coalesce_notifies, max_jobs=max_jobs_per_process,
            max_memory_mb=max_memory_mb, max_age_s=max_age, loglevel=loglevel, log_format=log_format,
        )
        for place in range(ceilings.processes)
    ]  # fmt: skip
    supervisor = Supervisor(
        app.settings,
        orders,
        prepare=lambda: _prepare(app),
        services=not no_services,
        plan=app.schedules,
        shutdown_timeout_s=shutdown_timeout,
    )
    with (
        supervisor.obeys_signals(),
        _pid_written(pidfile),
        serve_health(health_port, supervisor.health, Scraped(app)),
    ):
        code = supervisor.run()
    sys.exit(code)


def _served(app: Evenflow, queues: str | None) -> list[str]:
    """The queues that were named, or all of the app; mistakes among them are refused."""
    if queues is None:
        served = app.served_queues()
    else:
        served = [name.strip() for name in queues.split(",") if name.strip()]
    QueueList.parse(served)
    return served


def _say_what_starts(app: Evenflow, ceilings: Ceilings, served: Sequence[str]) -> None:
    for warning in (*app.settings.warnings, *undeclared(app, served)):
        log.warning("%s", warning)
    per_worker, batch = ceilings.effective()
    log.info(
        "Concurrency config: processes=%d, concurrency=%d, cluster_wide_cap=%s, max_claim_per_worker=%d, max_claim_batch=%d",
        ceilings.processes, ceilings.concurrency, app.settings.cluster_wide_cap, per_worker, batch,
    )  # fmt: skip
    log.info(
        "Serving %s from %s with %s and %s",
        ",".join(served),
        app.settings.database.masked(),
        count_of(len(app.tasks), "task"),
        count_of(len(app.schedules.declared), "schedule"),
    )


def _prepare(app: Evenflow) -> None:
    """The tables and queues, before processes are started that have connections of their own."""
    app.prepare()
    app.close()


def undeclared(app: Evenflow, served: Sequence[str]) -> list[str]:
    """A warning for each queue named that the app cannot fill: others may, so it is no error, but it is rarely meant."""
    if app.settings.queue_mode == "open":
        return []
    declared = app.served_queues()
    return [
        f"--queues {name!r}: this app declares no such queue, only {', '.join(map(repr, declared))}"
        for name in served
        if not any(map(QueueList.parse([name]).serves, declared))
    ]


@contextlib.contextmanager
def _pid_written(path: Path | None) -> Iterator[None]:
    """The pid in a file, refused where another living process is named there."""
    if path is None:
        yield
        return
    with contextlib.suppress(OSError, ValueError):
        pid = int(path.read_text())
        if pid != os.getpid() and _is_alive(pid):  # in a new container our own number may be in the old file
            raise ConfigError(f"--pidfile {path}: process {pid} is alive; stop it, or choose another file")
    try:
        path.write_text(f"{os.getpid()}\n")
    except OSError as error:
        raise ConfigError(
            f"--pidfile {path}: {error.strerror}; name a file in a folder that exists and that you may write to"
        ) from error
    try:
        yield
    finally:
        path.unlink(missing_ok=True)


def _is_alive(pid: int) -> bool:
    if pid <= 0:  # no process: signals to such numbers reach groups
        return False
    try:
        os.kill(pid, 0)
    except PermissionError:
        return True
    except (ProcessLookupError, OverflowError):
        return False
    return True
