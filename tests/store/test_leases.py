"""Leases: the books of workers, heartbeats, burials and rescues, one case per sentence, on every engine."""

import json
from typing import Any

import psycopg
import pytest

from evenflow.job import Claimed, JobError
from evenflow.queues import Queue
from evenflow.settings import Retention
from evenflow.store.control import declare_queue, withdraw
from evenflow.store.leases import (
    Rescued,
    Worker,
    beat,
    bury,
    free_expired_claims,
    register,
    rescue,
    save_progress,
    workers,
)
from evenflow.store.postgres import PostgresEngine
from evenflow.store.reads import find
from tests.store.scene import ALICE, BOB, CRASH, DAY, SECOND, Scene, execute, new_job, rows_of

NO_ROWS = Retention(failed=0, quarantined=0, cancelled=0)


def orphan(scene: Scene, *, crashes: int = 0, **fields: Any) -> Claimed:
    """A running job whose worker is in no book."""
    job = scene.running(**fields)
    execute(scene.engine, f"update evenflow_job set crashes = {crashes} where id = {job.id}")
    return job


class TestTheBooks:
    def test_hold_whoever_registers_with_a_first_heartbeat(self, scene: Scene) -> None:
        register(
            scene.engine,
            BOB,
            kind="worker",
            host="h1",
            pid=7,
            lease_us=5,
            parent=ALICE,
            about='{"a":1}',
            now=scene.now,
        )
        assert workers(scene.engine) == [
            Worker(BOB, ALICE, "worker", "h1", 7, scene.now, 0, scene.now, 5, '{"a":1}')
        ]

    def test_list_everybody_by_id(self, scene: Scene) -> None:
        scene.register(BOB, ALICE)
        assert [worker.id for worker in workers(scene.engine)] == [ALICE, BOB]

    def test_grow_a_beat_with_each_heartbeat(self, scene: Scene) -> None:
        scene.register(ALICE, BOB)
        for _ in range(3):
            scene.now += SECOND
            assert beat(scene.engine, ALICE, now=scene.now).is_alive
        alice, bob = workers(scene.engine)
        assert (alice.beat, alice.beat_at, alice.about) == (3, scene.now, "{}")
        assert (bob.beat, bob.beat_at) == (0, scene.now - 3 * SECOND)

    def test_take_what_a_heartbeat_says_of_its_process(self, scene: Scene) -> None:
        scene.register(ALICE)
        beat(scene.engine, ALICE, about='{"running":2}', now=scene.now)
        beat(scene.engine, ALICE, now=scene.now)
        assert workers(scene.engine)[0].about == '{"running":2}'

    def test_tell_a_worker_whether_there_are_others(self, scene: Scene) -> None:
        scene.register(ALICE)
        register(scene.engine, BOB, kind="supervisor", host="h1", pid=7, lease_us=5, now=scene.now)
        assert not beat(scene.engine, ALICE, now=scene.now).has_company, "a supervisor runs no jobs"
        scene.register(BOB + 1)
        assert beat(scene.engine, ALICE, now=scene.now).has_company

    def test_tell_a_worker_that_is_not_in_them_to_stop(self, scene: Scene) -> None:
        scene.register(BOB)
        assert not beat(scene.engine, ALICE, now=scene.now).is_alive
        assert [worker.id for worker in workers(scene.engine)] == [BOB]


