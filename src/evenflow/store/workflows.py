"""Runs of workflows: starting them, and telling children how their parents ended.

What a step waits for is a row per parent; whether it may go on is derived from those rows, never counted up or down.
Whoever changes a run holds its row. The end of a step is told with the end itself, or noted there for whoever tells it
later, so nothing is lost between the two.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

import msgspec

from evenflow.codec import may_refer
from evenflow.errors import Code, EnqueueError
from evenflow.ids import IdSource
from evenflow.job import ASKS_NOTHING, FOREVER_US, NEVER_US, End, JobError, NewJob, State, with_mark
from evenflow.rules.workflow import Fate, Join, container_end, fate, run_end
from evenflow.settings import Retention
from evenflow.store import bounds
from evenflow.store.callers import Relay, drive_together
from evenflow.store.control import discard_blocked, read_admission
from evenflow.store.engine import Engine, Row, Steps, as_json
from evenflow.store.enqueue import enqueue_steps, fresh_ids
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.limits import promote, release
from evenflow.store.open import AnyEngine
from evenflow.store.retention import kept_us

BATCH = 500
ADMITTED_AT_ONCE = 1000
CONTAINERS = ("sub", "map")
RUN_ENDS = ("succeeded", "failed", "cancelled")


class Policy(msgspec.Struct, frozen=True, omit_defaults=True):
    """What a run or a container takes to succeed, and whose results are its own: (label, name of the step)."""

    cases: list[list[str]] | None = None
    needs: int | None = None
    outputs: list[tuple[str, str]] = []


class NewStep(msgspec.Struct, frozen=True):
    """A step before it has an id. Other steps of its run are named by their place in the list."""

    name: str
    job: NewJob | None = None
    kind: str = "job"
    parents: Sequence[int] = ()
    existing_parents: Sequence[int] = ()
    needs: int | None = None
    allow_failed: bool = False
    run_when: str | None = None
    skip_when: str | None = None
    container: int | None = None
    ordinal: int = 0
    delay_us: int | None = None
    not_before: int | None = None
    policy: Policy | None = None


class NewRun(msgspec.Struct, frozen=True):
    """A run before it is stored: parents before their children."""

    name: str
    steps: Sequence[NewStep]
    on_error: str = "fail"
    key: str | None = None
    policy: Policy = Policy()


class Settled(msgspec.Struct):
    """What telling the children came to. `queues` have ready jobs by it; `arriving` jobs have to be admitted."""

    released: list[int] = []
    skipped: list[int] = []
    ended: list[int] = []
    paused: list[int] = []
    reopened: list[int] = []
    freed: set[str] = set()
    queues: set[str] = set()
    bounded: set[str] = set()
    impatient: list[int] = []
    arriving: int = 0

    def is_within(self, taken: Collection[int]) -> bool:
        """Whether nothing but these jobs became ready by it."""
        others = self.freed or self.bounded or self.skipped
        return not others and all(step in taken for step in self.released)

    def note_released(self, steps: Iterable[tuple[int, str | None]]) -> None:
        """Steps that go on, with their queues where they are ready already."""
        for id, queue in steps:
            self.released.append(id)
            if queue is None:
                self.arriving += 1
            else:
                self.queues.add(queue)


def start_steps(
    new: NewRun, ids: IdSource, *, sign: Sign | None = None, now: int | None = None
) -> Steps[tuple[int, bool]]:
    """Store a run with all its steps; its id, and whether it is new. To be driven in one transaction.

    Where a run with the key exists nothing is stored, and that run is the answer.
    """
    added: list[Row] = []
    while not added:
        (run,) = yield from fresh_ids(ids, 1)
        values = {
            "id": run,
            "on_error": new.on_error,
            "name": new.name,
            "run_key": new.key,
            "policy": as_json(new.policy),
        }
        added = yield "add_run", {**values, "now": now}
        found = (yield "find_run_key", {"run_key": new.key}) if not added and new.key is not None else []
        if found:
            if found[0][1] != new.name:
                raise EnqueueError(
                    f"workflow {new.name!r}: the id {new.key!r} belongs to a run of workflow {found[0][1]!r}; choose another"
                )
            return found[0][0], False
    try:
        numbers = yield from _insert(new.steps, run, ids, sign, now)
    except EnqueueError:
        yield "forget_run", {"run": run}
        raise
    has_child = {parent for step in new.steps for parent in step.parents}
    has_child |= {place for place, step in enumerate(new.steps) if step.container is not None}
    last = [
        {"parent": numbers[place], "child": run} for place in range(len(new.steps)) if place not in has_child
    ]
    yield "add_edges", {"edges": as_json(last)}
    return run, True


def _insert(
    steps: Sequence[NewStep], run: int, ids: IdSource, sign: Sign | None, now: int | None
) -> Steps[list[int]]:
    """Jobs, steps and the edges between them; the ids in the order of the steps."""
    with_job = [place for place, step in enumerate(steps) if step.job is not None]
    without = [place for place, step in enumerate(steps) if step.job is None]
    jobs = [_job_of(steps[place], run) for place in with_job]
    numbers = dict(zip(without, (yield from fresh_ids(ids, len(without))) if without else (), strict=True))
    if jobs:
        unique = [place for place, job in enumerate(jobs) if job.unique_key is not None]
        placed = yield from enqueue_steps(jobs, ids, arriving=True, sign=sign, must_be_new=unique, now=now)
        numbers |= zip(with_job, (each.id for each in placed), strict=True)
    ordered = [numbers[place] for place in range(len(steps))]
    values = [_step_values(step, ordered[place], run, ordered) for place, step in enumerate(steps)]
    yield "add_steps", {"steps": as_json(values)}
    edges = [
        {"parent": parent, "child": ordered[place], "lone": _is_lone(step)}
        for place, step in enumerate(steps)
        for parent in (*(ordered[above] for above in step.parents), *step.existing_parents)
    ]
    edges += [
        {"parent": ordered[place], "child": ordered[step.container]}
        for place, step in enumerate(steps)
        if step.container is not None
    ]
    if edges:
        yield "add_edges", {"edges": as_json(edges)}
    return ordered


def _is_lone(step: NewStep) -> bool:
    """Whether one parent's success is all that a step waits for. It is so until somebody adds another parent."""
    return (
        len(step.parents) + len(step.existing_parents) == 1
        and step.job is not None
        and step.needs in (None, 1)
        and step.delay_us is None
        and step.not_before is None
    )


