"""The scheduler: enqueues the jobs of schedules at their slots. Any number may run: one of them fires each slot."""

import logging
import os
import secrets
import socket
import time
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Protocol

import msgspec

from evenflow.codec import storable_text
from evenflow.errors import StoreUnavailable
from evenflow.ids import IdSource
from evenflow.job import NewJob
from evenflow.rules.recurrence import Due, Pattern, due, jitter_us
from evenflow.schedule import NewSchedule, StoredSchedule
from evenflow.store import schedules
from evenflow.store.enqueue_parameters import Sign
from evenflow.store.open import AnyEngine
from evenflow.store.reads import now_us
from evenflow.store.schedules import Planned
from evenflow.store.signals import Waker

log = logging.getLogger("evenflow.services")

BATCH = 100
LOOK_EVERY_S = 2.0
DECLARE_EVERY_S = 15.0
TRY_AGAIN_S = 60.0


class Plan(Protocol):
    """What a program knows of schedules: those in its code, and how to make the job of one whose task it knows."""

    @property
    def declared(self) -> Sequence[NewSchedule]: ...
    @property
    def task_names(self) -> Sequence[str]: ...
    @property
    def sign(self) -> Sign | None: ...
    def job(self, schedule: StoredSchedule) -> NewJob: ...
    def published(
        self, jobs: Sequence[NewJob]
    ) -> AbstractContextManager[tuple[Sequence[NewJob], list[int]]]: ...


def pattern_of(schedule: NewSchedule | StoredSchedule, anchor: int) -> Pattern:
    """When a schedule fires."""
    return Pattern(schedule.cron, schedule.every_us, schedule.timezone, anchor)


class Scheduler:
    """Fires what its program declares or knows. A schedule that it cannot read or make waits; the others go on."""

    name = "scheduler"

    def __init__(self, engine: AnyEngine, plan: Plan, *, clock: Callable[[], int] | None = None) -> None:
        self._engine = engine
        self._plan = plan
        self._clock = clock
        self._waker = Waker(engine)
        self._ids = IdSource()
        self.id = 1 + secrets.randbits(62)
        self._declare_at = 0.0
        self._is_new = True
        self._postponed: dict[str, float] = {}
        self._fingerprints: list[str] = []

    def step(self) -> float:
        """One pass. Seconds until the next; 0 while there is more to fire."""
        if time.monotonic() >= self._declare_at:
            self._declare()
            self._declare_at = time.monotonic() + DECLARE_EVERY_S
        self._postponed = {key: at for key, at in self._postponed.items() if at > time.monotonic()}
        rows, now = self._look()
        due_rows = [row for row in rows if row.next_run <= now]
        for row in due_rows:
            self._fire_or_postpone(row, now)
        if due_rows:
            return 0.0
        left_s = (rows[0].next_run - now) / 1_000_000 if rows else LOOK_EVERY_S
        return min(LOOK_EVERY_S, left_s)

    def _look(self) -> tuple[list[StoredSchedule], int]:
        rows, now = schedules.due(
            self._engine,
            self._fingerprints,
            self._plan.task_names,
            top=BATCH + len(self._postponed),
            now=self._clock() if self._clock else None,
        )
        return [row for row in rows if row.key not in self._postponed], now

    def _declare(self) -> None:
        """Say that we live and what we declare; take up what no living scheduler declares any more."""
        now = self._clock() if self._clock else now_us(self._engine)
        declared = self._plan.declared
        self._fingerprints = [each.fingerprint for each in declared]
        schedules.see(
            self._engine, self.id, host=socket.gethostname(), pid=os.getpid(), now=now,
            fingerprints=self._fingerprints, tasks=self._plan.task_names,
        )  # fmt: skip
        if declared:
            planned = [Planned(each, pattern_of(each, now).next_after(now)) for each in declared]
            changed = schedules.declare(self._engine, self.id, planned, takes_over=self._is_new, now=now)
            if changed:
                log.info("schedules declared: %s", ", ".join(sorted(changed)))
            if self._is_new:
                self._note_taken(declared)
        self._is_new = False

    def _note_taken(self, declared: Sequence[NewSchedule]) -> None:
        """A key of ours that somebody has added at run time stays theirs: say so."""
        keys = {each.key for each in declared}
        taken = {row.key for row in schedules.found(self._engine) if row.source == "added"} & keys
        for key in sorted(taken):
            log.error(
                "schedule %r of this program does not fire: one with this key was added at run time; "
                "remove that one, or give yours another key=",
                key,
            )

    def _fire_or_postpone(self, row: StoredSchedule, now: int) -> None:
        """Whatever goes wrong with one schedule is no reason to leave the others alone."""
        try:
            self._fire(row, now)
        except StoreUnavailable:
            raise
        except Exception:
            log.exception("schedule %r cannot fire here, and that cannot be noted", row.key)
            self._postponed[row.key] = time.monotonic() + TRY_AGAIN_S

    def _fire(self, row: StoredSchedule, now: int) -> None:
        try:
            found = due(pattern_of(row, row.anchor), row.next_run, now, row.catch_up)
        except Exception as wrong:  # an expression or a zone that this host cannot read
            self._postpone(row, _told(wrong))
            return
        try:
            is_ours = self._enqueue(row, found, now)
        except StoreUnavailable:
            raise
        except Exception as wrong:
            error = _told(wrong)
            is_ours = schedules.fail(self._engine, row, found.slots, found.next_run, error, now=now)
            if is_ours:
                log.error(
                    "schedule %r: its job cannot be enqueued, the slot is passed over: %s", row.key, error
                )
        if is_ours and found.passed:
            log.warning("schedule %r: missed slots are passed over (catch_up=%r)", row.key, row.catch_up)

    def _enqueue(self, row: StoredSchedule, found: Due, now: int) -> bool:
        """Fire the slots; whether it was us who did."""
        new = self._plan.job(row) if found.slots else None
        jobs = [] if new is None else [_at_slot(row, new, slot, now) for slot in found.slots]
        with self._plan.published(jobs) as (published, ids):
            fires = list(zip(found.slots, published, strict=False))
            placed = schedules.fire(
                self._engine, row, fires, found.next_run, ids=self._ids, sign=self._plan.sign, now=now
            )
            ids += [each.id for each in placed or ()]
        if placed and new is not None:
            log.debug("schedule %r fired %d jobs", row.key, len(placed))
            if new.limits or any(job.run_at is not None for job in jobs):
                self._waker.wake_dispatchers()
            else:
                self._waker.wake(new.queue)
        return placed is not None

    def _postpone(self, row: StoredSchedule, error: str) -> None:
        log.error("schedule %r cannot fire here: %s", row.key, error)
        schedules.note_error(self._engine, row.key, error)
        self._postponed[row.key] = time.monotonic() + TRY_AGAIN_S


def _told(wrong: Exception) -> str:
    return storable_text(f"{type(wrong).__name__}: {wrong}")


def _at_slot(row: StoredSchedule, new: NewJob, slot: int, now: int) -> NewJob:
    run_at = slot + jitter_us(row.key, slot, row.jitter_us)
    return msgspec.structs.replace(new, run_at=run_at) if run_at > now else new