class TestAHeartbeat:
    def test_renews_what_was_prefetched_and_nothing_else(self, scene: Scene) -> None:
        scene.register(ALICE, BOB)
        scene.enqueue(*(new_job() for _ in range(3)))
        (mine,) = scene.claim(1, lease_us=SECOND)
        (runs,) = scene.claim(1)
        (others,) = scene.claim(1, worker=BOB, lease_us=SECOND)
        scene.now += 10
        beat(scene.engine, ALICE, claim_lease_us=SECOND, now=scene.now)
        leases = {job: scene.live(job)["lease_until"] for job in (mine.id, runs.id, others.id)}
        assert leases == {mine.id: scene.now + SECOND, runs.id: None, others.id: scene.now - 10 + SECOND}

    def test_without_a_lease_for_claims_leaves_them_as_they_are(self, scene: Scene) -> None:
        scene.register(ALICE)
        scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=SECOND)
        assert beat(scene.engine, ALICE, now=scene.now + 10).is_alive
        assert scene.live(job.id)["lease_until"] == scene.now + SECOND

    def test_of_the_dead_renews_nothing(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=SECOND)
        scene.now += 10
        beat(scene.engine, ALICE, claim_lease_us=SECOND, now=scene.now)
        assert scene.live(job.id)["lease_until"] == scene.now - 10 + SECOND

    def test_tells_which_of_its_jobs_are_to_be_cancelled_and_why(self, scene: Scene) -> None:
        scene.register(ALICE, BOB)
        mine, quiet, others = scene.running(), scene.running(), scene.running(worker=BOB)
        withdraw(scene.engine, [mine.id], "cancelled", Retention(), why="too late", now=scene.now)
        withdraw(scene.engine, [others.id], "cancelled", Retention(), now=scene.now)
        assert beat(scene.engine, ALICE, now=scene.now).cancelled == {(mine.id, mine.epoch): "too late"}
        assert beat(scene.engine, BOB, now=scene.now).cancelled == {(others.id, others.epoch): ""}
        assert scene.states()[quiet.id] == "running"

    def test_repeats_a_cancellation_until_the_job_has_ended(self, scene: Scene) -> None:
        scene.register(ALICE)
        job = scene.running()
        withdraw(scene.engine, [job.id], "cancelled", Retention(), why="x", now=scene.now)
        for _ in range(2):
            assert beat(scene.engine, ALICE, now=scene.now).cancelled == {(job.id, 1): "x"}
        scene.finish(job, "cancelled")
        assert beat(scene.engine, ALICE, now=scene.now).cancelled == {}


class TestABurial:
    def test_removes_a_worker_that_stood_still(self, scene: Scene) -> None:
        scene.register(ALICE, BOB)
        beat(scene.engine, ALICE, now=scene.now)
        assert bury(scene.engine, {ALICE: 1}) == [ALICE]
        assert [worker.id for worker in workers(scene.engine)] == [BOB]

    def test_leaves_a_worker_alone_that_has_beaten_since(self, scene: Scene) -> None:
        scene.register(ALICE)
        seen = workers(scene.engine)[0].beat
        beat(scene.engine, ALICE, now=scene.now)
        assert bury(scene.engine, {ALICE: seen}) == []
        assert beat(scene.engine, ALICE, now=scene.now).is_alive

    def test_with_proof_of_death_asks_for_no_beat(self, scene: Scene) -> None:
        scene.register(ALICE)
        beat(scene.engine, ALICE, now=scene.now)
        assert bury(scene.engine, {ALICE: None}) == [ALICE]

    def test_happens_once(self, scene: Scene) -> None:
        scene.register(ALICE)
        assert bury(scene.engine, {ALICE: 0, 5: None}) == [ALICE]
        assert bury(scene.engine, {ALICE: 0, 5: None}) == []

    def test_of_nobody_removes_nobody(self, scene: Scene) -> None:
        scene.register(ALICE)
        assert bury(scene.engine, {}) == []
        assert len(workers(scene.engine)) == 1