def _job_of(step: NewStep, run: int) -> NewJob:
    assert step.job is not None
    # A step is its run's own job: it cannot take the place of another one, and none can be put off by it.
    job = msgspec.structs.replace(step.job, run_id=run, replaces=False, max_wait_us=None)
    if step.run_when is None and step.skip_when is None and not may_refer(job.payload):
        job = msgspec.structs.replace(job, options=with_mark(job.options, ASKS_NOTHING))
    if step.parents or step.existing_parents:
        return msgspec.structs.replace(job, waits=True, run_at=NEVER_US)
    return job


def _step_values(step: NewStep, number: int, run: int, ordered: Sequence[int]) -> dict[str, Any]:
    return {
        "id": number, "run_id": run, "container": None if step.container is None else ordered[step.container],
        "delay_us": step.delay_us, "not_before": step.not_before, "ordinal": step.ordinal, "needs": step.needs,
        "allow_failed": step.allow_failed or step.kind in CONTAINERS, "kind": step.kind, "name": step.name,
        "task": None if step.job is None else step.job.task, "run_when": step.run_when, "skip_when": step.skip_when,
        "policy": None if step.policy is None else as_json(step.policy),
    }  # fmt: skip


def extend_steps(
    run: int, new: Sequence[NewStep], ids: IdSource, *, container: int | None = None, children: Sequence[int] = (),
    sign: Sign | None = None, now: int | None = None,
) -> Steps[list[int]]:  # fmt: skip
    """Add steps to a run that goes on; their ids. To be driven in one transaction. What is there by name is not added again.

    `children` wait for each of them. They become members of `container`, if one is given.
    """
    locked = yield "lock_runs", {"runs": as_json([run])}
    if not locked or locked[0][1] in RUN_ENDS:
        raise EnqueueError("this run of the workflow has ended, or was cancelled: nothing can be added to it")
    found: list[Row] = yield "steps_named", {"run": run, "names": as_json([step.name for step in new])}
    known: dict[str, int] = dict(found)
    missing = [step for step in new if step.name not in known]
    # Before the edges are added: a parent that ends after this look is told of once more, one that ended before it is seen there.
    if above := sorted({parent for step in missing for parent in step.existing_parents}):
        yield "note_open_steps", {"ids": as_json(above)}
    numbers = (yield from _insert(missing, run, ids, sign, now)) if missing else []
    known |= zip((step.name for step in missing), numbers, strict=True)
    waited_by = [*children, *(() if container is None else (container,))]
    edges = [{"parent": number, "child": child} for number in numbers for child in waited_by]
    if edges:
        yield "share_children", {"ids": as_json(children)}
        yield "add_edges", {"edges": as_json(edges)}
    if container is not None and numbers:
        yield "adopt_steps", {"ids": as_json(numbers), "container": container}
    waiting = [number for step, number in zip(missing, numbers, strict=True) if step.existing_parents]
    if waiting:
        settled = Settled()
        _, ended = yield from decide(waiting, settled, FOREVER_US, now)
        yield from tell(ended, settled, FOREVER_US, now)
    return [known[step.name] for step in new]


