"""Both engines in lock-step: whatever series of acts Hypothesis finds, answers and rows are the same on both.

`EVENFLOW_HYPOTHESIS=long` plays many more and longer series.
"""

from collections.abc import Callable
from typing import Any, TypeVar

import msgspec
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule, run_state_machine_as_test

from evenflow.job import ENDS, Claimed, Limit, NewJob
from evenflow.queues import Queue
from evenflow.settings import Retention
from evenflow.store.advance import Advanced, Bound, Claim, Want, start
from evenflow.store.control import (
    ahead,
    declare_queue,
    discard,
    expire,
    learn_costs,
    pause,
    resume,
    retry,
    withdraw,
)
from evenflow.store.leases import beat, bury, free_expired_claims, register, save_progress
from evenflow.store.limits import forget_idle, free_spent, limiters, promote, sweep
from evenflow.store.migrate import migrate
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import Filter, await_job, counts, has_open, page
from evenflow.store.sqlite import SqliteEngine
from evenflow.store.upkeep import forget_idle_groups, prune
from tests.store.scene import ALICE, BOB, SECOND, START, Columns, Scene, end_of, rows_of
from tests.thorough import IS_LONG

EXAMPLES, STEPS = (1000, 60) if IS_LONG else (25, 40)
QUEUES = ("red", "blue")
T = TypeVar("T")

KEYS = [
    (Limit("one", 1, 20),),
    (Limit("one", 1, 20), Limit("two", 2, 5)),
    (Limit("rate", 2, 0, window_us=8),),
    (Limit("one", 1, 20), Limit("rate", 2, 0, window_us=8)),
]

queues = st.sampled_from(QUEUES)
workers = st.sampled_from([ALICE, BOB])
some = st.integers(0, 5)
delays = st.sampled_from([0, 1, 5, 20])
retentions = st.sampled_from(
    [Retention(), Retention(failed=0, cancelled=0, expired=0, discarded=0, quarantined=0)]
)
specs = st.fixed_dictionaries(
    {
        "queue": queues,
        "priority": st.sampled_from([0, 0, -3, 8]),
        "group": st.sampled_from([None, "a", "b", "c"]),
        "unique": st.sampled_from([None, None, None, "k1", "k2"]),
        "run_in": st.sampled_from([None, None, None, 0, 5]),
        "good_for": st.sampled_from([None, None, None, 1, 8]),
        "fails_on_crash": st.booleans(),
        "limits": st.sampled_from([(), (), (), *KEYS]),
    }
)
kinds = st.sampled_from(["succeeded", "failed", "cancelled", "retry", "retry", "snooze", "release", "no row"])


