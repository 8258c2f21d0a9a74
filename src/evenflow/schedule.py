"""The values of a schedule: what is declared, what is stored. Plain data, no behaviour but the fingerprint."""

import hashlib
from typing import Literal, TypeAlias

import msgspec

CatchUp: TypeAlias = Literal["skip", "one", "all"]
Overlap: TypeAlias = Literal["allow", "skip"]
Source: TypeAlias = Literal["code", "added"]

SCHEDULER_SILENT_US = 60_000_000
"""A scheduler that has not been seen for this long is gone, and with it what only it declares."""


class NewSchedule(msgspec.Struct, frozen=True):
    """What code or an operator says about a schedule. Without a queue or a priority the task's own count."""

    key: str
    task: str
    payload: str
    cron: str | None = None
    every_us: int | None = None
    timezone: str = "UTC"
    queue: str | None = None
    priority: int | None = None
    catch_up: CatchUp = "skip"
    overlap: Overlap = "allow"
    jitter_us: int = 0
    description: str | None = None

    @property
    def fingerprint(self) -> str:
        """The same for the same words, whoever declares them: it tells two versions of a program apart."""
        return hashlib.sha256(msgspec.json.encode(self)).hexdigest()[:32]


class StoredSchedule(msgspec.Struct, frozen=True):
    """A schedule as it is stored. `is_served`: a scheduler that is alive declares it, or knows its task."""

    key: str
    source: Source
    fingerprint: str
    task: str
    payload: str
    cron: str | None
    every_us: int | None
    timezone: str
    queue: str | None
    priority: int | None
    catch_up: CatchUp
    overlap: Overlap
    jitter_us: int
    description: str | None
    anchor: int
    created_at: int
    next_run: int
    last_run: int | None
    last_job: int | None
    paused_at: int | None
    paused_by: str | None
    paused_why: str | None
    error: str | None
    is_served: bool
