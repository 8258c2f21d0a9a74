"""A circuit breaker as a value: closed, open, half open, and exactly one probe with a lease.

Functions take the state and the time and return the next state; whoever stores it writes it under a lock.
Runs without the probe's token count while the breaker is closed and change nothing otherwise: a job that
started before the breaker opened says nothing about whether the downstream has recovered.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Literal, TypeAlias

import msgspec

from evenflow.error_kinds import matches
from evenflow.errors import Code
from evenflow.limits import Breaker

# These say nothing about what a breaker guards: the body did not run, or what it returned could not be stored.
SILENT_CODES = frozenset(
    {
        Code.WORKER_SERIALIZATION_ERROR,
        Code.WORKER_RESOLUTION_ERROR,
        Code.SIGNATURE_INVALID,
        Code.TASK_EXPIRED,
        Code.TASK_CANCELLED,
    }
)


Kind: TypeAlias = Literal["task", "queue"]
Target: TypeAlias = tuple[Kind, str]
"""What a breaker guards: a task or a queue, by its name."""


@dataclass(frozen=True, slots=True)
class Declared:
    """What an app says about breakers: each by its name, which of them guards what, who has none, and what is wrong."""

    breakers: dict[str, Breaker] = field(default_factory=dict)
    guards: dict[Target, str] = field(default_factory=dict)
    free: list[Target] = field(default_factory=list)
    mistakes: list[str] = field(default_factory=list)


class Circuit(StrEnum):
    """The three words a breaker's state is shown with."""

    CLOSED = "closed"
    OPEN = "open"
    HALF_OPEN = "half_open"


class BreakerState(msgspec.Struct, frozen=True, array_like=True):
    """What one breaker remembers. A new breaker is `BreakerState()`: closed, with no failures."""

    failures: int = 0
    opened_at: int | None = None
    probe: str | None = None
    probe_until: int = 0


class Verdict(msgspec.Struct, frozen=True):
    """May this run start? `probe`: yes, as the one probe. `retry_at` says when asking again makes sense.

    The state may differ after a refusal too (a clock that stepped back), so it is stored whenever it changed.
    """

    answer: Literal["pass", "probe", "refuse"]
    state: BreakerState
    retry_at: int


def circuit(breaker: Breaker, state: BreakerState, now: int) -> Circuit:
    """The state in a word, as of `now`.

    >>> circuit(Breaker(cooldown_s=60), BreakerState(failures=5, opened_at=0), now=59_999_999).value
    'open'
    """
    if state.opened_at is None:
        return Circuit.CLOSED
    return Circuit.OPEN if now < state.opened_at + breaker.cooldown_us else Circuit.HALF_OPEN


def allow(breaker: Breaker, state: BreakerState, now: int, token: str) -> Verdict:
    """Whether a run may start; in `half_open` the first to ask gets the probe under its `token`.

    >>> allow(Breaker(), BreakerState(failures=5, opened_at=0), now=60_000_000, token="run-7").answer
    'probe'
    """
    state = _without_the_future(breaker, state, now)
    if state.opened_at is None:
        return Verdict("pass", state, now)
    opens_at = state.opened_at + breaker.cooldown_us
    if now < opens_at:
        return Verdict("refuse", state, opens_at)
    if state.probe is not None and now < state.probe_until:
        return Verdict("refuse", state, state.probe_until)
    until = now + breaker.probe_lease_us
    return Verdict("probe", msgspec.structs.replace(state, probe=token, probe_until=until), until)


def extend_probe(breaker: Breaker, state: BreakerState, now: int, token: str) -> BreakerState:
    """A sign of life from the probe's run: its lease starts anew. A replaced token changes nothing."""
    if not _holds_probe(state, token):
        return state
    return msgspec.structs.replace(state, probe_until=now + breaker.probe_lease_us)


def record_failure(breaker: Breaker, state: BreakerState, now: int, token: str | None = None) -> BreakerState:
    """Count a failure. The one that reaches the threshold, or that of the probe, opens for a full cooldown.

    >>> record_failure(Breaker(failure_threshold=1), BreakerState(), now=9).opened_at
    9
    """
    if state.opened_at is None:
        failures = state.failures + 1
        return BreakerState(failures, now if failures >= breaker.failure_threshold else None)
    return BreakerState(state.failures + 1, now) if _holds_probe(state, token) else state


