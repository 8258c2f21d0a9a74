"""Rows of the store as the shapes that pages and API show: what is the same for everybody who may look. No I/O."""

from datetime import datetime
from typing import Any

import msgspec

from evenflow import JobError, State
from evenflow.client.history import MinuteRow, TaskRow
from evenflow.client.limit_rows import LimitRow
from evenflow.client.schedules import Schedule
from evenflow.clock import from_us
from evenflow.ids import id_text
from evenflow.job import JobRecord
from evenflow.store import dashboard, leases
from evenflow.store.dashboard import Depths
from evenflow.store.gates import BreakerRow, Gate
from evenflow.store.reads import QueueRow
from evenflow.web import shapes

IN_FLIGHT = ("claimed", "running")
HELD = ("blocked", "overflow", "arriving", "waiting")
_errors = msgspec.json.Decoder(list[JobError])


def point(row: MinuteRow) -> shapes.Point:
    """One minute of the past, for charts."""
    return shapes.Point(
        at=row.at, succeeded=row.succeeded, failed=row.failed + row.quarantined, retried=row.retried,
        wait_p50_s=row.wait_p50, wait_p95_s=row.wait_p95, run_p50_s=row.run_p50, run_p95_s=row.run_p95,
    )  # fmt: skip


def task_shape(row: TaskRow, minutes: int) -> shapes.TaskShape:
    """What a task did in the last minutes."""
    return shapes.TaskShape(
        task=row.task, queue=row.queue, per_minute=row.ended / minutes, succeeded=row.succeeded, failed=row.failed,
        retried=row.retried, wait_p95_s=row.wait_p95, run_p50_s=row.run_p50, run_p95_s=row.run_p95,
    )  # fmt: skip


def queue_shape(
    name: str, row: QueueRow | None, depths: Depths, since: int | None, now: int
) -> shapes.QueueShape:
    """A queue, also one that only its jobs speak of."""
    return shapes.QueueShape(
        name=name,
        ready=depths.of(name, "ready"),
        in_flight=depths.of(name, *IN_FLIGHT),
        scheduled=depths.of(name, "scheduled"),
        held=depths.of(name, *HELD),
        oldest_ready_s=None if since is None else max(0.0, (now - since) / 1e6),
        priority=row.priority if row else 50,
        fair=row.fair if row else "round-robin",
        max_concurrency=row.max_concurrency if row else None,
        max_ready=row.max_ready if row else None,
        on_full=row.on_full if row else "overflow",
        paused_at=moment(row.paused_at) if row else None,
        paused_by=row.paused_by if row else None,
        paused_why=row.paused_why if row else None,
    )


def paused_task(gate: Gate) -> shapes.PausedTask:
    """A task that is paused."""
    return shapes.PausedTask(
        name=gate.name, paused_at=from_us(gate.shut_at), paused_by=gate.shut_by, paused_why=gate.shut_why
    )


def group_shape(row: dashboard.GroupRow, turns: int, weights: float) -> shapes.GroupShape:
    """A group, with its part of the next turns and the part that its weight gives it."""
    return shapes.GroupShape(
        name=row.group, weight=row.weight, in_flight=row.in_flight, next_turns=row.next_turns, waiting=row.waiting,
        share=row.next_turns / turns if turns else 0.0,
        fair=row.weight / weights if weights and row.next_turns else 0.0,
        cost_s=None if row.cost_us is None else row.cost_us / 1e6,
    )  # fmt: skip


def limit_shape(row: LimitRow) -> shapes.LimitShape:
    """A limit in use; `rate` names the queue or task whose rate it is."""
    parts = row.name.split(":")
    return shapes.LimitShape(
        name=row.name, kind=row.kind, used=row.used, limit=row.limit, waiting=row.waiting, opens_at=row.opens_at,
        holders=list(row.holders),
        rate=parts[2] if row.kind == "rate" and len(parts) > 2 and parts[1] in ("queue", "task") else None,
    )  # fmt: skip


