"""The undertaker takes the jobs of processes whose death is proven at once, and keeps the dead in mind through an outage."""

from typing import Any

import pytest

from evenflow.errors import ProcessExitError, StoreUnavailable
from evenflow.services.undertaker import IDLE_S, LATE_LOOKS_S, Death, Undertaker
from evenflow.settings import Settings
from evenflow.store import leases
from evenflow.store.signals import Waker
from tests.store.scene import SECOND, Scene, new_job

PARENT, CHILD, OTHER_PARENT, OTHER_CHILD = 1, 2, 3, 4
KILLED = ProcessExitError("worker process 77 was ended by SIGKILL", signal="SIGKILL")


class Parish:
    """Two supervisors with a child each, both children with the process id 77, as on two hosts."""

    def __init__(self, scene: Scene) -> None:
        self.scene = scene
        for worker, parent in (
            (PARENT, None),
            (CHILD, PARENT),
            (OTHER_PARENT, None),
            (OTHER_CHILD, OTHER_PARENT),
        ):
            kind = "worker" if parent else "supervisor"
            leases.register(
                scene.engine, worker, kind=kind, parent=parent, host="h", pid=77, lease_us=10 * SECOND
            )
        settings = Settings.build("sqlite:///:memory:", environ={})
        self.undertaker = Undertaker(scene.engine, Waker(scene.engine), settings, PARENT)
        self.job = scene.running(worker=CHILD)
        self.other_job = scene.running(worker=OTHER_CHILD)

    def books(self) -> set[int]:
        return {row.id for row in leases.workers(self.scene.engine)}


@pytest.fixture
def parish(scene: Scene) -> Parish:
    return Parish(scene)


def test_nothing_is_done_where_nobody_died(parish: Parish) -> None:
    parish.undertaker.step()
    assert parish.books() == {PARENT, CHILD, OTHER_PARENT, OTHER_CHILD}


def test_the_jobs_of_a_reaped_child_are_free_at_once_and_say_how_it_died(parish: Parish) -> None:
    parish.undertaker.report(Death(77, KILLED))
    parish.undertaker.step()
    row = parish.scene.live(parish.job.id)
    assert (row["state"], row["crashes"], row["attempt"]) == ("ready", 1, 0)
    assert "worker process 77 was ended by SIGKILL" in row["errors"]
    assert "ProcessExitError" in row["errors"]
    assert CHILD not in parish.books()


def test_a_job_whose_task_fails_on_a_crash_fails_with_the_exit_error(parish: Parish) -> None:
    job = parish.scene.running(worker=CHILD, fails_on_crash=True)
    parish.undertaker.report(Death(77, KILLED))
    parish.undertaker.step()
    row = parish.scene.kept(job.id)
    assert row["state"] == "failed"
    assert '"WORKER_CRASHED"' in row["errors"] and '"ProcessExitError"' in row["errors"]


def test_a_process_of_the_same_number_elsewhere_is_left_alone(parish: Parish) -> None:
    parish.undertaker.report(Death(77, KILLED))
    parish.undertaker.step()
    assert OTHER_CHILD in parish.books()
    assert parish.scene.live(parish.other_job.id)["state"] == "running"


def test_a_child_that_was_never_in_the_books_is_told_as_a_stranger_once(parish: Parish) -> None:
    parish.undertaker.report(Death(78, KILLED))
    parish.undertaker.step()
    assert parish.undertaker.take_strangers() == [78]
    assert parish.undertaker.take_strangers() == []
    parish.undertaker.report(Death(77, KILLED))
    parish.undertaker.step()
    assert parish.undertaker.take_strangers() == []


def test_the_dead_are_kept_in_mind_while_the_database_is_away(
    parish: Parish, monkeypatch: pytest.MonkeyPatch
) -> None:
    workers = leases.workers

    def away(engine: Any) -> list[leases.Worker]:
        raise StoreUnavailable("away")

    monkeypatch.setattr(leases, "workers", away)
    parish.undertaker.report(Death(77, KILLED))
    with pytest.raises(StoreUnavailable):
        parish.undertaker.step()
    monkeypatch.setattr(leases, "workers", workers)
    parish.undertaker.step()
    assert parish.scene.live(parish.job.id)["state"] == "ready"


def test_an_outage_between_burial_and_rescue_loses_no_job(
    parish: Parish, monkeypatch: pytest.MonkeyPatch
) -> None:
    rescue = leases.rescue

    def away(*_: Any, **__: Any) -> list[leases.Rescued]:
        raise StoreUnavailable("away")

    monkeypatch.setattr(leases, "rescue", away)
    parish.undertaker.report(Death(77, KILLED))
    with pytest.raises(StoreUnavailable):
        parish.undertaker.step()
    monkeypatch.setattr(leases, "rescue", rescue)
    assert CHILD not in parish.books()
    parish.scene.enqueue(new_job())
    parish.undertaker.step()
    assert parish.undertaker.take_strangers() == [77], (
        "its row is gone, but nobody forgets its jobs: see the rescuer"
    )


def buried_a_second_ago(parish: Parish) -> None:
    parish.undertaker.report(Death(77, KILLED))
    parish.undertaker.step()
    looks = parish.undertaker._late_looks
    parish.undertaker._late_looks = [(at - 1.0, worker) for at, worker in looks]


def test_a_call_that_the_dead_had_sent_and_that_claims_after_the_burial_costs_its_job_nothing(
    parish: Parish,
) -> None:
    buried_a_second_ago(parish)
    parish.scene.enqueue(new_job(queue="late"))
    (late,) = parish.scene.claim(1, worker=CHILD, queues=["late"])
    left_s = parish.undertaker.step()
    row = parish.scene.live(late.id)
    assert (row["state"], row["attempt"], row["crashes"], row["errors"]) == ("ready", 0, 0, None)
    assert left_s <= LATE_LOOKS_S[-1] - 1.0, "it looks once more, later"
    assert parish.scene.live(parish.other_job.id)["state"] == "running"


def test_a_late_look_that_fails_is_made_again(parish: Parish, monkeypatch: pytest.MonkeyPatch) -> None:
    buried_a_second_ago(parish)
    parish.scene.enqueue(new_job(queue="late"))
    (late,) = parish.scene.claim(1, worker=CHILD, queues=["late"])

    def away(*_: Any) -> Any:
        raise StoreUnavailable("away")

    with monkeypatch.context() as patched:
        patched.setattr(leases, "in_flight", away)
        with pytest.raises(StoreUnavailable):
            parish.undertaker.step()
    parish.undertaker.step()
    assert parish.scene.live(late.id)["state"] == "ready"


def test_the_dead_are_forgotten_some_seconds_after_their_burial(parish: Parish) -> None:
    buried_a_second_ago(parish)
    parish.undertaker._late_looks = [(0.0, worker) for _, worker in parish.undertaker._late_looks]
    assert parish.undertaker.step() == IDLE_S