class LockStep(RuleBasedStateMachine):
    """Every act goes to both stores; answers are compared at once, rows after each act."""

    def __init__(self, sqlite: SqliteEngine, postgres: PostgresEngine) -> None:
        super().__init__()
        self.scenes = [Scene(sqlite), Scene(postgres)]
        self.tables = tables(sqlite)
        self.now = START
        self.known: list[int] = []
        self.open: set[int] = set()
        self.runs: list[tuple[int, Claimed]] = []
        self.epochs: dict[int, int] = {}
        self.v: dict[tuple[str, int], float] = {}
        self.rows: dict[str, list[Columns]] = {}

    def both(self, act: Callable[[Scene], T]) -> T:
        for scene in self.scenes:
            scene.now = self.now
        answers = [act(scene) for scene in self.scenes]
        assert answers[0] == answers[1]
        return answers[0]

    @initialize()
    def begin(self) -> None:
        for scene in self.scenes:
            empty(scene.engine, self.tables)

    @rule(specs=st.lists(specs, min_size=1, max_size=6), arriving=st.booleans())
    def enqueue(self, specs: list[dict[str, Any]], arriving: bool) -> None:
        jobs = [self._job(**spec) for spec in specs]
        placed = self.both(lambda scene: scene.enqueued(*jobs, arriving=arriving))
        self.known += [job.id for job in placed if job.is_new]
        self.open |= {job.id for job in placed}

    @rule(by=st.sampled_from([1, 5, SECOND]))
    def time_passes(self, by: int) -> None:
        self.now += by

    @rule(
        worker=workers, order=st.permutations(QUEUES), top=some, tops=st.tuples(some, some),
        lease_us=st.sampled_from([None, None, 5, SECOND]), moves_v=st.booleans(), bound=st.booleans(),
    )  # fmt: skip
    def claim(
        self,
        worker: int,
        order: list[str],
        top: int,
        tops: tuple[int, int],
        lease_us: int | None,
        moves_v: bool,
        bound: bool,
    ) -> None:
        wants = [Want(queue, place, tops[place]) for place, queue in enumerate(order)]
        bounds = [Bound("red", 0, 2.0, 1004)] if bound else []
        self._advance(worker, [], Claim(wants, top, bounds, lease_us, moves_v))

    @rule(
        worker=workers,
        which=st.lists(st.integers(0, 200), max_size=4, unique=True),
        kind=kinds,
        again=st.booleans(),
        moves_v=st.booleans(),
    )
    def finish(self, worker: int, which: list[int], kind: str, again: bool, moves_v: bool) -> None:
        mine = [run for owner, run in self.runs if owner == worker]
        runs = {run.id: run for run in (mine[number % len(mine)] for number in which)} if mine else {}
        ends = [self._end(run, kind) for run in runs.values()]
        wants = [Want(queue, place, 2) for place, queue in enumerate(QUEUES)] if again else []
        claim = Claim(wants, 3 if again else 0, moves_v=moves_v)
        answer = self._advance(worker, ends, claim)
        if kind not in ("retry", "snooze", "release"):
            self.open -= {end.id for end in ends if (end.id, end.epoch) not in answer.lost}

    @rule(worker=workers)
    def start(self, worker: int) -> None:
        mine = [run for owner, run in self.runs if owner == worker][-4:]
        self.both(lambda scene: start(scene.engine, worker, mine, now=self.now))

    @rule(worker=workers)
    def joins(self, worker: int) -> None:
        if worker not in {row["id"] for row in self.rows.get("worker", [])}:
            self.both(
                lambda scene: register(
                    scene.engine, worker, kind="worker", host="h", pid=1, lease_us=SECOND, now=self.now
                )
            )

    @rule(worker=workers, beats=st.sampled_from([None, 0, 1]))
    def dies(self, worker: int, beats: int | None) -> None:
        self.both(lambda scene: bury(scene.engine, {worker: beats}))

    @rule(worker=workers, lease_us=st.sampled_from([None, SECOND]))
    def beats(self, worker: int, lease_us: int | None) -> None:
        self.both(lambda scene: beat(scene.engine, worker, claim_lease_us=lease_us, now=self.now))

    @rule(retention=retentions, top=st.sampled_from([1, 2, 500]))
    def rescue(self, retention: Retention, top: int) -> None:
        found = self.both(
            lambda scene: sorted((job.id, job.state) for job in scene.rescue(retention=retention, top=top))
        )
        self.open -= {job for job, state in found if state != "ready"}

    @rule(top=st.sampled_from([1, 500]))
    def free_claims(self, top: int) -> None:
        self.both(lambda scene: sorted(free_expired_claims(scene.engine, top=top, now=self.now)))

    @rule()
    def admit(self) -> None:
        self.both(lambda scene: scene.admit())

    @rule(retention=retentions)
    def expire(self, retention: Retention) -> None:
        self.open -= set(self.both(lambda scene: sorted(expire(scene.engine, retention, now=self.now))))

    @rule(which=st.lists(st.integers(0, 200), max_size=3), retention=retentions, flags=st.booleans())
    def cancel(self, which: list[int], retention: Retention, flags: bool) -> None:
        ids = self._pick(which)
        found = self.both(
            lambda scene: withdraw(
                scene.engine, ids, "cancelled", retention, why="w", flags=flags, now=self.now
            )
        )
        self.open -= {job for job, outcome in found.items() if outcome == "ended"}

    @rule(which=st.lists(st.integers(0, 200), max_size=3), retention=retentions)
    def discard(self, which: list[int], retention: Retention) -> None:
        ids = self._pick(which)
        self.open -= set(self.both(lambda scene: sorted(discard(scene.engine, ids, retention, now=self.now))))

    @rule(which=st.lists(st.integers(0, 200), max_size=6))
    def retry(self, which: list[int]) -> None:
        ids = self._pick(which)
        self.open |= set(self.both(lambda scene: sorted(retry(scene.engine, ids, now=self.now))))

    @rule(which=st.integers(0, 200))
    def waits(self, which: int) -> None:
        jobs = self._pick([which])
        self.both(lambda scene: [await_job(scene.engine, job) for job in jobs])

    @rule(worker=workers, text=st.sampled_from(['{"done":1}', "null"]))
    def reports(self, worker: int, text: str) -> None:
        mine = [(run.id, run.epoch, text) for owner, run in self.runs if owner == worker][-3:]
        self.both(lambda scene: save_progress(scene.engine, worker, mine))

    @rule(queue=queues)
    def pause(self, queue: str) -> None:
        self.both(lambda scene: pause(scene.engine, queue, who="eve", now=self.now))

    @rule(queue=queues)
    def resume(self, queue: str) -> None:
        self.both(lambda scene: resume(scene.engine, queue))

    @rule(
        queue=queues, fair=st.sampled_from(["fifo", "round-robin", "time"]),
        weights=st.dictionaries(st.sampled_from("abc"), st.sampled_from([0.5, 2.0, 3.0])),
    )  # fmt: skip
    def declare(self, queue: str, fair: Any, weights: dict[str, float]) -> None:
        self.both(lambda scene: declare_queue(scene.engine, Queue(queue, fair=fair, weights=weights)))

    @rule(
        queue=queues,
        group=st.sampled_from("abc"),
        runs=st.integers(0, 3),
        spent=st.sampled_from([0, 40, 900, 7001]),
    )
    def learn(self, queue: str, group: str, runs: int, spent: int) -> None:
        self.both(lambda scene: learn_costs(scene.engine, {(queue, group): (runs, spent)}, now=self.now))

    @rule()
    def upkeep(self) -> None:
        self.both(lambda scene: (forget_idle_groups(scene.engine), prune(scene.engine, now=self.now)))

    @rule(names=st.sets(st.sampled_from(["one", "two", "rate"])))
    def promotes(self, names: set[str]) -> None:
        self.both(lambda scene: promote(scene.engine, names, now=self.now))

    @rule()
    def sweeps(self) -> None:
        self.both(
            lambda scene: (
                sweep(scene.engine, now=self.now), free_spent(scene.engine, now=self.now), forget_idle(scene.engine)
            )
        )  # fmt: skip

    @rule()
    def read(self) -> None:
        self.both(
            lambda scene: (
                ahead(scene.engine, now=self.now),
                counts(scene.engine),
                has_open(scene.engine, ["red"]),
                page(scene.engine, Filter()),
                limiters(scene.engine, now=self.now),
            )
        )

    @invariant()
    def rows_are_the_same(self) -> None:
        sqlite, postgres = ({table: told(scene, table) for table in self.tables} for scene in self.scenes)
        assert sqlite == postgres
        self.rows = sqlite
        self.a_job_is_in_exactly_one_place()
        self.an_epoch_never_falls()
        self.v_never_falls()
        self.a_unique_key_has_one_holder()
        self.a_job_has_a_worker_while_it_is_in_flight_and_no_longer()

    def a_job_is_in_exactly_one_place(self) -> None:
        live = [row["id"] for row in self.rows["job"]]
        assert set(live) == self.open
        assert not self.open & {row["id"] for row in self.rows["history"]}

    def an_epoch_never_falls(self) -> None:
        for row in self.rows["job"]:
            assert row["epoch"] >= self.epochs.get(row["id"], 0)
            self.epochs[row["id"]] = row["epoch"]

    def v_never_falls(self) -> None:
        for row in self.rows["round"]:
            band = (row["queue"], row["priority"])
            assert row["v"] >= self.v.get(band, 0.0)
            self.v[band] = row["v"]

    def a_unique_key_has_one_holder(self) -> None:
        keys = [row["unique_key"] for row in self.rows["job"] if row["unique_key"]]
        assert len(keys) == len(set(keys))

    def a_job_has_a_worker_while_it_is_in_flight_and_no_longer(self) -> None:
        for row in self.rows["job"]:
            assert (row["worker"] is not None) == (row["state"] in ("claimed", "running"))
            assert (row["lease_until"] is not None) == (row["state"] == "claimed")
            assert 0 <= row["attempt"] <= row["epoch"]
        assert all(row["state"] in ENDS for row in self.rows["history"])

    def _advance(self, worker: int, ends: list[Any], claim: Claim) -> Advanced:
        self.now += 1  # as in life: a worker's two round trips never share a microsecond
        answer = self.both(lambda scene: in_order(scene.advance(worker, *ends, claim=claim)))
        self.runs += [(worker, job) for job in answer.claimed]
        return answer

    def _job(
        self, queue: str, priority: int, group: str | None, unique: str | None, run_in: int | None, good_for: int | None,
        fails_on_crash: bool, limits: tuple[Limit, ...],
    ) -> NewJob:  # fmt: skip
        return NewJob(
            "task", "[]", queue, priority, group, 3, None if run_in is None else self.now + run_in,
            None if good_for is None else self.now + good_for, unique_key=unique, fails_on_crash=fails_on_crash, limits=limits,
        )  # fmt: skip

    def _end(self, run: Claimed, kind: str) -> Any:
        match kind:
            case "retry":
                return end_of(run, "scheduled", run_at=self.now + 5, error='{"code":"E"}')
            case "snooze":
                return end_of(run, "scheduled", run_at=self.now, refund=1)
            case "release":
                return end_of(run, "ready", refund=1)
            case "no row":
                return end_of(run, "succeeded", keep_us=0)
            case _:
                return end_of(
                    run, kind, keep_us=10, result="1", error='{"code":"X"}' if kind == "failed" else None
                )

    def _pick(self, which: list[int]) -> list[int]:
        return list({self.known[number % len(self.known)] for number in which}) if self.known else []


