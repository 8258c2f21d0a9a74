"""`evenflow queues`: what every queue holds and whether it is served."""

from typing import Any

import click

from evenflow.cli.documents import json_option, print_json
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.cli.texts import moment, printable
from evenflow.job import State
from evenflow.store import dashboard, gates, reads
from evenflow.store.dashboard import Count

OPEN = [state for state in State if not state.is_end]
_SHOWN = (State.READY, State.RUNNING, State.SCHEDULED)
_NONE = Count(0)


@click.command()
@json_option
@takes_place
def queues(place: Place, as_json: bool) -> None:
    """List the queues: what they hold, their rules, who paused them."""
    with place.looking() as engine:
        known = {row.name: row for row in reads.queues(engine)}
        counts = dashboard.depths(engine).by_queue
        paused = [gate for gate in gates.gates(engine) if gate.cause == "pause"]
    rows = [
        _document(name, known.get(name), counts.get(name, {}))
        for name in sorted(known.keys() | counts.keys())
    ]
    if as_json:
        print_json({"queues": rows, "paused_tasks": [_paused_task(gate) for gate in paused]})
        return
    if rows:
        print_table(
            ("queue", *_SHOWN, "other", "priority", "fair", "cap", "paused"),
            [_line(row) for row in rows],
            right=(*_SHOWN, "other"),
        )
    else:
        click.echo("no queues yet: none was declared, used or paused")
    for gate in paused:
        said = _pause({"paused": True, "paused_by": gate.shut_by, "paused_why": gate.shut_why})
        click.echo(printable(f"task {gate.name!r} is {said}"))


def _document(name: str, row: reads.QueueRow | None, counts: dict[str, Count]) -> dict[str, Any]:
    return {
        "name": name,
        "jobs": {state.value: counts.get(state, _NONE).jobs for state in OPEN},
        "more": [state.value for state in OPEN if counts.get(state, _NONE).is_more],
        "priority": row.priority if row else None,
        "fair": row.fair if row else None,
        "max_concurrency": row.max_concurrency if row else None,
        "max_ready": row.max_ready if row else None,
        "on_full": row.on_full if row else None,
        "paused": bool(row and row.paused_at is not None),
        "paused_at": moment(row.paused_at) if row else None,
        "paused_by": row.paused_by if row else None,
        "paused_why": row.paused_why if row else None,
    }


def _paused_task(gate: gates.Gate) -> dict[str, Any]:
    return {
        "name": gate.name,
        "paused_at": moment(gate.shut_at),
        "paused_by": gate.shut_by,
        "paused_why": gate.shut_why,
    }


def _line(row: dict[str, Any]) -> list[Cell | str | int | None]:
    others = [state for state in OPEN if state not in _SHOWN]
    cap = row["max_concurrency"]
    return [
        row["name"], *(_number(row, state) for state in _SHOWN), _number(row, *others), row["priority"] or 0, row["fair"],
        "" if cap is None else str(cap), Cell(_pause(row), "yellow"),
    ]  # fmt: skip


def _number(row: dict[str, Any], *states: State) -> str:
    """How many jobs are in these states; "10,000+" where counting has stopped."""
    is_more = any(state in row["more"] for state in states)
    return f"{sum(row['jobs'][state] for state in states):,}{'+' if is_more else ''}"


def _pause(row: dict[str, Any]) -> str:
    if not row["paused"]:
        return ""
    who = f" by {row['paused_by']}" if row["paused_by"] else ""
    why = f": {row['paused_why']}" if row["paused_why"] else ""
    return f"paused{who}{why}"
