"""Reads for people who look at a million jobs: every one of them touches a bounded number of rows.

Counts stop at `MOST_COUNTED` ("10,000 or more"), lists look at a bounded piece and say where to go on.
"""

import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path

import msgspec

from evenflow.job import ENDS, State
from evenflow.store.engine import Engine, Row, as_json
from evenflow.store.open import AnyEngine
from evenflow.store.reads import NEWEST, Filter
from evenflow.store.sqlite import SqliteEngine

MOST_COUNTED = 10_000
DEPTH = 10_000
FEW = 1000
SEARCH_S = 0.1
TURNS_AHEAD = 100
GROUPS = 100
FEW_PARENTS = 100
Matches = Mapping[str, str | None]
_EDGES = {"browse_live": "live_edge", "browse_history": "history_edge", "browse_trouble": "trouble_edge"}
_STATES = {state.value: state for state in State}  # `State(…)` took as long as all the rest of a row
_INDEXED = frozenset({"ready", "overflow", "claimed", "running", "scheduled", "arriving"})
_UNINDEXED = tuple(state.value for state in State if not state.is_end and state.value not in _INDEXED)


class Count(msgspec.Struct, frozen=True):
    """How many, or at least how many where counting stopped."""

    jobs: int
    is_more: bool = False


class Depths(msgspec.Struct, frozen=True):
    """Open jobs by queue and state."""

    by_queue: dict[str, dict[str, Count]]

    def of(self, queue: str, *states: str) -> Count:
        """Those of a queue in some states, together."""
        return _sum(self.by_queue.get(queue, {}).get(state, Count(0)) for state in states)

    def total(self, *states: str) -> Count:
        """Those of all queues in some states, or all that are open."""
        counts = [
            count
            for by_state in self.by_queue.values()
            for state, count in by_state.items()
            if not states or state in states
        ]
        return _sum(counts)


class Listed(msgspec.Struct, frozen=True):
    """A job as lists show it: no arguments, no result."""

    id: int
    state: State
    queue: str
    task: str
    group: str | None
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    created_at: int
    run_at: int
    started_at: int | None
    finished_at: int | None
    errors: str | None
    progress: str | None


class Found(msgspec.Struct, frozen=True):
    """One page of a search. `following` is the cursor to go on from, None at the end; `is_partial` where the search
    stopped for its time with room left on the page."""

    jobs: list[Listed]
    following: int | None
    is_partial: bool = False


class StepLine(msgspec.Struct, frozen=True):
    """A step of a run as lists show it; of those before it, the first few by name."""

    id: int
    kind: str
    state: str
    name: str
    task: str | None
    ended_at: int | None
    errors: str | None
    parents: list[str]
    parent_count: int


class GroupRow(msgspec.Struct, frozen=True):
    """A group of a queue: what it holds, what it gets next, and what its weight says it should get."""

    group: str
    weight: float
    in_flight: int
    next_turns: int
    waiting: int
    """About how many jobs wait: how far its last turn lies ahead, in steps of its own."""
    cost_us: float | None


class Facts(msgspec.Struct, frozen=True):
    """The health of the database; what an engine does not have is None."""

    kind: str
    version: str
    bytes: int
    free_bytes: int | None
    log_bytes: int | None
    connections: int | None
    oldest_at: int | None
    oldest_what: str | None
    horizon_age: int | None
    notify_usage: float | None
    now: int


class TableRow(msgspec.Struct, frozen=True):
    """A table as the server's statistics know it."""

    name: str
    bytes: int | None
    live_rows: int | None
    dead_rows: int | None
    vacuumed_at: int | None


def depths(engine: Engine, *, top: int = MOST_COUNTED) -> Depths:
    """Open jobs by queue and state: exact below `top` in all; above it, each number up to about `top`."""
    sample = engine.run("sample_live", {"top": top})
    if sum(jobs for _, _, jobs in sample) < top:
        return _depths((queue, state, Count(jobs)) for queue, state, jobs in sample)
    indexed = engine.run("count_by_index", {"top": top})
    # States that no index counts are known from the newest jobs alone: none among these may still be some.
    newest = {(queue, state): jobs for queue, state, jobs in sample}
    queues = {row[0] for row in (*sample, *indexed)}
    others = (
        (queue, state, Count(newest.get((queue, state), 0), True)) for queue in queues for state in _UNINDEXED
    )
    full = {state for state in _INDEXED if sum(row[2] for row in indexed if row[1] == state) >= top}
    counted = (
        (queue, state, Count(jobs, _may_be_more(state, jobs, full, top))) for queue, state, jobs in indexed
    )
    return _depths((*counted, *others))


