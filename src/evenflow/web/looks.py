"""Looking: from the store to the shapes that pages and API show. Reads only, each bounded whatever the backlog is."""

import itertools
from typing import Any

import msgspec

from evenflow import Evenflow, JobError, JobNotFound, State
from evenflow.client.limit_rows import limit_rows
from evenflow.client.why import Reason, reasons
from evenflow.clock import from_us
from evenflow.codec import decode_call, readable_result
from evenflow.errors import DecodeError
from evenflow.ids import id_number, id_text, job_number
from evenflow.job import JobRecord
from evenflow.store import audit, dashboard, gates, leases, logs, reads, runs
from evenflow.store.dashboard import Count, Depths, Listed, StepLine
from evenflow.store.open import AnyEngine
from evenflow.store.reads import Filter
from evenflow.store.runs import RunRow
from evenflow.store.workflows import CONTAINERS
from evenflow.web import shapes
from evenflow.web.access import Permission, Principal
from evenflow.web.advice import alarms, database_advice
from evenflow.web.rows import (
    HELD,
    IN_FLIGHT,
    about,
    breaker_shape,
    errors_of,
    group_shape,
    is_alive,
    limit_shape,
    moment,
    moments,
    paused_task,
    queue_shape,
    schedule_shape,
    worker_shape,
)
from evenflow.web.texts import REDACTED, Redaction

RETRIED = frozenset({"failed", "quarantined", "cancelled", "expired", "discarded", "scheduled"})
DISCARDED = frozenset(
    {"failed", "quarantined", "cancelled", "expired", "ready", "scheduled", "blocked", "overflow", "arriving"}
)
OWN_RULES = frozenset(
    {"arriving", "scheduled", "workflow", "running", "pause", "expiry", "blocked", "worker"}
)
"""Reasons whose texts are about the job itself, or about everybody alike."""
MOST_LIMITS = 200
LAST_FAILURES = 8