class TestARescue:
    def test_takes_jobs_only_from_owners_that_are_not_in_the_books(self, scene: Scene) -> None:
        scene.register(ALICE, BOB)
        mine, others = scene.running(), scene.running(worker=BOB)
        assert scene.rescue() == []
        scene.bury(BOB)
        assert scene.rescue() == [Rescued(others.id, "ready", others.queue)]
        assert scene.states() == {mine.id: "running", others.id: "ready"}
        assert scene.rescue() == []

    def test_counts_a_crash_and_gives_the_attempt_back(self, scene: Scene) -> None:
        job = orphan(scene)
        scene.rescue()
        row = scene.live(job.id)
        assert (row["state"], row["crashes"], row["attempt"], row["epoch"]) == ("ready", 1, 0, 1)
        assert (row["worker"], row["lease_until"]) == (None, None)
        assert [error["code"] for error in json.loads(row["errors"])] == ["WORKER_CRASHED"]
        assert scene.claim(queues=[job.queue])[0].epoch == 2

    def test_adds_its_error_behind_the_earlier_ones(self, scene: Scene) -> None:
        job = scene.running()
        scene.finish(job, "scheduled", run_at=scene.now, error='{"code":"A","message":"a"}')
        scene.admit()
        scene.claim(queues=[job.queue])
        scene.rescue()
        assert [error["code"] for error in json.loads(scene.live(job.id)["errors"])] == [
            "A",
            "WORKER_CRASHED",
        ]

    def test_quarantines_at_the_third_crash(self, scene: Scene) -> None:
        job = scene.running()
        for crashes in (1, 2):
            assert [found.state for found in scene.rescue()] == ["ready"]
            assert scene.live(job.id)["crashes"] == crashes
            scene.claim(queues=[job.queue])
        scene.now += SECOND
        assert scene.rescue() == [Rescued(job.id, "quarantined", job.queue)]
        kept = scene.kept(job.id)
        assert (kept["state"], kept["crashes"], kept["finished_at"]) == ("quarantined", 3, scene.now)
        assert (kept["expires_at"], kept["worker"]) == (scene.now + 90 * DAY, ALICE)
        assert len(json.loads(kept["errors"])) == 3

    def test_quarantines_at_the_number_it_is_told(self, scene: Scene) -> None:
        job = orphan(scene)
        found = rescue(scene.engine, CRASH, Retention(), max_crashes=1, now=scene.now)
        assert found == [Rescued(job.id, "quarantined", job.queue)]

    def test_fails_a_job_whose_task_says_so(self, scene: Scene) -> None:
        job = orphan(scene, fails_on_crash=True)
        assert scene.rescue() == [Rescued(job.id, "failed", job.queue)]
        kept = scene.kept(job.id)
        assert (kept["state"], kept["crashes"], kept["expires_at"]) == ("failed", 1, scene.now + 30 * DAY)
        assert json.loads(kept["errors"])[0]["class_name"] == "ProcessExitError"

    @pytest.mark.parametrize("fields", [{}, {"fails_on_crash": True}, {"crashes": 2}])
    def test_cancels_where_that_was_asked_for(self, scene: Scene, fields: dict[str, int]) -> None:
        job = orphan(scene, **fields)
        withdraw(scene.engine, [job.id], "cancelled", Retention(), why="x", now=scene.now)
        assert scene.rescue() == [Rescued(job.id, "cancelled", job.queue)]
        assert scene.kept(job.id)["expires_at"] == scene.now + 7 * DAY

    def test_counts_no_crash_for_a_prefetched_job(self, scene: Scene) -> None:
        for fails in (False, True):
            scene.enqueue(new_job(fails_on_crash=fails))
        first, second = scene.claim(lease_us=SECOND)
        execute(scene.engine, f"update evenflow_job set crashes = 2 where id = {first.id}")
        assert scene.rescue() == [
            Rescued(first.id, "ready", "default"),
            Rescued(second.id, "ready", "default"),
        ]
        rows = [scene.live(job.id) for job in (first, second)]
        assert [(row["crashes"], row["attempt"], row["errors"], row["lease_until"]) for row in rows] == [
            (2, 0, None, None), (0, 0, None, None),
        ]  # fmt: skip

    def test_keeps_no_row_where_retention_says_so(self, scene: Scene) -> None:
        quarantined, failed, cancelled = (
            orphan(scene, crashes=2),
            orphan(scene, fails_on_crash=True),
            orphan(scene),
        )
        withdraw(scene.engine, [cancelled.id], "cancelled", Retention(), now=scene.now)
        found = {job.id: job.state for job in scene.rescue(retention=NO_ROWS)}
        assert found == {quarantined.id: "quarantined", failed.id: "failed", cancelled.id: "cancelled"}
        assert scene.states() == {}

    def test_goes_in_batches_that_together_find_each_orphan_once(self, scene: Scene) -> None:
        jobs = [orphan(scene, crashes=number % 3, fails_on_crash=number % 4 == 1) for number in range(10)]
        batches = []
        while batch := scene.rescue(top=3):
            batches.append(batch)
        assert [len(batch) for batch in batches] == [3, 3, 3, 1]
        fates = {job.id: job.state for batch in batches for job in batch}
        assert fates == {
            job.id: "failed" if number % 4 == 1 else "quarantined" if number % 3 == 2 else "ready"
            for number, job in enumerate(jobs)
        }
        assert scene.states() == fates

    def test_puts_the_job_a_round_ahead_of_v(self, scene: Scene) -> None:
        scene.enqueue(*(new_job(group="bob") for _ in range(5)))
        first, _ = scene.claim(2)
        scene.rescue()
        assert scene.live(first.id)["turn"] == 3.0

    def test_under_fifo_puts_the_job_at_its_own_time(self, scene: Scene) -> None:
        declare_queue(scene.engine, Queue("default", fair="fifo"))
        scene.enqueue(new_job())
        (job,) = scene.claim()
        scene.now += SECOND
        scene.rescue()
        assert scene.live(job.id)["turn"] == scene.now

    def test_starts_the_list_of_errors_anew_before_it_grows_without_end(self, scene: Scene) -> None:
        job, doomed = orphan(scene), orphan(scene, crashes=2)
        execute(scene.engine, f"update evenflow_job set errors = '[\"{'x' * 70_000}\"]'")
        scene.rescue()
        assert len(json.loads(scene.live(job.id)["errors"])) == 1
        assert len(json.loads(scene.kept(doomed.id)["errors"])) == 1