def ends(engine: Engine, *, top: int = MOST_COUNTED) -> dict[str, Count]:
    """Kept jobs that did not succeed, by how they ended."""
    return {state: Count(jobs, jobs >= top) for state, jobs in engine.run("count_ends", {"top": top})}


def oldest_ready(engine: Engine, *, top: int = FEW) -> dict[str, int]:
    """queue -> since when its oldest ready job could run."""
    return dict(engine.run("oldest_ready", {"top": top}))


def search(
    engine: Engine, wanted: Filter, *, before: int = NEWEST, top: int = 50, within_s: float = SEARCH_S,
    among: Sequence[str] | None = None, down_to: int = 0,
) -> Found:  # fmt: skip
    """Jobs that match, newest first, below the cursor and not below `down_to`; only of the groups `among`, where they are
    given. Looks piece by piece and stops when its time is over: the answer then says from where to go on."""
    matches = _parameters(wanted, among)
    few = _few_in_state(engine, wanted)
    if few is not None:
        return _of_few(engine, matches, [job for job in few if down_to <= job < before], top)
    jobs: list[Listed] = []
    ends_at = time.monotonic() + within_s
    for piece, edge in _pieces(engine, wanted, matches, range(down_to, before), top + 1):
        jobs += piece
        if len(jobs) > top:
            return Found(jobs[:top], jobs[top - 1].id)
        if edge is None:
            return Found(jobs, None)
        if time.monotonic() > ends_at:
            return Found(jobs, edge, True)
    return Found(jobs, None)


def groups(engine: Engine, queue: str, *, top: int = GROUPS) -> list[GroupRow]:
    """Groups of a queue that hold slots or come next, and the first others, at most about `top`; most turns first."""
    in_flight: dict[str, int] = dict(engine.run("in_flight_by_group", {"queue": queue}))
    ahead = {
        group: jobs for group, jobs in engine.run("next_turns", {"queue": queue, "top": TURNS_AHEAD}) if group
    }
    names = sorted({*in_flight, *ahead}, key=lambda group: (-ahead.get(group, 0), group))[:top]
    found: dict[str, GroupRow] = {}
    rows = engine.run("group_rows", {"queue": queue, "names": as_json(names), "top": top})
    for group, _, distance, step, weight, cost_us in rows:
        known = found.get(group)
        waiting = max(0, round(distance / step if step else distance * weight)) + (
            known.waiting if known else 0
        )
        found[group] = GroupRow(group, weight, in_flight.get(group, 0), ahead.get(group, 0), waiting, cost_us)
    weights: dict[str, float] = dict(engine.run("group_weights", {"queue": queue, "top": FEW}))
    for group in names:
        if group not in found:
            found[group] = GroupRow(
                group, weights.get(group, 1.0), in_flight.get(group, 0), ahead.get(group, 0), 0, None
            )
    return sorted(found.values(), key=lambda row: (-row.next_turns, -row.in_flight, -row.waiting, row.group))


def steps(engine: Engine, run: int, *, after: int = 0, top: int = 200) -> list[StepLine]:
    """Steps of a run in the order of their ids, above the cursor."""
    parameters = {"run": run, "after": after, "top": top, "few": FEW_PARENTS, "most": MOST_COUNTED}
    rows = engine.run("browse_steps", parameters)
    return [StepLine(*(*row[:7], msgspec.json.decode(row[7], type=list[str]), row[8])) for row in rows]


def size_of_run(engine: Engine, run: int, *, top: int = MOST_COUNTED) -> tuple[Count, bool]:
    """How many steps a run has, and whether one of these has failed."""
    count, has_failed = engine.run("count_steps", {"run": run, "top": top})[0]
    return Count(count, count >= top), bool(has_failed)


def in_flight_by_worker(engine: Engine) -> dict[int, int]:
    """Jobs claimed or running: worker -> how many."""
    return dict(engine.run("in_flight_by_worker", {}))


