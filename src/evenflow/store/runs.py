"""Runs of workflows as operators and steps see them: pause, resume, cancel, retry, lists, and what a step starts with."""

from collections.abc import Iterator, Mapping, Sequence

import msgspec

from evenflow.errors import Code, EnqueueError
from evenflow.job import NEVER_US, JobError, ParentEnd, State, StepInputs
from evenflow.rules.workflow import steps_to_reopen
from evenflow.settings import Retention
from evenflow.store.callers import drive_together
from evenflow.store.engine import Engine, Steps, as_json
from evenflow.store.limits import promote, release
from evenflow.store.open import AnyEngine
from evenflow.store.retention import kept_us
from evenflow.store.workflows import (
    BATCH,
    CONTAINERS,
    RUN_ENDS,
    Policy,
    Settled,
    admit_released,
    after_settling,
    decide,
    run_ends,
    settle_steps,
    tell,
)

NEWEST = 2**63 - 1
PAGE = 200
RUN_STATES = ("running", "paused", "succeeded", "failed", "cancelled")
_ENDS = frozenset(state.value for state in State if state.is_end)


class RunRow(msgspec.Struct, frozen=True):
    """A run as it is stored."""

    id: int
    created_at: int
    finished_at: int | None
    state: str
    on_error: str
    name: str
    key: str | None
    policy: str | None
    error: str | None
    paused_why: str | None


class StepRow(msgspec.Struct, frozen=True):
    """A step as it is stored; where its job is open, `state` is the job's."""

    id: int
    container: int | None
    ordinal: int
    needs: int | None
    allow_failed: bool
    kind: str
    state: str
    name: str
    task: str | None
    ended_at: int | None
    errors: str | None
    result: str | None
    policy: str | None


class _Result(msgspec.Struct, frozen=True):
    """What the result of a step is made of."""

    id: int
    kind: str
    name: str
    state: str | None
    result: str | None
    policy: str | None


def pause(engine: AnyEngine, run: int, why: str | None = None) -> bool:
    """No step of this run starts until it is resumed; what runs goes on. False if it does not go on already."""

    def steps() -> Steps[set[str] | None]:
        locked = yield "lock_runs", {"runs": as_json([run])}
        if not locked or locked[0][1] != "running":
            return None
        yield "set_run_state", {"run": run, "state": "paused", "why": why}
        freed = yield "park_steps", {"run": run, "never": NEVER_US}
        return {name for (name,) in freed}

    freed = drive_together(engine, steps)
    promote(engine, freed or ())
    return freed is not None


def resume(engine: AnyEngine, run: int, retention: Retention, *, now: int | None = None) -> Settled | None:
    """Let a paused run go on, its failures counted as such; None if it is not paused."""

    def steps() -> Steps[Settled | None]:
        locked = yield "lock_runs", {"runs": as_json([run])}
        if not locked or locked[0][1] != "paused":
            return None
        yield "set_run_state", {"run": run, "state": "running", "why": None}
        parked = yield "unpark_steps", {"run": run, "never": NEVER_US, "now": now}
        settled = yield from settle_steps([run], retention, now, is_resuming=True)
        settled.released += [id for (id,) in parked]
        settled.arriving = len(parked)
        yield from admit_released(settled, now)
        return settled

    settled = drive_together(engine, steps)
    return None if settled is None else after_settling(engine, settled, retention, now)


def cancel(
    engine: AnyEngine, run: int, retention: Retention, reason: str = "", *, now: int | None = None
) -> bool:
    """End a run: it is cancelled now, steps that do not run are cancelled with it, the others are told. False if it had
    ended already. What ends later changes nothing."""
    error = as_json(JobError(Code.TASK_CANCELLED, reason or "the run was cancelled by request"))

    def steps() -> Steps[list[int] | None]:
        locked = yield "lock_runs", {"runs": as_json([run])}
        if not locked or locked[0][1] in RUN_ENDS:
            return None
        open = yield "open_jobs_of", {"run": run}
        withdrawn = yield (
            "withdraw",
            {
                "ids": as_json([id for (id,) in open]), "state": "cancelled", "keep_us": kept_us(retention, "cancelled"),
                "why": reason or "the run was cancelled by request", "flags": True, "now": now, "error": error,
            },
        )  # fmt: skip
        yield "close_steps", {"run": run, "now": now}
        yield "end_runs", run_ends({run: (State.CANCELLED, error)}, retention, now)
        yield "drop_step_ends", {"runs": as_json([run])}
        return [id for id, outcome, *_ in withdrawn if outcome == "ended"]

    ended = drive_together(engine, steps)
    release(engine, ended or (), now=now)
    return ended is not None


