"""Starting: what claimed jobs need before they get their slots. Locks that are not waited for, and what steps ask for."""

from collections.abc import Callable, Sequence

import msgspec

from evenflow.job import Claimed, End
from evenflow.store import limits, runs
from evenflow.store.engine import Engine
from evenflow.worker.slots import Slots, takes_lock


class Starting:
    """Brings jobs into slots and counts them (`started`). `write_ends` writes the ends that have gathered, if any."""

    def __init__(self, store: Engine, worker: int, slots: Slots, write_ends: Callable[[], None]) -> None:
        self._store = store
        self._worker = worker
        self._slots = slots
        self._write_ends = write_ends
        self.started = 0

    def start(self, jobs: Sequence[Claimed], asked_at: float) -> list[End]:
        """Start jobs whose claim was sent at `asked_at`; the ends of those whose locks others hold."""
        locked = [job for job in jobs if takes_lock(job)]
        if not locked:
            self._fill(jobs, asked_at)
            return []
        self._fill([job for job in jobs if not takes_lock(job)], asked_at)
        return self._start_locked(locked, asked_at)

    def _start_locked(self, jobs: Sequence[Claimed], asked_at: float) -> list[End]:
        """Jobs that do not wait for their locks: those that get them start, the others end without a run.

        Signatures are verified before: what is forged gets no lock, and is quarantined whoever has it.
        """
        jobs = self._slots.genuine(jobs)
        # First what has ended here meanwhile: a lock is held until the end of its holder is written.
        self._write_ends()
        # Where this fails nothing has started: the claims are found again as ours without our knowing, and go back.
        granted = limits.take_locks(self._store, self._worker, jobs)
        refused = [job for job in jobs if job.id not in granted]
        holders = limits.locks(self._store, [job.id for job in refused]) if refused else {}
        self._fill([job for job in jobs if job.id in granted], asked_at)
        return [self._slots.contended(job, *holders.get(job.id, ("its lock", None))) for job in refused]

    def _fill(self, jobs: Sequence[Claimed], asked_at: float) -> None:
        self.started += len(jobs)
        self._slots.start(self._with_inputs(jobs), asked_at)

    def _with_inputs(self, jobs: Sequence[Claimed]) -> Sequence[Claimed]:
        """Steps of workflows with what they need to start; its parents' results are read where they are stored."""
        steps = [job.id for job in jobs if job.run_id is not None and self._slots.asks(job)]
        if not steps:
            return jobs
        found = runs.inputs(self._store, steps)
        return [
            msgspec.structs.replace(job, inputs=found[job.id]) if job.id in found else job for job in jobs
        ]
