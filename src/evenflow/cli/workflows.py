"""`evenflow workflows` and `evenflow workflow`: lists of runs, and the steps of one, as a table or a drawing."""

from typing import Any

import click

from evenflow import Evenflow, Run
from evenflow.cli.documents import json_option, print_json
from evenflow.cli.jobs import COLOURS as STATE_COLOURS
from evenflow.cli.places import Place, takes_place
from evenflow.cli.tables import Cell, print_table
from evenflow.cli.texts import moment, shortened, span
from evenflow.client.graph import dot, mermaid
from evenflow.client.run import RunStep
from evenflow.clock import to_us
from evenflow.ids import id_text
from evenflow.job import State
from evenflow.store import reads, runs
from evenflow.store.runs import RUN_STATES, RunRow

ACTS = ("cancel", "pause", "resume", "retry")
_COLOURS = {
    "running": "cyan",
    "paused": "yellow",
    "succeeded": "green",
    "failed": "red",
    "cancelled": "yellow",
}
_LONGEST_ERROR = 60
_MOST_PARENTS = 3


@click.command()
@click.option("--state", type=click.Choice(RUN_STATES), help="Only runs in this state.")
@click.option("--name", metavar="WORKFLOW", help="Only runs of this workflow.")
@click.option(
    "--limit",
    type=click.IntRange(1, 10_000),
    default=50,
    show_default=True,
    metavar="N",
    help="Most runs shown.",
)
@json_option
@takes_place
def workflows(place: Place, state: str | None, name: str | None, limit: int, as_json: bool) -> None:
    """List runs of workflows, newest first."""
    with place.looking() as engine:
        found = runs.page(engine, state=state, name=name, top=limit)
        now = reads.now_us(engine)
    if as_json:
        print_json({"workflows": [document(row) for row in found]})
    elif found:
        print_table(("run", "workflow", "state", "id", "started", "took"), [_line(row, now) for row in found])
    else:
        click.echo("no runs match")


@click.command()
@click.argument("id")
@click.option("--dot", "as_dot", is_flag=True, help="The graph for Graphviz instead.")
@click.option("--mermaid", "as_mermaid", is_flag=True, help="The graph for Mermaid instead.")
@click.option("--do", "act", type=click.Choice(ACTS), help="Act on the whole run first.")
@json_option
@takes_place
def workflow(place: Place, id: str, as_dot: bool, as_mermaid: bool, act: str | None, as_json: bool) -> None:
    """Show a run of a workflow: its steps, their states, and what they wait for.

    ID is that of the run, or the one that was given to its start.
    """
    with place.acting() as app:
        run = app.workflow_run(id)
        if act is not None:
            _do(run, act)
        _show(app, run.refresh(), as_dot, as_mermaid, as_json)


def document(row: RunRow) -> dict[str, Any]:
    """A run with stable keys."""
    return {
        "id": id_text(row.id), "workflow": row.name, "state": row.state, "key": row.key, "on_error": row.on_error,
        "created_at": moment(row.created_at), "finished_at": moment(row.finished_at), "paused_why": row.paused_why,
    }  # fmt: skip


def _do(run: "Run[Any]", act: str) -> None:
    done: object = getattr(run, act)()
    if not done:
        raise click.ClickException(f"the run is {run.refresh().state}: there is nothing to {act}")


def _show(app: Evenflow, run: "Run[Any]", as_dot: bool, as_mermaid: bool, as_json: bool) -> None:
    steps = run.steps()
    if as_dot:
        click.echo(dot(run.workflow, steps))
    elif as_mermaid:
        click.echo(mermaid(steps))
    elif as_json:
        row = {"id": run.id, "workflow": run.workflow, "state": run.state, "key": run.key}
        print_json({**row, "steps": [_step_document(step) for step in steps]})
    else:
        why = f" ({run.paused_why})" if run.paused_why else f": {run.error.message}" if run.error else ""
        click.echo(
            f"run {run.id} of workflow {run.workflow}: {click.style(run.state, fg=_COLOURS[run.state])}{why}"
        )
        print_table(("step", "state", "task", "after", "job", "error"), [_step_line(step) for step in steps])


def _line(row: RunRow, now: int) -> list[Cell | str | int | None]:
    took = span((row.finished_at or now) - row.created_at)
    state = Cell(row.state, _COLOURS[row.state])
    return [id_text(row.id), row.name, state, row.key, f"{span(now - row.created_at)} ago", took]


def _step_document(step: RunStep) -> dict[str, Any]:
    error = None if step.error is None else {"code": step.error.code, "message": step.error.message}
    return {
        "name": step.name, "kind": step.kind, "task": step.task, "state": step.state, "job_id": step.job_id,
        "parents": list(step.parents), "ended_at": None if step.ended_at is None else moment(to_us(step.ended_at)),
        "error": error,
    }  # fmt: skip


def _step_line(step: RunStep) -> list[Cell | str | int | None]:
    inner = step.name.count("/") + step.name.count("[")
    parents = ", ".join(step.parents[:_MOST_PARENTS])
    if len(step.parents) > _MOST_PARENTS:
        parents += f" and {len(step.parents) - _MOST_PARENTS} more"
    error = (
        "" if step.error is None else shortened(f"{step.error.code}: {step.error.message}", _LONGEST_ERROR)
    )
    state = Cell(step.state, STATE_COLOURS.get(State(step.state)))
    return [f"{'  ' * inner}{step.name}", state, step.task, parents, step.job_id, error]