def retry(engine: AnyEngine, run: int, retention: Retention, *, now: int | None = None) -> Settled | None:
    """Run the failed steps of a run again, and what was skipped for them; what succeeded stays. What came of it, with the
    steps that are open again; None where nothing had failed."""

    def steps() -> Steps[Settled | None]:
        locked = yield "lock_runs", {"runs": as_json([run])}
        rows = yield "list_steps", {"run": run}
        edges = yield "list_edges", {"run": run}
        states = {row[0]: State(row[6]) if row[6] in _ENDS else None for row in rows}
        parents: dict[int, list[int]] = {}
        for parent, child in edges:
            parents.setdefault(child, []).append(parent)
        reopened = steps_to_reopen(states, parents)
        if not locked or locked[0][1] == "succeeded" or not reopened:
            return None
        opened = yield "reopen_steps", {"ids": as_json(sorted(reopened)), "never": NEVER_US}
        if lost := reopened - {id for (id,) in opened}:
            names = ", ".join(repr(row[7]) for row in rows if row[0] in lost)
            raise EnqueueError(
                f"the jobs of {names} are no longer kept, so this run cannot be tried again; start a new one"
            )
        yield "forget_step_ends", {"ids": as_json(sorted(reopened))}
        yield "set_run_state", {"run": run, "state": "running", "why": None}
        return (yield from _go_on_with(run, sorted(reopened), retention, now))

    settled = drive_together(engine, steps)
    return None if settled is None else after_settling(engine, settled, retention, now)


def _go_on_with(run: int, reopened: Sequence[int], retention: Retention, now: int | None) -> Steps[Settled]:
    """Let a run go on whose steps were opened again. Some may end by it at once, as they did before: what their other
    parents say leaves them no choice. Then those below them are told, and the run may end with them."""
    told = Settled()
    keep_us = kept_us(retention, "skipped")
    _, ended = yield from decide(reopened, told, keep_us, now)
    yield from tell(ended, told, keep_us, now)
    parked = yield "unpark_steps", {"run": run, "never": NEVER_US, "now": now}
    settled = yield from settle_steps([run], retention, now)
    settled.skipped += told.skipped
    settled.queues |= told.queues
    settled.released += [*told.released, *(id for (id,) in parked)]
    settled.arriving = told.arriving + len(parked)
    yield from admit_released(settled, now)
    open = yield "weigh_steps", {"ids": as_json(reopened)}
    settled.reopened = [row[0] for row in open]
    return settled


def unsettled(engine: Engine, *, top: int = BATCH) -> list[int]:
    """Runs with ends that nobody has told on: their teller died, or their steps did not end in a worker."""
    return [run for (run,) in engine.run("unsettled", {"top": top})]


def inputs(engine: Engine, ids: Sequence[int]) -> dict[int, StepInputs]:
    """What these steps need to start. Results are read where they are stored."""
    rows = engine.run("step_inputs", {"ids": as_json(ids)})
    above = [_Result(row[5], row[7], row[6], row[8], row[9], row[10]) for row in rows if row[5] is not None]
    texts = _texts(engine, above)
    found: dict[int, StepInputs] = {}
    for row in rows:
        step = found.get(row[0])
        if step is None:
            workflow, name, run_when, skip_when = row[1:5]
            step = found[row[0]] = StepInputs(workflow, name, run_when, skip_when, [])
        if row[5] is not None:
            step.parents.append(ParentEnd(row[6], row[8], texts.get(row[5])))
    return found


def results(engine: Engine, run: int) -> dict[str, str]:
    """The results of a run's steps, as text by name; of those that succeeded."""
    rows = steps_of(engine, run)
    texts = _texts(
        engine, [_Result(row.id, row.kind, row.name, row.state, row.result, row.policy) for row in rows]
    )
    return {row.name: texts[row.id] for row in rows if row.id in texts and row.kind != "begin"}


def result_of(engine: Engine, run: RunRow) -> str:
    """The result of a run that succeeded, as text."""
    policy = msgspec.json.decode(run.policy or "{}", type=Policy)
    named = engine.run("steps_named", {"run": run.id, "names": as_json([name for _, name in policy.outputs])})
    numbers: dict[str, int] = dict(named)
    rows = engine.run("steps_by_id", {"ids": as_json(list(numbers.values()))})
    texts = _texts(engine, [_Result(*row) for row in rows])
    return _combined(policy, {name: texts[number] for name, number in numbers.items() if number in texts})


