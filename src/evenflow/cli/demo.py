"""`evenflow demo`: one large tenant and one small one share a queue, and the small one does not wait."""

import asyncio
import os
import tempfile
from collections.abc import Mapping
from pathlib import Path

import click

from evenflow import Evenflow, EvenflowError
from evenflow.cli.listening import listeners
from evenflow.cli.program import main
from evenflow.cli.progress import showing_progress
from evenflow.cli.race import ALICE, BOB, FAIR, FIFO, QUEUES, SLOTS, Leg, Race
from evenflow.cli.texts import count_of, span
from evenflow.cli.trial import SIZES, Outcome, run_trial
from evenflow.cli.trial_jobs import API, BANK, CAP, PER_SECOND
from evenflow.store.open import open_engine

FILES, FEW_FILES = 10_000, 1_000
SCHEMA = "evenflow_demo"
TITLES = {FAIR: "Fair turns", FIFO: "First come, first served"}


@click.command()
@click.option("--fast", is_flag=True, help=f"{FEW_FILES:,} files instead of {FILES:,}.")
@click.option(
    "--postgres", "url", metavar="URL", help=f"Use this PostgreSQL database, in the schema {SCHEMA}."
)
@click.option("--serve", is_flag=True, help="Then show the dashboard on it, until Ctrl-C.")
@click.option(
    "--port", type=click.IntRange(1, 65_535), default=8600, show_default=True, help="Port of the dashboard."
)
def demo(fast: bool, url: str | None, serve: bool, port: int) -> None:
    """See fair turns and exact limits at work.

    Bob uploads 10,000 files, then Alice one page: once with fair turns, once first come, first served. Then a cap and a
    rate are kept while a worker process is killed. Runs real jobs on a SQLite file of its own, ends by itself in well
    under a minute, and leaves the file for a look.
    """
    if serve:
        for each in listeners(
            "127.0.0.1", port
        ):  # a port in use is better known before the demo than after it
            each.close()
    app = _app(url)
    files = FEW_FILES if fast else FILES
    address = app.settings.database.masked()
    click.echo(f"Evenflow demo on {address}")
    click.echo(
        f"Bob uploads {files:,} files; a moment later Alice uploads one page. {SLOTS} jobs run at once."
    )
    legs = asyncio.run(_legs(app, files))
    outcome = _trial(app, url, SIZES[fast])
    _summarise(legs, outcome)
    _say_where(app, url is None)
    _refuse_flaws(legs, outcome)
    if serve:
        _serve(app, port)


def _trial(app: Evenflow, url: str | None, sizes: Mapping[str, int]) -> Outcome:
    click.echo(
        f"\nA cap of {CAP}, a rate of {PER_SECOND} a second, and a worker process that is killed on the way"
    )
    engine = open_engine(app.settings.database, app.settings.schema)
    try:
        with showing_progress(sizes, err=False, says_end=True) as show:
            address = app.settings.database.masked() if url is None else url
            return run_trial(address, app.settings.schema, engine, sizes, show)
    finally:
        engine.close()


def _refuse_flaws(legs: list[Leg], outcome: Outcome) -> None:
    """What must not happen ends the demo with an error."""
    flaws = []
    if lost := sum(leg.lost for leg in legs) + outcome.lost:
        flaws.append(f"{count_of(lost, 'job')} did not succeed")
    if outcome.most_at_once > CAP:
        flaws.append(f"{outcome.most_at_once} jobs ran at once under a cap of {CAP}")
    if outcome.most_in_a_second > PER_SECOND:
        flaws.append(f"{outcome.most_in_a_second} jobs started within a second at {PER_SECOND} a second")
    if flaws:
        raise EvenflowError(f"{' and '.join(flaws)}; that must not happen, please report it")


def _serve(app: Evenflow, port: int) -> None:
    """The dashboard on what the demo has left, until Ctrl-C."""
    command = main.get_command(click.get_current_context(), "web")
    assert command is not None
    click.echo()
    database = app.settings.database
    address = database.conninfo if database.kind == "postgres" else database.masked()
    os.environ["EVENFLOW_SCHEMA"] = app.settings.schema  # commands have no option for it
    command.main(
        args=["--url", address, "--port", str(port)], prog_name="evenflow web", standalone_mode=False
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


def _summarise(legs: list[Leg], outcome: Outcome) -> None:
    fair, fifo = legs
    longest = max(map(len, TITLES.values()))
    click.echo("\nAlice waited")
    for leg in legs:
        click.echo(f"  {TITLES[leg.queue]:<{longest}}  {span(leg.alice_waited_us):>8}")
    if fair.alice_waited_us and fifo.alice_waited_us > fair.alice_waited_us:
        click.echo(f"  {fifo.alice_waited_us / fair.alice_waited_us:,.0f} times longer without fair turns")
    click.echo("\nLimits held")
    click.echo(f"  {BANK}: never more than {outcome.most_at_once} at once, the cap is {CAP}")
    click.echo(
        f"  {API}: never more than {outcome.most_in_a_second} starts in a second, the rate is {PER_SECOND}"
    )
    click.echo(
        f"  process {outcome.killed_pid} was killed; {count_of(outcome.crashes, 'job')} of it ran again elsewhere"
    )
    enqueued = sum(leg.enqueued for leg in legs) + outcome.enqueued
    succeeded = sum(leg.succeeded for leg in legs) + outcome.succeeded
    took_s = sum(leg.took_s for leg in legs) + outcome.took_s
    click.echo(
        f"\n{enqueued:,} jobs enqueued, {succeeded:,} succeeded, {enqueued - succeeded:,} lost, in {took_s:.1f} s"
    )


def _say_where(app: Evenflow, is_own_file: bool) -> None:
    path = app.settings.database.path
    if is_own_file and path is not None:
        Path(f"{path}.lock").unlink(missing_ok=True)  # whoever opens the file makes it anew
        click.echo(f"\nThe jobs stay in {path}; look at them with:\n  evenflow jobs --url sqlite:///{path}")
    else:
        click.echo(f"\nThe jobs stay in the schema {SCHEMA}; drop it when you have seen enough.")
