"""What pages show and the API answers: plain values. One shape for both, so that neither knows more than the other."""

from datetime import datetime
from typing import Any

import msgspec

from evenflow.client.why import Reason
from evenflow.store.dashboard import Count


class Shape(msgspec.Struct, frozen=True, kw_only=True):
    """The base of all: named fields, unchangeable."""


class QueueShape(Shape, frozen=True, kw_only=True):
    """A queue: what it holds, its rules, and whether it is served."""

    name: str
    ready: Count
    in_flight: Count
    scheduled: Count
    held: Count
    """Blocked, over the bound, arriving or waiting for other steps."""
    oldest_ready_s: float | None
    priority: int
    fair: str
    max_concurrency: int | None
    max_ready: int | None
    on_full: str
    paused_at: datetime | None
    paused_by: str | None
    paused_why: str | None


class PausedTask(Shape, frozen=True, kw_only=True):
    """A task that is paused in every queue."""

    name: str
    paused_at: datetime
    paused_by: str | None
    paused_why: str | None


class ErrorShape(Shape, frozen=True, kw_only=True):
    """One attempt that did not succeed. Message, traceback and data are for readers."""

    code: str
    class_name: str | None
    attempt: int | None
    at: datetime | None
    message: str | None = None
    traceback: str | None = None
    data: Any = None


class JobLine(Shape, frozen=True, kw_only=True):
    """A job in a list."""

    id: str
    state: str
    task: str
    queue: str
    group: str | None
    priority: int
    attempt: int
    max_attempts: int
    crashes: int
    created_at: datetime
    run_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    progress: float | None
    """Between 0 and 1, where the body has said so."""
    error: ErrorShape | None


class JobPage(Shape, frozen=True, kw_only=True):
    """A page of jobs. `next` is the cursor of the next page; `is_partial`: the search stopped for its time."""

    jobs: list[JobLine]
    next: str | None
    is_partial: bool


class LineShape(Shape, frozen=True, kw_only=True):
    """One line of a job's log."""

    at: datetime
    attempt: int
    level: str
    line: str


class Moment(Shape, frozen=True, kw_only=True):
    """One step of a job's way: what happened, when, and how long it took from the one before."""

    name: str
    at: datetime
    after_s: float | None
    is_future: bool = False


class JobDetail(Shape, frozen=True, kw_only=True):
    """Everything about one job that the one who looks may see. What only readers see is None for others."""

    job: JobLine
    moments: list[Moment]
    errors: list[ErrorShape]
    why: list[Reason]
    worker: str | None
    run: str | None
    good_until: datetime | None
    cancel_why: str | None
    unique_key: str | None = None
    """Made of arguments as a rule, so it is for readers."""
    arguments: dict[str, Any] | None = None
    result: Any = None
    note: Any = None
    """What the body last said with `ctx.progress`."""
    logs: list[LineShape] | None = None
    can: list[str] = []
    """Acts that make sense in its state."""


class GroupShape(Shape, frozen=True, kw_only=True):
    """A tenant of a queue. Shares are between 0 and 1; `fair` is what its weight gives it among those who want turns."""

    name: str
    weight: float
    fair: float
    share: float
    """Its part of the next turns, as they stand in the queue."""
    in_flight: int
    next_turns: int
    waiting: int
    cost_s: float | None


class GroupsShape(Shape, frozen=True, kw_only=True):
    """The groups of one queue."""

    queue: str
    rule: str
    turns: int
    """How many of the next turns were looked at."""
    groups: list[GroupShape]
    is_partial: bool
    """Whether there may be more groups than these; shares are then those among these."""


class LimitShape(Shape, frozen=True, kw_only=True):
    """A limit that is in use."""

    name: str
    kind: str
    used: int
    limit: int
    waiting: int
    opens_at: datetime | None
    holders: list[str]
    rate: str | None
    """The name to reset it by, where it is a rate."""


class BreakerShape(Shape, frozen=True, kw_only=True):
    """A breaker, with how many jobs stand behind it."""

    name: str
    state: str
    failures: int
    failure_threshold: int
    opened_at: datetime | None
    opens_at: datetime | None
    opened_by: str | None
    opened_why: str | None
    probe: str | None
    waiting: int
    guards: list[str]