def end_steps(
    ends: Sequence[End], worker: int, retention: Retention, now: int | None
) -> Steps[tuple[Settled, frozenset[int]]]:
    """Write the ends of steps and tell their children, as steps of the transaction that then ends their jobs. What came
    of it, and the runs that are to be told after the commit: somebody else holds them, or they are paused, or may be.

    An end counts only if its (id, epoch) is in flight at this worker.
    """
    listed = [
        {"id": end.id, "epoch": end.epoch, "state": end.state, "result": end.result}
        for end in sorted(ends, key=lambda end: end.id)
    ]
    rows = yield "end_steps", {"steps": as_json(listed), "worker": worker, "now": now}
    settled = Settled()
    settled.note_released((id, queue) for kind, id, _, queue in rows if kind == "lone")
    children = {id: run for kind, id, run, _ in rows if kind == "child"}
    if children:
        policies = {run: policy for kind, _, run, policy in rows if kind == "child"}
        yield from _tell_children(children, policies, retention, settled, now)
    yield from admit_released(settled, now)
    return settled, frozenset(run for kind, _, run, _ in rows if kind == "noted")


def _tell_children(
    children: Mapping[int, int],
    policies: Mapping[int, str],
    retention: Retention,
    settled: Settled,
    now: int | None,
) -> Steps[None]:
    """Children of what has ended, as child -> run. A run is the child of its last steps."""
    keep_us = kept_us(retention, "skipped")
    steps = {id: run for id, run in children.items() if id != run}
    last = children.keys() - steps.keys()
    if steps:
        open, ended = yield from decide(sorted(steps), settled, keep_us, now)
        yield from tell(ended, settled, keep_us, now)
        # A step that has ended before its parents was perhaps the last one to wait for them.
        last |= {run for id, run in steps.items() if ended or id not in open}
    if last:
        yield from _end_runs({run: policies[run] for run in sorted(last)}, retention, settled, now)


def settle(
    engine: AnyEngine | Relay,
    runs: Iterable[int],
    retention: Retention,
    *,
    arriving: int = 0,
    now: int | None = None,
) -> Settled:
    """Tell the children of steps that have ended, in these runs: they enter the queue, or are skipped, and a run whose
    steps have all ended ends. May be repeated, by anybody, at any time. So many steps that arrive already are admitted too."""
    listed = sorted(set(runs))

    def together() -> Steps[Settled]:
        settled = (yield from settle_steps(listed, retention, now)) if listed else Settled()
        settled.arriving = arriving  # its own are in already
        yield from admit_released(settled, now)
        return settled

    return after_settling(engine, drive_together(engine, together), retention, now)


