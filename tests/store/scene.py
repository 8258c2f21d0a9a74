"""A store under test: explicit time, known ids, and a look at the rows behind the operations."""

from collections.abc import Iterable, Sequence
from typing import Any

from evenflow.ids import IdSource
from evenflow.job import Claimed, End, JobError, NewJob
from evenflow.settings import Retention
from evenflow.store.advance import NOTHING, Advanced, Bound, Claim, Want, advance
from evenflow.store.control import admit
from evenflow.store.engine import drive
from evenflow.store.enqueue import Enqueued, enqueue_steps
from evenflow.store.leases import Rescued, bury, register, rescue
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine
from evenflow.store.sqlite import SqliteEngine

START = 1_800_000_000_000_000
SECOND = 1_000_000
DAY = 86_400 * SECOND
ALICE, BOB = 101, 102
FIRST_ID = 1_000
CRASH = JobError("WORKER_CRASHED", "gone", class_name="ProcessExitError")
TRUTHS = ("awaited", "fails_on_crash", "is_timed")
ONLY_ON_POSTGRES = ("stage", "flight")
Columns = dict[str, Any]


class CountedIds(IdSource):
    """Ids that a test can foresee: 1000, 1001 and so on."""

    def __init__(self) -> None:
        super().__init__()
        self._next = FIRST_ID

    def take_reserved(self, count: int) -> list[int]:
        self._next += count
        return list(range(self._next - count, self._next))


class Scene:
    """One store, a clock that stands still until it is told, and two workers, ALICE and BOB."""

    def __init__(self, engine: AnyEngine) -> None:
        self.engine = engine
        self.now = START
        self.ids = CountedIds()

    def enqueue(self, *jobs: NewJob, arriving: bool = False) -> list[int]:
        """Enqueue and return the ids."""
        return [job.id for job in self.enqueued(*jobs, arriving=arriving)]

    def enqueued(self, *jobs: NewJob, arriving: bool = False) -> list[Enqueued]:
        """Enqueue and return the whole answer."""
        return drive(self.engine, enqueue_steps(jobs, self.ids, arriving=arriving, now=self.now))

    def advance(self, worker: int, *ends: End, claim: Claim = NOTHING) -> Advanced:
        return advance(self.engine, worker, ends, claim, now=self.now)

    def claim(
        self,
        top: int = 100,
        *,
        worker: int = ALICE,
        queues: Iterable[str] = ("default",),
        bounds: Sequence[Bound] = (),
        lease_us: int | None = None,
    ) -> list[Claimed]:
        """Claim from the queues in their order, `top` of each and in all."""
        wants = [Want(queue, place, top) for place, queue in enumerate(queues)]
        return self.advance(worker, claim=Claim(wants, top, bounds, lease_us)).claimed

    def claim_ids(
        self, top: int = 100, *, worker: int = ALICE, queues: Iterable[str] = ("default",)
    ) -> list[int]:
        return [job.id for job in self.claim(top, worker=worker, queues=queues)]

    def running(self, *, worker: int = ALICE, **fields: Any) -> Claimed:
        """A job of one's own that this worker runs."""
        queue = f"only-{self.ids._next}"
        self.enqueue(new_job(queue=queue, **fields))
        return self.claim(1, worker=worker, queues=[queue])[0]

    def finish(
        self, job: Claimed, state: str = "succeeded", *, worker: int = ALICE, **fields: Any
    ) -> Advanced:
        """Write one end; kept for a day unless told."""
        return self.advance(worker, end_of(job, state, **fields))

    def admit(self) -> dict[str, int]:
        return admit(self.engine, now=self.now)

    def register(self, *workers: int) -> None:
        for worker in workers:
            register(
                self.engine,
                worker,
                kind="worker",
                host="here",
                pid=worker,
                lease_us=10 * SECOND,
                now=self.now,
            )

    def bury(self, *workers: int) -> None:
        bury(self.engine, dict.fromkeys(workers))

    def rescue(self, *, retention: Retention = Retention(), top: int = 500) -> list[Rescued]:  # noqa: B008 - frozen
        return rescue(self.engine, CRASH, retention, top=top, now=self.now)

    def live(self, job: int) -> Columns:
        """The live row of a job."""
        return next(row for row in rows_of(self.engine, "job") if row["id"] == job)

    def kept(self, job: int) -> Columns:
        """The history row of a job."""
        return next(row for row in rows_of(self.engine, "history") if row["id"] == job)

    def states(self) -> dict[int, str]:
        """Every job that the store knows, live or kept."""
        return {
            row["id"]: row["state"] for table in ("job", "history") for row in rows_of(self.engine, table)
        }

    def contents(self) -> dict[str, list[Columns]]:
        """Everything that jobs are made of, to say that nothing has changed."""
        return {table: rows_of(self.engine, table) for table in ("job", "history", "round", "group_tail")}


def new_job(**fields: Any) -> NewJob:
    """A job with a task and a payload, and what the test cares about."""
    return NewJob(**{"task": "mail.send", "payload": "[1]", "max_attempts": 3, **fields})


def end_of(job: Claimed, state: str = "succeeded", **fields: Any) -> End:
    """How the run of a claimed job ended; kept for a day unless told."""
    return End(job.id, job.epoch, state, **{"keep_us": DAY, "run_id": job.run_id, **fields})


def rows_of(engine: AnyEngine, table: str) -> list[Columns]:
    """All rows of a table, by column name, in an order of their own; the same on every engine."""
    if isinstance(engine, SqliteEngine):
        with engine.reading() as connection:
            cursor = connection.execute(f"select * from evenflow_{table}")
            found = [dict(zip(_names(cursor.description), row, strict=True)) for row in cursor.fetchall()]
    else:
        with engine.session() as session:
            rows = session.execute(f'select * from "{engine.schema}".{table}'.encode())
            found = [dict(zip(_names(rows.description), row, strict=True)) for row in rows.fetchall()]
    for row in found:
        for name in ONLY_ON_POSTGRES if table == "job" else ():
            row.pop(name, None)
        row.update({name: bool(row[name]) for name in TRUTHS if name in row})
    return sorted(
        found, key=lambda row: row["id"] if "id" in row else [repr(row[name]) for name in sorted(row)]
    )


def execute(engine: AnyEngine, sqlite: str, postgres: str | None = None) -> None:
    """Write behind the operations' back: `evenflow_x` is `evenflow.x` on PostgreSQL."""
    if isinstance(engine, SqliteEngine):
        with engine.exclusive() as connection:
            connection.execute(sqlite)
    else:
        with engine.session() as session:
            session.execute((postgres or sqlite.replace("evenflow_", "evenflow.")).encode())


def second_engine(engine: AnyEngine) -> AnyEngine:
    """Another engine on the same database, as another process would have it."""
    if isinstance(engine, SqliteEngine):
        return SqliteEngine(engine.path)
    return PostgresEngine(engine._conninfo, engine.schema)


def _names(description: Any) -> list[str]:
    return [column[0] for column in description]
