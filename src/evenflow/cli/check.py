"""`evenflow check`: everything that is wrong or looks unintended, said before it hurts."""

import time
from dataclasses import dataclass, field
from typing import Any

import click

from evenflow import ConfigError, Evenflow, EvenflowError
from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import load_app, refuse_missing
from evenflow.cli.tables import print_table
from evenflow.cli.texts import count_of, masked, printable
from evenflow.cli.workers import document as worker_document
from evenflow.durations import format_duration
from evenflow.errors import UnknownQueue
from evenflow.queues import Queue
from evenflow.rules.recurrence import Pattern
from evenflow.schedule import NewSchedule
from evenflow.store import leases, reads
from evenflow.store.migrate import check_schema, migrations
from evenflow.store.open import AnyEngine, open_engine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.signals import Waker, watch_signals

LISTEN_WITHIN_S = 3.0
ANNOUNCEMENT = ""  # the payload of `Waker.announce_ends`


@dataclass(slots=True)
class Findings:
    """What a check has found so far."""

    locator: str
    database: str | None = None
    queue_mode: str | None = None
    queues: list[dict[str, Any]] = field(default_factory=list)
    tasks: list[dict[str, Any]] = field(default_factory=list)
    schedules: list[dict[str, Any]] = field(default_factory=list)
    live: dict[str, Any] | None = None
    mistakes: list[str] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)


@click.command()
@click.argument("locator", metavar="MODULE:APP")
@click.option("--live", is_flag=True, help="Also connect: tables, wake-ups, workers. Changes nothing.")
@json_option
@click.pass_context
def check(ctx: click.Context, locator: str, live: bool, as_json: bool) -> None:
    """Check an app without a database.

    Says every mistake in settings, queues and tasks at once, and what looks unintended.
    Exit code 1 if there is a mistake; warnings alone are no failure.
    """
    findings = Findings(locator)
    app = _loaded(findings)
    if app is not None:
        _check_declarations(app, findings)
        if live:
            _check_live(app, findings)
    if as_json:
        print_json(_document(findings))
    else:
        _print(findings)
    if findings.mistakes:
        ctx.exit(1)


def _loaded(findings: Findings) -> Evenflow | None:
    try:
        return load_app(findings.locator)
    except ConfigError as wrong:
        findings.mistakes += map(masked, wrong.mistakes)
        return None


def _check_declarations(app: Evenflow, findings: Findings) -> None:
    settings = app.settings
    findings.database = settings.database.masked()
    findings.queue_mode = settings.queue_mode
    findings.queues = [_queue(queue) for queue in settings.queues]
    findings.warnings += settings.warnings
    if settings.database.memory:
        findings.warnings.append(
            "the database is in memory: workers in other processes will not see its jobs"
        )
    if not app.tasks:
        findings.warnings.append(
            "the app has no tasks; import the modules that declare them where the app is made"
        )
    for task in app.tasks.values():
        findings.tasks.append(
            {
                "name": task.name,
                "queue": task.policy.queue,
                "max_attempts": task.policy.retry.max_attempts,
                "timeout_s": None if task.policy.timeout_us is None else task.policy.timeout_us / 1_000_000,
                "is_async": task.is_async,
            }
        )
        try:
            if not settings.queue(task.policy.queue).takes(task.name):
                findings.mistakes.append(
                    f"task {task.name!r}: its queue {task.policy.queue!r} does not name it in tasks=; add it, or choose another"
                )
        except UnknownQueue as wrong:
            findings.mistakes.append(f"task {task.name!r}: {wrong}")
    findings.schedules = [_schedule(each) for each in app.schedules.declared]


def _schedule(schedule: NewSchedule) -> dict[str, Any]:
    return {
        "key": schedule.key,
        "task": schedule.task,
        "cron": schedule.cron,
        "every_s": None if schedule.every_us is None else schedule.every_us / 1_000_000,
        "timezone": schedule.timezone,
        "text": Pattern(schedule.cron, schedule.every_us, schedule.timezone).in_words(),
        "catch_up": schedule.catch_up,
        "overlap": schedule.overlap,
    }


def _queue(queue: Queue) -> dict[str, Any]:
    return {
        "name": queue.name,
        "priority": queue.priority,
        "fair": queue.fair,
        "max_concurrency": queue.max_concurrency,
    }


def _check_live(app: Evenflow, findings: Findings) -> None:
    live: dict[str, Any] = {
        "connected": False,
        "schema": None,
        "listens": None,
        "pooler": None,
        "workers": None,
    }
    findings.live = live
    try:
        refuse_missing(app.settings)
        engine = open_engine(app.settings.database, app.settings.schema, pool_size=1)
        try:
            _look(engine, live, findings)
        finally:
            engine.close()
    except EvenflowError as wrong:
        findings.mistakes.append(masked(str(wrong)))


