"""`evenflow load`: fill a queue with jobs that do nothing, and let real workers empty it."""

import contextlib
import subprocess
import time
from typing import IO, get_args

import click

from evenflow import EvenflowError
from evenflow.cli import load_jobs
from evenflow.cli.documents import json_option, tell
from evenflow.cli.places import Place, takes_place
from evenflow.cli.progress import Show, showing_progress
from evenflow.cli.seed import batch_option, fill, groups_option
from evenflow.cli.texts import count_of, span
from evenflow.cli.trial import working
from evenflow.database_url import DatabaseUrl
from evenflow.queues import Strategy
from evenflow.store import dashboard, reads
from evenflow.store.open import AnyEngine, open_engine

LOCATOR = "evenflow.cli.load_jobs:app"
LOOK_EVERY_S = 0.1


@click.command()
@click.option("--count", type=click.IntRange(min=0), default=1000, show_default=True, metavar="N",
              help="How many jobs to add before the workers start; 0 for what is there already.")  # fmt: skip
@batch_option
@groups_option
@click.option("--queue", default="load", show_default=True, metavar="NAME", help="The queue to load.")
@click.option(
    "--strategy",
    type=click.Choice(get_args(Strategy)),
    default="round-robin",
    show_default=True,
    help="How groups share the turns.",
)
@click.option("--delay", type=click.FloatRange(min=0), default=0.0, metavar="S",
              help="Seconds that each added job takes.")  # fmt: skip
@click.option("--workers", type=click.IntRange(1, 1000), default=1, show_default=True, metavar="N",
              help="Worker processes.")  # fmt: skip
@click.option("--concurrency", type=click.IntRange(1, 10_000), default=10, show_default=True, metavar="N",
              help="Slots of each of them.")  # fmt: skip
@click.option("--poll-interval", type=click.FloatRange(1, 300), default=5.0, show_default=True, metavar="S",
              help="Seconds after which a worker that hears nothing looks by itself.")  # fmt: skip
@json_option
@takes_place
def load(
    place: Place, count: int, batch_size: int, groups: int, queue: str, strategy: Strategy, delay: float, workers: int,
    concurrency: int, poll_interval: float, as_json: bool,
) -> None:  # fmt: skip
    """Fill a queue with jobs that do nothing, and let workers empty it.

    The workers are real ones, on the database named; they serve this queue alone and stop when it is empty. What else is in the
    queue runs as well, if it was made by `evenflow seed`. The queue's strategy is set to the one given, and stays.
    """
    settings = place.settings()
    if settings.database.memory:
        raise EvenflowError("a database in memory belongs to one process; give a file, or a server")
    url = _url(settings.database)
    variables = {"EVENFLOW_URL": url, "EVENFLOW_SCHEMA": settings.schema, load_jobs.QUEUE: queue, load_jobs.STRATEGY: strategy,
                 "EVENFLOW_NOTIFY_POLL_INTERVAL_MS": str(round(poll_interval * 1000))}  # fmt: skip
    options = ["--processes", str(workers), "--concurrency", str(concurrency), "--queues", queue]
    engine = open_engine(settings.database, settings.schema, pool_size=1)
    with (
        load_jobs.made_app(url, queue, strategy, schema=settings.schema) as app,
        contextlib.closing(engine),
        showing_progress({"enqueued": count, "run": count}) as show,
    ):
        app.prepare()  # the strategy counts when a job is enqueued
        fill(app, queue, count, batch_size, groups, delay, show)
        waiting = sum(reads.counts(engine).get(queue, {}).values())
        began = time.monotonic()
        with working(LOCATOR, options, variables) as (process, said):
            _until_empty(engine, queue, waiting, show, process, said)
        taken_s = time.monotonic() - began
    text = (
        f"{count_of(workers, 'worker')} ran {count_of(waiting, 'job')} of queue {queue!r} ({strategy}) in "
        f"{span(taken_s * 1_000_000)} ({waiting / taken_s:,.0f} a second, their start included)"
    )
    tell(
        as_json, text, ran=waiting, queue=queue, strategy=strategy, workers=workers, seconds=round(taken_s, 3)
    )


def _until_empty(
    engine: AnyEngine, queue: str, waiting: int, show: Show, process: "subprocess.Popen[bytes]", said: IO[bytes]
) -> None:  # fmt: skip
    while reads.has_open(engine, [queue]):
        if process.poll() is not None:
            said.seek(0)
            raise EvenflowError(f"the workers ended before their work was done: {said.read().decode()}")
        left = sum(count.jobs for count in dashboard.depths(engine).by_queue.get(queue, {}).values())
        show("run", max(0, waiting - left))
        time.sleep(LOOK_EVERY_S)
    show("run", waiting)


def _url(database: DatabaseUrl) -> str:
    """The address as worker processes take it, wherever they stand."""
    return f"sqlite:///{database.path}" if database.kind == "sqlite" else database.conninfo
