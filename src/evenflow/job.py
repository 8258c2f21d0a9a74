"""The values of a job's life: states, errors, and the one record in which a run ends. Plain data, no behaviour."""

from enum import StrEnum
from typing import Any, Literal

import msgspec

FOREVER_US = 2**60  # later than any date: kept until somebody deletes it
NEVER_US = (
    250_000_000_000_000_000  # a date that is never reached: a step whose parents are open, a wait without end
)
MAX_CRASHES = 3


class State(StrEnum):
    """Where a job is in its life.

    >>> State("ready") is State.READY, State.FAILED.is_end
    (True, True)
    """

    ARRIVING = "arriving"  # committed by a caller's transaction, not yet admitted
    SCHEDULED = "scheduled"  # due later; retries too
    WAITING = "waiting"  # a workflow step whose parents are open
    BLOCKED = "blocked"  # its key is full, or its task is shut
    OVERFLOW = "overflow"  # its queue is over its bound
    READY = "ready"  # may be claimed
    CLAIMED = "claimed"  # prefetched by a worker, not started
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    EXPIRED = "expired"  # good_until passed first
    CANCELLED = "cancelled"
    SKIPPED = "skipped"  # a condition said so
    DISCARDED = "discarded"  # an operator, or a full key, said so
    QUARANTINED = "quarantined"  # killed its worker too often, or was forged

    @property
    def is_end(self) -> bool:
        return self in ENDS

    @property
    def is_in_flight(self) -> bool:
        return self in (State.CLAIMED, State.RUNNING)


ENDS = frozenset(
    {
        State.SUCCEEDED, State.FAILED, State.EXPIRED, State.CANCELLED, State.SKIPPED, State.DISCARDED, State.QUARANTINED,
    }
)  # fmt: skip


class JobError(msgspec.Struct, frozen=True, omit_defaults=True):
    """Why an attempt did not succeed, as text and data; never a class that is rebuilt.

    >>> JobError("TASK_TIMEOUT", "ran longer than 30 s").code
    'TASK_TIMEOUT'
    """

    code: str
    message: str
    class_name: str | None = None
    traceback: str | None = None
    data: Any = None
    attempt: int | None = None
    at: int | None = None


class Limit(msgspec.Struct, frozen=True):
    """A key of one job: at most `most` jobs hold it, each for as long as it lives, or `keep_us` unstarted.

    With `window_us` it is a rate: a place stays taken for that long after the start. With `at_start` it is not waited
    for: the job takes it when it is about to run, and what becomes of it otherwise is its task's to say. `start_us` is how
    long after its claim a body under a rate may start; the worker is told by the job's options. With `discards` a job that
    finds its keys full when it is admitted for the first time ends `discarded`. `breadth` says how many jobs share it: what
    few share is taken first, so that nobody keeps others waiting who have nothing to do with what it waits for itself.
    """

    name: str
    most: int
    keep_us: int
    window_us: int | None = None
    at_start: bool = False
    start_us: int | None = None
    discards: bool = False
    breadth: int = 0


class NewJob(msgspec.Struct, frozen=True, gc=False):
    """A job before it has an id: everything that enqueue writes.

    Its unique key stays taken for `unique_for_us` at least. Where an open job has the key, and this one `replaces`, that
    one becomes what this one is, and waits no longer than `max_wait_us` since its creation.
    """

    task: str
    payload: str
    queue: str = "default"
    priority: int = 0
    group: str | None = None
    max_attempts: int = 1
    run_at: int | None = None
    good_until: int | None = None
    run_id: int | None = None
    unique_key: str | None = None
    fails_on_crash: bool = False
    headers: str | None = None
    options: str | None = None
    limits: tuple[Limit, ...] = ()
    unique_for_us: int | None = None
    replaces: bool = False
    max_wait_us: int | None = None
    waits: bool = False


ASKS_NOTHING = '"asks":0'
"""In the options of a step that has no conditions and refers to no results: it can start without a look at its parents."""


def with_mark(options: str | None, mark: str) -> str:
    """The options of a job, which are a JSON object, with one more entry.

    >>> with_mark(None, ASKS_NOTHING), with_mark('{"keep_us":5}', ASKS_NOTHING)
    ('{"asks":0}', '{"asks":0,"keep_us":5}')
    """
    rest = "}" if options in (None, "{}") else f",{options[1:]}"
    return f"{{{mark}{rest}"


class ParentEnd(msgspec.Struct, frozen=True):
    """A parent of a workflow's step as the step finds it: its result is text, and None where it did not succeed."""

    name: str
    state: str | None
    result: str | None = None


class StepInputs(msgspec.Struct, frozen=True):
    """What a workflow's step needs to start, beyond its job."""

    workflow: str
    step: str
    run_when: str | None
    skip_when: str | None
    parents: list[ParentEnd]


class Claimed(msgspec.Struct, frozen=True, gc=False):
    """A job as a worker gets it. (id, epoch) is the fence of everything it writes.

    `is_plain` is known to be so where it has neither keys nor rates, and is no step of a workflow.
    """

    id: int
    epoch: int
    queue: str
    task: str
    group: str | None
    priority: int
    turn: float
    attempt: int
    max_attempts: int
    crashes: int
    created_at: int
    run_at: int
    started_at: int
    good_until: int | None
    payload: str
    signature: str | None
    headers: str | None
    options: str | None
    run_id: int | None = None
    run_state: str | None = None
    is_plain: bool = False
    inputs: StepInputs | None = None


class End(msgspec.Struct, frozen=True, gc=False, omit_defaults=True):
    """How one run ended: the only record a worker writes about it.

    `state` is an end, or `ready`, `scheduled` or `waiting` where the job goes back. `refund` is 1 where the attempt was not used,
    `crashed` is 1 where the process of an isolated body died, `unstarted` is 1 where the body was never entered: what its
    rates were charged is given back. `run_id` is there where a step of a workflow has ended, or
    waits because its run is paused. `is_plain` says that a plain job succeeded and nobody judges it: nothing but its row is
    to be written.
    """

    id: int
    epoch: int
    state: str
    keep_us: int = 0
    run_at: int | None = None
    refund: int = 0
    crashed: int = 0
    result: str | None = None
    error: str | None = None
    waits_for_event: bool = False
    unstarted: int = 0
    run_id: int | None = None
    is_plain: bool = False


class Verdict(msgspec.Struct, frozen=True, gc=False):
    """What a run says to a breaker; `none` where it says nothing about what the breaker guards."""

    breaker: str
    outcome: Literal["success", "failure", "none"]


class JudgedEnd(End, frozen=True, gc=False):
    """The end of a run that a breaker guards. The verdicts count in the transaction that accepts the end, or not at all."""

    verdicts: tuple[Verdict, ...] = ()


class JobRecord(msgspec.Struct, frozen=True, gc=False):
    """A job as it is stored, live or finished."""

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
    good_until: int | None
    worker: int | None
    unique_key: str | None
    payload: str
    result: str | None
    errors: str | None
    progress: str | None
    headers: str | None
    options: str | None
    cancel_why: str | None
