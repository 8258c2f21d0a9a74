"""The rescuer judges by its own clock and its own successful looks: nobody is declared dead for another reason."""

from collections.abc import Callable
from typing import Any

import pytest

from evenflow.errors import StoreUnavailable
from evenflow.services import rescuer as rescuer_module
from evenflow.services.rescuer import SWEEP_EVERY, Rescuer
from evenflow.settings import Settings
from evenflow.store import leases
from tests.store.scene import ALICE, BOB, Scene, new_job

HEARTBEAT_S = 2.0
LEASE_S = 10.0


class Watch:
    """A rescuer over a store, with a clock and a network of the test's own."""

    def __init__(self, scene: Scene, monkeypatch: pytest.MonkeyPatch) -> None:
        self.scene = scene
        self.now = 500.0
        self.is_away = False
        settings = Settings.build("sqlite:///:memory:", environ={})
        assert settings.heartbeat_ms == HEARTBEAT_S * 1000
        assert settings.lease_ms == LEASE_S * 1000
        self.rescuer = Rescuer(scene.engine, settings)
        monkeypatch.setattr(rescuer_module, "lease_s", lambda: self.now)
        workers = leases.workers

        def workers_or_away(engine: Any) -> list[leases.Worker]:
            if self.is_away:
                raise StoreUnavailable("away")
            return workers(engine)

        monkeypatch.setattr(leases, "workers", workers_or_away)

    def look(self, after_s: float = HEARTBEAT_S) -> None:
        self.now += after_s
        if self.is_away:
            with pytest.raises(StoreUnavailable):
                self.rescuer.step()
        else:
            self.rescuer.step()

    def looks(self, seconds: float, meanwhile: Callable[[], object] = lambda: None) -> None:
        """Look at each heartbeat for so long."""
        for _ in range(int(seconds / HEARTBEAT_S)):
            meanwhile()
            self.look()

    def alive(self) -> set[int]:
        return {row.id for row in leases.workers(self.scene.engine)}

    def beat(self, *workers: int) -> None:
        for worker in workers:
            assert leases.beat(self.scene.engine, worker).is_alive


@pytest.fixture
def watch(scene: Scene, monkeypatch: pytest.MonkeyPatch) -> Watch:
    scene.register(ALICE, BOB)
    made = Watch(scene, monkeypatch)
    made.look()
    return made


def test_a_worker_that_beats_lives(watch: Watch) -> None:
    watch.looks(60, lambda: watch.beat(ALICE, BOB))
    assert watch.alive() == {ALICE, BOB}


def test_a_worker_that_stands_still_for_its_lease_is_dead_and_no_sooner(watch: Watch) -> None:
    watch.looks(LEASE_S - HEARTBEAT_S, lambda: watch.beat(BOB))
    assert watch.alive() == {ALICE, BOB}
    watch.beat(BOB)
    watch.look()
    assert watch.alive() == {BOB}


def test_only_the_one_that_stands_still_is_dead(watch: Watch) -> None:
    watch.looks(LEASE_S + HEARTBEAT_S, lambda: watch.beat(BOB))
    assert watch.alive() == {BOB}


def test_the_jobs_of_a_dead_worker_are_ready_again_with_a_crash_and_without_losing_an_attempt(
    watch: Watch,
) -> None:
    job = watch.scene.running(worker=ALICE)
    watch.looks(LEASE_S + HEARTBEAT_S, lambda: watch.beat(BOB))
    row = watch.scene.live(job.id)
    assert (row["state"], row["crashes"], row["attempt"], row["worker"]) == ("ready", 1, 0, None)
    assert "ProcessPrunedError" in row["errors"]


def test_a_job_whose_task_fails_on_a_crash_fails_with_the_pruned_error(watch: Watch) -> None:
    job = watch.scene.running(worker=ALICE, fails_on_crash=True)
    watch.looks(LEASE_S + HEARTBEAT_S, lambda: watch.beat(BOB))
    row = watch.scene.kept(job.id)
    assert row["state"] == "failed"
    assert '"WORKER_CRASHED"' in row["errors"] and '"ProcessPrunedError"' in row["errors"]