def _texts(engine: Engine, rows: Sequence[_Result]) -> dict[int, str]:
    """The result of each step that succeeded. That of a container is made of its members', which have it stored."""
    found = {
        row.id: row.result or "null"
        for row in rows
        if row.kind not in CONTAINERS and row.state == "succeeded"
    }
    containers = {row.id: row for row in rows if row.kind in CONTAINERS and row.state == "succeeded"}
    if not containers:
        return found
    members = engine.run("members_of", {"containers": as_json(list(containers))})
    texts = _texts(engine, [_Result(row[2], row[3], row[4], row[5], row[6], row[7]) for row in members])
    for id, row in containers.items():
        mine = [
            member for member in members if member[0] == id and member[2] in texts and member[3] != "begin"
        ]
        if row.kind == "map":
            found[id] = f"[{','.join(texts[member[2]] for member in mine if member[1] >= 0)}]"
        else:
            policy = msgspec.json.decode(row.policy or "{}", type=Policy)
            found[id] = _combined(policy, {member[4]: texts[member[2]] for member in mine})
    return found


def _combined(policy: Policy, texts: Mapping[str, str]) -> str:
    """One output is the result itself; several are an object by their labels, of those that succeeded."""
    if len(policy.outputs) == 1:
        return texts.get(policy.outputs[0][1], "null")
    parts = [f"{as_json(label)}:{texts[name]}" for label, name in policy.outputs if name in texts]
    return f"{{{','.join(parts)}}}"


def find(engine: Engine, run: int) -> RunRow | None:
    """A run as it is now."""
    rows = engine.run("runs_by_id", {"ids": as_json([run])})
    return RunRow(*rows[0]) if rows else None


def find_by_key(engine: Engine, key: str) -> int | None:
    """The id of the run that was started with this id of the user's."""
    rows = engine.run("find_run_key", {"run_key": key})
    return rows[0][0] if rows else None


def page(
    engine: Engine,
    *,
    state: str | None = None,
    name: str | None = None,
    before: int = NEWEST,
    top: int = PAGE,
) -> list[RunRow]:
    """Runs newest first, below the cursor."""
    rows = engine.run("list_runs", {"state": state, "name": name, "before": before, "top": top})
    return [RunRow(*row) for row in rows]


def steps_of(engine: Engine, run: int) -> list[StepRow]:
    """The steps of a run, in the order in which they were added, members behind their container."""
    rows = [StepRow(*row) for row in engine.run("list_steps", {"run": run})]
    members: dict[int | None, list[StepRow]] = {}
    for row in rows:
        members.setdefault(row.container, []).append(row)
    return list(_in_order(members, None))


def _in_order(members: Mapping[int | None, list[StepRow]], container: int | None) -> Iterator[StepRow]:
    # Steps that were added while the run went on have no place among the first ones: they come last.
    for row in sorted(
        members.get(container, ()),
        key=lambda row: (row.kind != "begin", row.ordinal < 0, row.ordinal, row.id),
    ):
        yield row
        yield from _in_order(members, row.id)


def edges_of(engine: Engine, run: int) -> list[tuple[int, int]]:
    """(parent, child) of a run's steps; the child of the last ones is the run."""
    return [(parent, child) for parent, child in engine.run("list_edges", {"run": run})]


def prune(engine: Engine, *, top: int = BATCH, now: int | None = None) -> int:
    """Forget runs whose time has passed, with their steps, at most `top` rows of each."""
    return len(engine.run("prune_runs", {"top": top, "now": now}))


def place_of(engine: Engine, step: int) -> tuple[int, str, int | None, list[int]] | None:
    """Run, name, container and children of a step; None where the job is no step."""
    rows = engine.run("run_of_step", {"id": step})
    if not rows:
        return None
    return (*rows[0], [child for (child,) in engine.run("open_children", {"id": step})])


def numbers_of(engine: Engine, run: int, names: Sequence[str]) -> dict[str, int]:
    """The ids of a run's steps by name; those that are not there are left out."""
    return dict(engine.run("steps_named", {"run": run, "names": as_json(list(names))})) if names else {}


def open_parents(engine: Engine, step: int, *, top: int = 10) -> list[tuple[int, str]]:
    """(id, name) of the steps that a step still waits for, some of them."""
    return [(parent, name) for parent, name in engine.run("open_parents", {"id": step, "top": top})]