def _look(engine: AnyEngine, live: dict[str, Any], findings: Findings) -> None:
    is_current = check_schema(engine)
    live["connected"] = True
    latest = migrations(engine.kind)[-1].version
    live["schema"] = latest if is_current else None
    if not is_current:
        findings.mistakes.append(
            f"the tables are missing or older than version {latest}; run: evenflow migrate --app {findings.locator}"
        )
        return
    if isinstance(engine, PostgresEngine):
        _check_wakeups(engine, live, findings)
    now = reads.now_us(engine)
    alive = [worker for worker in leases.workers(engine) if worker_document(worker, now)["alive"]]
    live["workers"] = len(alive)
    if not alive:
        findings.warnings.append("no worker is running: jobs will wait")


def _check_wakeups(engine: PostgresEngine, live: dict[str, Any], findings: Findings) -> None:
    live["pooler"] = engine.has_pooler
    live["listens"] = not engine.has_pooler and _can_listen(engine)
    if not live["listens"]:
        cause = "a pooler stands before the database" if engine.has_pooler else "notifications do not arrive"
        findings.warnings.append(
            f"no wake-ups: {cause}, so workers find new jobs by polling; "
            "for quick starts give them an address that goes to the server itself"
        )


def _can_listen(engine: PostgresEngine) -> bool:
    """Whether an announcement that we make ourselves is heard on another connection."""
    waker = Waker(engine)
    ends_at = time.monotonic() + LISTEN_WITHIN_S
    with watch_signals(engine, "done") as signals:
        heard = signals.wait(0.05)  # connects
        while ANNOUNCEMENT not in heard and time.monotonic() < ends_at:
            waker.announce_ends()
            heard = signals.wait(0.2)
        return ANNOUNCEMENT in heard


def _document(findings: Findings) -> dict[str, Any]:
    return {
        "ok": not findings.mistakes,
        "app": findings.locator,
        "database": findings.database,
        "queue_mode": findings.queue_mode,
        "queues": findings.queues,
        "tasks": findings.tasks,
        "schedules": findings.schedules,
        "live": findings.live,
        "mistakes": findings.mistakes,
        "warnings": findings.warnings,
    }


def _print(findings: Findings) -> None:
    if findings.database is not None:
        click.echo(f"app       {findings.locator}")
        click.echo(f"database  {findings.database}")
        click.echo(f"queues    {_queues_in_words(findings)}")
        click.echo(f"tasks     {len(findings.tasks)}")
        if findings.schedules:
            click.echo(f"schedules {len(findings.schedules)}")
        _print_tables(findings)
    if findings.live is not None and findings.live["connected"]:
        click.echo(_live_in_words(findings.live))
    for mistake in findings.mistakes:
        click.echo(f"{click.style('mistake', fg='red')}  {printable(mistake, keep_lines=True)}")
    for warning in findings.warnings:
        click.echo(f"{click.style('warning', fg='yellow')}  {printable(warning)}")
    click.echo("no mistakes" if not findings.mistakes else f"{count_of(len(findings.mistakes), 'mistake')}")


def _print_tables(findings: Findings) -> None:
    if findings.queues:
        click.echo()
        print_table(
            ("queue", "priority", "fair", "cap"),
            [
                (
                    row["name"],
                    row["priority"],
                    row["fair"],
                    "" if row["max_concurrency"] is None else str(row["max_concurrency"]),
                )
                for row in findings.queues
            ],
        )
    if findings.tasks:
        click.echo()
        print_table(
            ("task", "queue", "attempts", "timeout"),
            [
                (row["name"], row["queue"], row["max_attempts"], _timeout(row["timeout_s"]))
                for row in findings.tasks
            ],
        )
    if findings.schedules:
        click.echo()
        print_table(
            ("schedule", "task", "fires", "missed slots"),
            [(row["key"], row["task"], row["text"], row["catch_up"]) for row in findings.schedules],
        )
    click.echo()


def _timeout(timeout_s: float | None) -> str:
    return "" if timeout_s is None else format_duration(int(timeout_s * 1_000_000))


def _queues_in_words(findings: Findings) -> str:
    if findings.queue_mode == "open":
        return "any name (queue_mode='open')"
    return f"{', '.join(row['name'] for row in findings.queues) or 'default'} (queue_mode={findings.queue_mode!r})"


def _live_in_words(live: dict[str, Any]) -> str:
    parts = ["connected", f"tables at version {live['schema']}" if live["schema"] else "no current tables"]
    if live["listens"] is not None:
        parts.append("wake-ups arrive" if live["listens"] else "no wake-ups")
    if live["pooler"]:
        parts.append("behind a pooler")
    if live["workers"] is not None:
        parts.append(f"{count_of(live['workers'], 'worker')} alive")
    return f"live      {', '.join(parts)}"