def record_success(state: BreakerState, token: str | None = None) -> BreakerState:
    """A run succeeded: the count of failures in a row is 0 again, and the probe's success closes the breaker.

    >>> record_success(BreakerState(failures=4))
    BreakerState(failures=0, opened_at=None, probe=None, probe_until=0)
    """
    if state.opened_at is None or _holds_probe(state, token):
        return BreakerState()
    return state


def record_idle(state: BreakerState, token: str | None = None) -> BreakerState:
    """A cycle reached the backend and found nothing to do: a success of the probe, else no proof at all.

    An empty poll that reset the count would hide a run of failing writes.

    >>> record_idle(BreakerState(failures=4)).failures
    4
    """
    return BreakerState() if _holds_probe(state, token) else state


def release_probe(state: BreakerState, token: str) -> BreakerState:
    """The probe's run ended without a verdict, as at a stop: the next one may ask at once."""
    return BreakerState(state.failures, state.opened_at) if _holds_probe(state, token) else state


def counts(breaker: Breaker, error: BaseException, code: str) -> bool:
    """Whether an error is a failure in the eyes of this breaker.

    >>> counts(Breaker(ignore=ValueError), ValueError("no"), "UNHANDLED_ERROR")
    False
    """
    if code in SILENT_CODES or matches(breaker.ignore, error, code):
        return False
    return not breaker.on or matches(breaker.on, error, code)


def breaker_name(breaker: Breaker, *, queue: str | None = None, task: str | None = None) -> str:
    """The name a breaker's state is kept under: its own, or one made from what it guards.

    >>> breaker_name(Breaker(), queue="mail"), breaker_name(Breaker(name="bank"), task="charge")
    ('queue_mail', 'bank')
    """
    if breaker.name is not None:
        return breaker.name
    return f"queue_{queue}" if queue is not None else f"task_{task}"


def declared(tasks: Mapping[str, Breaker | None], queues: Mapping[str, Breaker | None]) -> Declared:
    """Everything that tasks and queues declare, by their names. Of one name there is one breaker, with one set of numbers.

    >>> declared({"charge": Breaker(name="bank")}, {"mail": Breaker()}).guards
    {('queue', 'mail'): 'queue_mail', ('task', 'charge'): 'bank'}
    """
    found = Declared()
    for name, breaker in queues.items():
        _note(found, ("queue", name), breaker, None if breaker is None else breaker_name(breaker, queue=name))
    for name, breaker in tasks.items():
        _note(found, ("task", name), breaker, None if breaker is None else breaker_name(breaker, task=name))
    return found


def _note(found: Declared, target: Target, breaker: Breaker | None, name: str | None) -> None:
    if breaker is None or name is None:
        found.free.append(target)
        return
    found.guards[target] = name
    known = found.breakers.setdefault(name, breaker)
    if _numbers(known) != _numbers(breaker):
        first = next(f"{kind} {each!r}" for (kind, each), to in found.guards.items() if to == name)
        found.mistakes.append(
            f"{target[0]} {target[1]!r}: breaker {name!r} has other numbers at {first}; share one Breaker, or rename one"
        )


def _numbers(breaker: Breaker) -> tuple[object, ...]:
    # What is stored under the name. Which errors count is each one's own: they are judged where they happen.
    return breaker.failure_threshold, breaker.cooldown_us, breaker.probe_lease_us, breaker.on_open


def _holds_probe(state: BreakerState, token: str | None) -> bool:
    # A late verdict under the current token counts, also after its lease: nobody has taken the probe since.
    return token is not None and state.probe == token


def _without_the_future(breaker: Breaker, state: BreakerState, now: int) -> BreakerState:
    # After a step back of the clock, times in the state may lie ahead of it. They are drawn to now, so that
    # neither a cooldown nor a lease lasts longer than its own length from here.
    if state.opened_at is None:
        return state
    opened_at = min(state.opened_at, now)
    probe_until = min(state.probe_until, now + breaker.probe_lease_us)
    if (opened_at, probe_until) == (state.opened_at, state.probe_until):
        return state
    return msgspec.structs.replace(state, opened_at=opened_at, probe_until=probe_until)
