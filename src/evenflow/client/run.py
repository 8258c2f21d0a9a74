"""The handle on a run of a workflow: its steps, its result, and control over it."""

from collections.abc import Callable
from datetime import datetime
from typing import Any, Generic, TypeVar

import msgspec

from evenflow.client import graph
from evenflow.client.results import Results
from evenflow.clock import from_us
from evenflow.codec import decode_result
from evenflow.errors import JobNotFound, RunCancelled, RunFailed
from evenflow.ids import id_text
from evenflow.job import JobError
from evenflow.settings import Retention
from evenflow.store import control, runs
from evenflow.store.open import AnyEngine
from evenflow.store.runs import RunRow
from evenflow.store.signals import Waker
from evenflow.store.workflows import CONTAINERS, RUN_ENDS, Settled

T_co = TypeVar("T_co", covariant=True)
_errors = msgspec.json.Decoder(list[JobError])


class RunStep(msgspec.Struct, frozen=True):
    """One step of a run. `state` is that of its job, `waiting` while its parents are open; containers have no job."""

    name: str
    task: str | None
    state: str
    job_id: str | None
    error: JobError | None
    kind: str
    ended_at: datetime | None
    parents: tuple[str, ...]


class Desk(msgspec.Struct, frozen=True):
    """What all runs of an app share: the store, retention, wake-ups and waiting."""

    engine: AnyEngine
    retention: Retention
    waker: Waker
    results: Results
    make_ready: Callable[[], None]


class Run(Generic[T_co]):
    """One start of a workflow. The attributes are those of the moment it was read; `refresh()` reads again.

    >>> run = wf.start(id="report-2026-11")      # doctest: +SKIP
    >>> run.result(timeout=60)                   # doctest: +SKIP
    """

    __slots__ = ("_desk", "_number", "_row", "is_new")

    def __init__(self, desk: Desk, number: int, row: RunRow | None = None, *, is_new: bool = True) -> None:
        self._desk = desk
        self._number = number
        self._row = row
        self.is_new = is_new
        """False where a run with this id was there already."""

    @property
    def id(self) -> str:
        return id_text(self._number)

    @property
    def key(self) -> str | None:
        """The id that was given to `start`."""
        return self._read().key

    @property
    def workflow(self) -> str:
        """The name of the workflow."""
        return self._read().name

    @property
    def state(self) -> str:
        """`running`, `paused`, `succeeded`, `failed` or `cancelled`."""
        return self._read().state

    @property
    def created_at(self) -> datetime:
        return from_us(self._read().created_at)

    @property
    def finished_at(self) -> datetime | None:
        finished = self._read().finished_at
        return None if finished is None else from_us(finished)

    @property
    def error(self) -> JobError | None:
        """Why it failed or was cancelled."""
        text = self._read().error
        return None if text is None else msgspec.json.decode(text, type=JobError)

    @property
    def paused_why(self) -> str | None:
        return self._read().paused_why

    def refresh(self) -> "Run[T_co]":
        """Read the run again, in place. `JobNotFound` if its retention has passed."""
        self._row = self._found()
        return self

    def steps(self) -> list[RunStep]:
        """The steps as they are now, in the order in which they were added."""
        self._desk.make_ready()
        # Edges first: what is added between the two reads is then missing among the edges, not among the steps.
        edges = runs.edges_of(self._desk.engine, self._number)
        rows = runs.steps_of(self._desk.engine, self._number)
        names = {row.id: row.name for row in rows}
        parents: dict[int, list[str]] = {}
        for parent, child in edges:
            parents.setdefault(child, []).append(names[parent])
        return [
            RunStep(
                row.name, row.task, row.state, None if row.kind in CONTAINERS else id_text(row.id),
                _errors.decode(row.errors)[-1] if row.errors and row.state != "succeeded" else None, row.kind,
                None if row.ended_at is None else from_us(row.ended_at), tuple(parents.get(row.id, ())),
            )
            for row in rows
        ]  # fmt: skip

    def dot(self) -> str:
        """The graph with its states, for Graphviz."""
        return graph.dot(self.workflow, self.steps())

    def mermaid(self) -> str:
        """The graph with its states, for Mermaid."""
        return graph.mermaid(self.steps())

    def results(self) -> dict[str, Any]:
        """What the steps have returned so far, by name."""
        self._desk.make_ready()
        texts = runs.results(self._desk.engine, self._number)
        return {name: decode_result(text) for name, text in texts.items()}

    def result(self, timeout: float | None = None) -> T_co:
        """Wait for the end and return the result of the run.

        Raises `RunFailed` (a `JobFailed`) or `RunCancelled` as it ended, `ResultTimeout` when the time is over.
        """
        self._row = self._desk.results.wait_until(self._number, self._ended, timeout, f"run {self.id}")
        return self._outcome()

    async def aresult(self, timeout: float | None = None) -> T_co:
        """`result`, awaited."""
        self._row = await self._desk.results.await_until(self._number, self._ended, timeout, f"run {self.id}")
        return self._outcome()

    def cancel(self, reason: str = "") -> bool:
        """End the run: steps that do not run yet are cancelled now, the others are told. False if it had ended."""
        self._desk.make_ready()
        done = runs.cancel(self._desk.engine, self._number, self._desk.retention, reason)
        self._desk.waker.announce_ends()
        self._row = None
        return done

    def pause(self, why: str | None = None) -> bool:
        """Start no more steps; what runs goes on. False if it is paused or has ended."""
        self._desk.make_ready()
        done = runs.pause(self._desk.engine, self._number, why)
        self._row = None
        return done

    def resume(self) -> bool:
        """Go on. After a pause for an error the failure counts: what waits for it is skipped. False if not paused."""
        self._desk.make_ready()
        settled = runs.resume(self._desk.engine, self._number, self._desk.retention)
        self._row = None
        if settled is not None:
            self._wake(settled)
        return settled is not None

    def retry(self) -> int:
        """Run failed steps again, and what was skipped for them; what succeeded stays. How many steps are open again."""
        self._desk.make_ready()
        settled = runs.retry(self._desk.engine, self._number, self._desk.retention)
        self._row = None
        if settled is None:
            return 0
        self._wake(settled)
        return len(settled.reopened)

    def _wake(self, settled: Settled) -> None:
        self._desk.waker.wake(*settled.queues, *control.admit(self._desk.engine, self._desk.retention))
        if settled.ended:
            self._desk.waker.announce_ends()

    def _read(self) -> RunRow:
        if self._row is None:
            self._row = self._found()
        return self._row

    def _found(self) -> RunRow:
        self._desk.make_ready()
        row = runs.find(self._desk.engine, self._number)
        if row is None:
            raise JobNotFound(f"no run {self.id}: it was never committed, or its retention has passed")
        return row

    def _ended(self) -> RunRow | None:
        row = self._found()
        return row if row.state in RUN_ENDS else None

    def _outcome(self) -> T_co:
        row = self._read()
        if row.state != "succeeded":
            error = self.error
            kind = RunCancelled if row.state == "cancelled" else RunFailed
            said = f": {error.code}: {error.message}" if error else ""
            raise kind(
                f"run {self.id} of workflow {row.name!r} ended {row.state}{said}", job=self, error=error
            )
        value: T_co = decode_result(runs.result_of(self._desk.engine, row))
        return value

    def __repr__(self) -> str:
        return f"<Run {self.id}{'' if self._row is None else f' {self._row.name} {self._row.state}'}>"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Run) and other._number == self._number

    def __hash__(self) -> int:
        return hash(self._number)
