"""What bodies said with `ctx.log`: lines kept beside the job."""

from collections.abc import Sequence

import msgspec

from evenflow.settings import Retention
from evenflow.store.engine import Engine, as_json
from evenflow.store.retention import kept_us


class NewLine(msgspec.Struct, frozen=True):
    """One line of a run, before it is stored."""

    job_id: int
    at: int
    attempt: int
    number: int
    level: str
    line: str


class LogLine(msgspec.Struct, frozen=True):
    """One stored line."""

    at: int
    attempt: int
    level: str
    line: str


def add(engine: Engine, lines: Sequence[NewLine], retention: Retention) -> None:
    """Store lines for as long as failed jobs are kept."""
    engine.run("add_log", {"lines": as_json(lines), "keep_us": kept_us(retention, "failed")})


def of(engine: Engine, job: int, *, top: int = 1000) -> list[LogLine]:
    """The lines of a job, oldest first."""
    return [LogLine(*row) for row in engine.run("job_log", {"id": job, "top": top})]


def prune(engine: Engine, *, top: int = 1000, now: int | None = None) -> int:
    """Delete lines whose time has passed, at most `top`."""
    return len(engine.run("prune_logs", {"top": top, "now": now}))