class TestAnExpiredClaim:
    def test_is_free_at_the_very_microsecond_of_its_end(self, scene: Scene) -> None:
        (number,) = scene.enqueue(new_job())
        scene.claim(lease_us=10)
        scene.now += 9
        assert free_expired_claims(scene.engine, now=scene.now) == []
        scene.now += 1
        assert free_expired_claims(scene.engine, now=scene.now) == [number]
        row = scene.live(number)
        assert (row["state"], row["attempt"], row["epoch"], row["crashes"]) == ("ready", 0, 1, 0)
        assert (row["worker"], row["lease_until"]) == (None, None)

    def test_frees_no_running_job(self, scene: Scene) -> None:
        scene.running()
        assert free_expired_claims(scene.engine, now=scene.now + DAY) == []

    def test_is_freed_in_batches(self, scene: Scene) -> None:
        jobs = scene.enqueue(*(new_job() for _ in range(5)))
        scene.claim(lease_us=1)
        found = [free_expired_claims(scene.engine, top=2, now=scene.now + 1) for _ in range(4)]
        assert [sorted(batch) for batch in found] == [jobs[:2], jobs[2:4], jobs[4:], []]

    def test_cannot_be_ended_by_its_former_holder(self, scene: Scene) -> None:
        scene.enqueue(new_job())
        (job,) = scene.claim(lease_us=1)
        free_expired_claims(scene.engine, now=scene.now + 1)
        assert scene.finish(job).lost == [(job.id, job.epoch)]


class TestProgress:
    def test_is_stored_for_the_runs_that_report_it(self, scene: Scene) -> None:
        first, second = scene.running(), scene.running()
        save_progress(scene.engine, ALICE, [(first.id, 1, '{"done":1}'), (second.id, 1, '{"done":2}')])
        found = find(scene.engine, [first.id, second.id])
        assert {job.id: job.progress for job in found.values()} == {
            first.id: '{"done":1}',
            second.id: '{"done":2}',
        }

    def test_stays_with_the_job_when_it_ends(self, scene: Scene) -> None:
        job = scene.running()
        save_progress(scene.engine, ALICE, [(job.id, 1, '{"done":1}')])
        scene.finish(job)
        assert scene.kept(job.id)["progress"] == '{"done":1}'

    @pytest.mark.parametrize(("worker", "epoch"), [(BOB, 1), (ALICE, 2), (ALICE, 0)])
    def test_of_a_lost_lease_changes_nothing(self, scene: Scene, worker: int, epoch: int) -> None:
        job = scene.running()
        save_progress(scene.engine, worker, [(job.id, epoch, '{"done":1}')])
        assert scene.live(job.id)["progress"] is None


def test_an_error_that_holds_brackets_and_quotes_stays_readable(scene: Scene) -> None:
    job = orphan(scene)
    text = 'it said "]" and \\ then \u0041'
    rescue(scene.engine, JobError("X", text), Retention(), now=scene.now)
    assert json.loads(scene.live(job.id)["errors"])[0]["message"] == text


def test_the_books_are_empty_at_first(scene: Scene) -> None:
    assert workers(scene.engine) == []
    assert rows_of(scene.engine, "worker") == []


def test_a_heartbeat_does_not_wait_for_the_disk(postgres_store: PostgresEngine) -> None:
    """A worker hears of no job meanwhile; one that a crash takes back is made up for by the next."""
    register(postgres_store, ALICE, kind="worker", host="h1", pid=7, lease_us=5)
    asked = {"worker": ALICE, "lease_us": None, "about": None, "now": None}
    statement, given = postgres_store.lone_statement("beat", asked)
    with postgres_store.connect() as session:
        with session.transaction():
            psycopg.RawCursor(session).execute(
                statement.dollar_bytes, [given[name] for name in statement.parameters]
            )
            assert session.execute("show synchronous_commit").fetchone() == ("off",)
        assert session.execute("show synchronous_commit").fetchone() == ("on",), "for this one alone"
