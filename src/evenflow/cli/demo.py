"""`evenflow demo`: one large tenant and one small one share a queue, and the small one does not wait."""

import asyncio
import tempfile
from pathlib import Path

import click

from evenflow import Evenflow, EvenflowError
from evenflow.cli.progress import showing_progress
from evenflow.cli.race import ALICE, BOB, FAIR, FIFO, QUEUES, SLOTS, Leg, Race
from evenflow.cli.texts import count_of, span
from evenflow.store.open import open_engine

FILES, FEW_FILES = 10_000, 1_000
SCHEMA = "evenflow_demo"
TITLES = {FAIR: "Fair turns", FIFO: "First come, first served"}


@click.command()
@click.option("--fast", is_flag=True, help=f"{FEW_FILES:,} files instead of {FILES:,}.")
@click.option(
    "--postgres", "url", metavar="URL", help=f"Use this PostgreSQL database, in the schema {SCHEMA}."
)
def demo(fast: bool, url: str | None) -> None:
    """See fair turns at work.

    Bob uploads 10,000 files, then Alice one page: once with fair turns, once first come, first served.
    Runs real jobs on a SQLite file of its own, ends by itself in well under a minute, and leaves the file for a look.
    """
    app = _app(url)
    files = FEW_FILES if fast else FILES
    address = app.settings.database.masked()
    click.echo(f"Evenflow demo on {address}")
    click.echo(
        f"Bob uploads {files:,} files; a moment later Alice uploads one page. {SLOTS} jobs run at once."
    )
    legs = asyncio.run(_legs(app, files))
    _summarise(legs)
    _say_where(app, url is None)
    if lost := sum(leg.lost for leg in legs):
        raise EvenflowError(
            f"{count_of(lost, 'job')} did not succeed; that must not happen, please report it"
        )


async def _legs(app: Evenflow, files: int) -> list[Leg]:
    engine = open_engine(app.settings.database, app.settings.schema)
    try:
        for queue in TITLES:
            app.discard(queue=queue)  # what an interrupted demo left in a database that is used again
        race = Race(app, engine, files)
        return [await _shown(race, queue, files) for queue in TITLES]
    finally:
        engine.close()
        app.close()


async def _shown(race: Race, queue: str, files: int) -> Leg:
    click.echo(f"\n{TITLES[queue]}")
    with showing_progress({BOB: files, ALICE: 1}, err=False, says_end=True) as show:
        return await race.run(queue, show)


def _app(url: str | None) -> Evenflow:
    if url is None:
        folder = Path(tempfile.mkdtemp(prefix="evenflow-demo-"))
        return Evenflow(f"sqlite:///{folder}/demo.db", queues=QUEUES, queue_mode="custom")
    if not url.startswith(("postgresql:", "postgres:")):
        raise click.UsageError("--postgres: expected postgresql://user:password@host/database")
    return Evenflow(url, queues=QUEUES, queue_mode="custom", schema=SCHEMA)


def _summarise(legs: list[Leg]) -> None:
    fair, fifo = legs
    longest = max(map(len, TITLES.values()))
    click.echo("\nAlice waited")
    for leg in legs:
        click.echo(f"  {TITLES[leg.queue]:<{longest}}  {span(leg.alice_waited_us):>8}")
    if fair.alice_waited_us and fifo.alice_waited_us > fair.alice_waited_us:
        click.echo(f"  {fifo.alice_waited_us / fair.alice_waited_us:,.0f} times longer without fair turns")
    enqueued, succeeded = sum(leg.enqueued for leg in legs), sum(leg.succeeded for leg in legs)
    took_s = sum(leg.took_s for leg in legs)
    click.echo(
        f"\n{enqueued:,} jobs enqueued, {succeeded:,} succeeded, {enqueued - succeeded:,} lost, in {took_s:.1f} s"
    )


def _say_where(app: Evenflow, is_own_file: bool) -> None:
    if is_own_file:
        path = app.settings.database.path
        click.echo(f"\nThe jobs stay in {path}; look at them with:\n  evenflow jobs --url sqlite:///{path}")
    else:
        click.echo(f"\nThe jobs stay in the schema {SCHEMA}; drop it when you have seen enough.")