def after_settling(engine: Engine, settled: Settled, retention: Retention, now: int | None) -> Settled:
    """What has to wait for the commit: keys that are free or lined up at go to the next in line."""
    settled.queues |= promote(engine, settled.freed, now=now) | bounds.fill(engine, settled.bounded)
    settled.queues |= release(engine, settled.skipped, now=now)
    discard_blocked(engine, settled.impatient, retention, now=now)
    return settled


def admit_released(settled: Settled, now: int | None) -> Steps[None]:
    """The admission that all jobs take, in the same transaction: one commit less for each round of steps."""
    for _ in range(0, settled.arriving, ADMITTED_AT_ONCE):
        rows = yield "admit", {"top": ADMITTED_AT_ONCE, "now": now}
        admission = read_admission(rows)
        settled.queues |= admission.queues.keys()
        settled.freed |= admission.lined_up
        settled.bounded |= admission.bounded
        settled.impatient += admission.impatient


def run_ends(
    ends: Mapping[int, tuple[State, str | None]], retention: Retention, now: int | None
) -> dict[str, Any]:
    """How runs end, with their errors, for the unit that writes it."""
    listed = [
        {"id": run, "state": state.value, "error": error, "keep_us": kept_us(retention, state)}
        for run, (state, error) in ends.items()
    ]
    return {"ends": as_json(listed), "now": now}


def settle_steps(
    runs: Sequence[int], retention: Retention, now: int | None, *, is_resuming: bool = False
) -> Steps[Settled]:
    """`settle` as steps of a transaction. A run that is being resumed is not paused again for what paused it."""
    settled = Settled()
    locked = yield "lock_runs", {"runs": as_json(runs)}
    if over := [run for run, state, _, _ in locked if state in RUN_ENDS]:
        yield "drop_step_ends", {"runs": as_json(over)}  # a late end revives no run
    running = {run: policy for run, state, _, policy in locked if state == "running"}
    careful = [
        run for run, _, on_error, _ in locked if run in running and on_error == "pause" and not is_resuming
    ]
    if careful:
        yield from _pause_failing(careful, running, settled)
    if not running:
        return settled
    taken = yield "take_step_ends", {"runs": as_json(list(running))}
    yield from tell([row[0] for row in taken], settled, kept_us(retention, "skipped"), now)
    yield from _end_runs(running, retention, settled, now)
    yield from admit_released(settled, now)
    return settled


def _pause_failing(careful: Sequence[int], running: dict[int, str], settled: Settled) -> Steps[None]:
    bad = yield "bad_step_ends", {"runs": as_json(careful)}
    for run, name, state in bad:
        if run in running:
            del running[run]
            settled.paused.append(run)
            yield "set_run_state", {"run": run, "state": "paused", "why": f"step {name!r} ended {state}"}
            freed = yield "park_steps", {"run": run, "never": NEVER_US}
            settled.freed |= {name for (name,) in freed}


def tell(ended: Sequence[int], settled: Settled, keep_us: int, now: int | None) -> Steps[None]:
    """Children of what has ended, then theirs, until nothing more ends by it."""
    while ended:
        children = yield "pass_on", {"ended": as_json(ended)}
        ended = []
        if children:
            _, ended = yield from decide([child for (child,) in children], settled, keep_us, now)