def breaker_shape(row: BreakerRow) -> shapes.BreakerShape:
    """A breaker and its probe."""
    return shapes.BreakerShape(
        name=row.name, state=row.state.value, failures=row.failures, failure_threshold=row.failure_threshold,
        opened_at=moment(row.opened_at), opens_at=moment(row.opens_at), opened_by=row.opened_by,
        opened_why=row.opened_why, probe=None if row.probe_job is None else id_text(row.probe_job), waiting=row.waiting,
        guards=list(row.guards),
    )  # fmt: skip


def worker_shape(row: leases.Worker, now: int, in_flight: int) -> shapes.WorkerShape:
    """A process in the books."""
    said = about(row)
    return shapes.WorkerShape(
        id=id_text(row.id), parent=None if row.parent is None else id_text(row.parent), kind=row.kind, host=row.host,
        pid=row.pid, started_at=from_us(row.started_at), heartbeat_at=from_us(row.beat_at), is_alive=is_alive(row, now),
        in_flight=in_flight, concurrency=said.get("concurrency"), queues=list(said.get("queues") or ()),
        services=list(said.get("services") or ()),
    )  # fmt: skip


def schedule_shape(row: Schedule, can_run: bool) -> shapes.ScheduleShape:
    """What recurs; it can be run by hand where its task is known."""
    return shapes.ScheduleShape(
        key=row.key, text=row.text, task=row.task, cron=row.cron, timezone=row.timezone, queue=row.queue,
        description=row.description, source=row.source, next_run=row.next_run, last_run=row.last_run, last_job=row.last_job,
        paused=row.paused, paused_by=row.paused_by, paused_why=row.paused_why, served=row.served, can_run=can_run,
        error=row.error,
    )  # fmt: skip


def about(row: leases.Worker) -> dict[str, Any]:
    """What a process has said of itself with its last heartbeat."""
    said: dict[str, Any] = msgspec.json.decode(row.about)
    return said


def is_alive(row: leases.Worker, now: int) -> bool:
    """Whether its lease has not run out."""
    return now - row.beat_at <= row.lease_us


def moments(record: JobRecord, now: int) -> list[shapes.Moment]:
    """The way of a job through its states, as far as its times tell."""
    errors = errors_of(record.errors)
    steps: list[tuple[str, int]] = [("created", record.created_at)]
    is_retry = bool(errors) or record.attempt > 1
    if record.run_at > record.created_at and not is_retry:
        steps.append(("due", record.run_at))
    current = record.attempt if record.state.is_in_flight or record.finished_at is not None else None
    is_end = record.finished_at is not None
    steps += [
        (f"attempt {error.attempt} failed: {error.code}" if error.attempt else error.code, error.at)
        for error in errors
        if error.at is not None and not (is_end and error.attempt == record.attempt)  # that is the end itself
    ]
    if record.state is State.SCHEDULED and is_retry:
        steps.append(("tried again", record.run_at))
    if record.started_at is not None:
        steps.append((f"attempt {current} started" if current else "last started", record.started_at))
    if record.finished_at is not None:
        last = f": {errors[-1].code}" if errors and record.state is not State.SUCCEEDED else ""
        steps.append((f"{record.state.value}{last}", record.finished_at))
    steps.sort(key=lambda step: step[1])
    return [
        shapes.Moment(
            name=name, at=from_us(at), after_s=(at - steps[place - 1][1]) / 1e6 if place else None, is_future=at > now
        )
        for place, (name, at) in enumerate(steps)
    ]  # fmt: skip


def errors_of(stored: str | None) -> list[JobError]:
    """Stored errors, oldest first."""
    return _errors.decode(stored) if stored else []


def moment(stored: int | None) -> datetime | None:
    """A stored time, if there is one."""
    return None if stored is None else from_us(stored)