def told(scene: Scene, table: str) -> list[Columns]:
    """Rows without what carries no meaning: the place of a job that waits for its admission, and scratch space."""
    rows = rows_of(scene.engine, table)
    for row in rows:
        row.pop("span", None)
        for name in ("waits", "runs"):  # a list of numbers, as each engine keeps one
            if isinstance(row.get(name), str):
                row[name] = msgspec.json.decode(row[name])
        if row.get("state") in ("arriving", "scheduled"):
            del row["turn"]
    return rows


def in_order(answer: Advanced) -> Advanced:
    """Ends that were refused come in no order."""
    return msgspec.structs.replace(answer, lost=sorted(answer.lost), awaited=sorted(answer.awaited))


def tables(engine: SqliteEngine) -> list[str]:
    """Everything that a store remembers, but for its migrations, and for the audit log, which cannot be emptied."""
    with engine.reading() as connection:
        rows = connection.execute(
            "select substr(name, 10) from sqlite_master where type = 'table' and name like 'evenflow_%'"
        )
        return sorted({name for (name,) in rows.fetchall()} - {"migration", "audit"})


def empty(engine: SqliteEngine | PostgresEngine, names: list[str]) -> None:
    """The store as it was before its first job."""
    if isinstance(engine, SqliteEngine):
        with engine.exclusive() as connection:
            for table in names:
                connection.execute(f"delete from evenflow_{table}")
    else:
        with engine.session() as session:
            session.execute(
                ";".join(f"delete from evenflow.{table}" for table in [*names, "flight"]).encode()
            )


@pytest.mark.slow
@pytest.mark.timeout(3600 if IS_LONG else 600)  # a failure takes minutes to shrink, a success seconds
def test_both_engines_stay_in_step(postgres_store: PostgresEngine) -> None:
    sqlite = SqliteEngine(None)
    migrate(sqlite)
    run_state_machine_as_test(
        lambda: LockStep(sqlite, postgres_store),  # type: ignore[arg-type]
        settings=settings(
            max_examples=EXAMPLES,
            stateful_step_count=STEPS,
            deadline=None,
            print_blob=True,
            suppress_health_check=list(HealthCheck),
        ),
    )
    sqlite.close()
