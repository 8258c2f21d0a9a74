"""`evenflow seed`: fill a queue with jobs that do nothing, to see how a set-up bears them."""

import time
from collections.abc import Coroutine
from typing import Any

import click

from evenflow import Evenflow, Task
from evenflow.cli.documents import json_option, tell
from evenflow.cli.places import Place, takes_place
from evenflow.cli.progress import Show, showing_progress
from evenflow.cli.texts import count_of, span
from evenflow.worker.builtin import SEED_TASK, seeded

batch_option = click.option(
    "--batch-size", type=click.IntRange(1, 10_000), default=1000, show_default=True, metavar="N",
    help="Jobs in one transaction.",
)  # fmt: skip
groups_option = click.option(
    "--groups", type=click.IntRange(min=0), default=0, metavar="N",
    help="Spread the jobs over N groups, in turn. Default: no group.",
)  # fmt: skip


def declare_seed(app: Evenflow) -> Task[[float], Coroutine[Any, Any, None], None]:
    """Make the task of seeded jobs known to an app, so that it can enqueue and run them."""
    return app.task(name=SEED_TASK)(seeded)


def fill(
    app: Evenflow, queue: str, count: int, batch_size: int, groups: int, delay: float, show: Show
) -> None:
    """Enqueue so many jobs, a batch in one transaction, over the groups in turn."""
    task = declare_seed(app)
    lanes = [task.using(queue=queue, group=f"group-{place}") for place in range(groups)] or [
        task.using(queue=queue)
    ]
    for first in range(0, count, batch_size):
        size = min(batch_size, count - first)
        app.enqueue_many([lanes[number % len(lanes)].job(delay) for number in range(first, first + size)])
        show("enqueued", first + size)


@click.command()
@click.option(
    "--count", type=click.IntRange(min=1), default=1000, show_default=True, metavar="N", help="How many jobs."
)
@batch_option
@groups_option
@click.option("--queue", default="default", show_default=True, metavar="NAME", help="Where they go.")
@click.option(
    "--delay", type=click.FloatRange(min=0), default=0.0, metavar="S", help="Seconds that each job takes."
)
@json_option
@takes_place
def seed(
    place: Place, count: int, batch_size: int, groups: int, queue: str, delay: float, as_json: bool
) -> None:
    """Fill a queue with jobs that do nothing.

    They are jobs of the task `evenflow.seed`, which every worker knows. Creates the tables where there are none.
    """
    started = time.monotonic()
    with place.app() as app, showing_progress({"enqueued": count}) as show:
        fill(app, queue, count, batch_size, groups, delay, show)
    taken_s = time.monotonic() - started
    among = f" among {count_of(groups, 'group')}" if groups else ""
    text = (
        f"enqueued {count_of(count, 'job')} in queue {queue!r}{among} in {span(taken_s * 1_000_000)} "
        f"({count / taken_s:,.0f} a second)"
    )
    tell(as_json, text, enqueued=count, queue=queue, groups=groups, seconds=round(taken_s, 3))
