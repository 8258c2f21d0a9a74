"""`evenflow workflows` and `evenflow workflow`: runs, their steps, drawings, and acts on whole runs."""

import json

from evenflow import Run
from tests.cli.running import evenflow
from tests.cli.stage import Stage


def started(stage: Stage, key: str | None = None) -> "Run[object]":
    wf = stage.app.workflow("report")
    first = wf.step(stage.add, 1, name="first")
    bad = wf.step(stage.fail, "no card", name="bad")
    wf.step(stage.add, first.output, after=[bad], name="last")
    return wf.start(id=key)


def test_no_runs_are_there(stage: Stage) -> None:
    assert evenflow("workflows", "--url", stage.url).stdout == "no runs match\n"
    assert json.loads(evenflow("workflows", "--json", "--url", stage.url).stdout) == {"workflows": []}


def test_runs_are_listed_newest_first(stage: Stage) -> None:
    old, new = started(stage, "monday"), started(stage)
    found = json.loads(evenflow("workflows", "--json", "--url", stage.url).stdout)["workflows"]
    assert [row["id"] for row in found] == [new.id, old.id]
    assert list(found[0]) == [
        "id", "workflow", "state", "key", "on_error", "created_at", "finished_at", "paused_why",
    ]  # fmt: skip
    _, _, second = evenflow("workflows", "--url", stage.url).stdout.splitlines()
    assert second.split()[:4] == [old.id, "report", "running", "monday"]
    assert evenflow("workflows", "--state", "failed", "--url", stage.url).stdout == "no runs match\n"
    assert evenflow("workflows", "--name", "other", "--url", stage.url).stdout == "no runs match\n"


def test_a_run_is_shown_with_its_steps_and_what_they_wait_for(stage: Stage) -> None:
    run = started(stage, "monday")
    stage.run_all()
    shown = evenflow("workflow", "monday", "--url", stage.url).stdout
    head, _, first, bad, last = shown.splitlines()
    assert head == f"run {run.id} of workflow report: failed: step 'bad' ended failed"
    assert first.split()[:3] == ["first", "succeeded", "shop.add"]
    assert "UNHANDLED_ERROR: no card" in bad
    assert "first, bad" in last
    assert "WORKFLOW_DEPENDENCY_FAILED" in last
    found = json.loads(evenflow("workflow", run.id, "--json", "--url", stage.url).stdout)
    assert (found["id"], found["state"], found["key"]) == (run.id, "failed", "monday")
    assert [(step["name"], step["state"], sorted(step["parents"])) for step in found["steps"]] == [
        ("first", "succeeded", []),
        ("bad", "failed", []),
        ("last", "skipped", ["bad", "first"]),
    ]


def test_a_run_is_drawn_for_other_programs(stage: Stage) -> None:
    run = started(stage)
    dot = evenflow("workflow", run.id, "--dot", "--url", stage.url).stdout
    assert dot.startswith('digraph "report" {')
    assert '"first" -> "last";' in dot
    assert '"bad" [label="bad\\nready"];' in dot
    mermaid = evenflow("workflow", run.id, "--mermaid", "--url", stage.url).stdout
    assert mermaid.startswith("flowchart LR\n")
    assert 's0["first<br/>ready"]' in mermaid
    assert "s0 --> s2" in mermaid
    assert run.dot() + "\n" == dot
    assert run.mermaid() + "\n" == mermaid


def test_a_whole_run_is_acted_on(stage: Stage) -> None:
    run = started(stage)
    for act, state in (
        ("pause", "paused"),
        ("resume", "running"),
        ("cancel", "cancelled"),
        ("retry", "running"),
    ):
        shown = evenflow("workflow", run.id, "--do", act, "--url", stage.url)
        assert (shown.exit_code, run.refresh().state) == (0, state), act
    refused = evenflow("workflow", run.id, "--do", "resume", "--url", stage.url)
    assert refused.exit_code == 1
    assert "the run is running: there is nothing to resume" in refused.stderr


def test_a_run_that_is_not_there_is_told(stage: Stage) -> None:
    shown = evenflow("workflow", "0000000000001", "--url", stage.url)
    assert shown.exit_code == 1
    assert "no run 0000000000001" in shown.stderr


def test_why_tells_what_a_step_waits_for(stage: Stage) -> None:
    run = started(stage)
    last = run.steps()[-1].job_id
    assert last is not None
    (reason,) = stage.app.why(last)
    assert reason.rule == "workflow"
    assert "it waits for step" in reason.text
    assert len(reason.holders) == 2
    run.pause("lunch")
    (reason,) = stage.app.why(last)
    assert reason.text == f"run {run.id} of workflow 'report' is paused: lunch"


def test_what_cannot_be_a_run_is_answered_with_how_to_find_one(sqlite_stage: Stage) -> None:
    shown = evenflow("workflow", "zz", "--url", sqlite_stage.url)
    assert shown.exit_code == 1
    assert "there is no run 'zz'" in shown.stderr
    assert "evenflow workflows" in shown.stderr