def test_an_outage_of_the_database_frees_nothing_early(watch: Watch) -> None:
    job = watch.scene.running(worker=ALICE)
    for outage_s in (1.0, 4.0, 11.0, 60.0):
        watch.is_away = True
        for _ in range(4):
            watch.look(outage_s / 4)
        watch.is_away = False
        watch.beat(BOB)
        watch.looks(LEASE_S - HEARTBEAT_S, lambda: watch.beat(BOB))  # everybody has a fresh lease
        assert watch.alive() == {ALICE, BOB}
        watch.beat(ALICE, BOB)
    assert watch.scene.live(job.id)["state"] == "running"


def test_a_database_that_takes_no_writes_ages_nobody(watch: Watch) -> None:
    job = watch.scene.running(worker=ALICE)
    watch.looks(LEASE_S - 2 * HEARTBEAT_S, lambda: watch.beat(BOB))
    watch.looks(
        60
    )  # a full disk, a standby: it can be read, but no beat can be written, not even the observer's own
    assert watch.alive() == {ALICE, BOB}
    watch.beat(BOB)
    watch.look()
    assert watch.alive() == {ALICE, BOB}, "what was counted before is counted on"
    watch.beat(BOB)
    watch.look()
    assert watch.alive() == {BOB}
    assert watch.scene.live(job.id)["state"] == "ready"


def test_a_pause_of_its_own_ages_nobody(watch: Watch) -> None:
    watch.look(after_s=3600.0)
    assert watch.alive() == {ALICE, BOB}
    watch.looks(LEASE_S - HEARTBEAT_S, lambda: watch.beat(BOB))
    assert watch.alive() == {ALICE, BOB}


def test_a_lease_is_the_workers_own(watch: Watch) -> None:
    leases.register(watch.scene.engine, 999, kind="worker", host="here", pid=9, lease_us=60_000_000)
    watch.looks(30, lambda: watch.beat(ALICE, BOB))
    assert 999 in watch.alive()
    watch.looks(40, lambda: watch.beat(ALICE, BOB))
    assert 999 not in watch.alive()


def test_a_worker_that_beats_at_the_last_moment_is_left_alone(
    watch: Watch, monkeypatch: pytest.MonkeyPatch
) -> None:
    bury = leases.bury

    def bury_too_late(engine: Any, dead: dict[int, int | None]) -> list[int]:
        watch.beat(ALICE)
        return bury(engine, dead)

    monkeypatch.setattr(leases, "bury", bury_too_late)
    watch.looks(LEASE_S + HEARTBEAT_S, lambda: watch.beat(BOB))
    assert watch.alive() == {ALICE, BOB}


def test_orphans_that_nobody_buried_just_now_are_found_as_well(watch: Watch) -> None:
    job = watch.scene.running(worker=ALICE)
    watch.scene.bury(ALICE)  # by a process that died before it could rescue
    watch.looks(HEARTBEAT_S * SWEEP_EVERY, lambda: watch.beat(BOB))
    assert watch.scene.live(job.id)["state"] == "ready"


def test_many_orphans_are_taken_in_batches_until_none_is_left(
    scene: Scene, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "BATCH", 10)
    scene.register(ALICE)
    scene.enqueue(*[new_job() for _ in range(35)])
    assert len(scene.claim(35, worker=ALICE)) == 35
    scene.bury(ALICE)
    monkeypatch.setattr(leases.rescue, "__kwdefaults__", {**(leases.rescue.__kwdefaults__ or {}), "top": 10})
    Watch(scene, monkeypatch).look()
    assert set(scene.states().values()) == {"ready"}


def test_prefetched_jobs_of_a_dead_worker_go_back_without_a_crash(watch: Watch) -> None:
    (job,) = watch.scene.enqueue(new_job())
    watch.scene.claim(1, worker=ALICE, lease_us=60_000_000)
    watch.looks(LEASE_S + HEARTBEAT_S, lambda: watch.beat(BOB))
    row = watch.scene.live(job)
    assert (row["state"], row["crashes"], row["attempt"]) == ("ready", 0, 0)


def test_a_dead_workers_third_crash_quarantines_its_job(watch: Watch) -> None:
    job = watch.scene.running(worker=ALICE)
    for number in (ALICE + 1000, ALICE + 2000, None):
        watch.looks(LEASE_S + HEARTBEAT_S, lambda: watch.beat(BOB))
        if number is not None:
            watch.scene.register(number)
            watch.scene.claim(1, worker=number, queues=[job.queue])
            watch.look()
    assert watch.scene.kept(job.id)["state"] == "quarantined"
    assert watch.scene.kept(job.id)["crashes"] == 3