def decide(
    steps: Sequence[int], settled: Settled, keep_us: int, now: int | None
) -> Steps[tuple[set[int], list[int]]]:
    """What these steps do next: those that were open, and those of them that ended by it."""
    rows = yield "weigh_steps", {"ids": as_json(steps)}
    go_on, skips, done = [], [], []
    for id, _, kind, needs, allow_failed, policy, open, ok, bad, culprit in rows:
        match fate(Join(needs, bool(allow_failed)), open=open, ok=ok, bad=bad):
            case Fate.RELEASE if kind in CONTAINERS:
                done.append((id, policy))
            case Fate.RELEASE:
                go_on.append(id)
            case Fate.SKIP:
                skips.append({"id": id, "error": as_json(_dependency_failed(culprit, needs))})
    if go_on:
        settled.note_released((yield "release_steps", {"ids": as_json(go_on), "now": now}))
    ended = (yield from _end_containers(done, now)) if done else []
    if skips:
        skipped = yield "skip_steps", {"skips": as_json(skips), "keep_us": keep_us, "now": now}
        settled.skipped += [id for (id,) in skipped]
        ended += [id for (id,) in skipped]
    return {row[0] for row in rows}, ended


def _dependency_failed(culprit: str | None, needs: int | None) -> JobError:
    said = culprit or "a step before it did not succeed"
    many = "" if needs is None else f"; {needs} of the steps before it had to succeed"
    return JobError(Code.WORKFLOW_DEPENDENCY_FAILED, f"{said}{many}")


def _end_containers(done: Sequence[tuple[int, str | None]], now: int | None) -> Steps[list[int]]:
    rows = yield "members_of", {"containers": as_json([id for id, _ in done])}
    ends = []
    for id, text in done:
        members = [row for row in rows if row[0] == id]
        policy = msgspec.json.decode(text, type=Policy) if text else Policy()
        begin = next((State(row[5]) for row in members if row[3] == "begin"), State.SUCCEEDED)
        states = {row[4]: State(row[5]) for row in members if row[3] != "begin" and row[5] is not None}
        state = container_end(states, cases=policy.cases, needs=policy.needs, begin=begin)
        error = None if state is not State.FAILED else as_json([_failure(states, policy)])
        ends.append({"id": id, "state": state.value, "error": error})
    ended = yield "end_containers", {"ends": as_json(ends), "now": now}
    return [id for (id,) in ended]


def _failure(states: Mapping[str, State], policy: Policy) -> JobError:
    if policy.cases is not None:
        wanted = " or ".join(" and ".join(case) for case in policy.cases)
        return JobError(Code.WORKFLOW_SUCCESS_CASE_NOT_MET, f"expected success of {wanted}")
    bad = [
        f"{name!r} ended {state}"
        for name, state in states.items()
        if state not in (State.SUCCEEDED, State.SKIPPED)
    ]
    if not bad and states and policy.needs is not None:
        good = sum(state is State.SUCCEEDED for state in states.values())
        return JobError(Code.WORKFLOW_STEP_FAILED, f"expected at least {policy.needs} successes, got {good}")
    more = f" and {len(bad) - 3} more" if len(bad) > 3 else ""
    return JobError(Code.WORKFLOW_STEP_FAILED, f"step {', '.join(bad[:3]) or 'none began'}{more}")


def _end_runs(
    running: Mapping[int, str], retention: Retention, settled: Settled, now: int | None
) -> Steps[None]:
    done = yield "runs_without_open", {"runs": as_json(list(running))}
    if not done:
        return
    policies = {run: msgspec.json.decode(running[run], type=Policy) for (run,) in done}
    particular = [run for run, policy in policies.items() if policy.cases is not None]
    rows = yield "outer_steps", {"runs": as_json(list(policies)), "particular": as_json(particular)}
    states: dict[int, dict[str, State]] = {run: {} for run in policies}
    for run, name, state in rows:
        states[run][name] = State(state)
    ends = {run: _run_end(states[run], policy) for run, policy in policies.items()}
    yield "end_runs", run_ends(ends, retention, now)
    settled.ended += ends


def _run_end(states: Mapping[str, State], policy: Policy) -> tuple[State, str | None]:
    state = run_end(states, policy.cases)
    return state, None if state is State.SUCCEEDED else as_json(_failure(states, policy))
