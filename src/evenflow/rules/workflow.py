"""What becomes of the steps of a workflow when their parents end, and of the run when its steps have.

Pure: the store gives the facts, the answers are values. `resolved` is the whole of it on one page, for tests and readers.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum

from evenflow.job import State

BAD = frozenset({State.FAILED, State.EXPIRED, State.CANCELLED, State.DISCARDED, State.QUARANTINED})
"""Ends that count as a failure. `skipped` is none: it was decided, by a condition or for want of a parent."""


class Fate(StrEnum):
    """What a waiting step does next."""

    WAIT = "wait"
    RELEASE = "release"
    SKIP = "skip"


@dataclass(frozen=True, slots=True)
class Join:
    """When a step has waited enough: all its parents, or `needs` of them. With `allow_failed` a parent counts however it
    ended, else only if it succeeded."""

    needs: int | None = None
    allow_failed: bool = False


def fate(join: Join, *, open: int, ok: int, bad: int) -> Fate:
    """What a step does whose parents are `open`, succeeded (`ok`) or ended otherwise (`bad`).

    Where all parents count, it is enough to know whether there are any of each.

    >>> fate(Join(), open=0, ok=0, bad=0), fate(Join(), open=0, ok=1, bad=1), fate(Join(needs=1), open=2, ok=1, bad=0)
    (<Fate.RELEASE: 'release'>, <Fate.SKIP: 'skip'>, <Fate.RELEASE: 'release'>)
    """
    if join.needs is None:
        if open:
            return Fate.WAIT
        return Fate.SKIP if bad and not join.allow_failed else Fate.RELEASE
    counted = ok + bad if join.allow_failed else ok
    if counted >= join.needs:
        return Fate.RELEASE
    return Fate.SKIP if counted + open < join.needs else Fate.WAIT


def run_end(states: Mapping[str, State], cases: Sequence[Sequence[str]] | None = None) -> State:
    """How a run ends whose outer steps ended like this: without cases it fails with any of them; with cases it succeeds
    where all steps of one case did.

    >>> run_end({"a": State.SUCCEEDED, "b": State.SKIPPED}), run_end({"a": State.FAILED})
    (<State.SUCCEEDED: 'succeeded'>, <State.FAILED: 'failed'>)
    >>> run_end({"a": State.FAILED, "b": State.SUCCEEDED}, [["a"], ["b"]])
    <State.SUCCEEDED: 'succeeded'>
    """
    if cases is None:
        return State.FAILED if BAD.intersection(states.values()) else State.SUCCEEDED
    met = any(all(states.get(name) is State.SUCCEEDED for name in case) for case in cases)
    return State.SUCCEEDED if met else State.FAILED


def container_end(
    members: Mapping[str, State],
    *,
    cases: Sequence[Sequence[str]] | None = None,
    needs: int | None = None,
    begin: State = State.SUCCEEDED,
) -> State:
    """How a sub-workflow or a fan-out ends. One that did not begin is skipped, or failed, with its beginning.

    >>> container_end({"m[0]": State.SUCCEEDED, "m[1]": State.FAILED}, needs=1)
    <State.SUCCEEDED: 'succeeded'>
    >>> container_end({"x": State.SKIPPED}, begin=State.SKIPPED)
    <State.SKIPPED: 'skipped'>
    """
    if begin is not State.SUCCEEDED:
        return State.SKIPPED if begin is State.SKIPPED else State.FAILED
    if needs is not None:
        enough = sum(state is State.SUCCEEDED for state in members.values()) >= needs
        return State.SUCCEEDED if enough else State.FAILED
    if members and cases is None and set(members.values()) == {State.SKIPPED}:
        return State.SKIPPED
    return run_end(members, cases)


def steps_to_reopen(states: Mapping[int, State | None], parents: Mapping[int, Iterable[int]]) -> set[int]:
    """Which steps a retry of a run opens again: those that failed, and below them all that did not succeed.

    >>> steps_to_reopen({1: State.FAILED, 2: State.SKIPPED, 3: State.SUCCEEDED}, {2: [1], 3: []}) == {1, 2}
    True
    """
    children: dict[int, list[int]] = {}
    for child, above in parents.items():
        for parent in above:
            children.setdefault(parent, []).append(child)
    found = {step for step, state in states.items() if state in BAD}
    left = list(found)
    while left:
        for child in children.get(left.pop(), ()):
            if child not in found and states.get(child) not in (None, State.SUCCEEDED):
                found.add(child)
                left.append(child)
    return found


@dataclass(frozen=True, slots=True)
class Node:
    """One step as the model sees it: what it waits for, what its conditions say, and how its body would end."""

    parents: tuple[str, ...] = ()
    join: Join = Join()
    is_skipped: bool = False
    body: State = State.SUCCEEDED


def resolved(nodes: Mapping[str, Node]) -> dict[str, State]:
    """How every step of a graph ends. The order in which bodies end changes nothing.

    >>> resolved({"a": Node(body=State.FAILED), "b": Node(("a",))})
    {'a': <State.FAILED: 'failed'>, 'b': <State.SKIPPED: 'skipped'>}
    """
    ends: dict[str, State] = {}
    while len(ends) < len(nodes):
        before = len(ends)
        for name, node in nodes.items():
            if name in ends:
                continue
            found = [ends[parent] for parent in node.parents if parent in ends]
            ok = sum(state is State.SUCCEEDED for state in found)
            match fate(node.join, open=len(node.parents) - len(found), ok=ok, bad=len(found) - ok):
                case Fate.SKIP:
                    ends[name] = State.SKIPPED
                case Fate.RELEASE:
                    ends[name] = State.SKIPPED if node.is_skipped else node.body
        if len(ends) == before:
            raise ValueError(
                f"these steps wait for each other: {', '.join(sorted(nodes.keys() - ends.keys()))}"
            )
    return ends


def cycle(parents: Mapping[str, Iterable[str]]) -> list[str] | None:
    """The names along one circle of waiting, or None.

    >>> cycle({"a": ["b"], "b": ["a"]}), cycle({"a": [], "b": ["a"]})
    (['a', 'b', 'a'], None)
    """
    done: set[str] = set()
    for start in parents:
        path: dict[str, None] = {}  # in order
        trail: list[tuple[str, bool]] = [(start, False)]
        while trail:
            name, is_leaving = trail.pop()
            if is_leaving:
                del path[name]
                done.add(name)
                continue
            if name in path:
                above = list(path)
                return [*above[above.index(name) :], name]
            if name in done:
                continue
            path[name] = None
            trail.append((name, True))
            trail += [(parent, False) for parent in parents.get(name, ())]
    return None