def facts(engine: AnyEngine) -> Facts:
    """The health of the database, from its own statistics."""
    version, size, free, connections, oldest_at, oldest_what, horizon, usage, now = engine.run(
        "database_facts", {}
    )[0]
    log = _log_bytes(engine) if isinstance(engine, SqliteEngine) else None
    return Facts(
        engine.kind, version, size, free, log, connections, oldest_at, oldest_what, horizon, usage, now
    )


def tables(engine: Engine) -> list[TableRow]:
    """Tables, largest first; none on SQLite, which keeps no statistics of them."""
    return [TableRow(*row) for row in engine.run("database_tables", {})]


def _may_be_more(state: str, jobs: int, full: set[str], top: int) -> bool:
    # Ready and overflow are counted queue by queue; of the others the first `top` of all queues were taken.
    return jobs >= top if state in ("ready", "overflow") else state in full


def _depths(rows: Iterator[tuple[str, str, Count]] | Sequence[tuple[str, str, Count]]) -> Depths:
    found: dict[str, dict[str, Count]] = {}
    for queue, state, count in rows:
        if count.jobs or count.is_more:
            found.setdefault(queue, {})[state] = count
    return Depths(found)


def _sum(counts: "Iterator[Count] | list[Count]") -> Count:
    listed = list(counts)
    return Count(sum(each.jobs for each in listed), any(each.is_more for each in listed))


def _few_in_state(engine: Engine, wanted: Filter) -> list[int] | None:
    """All jobs of a state that has few, whatever else is open; None where they are many or no index knows."""
    if wanted.state is None or wanted.state.value not in _INDEXED:
        return None
    ids = [job for (job,) in engine.run("some_in_state", {"state": wanted.state.value, "top": FEW + 1})]
    return ids if len(ids) <= FEW else None


def _of_few(engine: Engine, matches: Matches, ids: Sequence[int], top: int) -> Found:
    parameters = {"ids": as_json(ids), "top": top + 1, **matches}
    jobs = [_listed(row) for row in engine.run("browse_some", parameters)]
    return Found(jobs[:top], jobs[top - 1].id if len(jobs) > top else None)


def _pieces(
    engine: Engine, wanted: Filter, matches: Matches, ids: range, top: int
) -> Iterator[tuple[list[Listed], int | None]]:
    """Matches piece by piece, each with the id down to which everything has been looked at; None at the end."""
    units, before = _units(wanted.state), ids.stop
    while True:
        edges = [_edge(engine, unit, wanted, before) for unit in units]
        edge = max(ids.start, *edges)  # down to where every table was read
        # By id: a job that ends between the two reads is in both.
        found = {job.id: job for unit in units for job in _browse(engine, unit, matches, before, edge, top)}
        piece = [found[job] for job in sorted(found, reverse=True)]
        yield piece, edge if edge > ids.start else None
        if edge <= ids.start:
            return
        before = edge


def _edge(engine: Engine, unit: str, wanted: Filter, before: int) -> int:
    parameters: Mapping[str, object] = {"before": before, "depth": DEPTH}
    if unit == "browse_trouble":
        parameters = {**parameters, "state": str(wanted.state)}
    rows = engine.run(_EDGES[unit], parameters)
    return rows[0][0] if rows else 0


def _browse(engine: Engine, unit: str, matches: Matches, before: int, after: int, top: int) -> list[Listed]:
    parameters = {"before": before, "after": after, "top": top, **matches}
    return [_listed(row) for row in engine.run(unit, parameters)]


def _parameters(wanted: Filter, among: Sequence[str] | None) -> Matches:
    return {
        "state": None if wanted.state is None else wanted.state.value,
        "queue": wanted.queue,
        "task": wanted.task,
        "group_key": wanted.group,
        "among": None if among is None else as_json(list(among)),
    }


def _listed(row: Row) -> Listed:
    return Listed(row[0], _STATES[row[1]], *row[2:])


def _units(state: State | None) -> list[str]:
    if state is None:
        return ["browse_live", "browse_history"]
    if state not in ENDS:
        return ["browse_live"]
    return ["browse_history" if state is State.SUCCEEDED else "browse_trouble"]


def _log_bytes(engine: SqliteEngine) -> int | None:
    if engine.path is None:
        return None
    log = Path(f"{engine.path}-wal")
    return log.stat().st_size if log.exists() else 0