class WorkerShape(Shape, frozen=True, kw_only=True):
    """A process in the books. `is_alive` compares clocks and is for people."""

    id: str
    parent: str | None
    kind: str
    host: str
    pid: int
    started_at: datetime
    heartbeat_at: datetime
    is_alive: bool
    in_flight: int
    concurrency: int | None
    queues: list[str]
    services: list[str]


class ScheduleShape(Shape, frozen=True, kw_only=True):
    """A schedule: what recurs, and when next."""

    key: str
    text: str
    task: str
    cron: str | None
    timezone: str
    queue: str | None
    description: str | None
    source: str
    next_run: datetime | None
    last_run: datetime | None
    last_job: str | None
    paused: bool
    paused_by: str | None
    paused_why: str | None
    served: bool
    can_run: bool
    error: str | None


class RunShape(Shape, frozen=True, kw_only=True):
    """A run of a workflow."""

    id: str
    workflow: str
    state: str
    key: str | None
    on_error: str
    created_at: datetime
    finished_at: datetime | None
    paused_why: str | None
    error: ErrorShape | None


class StepShape(Shape, frozen=True, kw_only=True):
    """A step of a run."""

    name: str
    kind: str
    task: str | None
    state: str
    job_id: str | None
    parents: list[str]
    """The steps before it, the first hundred of them."""
    parent_count: int
    ended_at: datetime | None
    error: ErrorShape | None


class RunPage(Shape, frozen=True, kw_only=True):
    """A page of runs."""

    runs: list[RunShape]
    next: str | None


class RunDetail(Shape, frozen=True, kw_only=True):
    """A run with a page of its steps, in the order in which they were added; `next` is the cursor of the next page."""

    run: RunShape
    size: Count
    steps: list[StepShape]
    next: str | None
    can: list[str]


class TableShape(Shape, frozen=True, kw_only=True):
    """A table as the server's statistics know it."""

    name: str
    bytes: int | None
    live_rows: int | None
    dead_rows: int | None
    vacuumed_at: datetime | None


class Advice(Shape, frozen=True, kw_only=True):
    """Something about the database that deserves a look."""

    level: str
    text: str


class DatabaseShape(Shape, frozen=True, kw_only=True):
    """The health of the database."""

    kind: str
    address: str
    version: str
    bytes: int
    free_bytes: int | None
    log_bytes: int | None
    connections: int | None
    oldest_transaction_s: float | None
    oldest_transaction: str | None
    horizon_age: int | None
    notify_usage: float | None
    tables: list[TableShape]
    advice: list[Advice]


class AuditShape(Shape, frozen=True, kw_only=True):
    """One act of the audit log; without an outcome where its process died meanwhile."""

    id: int
    at: datetime
    who: str
    role: str
    address: str
    act: str
    target: str
    detail: Any
    outcome: Any


class AuditPage(Shape, frozen=True, kw_only=True):
    """A page of the audit log."""

    acts: list[AuditShape]
    next: int | None


class Point(Shape, frozen=True, kw_only=True):
    """One minute of the past."""

    at: datetime
    succeeded: int
    failed: int
    retried: int
    wait_p50_s: float | None
    wait_p95_s: float | None
    run_p50_s: float | None
    run_p95_s: float | None


class TaskShape(Shape, frozen=True, kw_only=True):
    """What a task did in a queue in the last hour."""

    task: str
    queue: str
    per_minute: float
    succeeded: int
    failed: int
    retried: int
    wait_p95_s: float | None
    run_p50_s: float | None
    run_p95_s: float | None


class Pulse(Shape, frozen=True, kw_only=True):
    """The numbers that stand at the top of every page."""

    ready: Count
    in_flight: Count
    scheduled: Count
    held: Count
    failed: Count
    """Failed and quarantined jobs that are kept."""
    oldest_ready_s: float | None
    workers: int
    slots: int


class Overview(Shape, frozen=True, kw_only=True):
    """The first page."""

    pulse: Pulse
    queues: list[QueueShape]
    points: list[Point]
    tasks: list[TaskShape]
    failures: list[JobLine]
    alarms: list[Advice]
