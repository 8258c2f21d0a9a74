"""`evenflow workers`: the processes in the books and when they last gave a sign of life."""

from typing import Any

import click
import msgspec

from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.cli.texts import moment, span
from evenflow.ids import id_text
from evenflow.store import leases, reads


@click.command()
@json_option
@takes_place
def workers(place: Place, as_json: bool) -> None:
    """List the worker processes and supervisors."""
    with place.looking() as engine:
        now = reads.now_us(engine)
        found = leases.workers(engine)
    rows = [document(worker, now) for worker in found]
    if as_json:
        print_json({"workers": rows})
    elif rows:
        headers = ("worker", "kind", "host", "pid", "running", "started", "last heartbeat", "state")
        print_table(headers, [_line(row, worker, now) for row, worker in zip(rows, found, strict=True)])
    else:
        click.echo("no worker is running")


def document(worker: leases.Worker, now: int) -> dict[str, Any]:
    """A worker with stable keys. `alive` compares clocks and is for people; rescue never does."""
    about: dict[str, Any] = msgspec.json.decode(worker.about)
    return {
        "id": id_text(worker.id),
        "parent": None if worker.parent is None else id_text(worker.parent),
        "kind": worker.kind,
        "host": worker.host,
        "pid": worker.pid,
        "started_at": moment(worker.started_at),
        "heartbeat_at": moment(worker.beat_at),
        "heartbeats": worker.beat,
        "lease_s": worker.lease_us / 1_000_000,
        "alive": now - worker.beat_at <= worker.lease_us,
        "running": about.get("running"),
        "concurrency": about.get("concurrency"),
        "services": about.get("services"),
    }


def _line(row: dict[str, Any], worker: leases.Worker, now: int) -> list[Cell | str | int | None]:
    running = "" if row["running"] is None else f"{row['running']} of {row['concurrency']}"
    running = ", ".join(row["services"] or []) or running
    return [
        row["id"], row["kind"], row["host"], str(row["pid"]), running, f"{span(now - worker.started_at)} ago",
        f"{span(now - worker.beat_at)} ago", Cell("alive", "green") if row["alive"] else Cell("silent", "red"),
    ]  # fmt: skip