class Looker:
    """Looks for one principal: what only readers may see is left out for everybody else."""

    def __init__(self, app: Evenflow, engine: AnyEngine, who: Principal, redaction: Redaction) -> None:
        self._app = app
        self._engine = engine
        self._who = who
        self._reads = who.may(Permission.READ)
        self._redaction = redaction

    def now(self) -> int:
        return reads.now_us(self._engine)

    def pulse(self, depths: Depths | None = None, oldest: dict[str, int] | None = None) -> shapes.Pulse:
        """The headline numbers."""
        counted = depths or dashboard.depths(self._engine)
        now = self.now()
        oldest = dashboard.oldest_ready(self._engine) if oldest is None else oldest
        alive = [row for row in leases.workers(self._engine) if row.kind == "worker" and is_alive(row, now)]
        return shapes.Pulse(
            ready=counted.total("ready"),
            in_flight=counted.total(*IN_FLIGHT),
            scheduled=counted.total("scheduled"),
            held=counted.total(*HELD),
            failed=_added(dashboard.ends(self._engine), "failed", "quarantined"),
            oldest_ready_s=max(((now - since) / 1e6 for since in oldest.values()), default=None),
            workers=len(alive),
            slots=sum(about(row).get("concurrency") or 0 for row in alive),
        )

    def overview(self, points: list[shapes.Point], tasks: list[shapes.TaskShape]) -> shapes.Overview:
        """The first page: numbers, queues, the last hour, the last failures, and what deserves a look."""
        depths = dashboard.depths(self._engine)
        oldest = dashboard.oldest_ready(self._engine)
        pulse, queues = self.pulse(depths, oldest), self.queues(depths, oldest)
        return shapes.Overview(
            pulse=pulse,
            queues=queues,
            points=points,
            tasks=tasks,
            failures=[self._line(job) for job in self._last_failures()],
            alarms=alarms(pulse, queues, self.breakers()),
        )

    def _last_failures(self) -> list[Listed]:
        """The newest of what the headline counts: failed jobs, and those that killed their workers or were forged."""
        states = (State.FAILED, State.QUARANTINED)
        found = [dashboard.search(self._engine, Filter(state), top=LAST_FAILURES).jobs for state in states]
        return sorted(itertools.chain(*found), key=lambda job: job.id, reverse=True)[:LAST_FAILURES]

    def queue_names(self) -> list[str]:
        """Every queue that was declared, paused or used; for those who see the whole cluster."""
        if self._who.tenants is not None:
            return []
        return [row.name for row in reads.queues(self._engine)]

    def queues(
        self, depths: Depths | None = None, oldest: dict[str, int] | None = None
    ) -> list[shapes.QueueShape]:
        """Every queue that was declared, paused or used."""
        counted = depths or dashboard.depths(self._engine)
        oldest = dashboard.oldest_ready(self._engine) if oldest is None else oldest
        now = self.now()
        known = {row.name: row for row in reads.queues(self._engine)}
        names = sorted(known.keys() | counted.by_queue.keys())
        return [queue_shape(name, known.get(name), counted, oldest.get(name), now) for name in names]

    def ends(self) -> dict[str, Count]:
        """Kept jobs that did not succeed, by how they ended; for those who see the whole cluster."""
        return dashboard.ends(self._engine) if self._who.tenants is None else {}

    def paused_tasks(self) -> list[shapes.PausedTask]:
        """Tasks that are paused."""
        return [paused_task(gate) for gate in gates.gates(self._engine) if gate.cause == "pause"]

    def jobs(self, wanted: Filter, before: int | None, top: int) -> shapes.JobPage:
        """A page of jobs, newest first."""
        start = reads.NEWEST if before is None else before
        found = dashboard.search(self._engine, wanted, before=start, top=top, among=self._who.among)
        following = None if found.following is None else id_text(found.following)
        return shapes.JobPage(
            jobs=[self._line(job) for job in found.jobs], next=following, is_partial=found.is_partial
        )

    def job(self, id: str) -> shapes.JobDetail:
        """Everything about one job, or JobNotFound."""
        record, place, now = self._record(id), runs.place_of(self._engine, job_number(id)), self.now()
        detail: dict[str, Any] = {}
        if self._reads:
            detail = {
                "arguments": self._arguments(record),
                "result": self._redaction.applied(_plain(readable_result(record.result))),
                "note": msgspec.json.decode(record.progress) if record.progress else None,
                "logs": self._log(record.id),
                "unique_key": record.unique_key,
            }
        state = record.state
        acts = {
            "retry": state.value in RETRIED,
            "cancel": not state.is_end,
            "discard": state.value in DISCARDED,
        }
        return shapes.JobDetail(
            job=self._line(_listed(record)),
            moments=moments(record, now),
            errors=[self._error(error) for error in errors_of(record.errors)],
            why=self._why(record),
            worker=None if record.worker is None or self._who.tenants is not None else id_text(record.worker),
            run=None if place is None or self._who.tenants is not None else id_text(place[0]),
            good_until=moment(record.good_until),
            cancel_why=record.cancel_why,
            can=[act for act, makes_sense in acts.items() if makes_sense],
            **detail,
        )

    def groups(self, queue: str) -> shapes.GroupsShape:
        """The groups of a queue, with their part of the next turns against their fair part."""
        rows = dashboard.groups(self._engine, queue)
        known = next((row for row in reads.queues(self._engine) if row.name == queue), None)
        turns = sum(row.next_turns for row in rows)
        weights = sum(row.weight for row in rows if row.next_turns)
        return shapes.GroupsShape(
            queue=queue,
            rule=known.fair if known else "round-robin",
            turns=turns,
            groups=[group_shape(row, turns, weights) for row in rows],
            is_partial=len(rows) >= dashboard.GROUPS,
        )

    def queues_with_groups(self) -> list[str]:
        """Queues in the order of their names, those whose rule knows groups."""
        return [row.name for row in reads.queues(self._engine) if row.fair != "fifo"]

    def limits(self) -> list[shapes.LimitShape]:
        """Every limit in use: caps, bounds, keys, locks, groups and rates."""
        return [
            limit_shape(row)
            for row in limit_rows(self._engine, counted=dashboard.MOST_COUNTED, top=MOST_LIMITS)
        ]

    def breakers(self) -> list[shapes.BreakerShape]:
        """Every breaker that was ever declared."""
        return [breaker_shape(row) for row in gates.breakers(self._engine, counted=dashboard.MOST_COUNTED)]

    def workers(self) -> list[shapes.WorkerShape]:
        """Processes in the books: supervisors first, each followed by its children."""
        now, busy = self.now(), dashboard.in_flight_by_worker(self._engine)
        rows = leases.workers(self._engine)
        known = {row.id for row in rows}
        order = sorted(
            rows, key=lambda row: (row.parent if row.parent in known else row.id, row.parent in known, row.id)
        )
        return [worker_shape(row, now, busy.get(row.id, 0)) for row in order]

    def schedules(self) -> list[shapes.ScheduleShape]:
        """What recurs."""
        return [schedule_shape(row, row.task in self._app.tasks) for row in self._app.schedules.list()]

    def runs(self, state: str | None, workflow: str | None, before: int | None, top: int) -> shapes.RunPage:
        """A page of runs of workflows, newest first."""
        start = runs.NEWEST if before is None else before
        rows = runs.page(self._engine, state=state, name=workflow, before=start, top=top + 1)
        found = [self._run(row) for row in rows[:top]]
        return shapes.RunPage(runs=found, next=id_text(rows[top - 1].id) if len(rows) > top else None)

    def run(self, id: str, after: int | None, top: int) -> shapes.RunDetail:
        """A run with a page of its steps, or JobNotFound."""
        number = id_number(self._app.workflow_run(id).id)
        row = runs.find(self._engine, number)
        if row is None:
            raise JobNotFound(f"there is no run {id}")
        size, has_failed = dashboard.size_of_run(self._engine, number)
        steps = dashboard.steps(self._engine, number, after=after or 0, top=top + 1)
        acts = {
            "cancel": row.state in ("running", "paused"),
            "pause": row.state == "running",
            "resume": row.state == "paused",
            "retry": has_failed or row.state == "failed",
        }
        return shapes.RunDetail(
            run=self._run(row),
            size=size,
            steps=[self._step(step) for step in steps[:top]],
            next=id_text(steps[top - 1].id) if len(steps) > top else None,
            can=[act for act, makes_sense in acts.items() if makes_sense],
        )

    def database(self) -> shapes.DatabaseShape:
        """The health of the database, with advice."""
        facts = dashboard.facts(self._engine)
        tables = [
            shapes.TableShape(
                name=row.name, bytes=row.bytes, live_rows=row.live_rows, dead_rows=row.dead_rows,
                vacuumed_at=moment(row.vacuumed_at),
            )
            for row in dashboard.tables(self._engine)
        ]  # fmt: skip
        oldest_s = None if facts.oldest_at is None else max(0.0, (facts.now - facts.oldest_at) / 1e6)
        return shapes.DatabaseShape(
            kind=facts.kind, address=self._app.settings.database.masked(), version=facts.version, bytes=facts.bytes,
            free_bytes=facts.free_bytes, log_bytes=facts.log_bytes, connections=facts.connections,
            oldest_transaction_s=oldest_s, oldest_transaction=facts.oldest_what if oldest_s is not None else None,
            horizon_age=facts.horizon_age, notify_usage=facts.notify_usage, tables=tables,
            advice=database_advice(facts, oldest_s, tables),
        )  # fmt: skip

    def audit(self, before: int | None, top: int) -> shapes.AuditPage:
        """What people did, newest first."""
        rows = audit.page(self._engine, before=audit.NEWEST if before is None else before, top=top + 1)
        acts = [
            shapes.AuditShape(
                id=row.id, at=from_us(row.at), who=row.who, role=row.role, address=row.address, act=row.act,
                target=row.target, detail=row.detail, outcome=row.outcome,
            )
            for row in rows[:top]
        ]  # fmt: skip
        return shapes.AuditPage(acts=acts, next=rows[top - 1].id if len(rows) > top else None)

    def _record(self, id: str) -> JobRecord:
        wanted = job_number(id)
        record = reads.find(self._engine, [wanted]).get(wanted)
        if record is None or not self._who.sees(record.group):
            raise JobNotFound(f"there is no job {id}: it kept no result, or its retention has passed")
        return record

    def _why(self, record: JobRecord) -> list[Reason]:
        found = [] if record.state.is_end else reasons(self._engine, record)
        return found if self._who.tenants is None else [self._own(reason) for reason in found]

    def _own(self, reason: Reason) -> Reason:
        """A reason without what others hold: neither their jobs nor how many they are."""
        numbers = [job_number(id) for id in reason.holders]
        known = reads.find(self._engine, numbers) if numbers else {}
        holders = tuple(
            id_text(each) for each in numbers if each in known and self._who.sees(known[each].group)
        )
        text = reason.text if reason.rule in OWN_RULES else "it is full, or others come first"
        return Reason(reason.rule, text, reason.until, holders)

    def _line(self, job: Listed) -> shapes.JobLine:
        errors = errors_of(job.errors)
        return shapes.JobLine(
            id=id_text(job.id), state=job.state.value, task=job.task, queue=job.queue, group=job.group,
            priority=job.priority, attempt=job.attempt, max_attempts=job.max_attempts, crashes=job.crashes,
            created_at=from_us(job.created_at), run_at=from_us(job.run_at), started_at=moment(job.started_at),
            finished_at=moment(job.finished_at), progress=_share_done(job.progress),
            error=self._error(errors[-1], in_list=True) if errors else None,
        )  # fmt: skip

    def _error(self, error: JobError, *, in_list: bool = False) -> shapes.ErrorShape:
        seen = shapes.ErrorShape(
            code=error.code, class_name=error.class_name, attempt=error.attempt, at=moment(error.at)
        )
        if not self._reads:
            return seen
        if in_list:
            return msgspec.structs.replace(seen, message=error.message)
        data = self._redaction.applied(_plain(error.data))
        return msgspec.structs.replace(seen, message=error.message, traceback=error.traceback, data=data)

    def _arguments(self, record: JobRecord) -> dict[str, Any]:
        """Arguments by name, as far as the task's signature tells; secrets hidden."""
        try:
            # Without annotations: no code of the application runs here.
            args, kwargs = decode_call(record.payload)
        except DecodeError as wrong:
            return {"(unreadable)": str(wrong)}
        task = self._app.tasks.get(record.task)
        named: dict[str, Any] = {}
        for place, value in enumerate(args):
            name = _position_name(task, place)
            named[f"{name}[{place}]" if name in named else name] = value
        named |= kwargs
        return {
            name: REDACTED if self._redaction.hides(name) else self._redaction.applied(_plain(value))
            for name, value in named.items()
        }

    def _log(self, job: int) -> list[shapes.LineShape]:
        rows = logs.of(self._engine, job)
        return [
            shapes.LineShape(at=from_us(row.at), attempt=row.attempt, level=row.level, line=row.line)
            for row in rows
        ]

    def _run(self, row: RunRow) -> shapes.RunShape:
        error = None if row.error is None else msgspec.json.decode(row.error, type=JobError)
        return shapes.RunShape(
            id=id_text(row.id), workflow=row.name, state=row.state, key=row.key, on_error=row.on_error,
            created_at=from_us(row.created_at), finished_at=moment(row.finished_at), paused_why=row.paused_why,
            error=None if error is None else self._error(error, in_list=True),
        )  # fmt: skip

    def _step(self, step: StepLine) -> shapes.StepShape:
        errors = errors_of(step.errors) if step.state != "succeeded" else []
        return shapes.StepShape(
            name=step.name, kind=step.kind, task=step.task, state=step.state,
            job_id=None if step.kind in CONTAINERS else id_text(step.id), parents=step.parents,
            parent_count=step.parent_count, ended_at=moment(step.ended_at),
            error=self._error(errors[-1], in_list=True) if errors else None,
        )  # fmt: skip


def _added(counts: dict[str, Count], *states: str) -> Count:
    found = [counts.get(state, Count(0)) for state in states]
    return Count(sum(each.jobs for each in found), any(each.is_more for each in found))


def _listed(record: JobRecord) -> Listed:
    return Listed(
        record.id, record.state, record.queue, record.task, record.group, record.priority, record.attempt,
        record.max_attempts, record.crashes, record.created_at, record.run_at, record.started_at, record.finished_at,
        record.errors, record.progress,
    )  # fmt: skip


def _share_done(progress: str | None) -> float | None:
    said = msgspec.json.decode(progress) if progress else None
    if not isinstance(said, dict):
        return None
    done, total = said.get("done"), said.get("total")
    if not isinstance(done, int | float) or not isinstance(total, int | float) or not total:
        return None
    return max(0.0, min(1.0, done / total))


def _plain(value: Any) -> Any:
    """Any value as JSON has it, so that secrets are found by their names also inside of objects."""
    return msgspec.json.decode(msgspec.json.encode(value, enc_hook=str))


def _position_name(task: Any, place: int) -> str:
    return str(task.signature.position_name(place)) if task is not None else f"[{place}]"
