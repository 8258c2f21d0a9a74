"""Trust between processes: a worker that requires signatures runs what its keys have signed, and keys are changed without
a loss while jobs wait."""

from pathlib import Path

import pytest

from evenflow import Evenflow, Job, State
from tests.client.conftest import MakeApp
from tests.client.test_signed_jobs import change
from tests.ledger import intervals
from tests.processes import wait_until
from tests.worker.conftest import StartWorker
from tests.worker.jobs import declared

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.either]
KEYS = {"old": "an old secret of 16+", "new": "a new secret of 16+"}
OLD, NEW = (f"{name}:{secret}" for name, secret in KEYS.items())


def signing(url: str, make_app: MakeApp, *names: str) -> Evenflow:
    return declared(make_app(url, signing_keys={name: KEYS[name] for name in names} or None))


def enqueue(app: Evenflow, *names: str) -> list[Job[str]]:
    return [app.tasks["note"].enqueue(name) for name in names]


def states(app: Evenflow, *jobs: Job[str]) -> list[State]:
    return [app.job(job.id).state for job in jobs]


def all_ended(app: Evenflow, *jobs: Job[str]) -> None:
    wait_until(lambda: all(state.is_end for state in states(app, *jobs)), f"the end of {len(jobs)} jobs", 60)


def test_a_worker_that_requires_signatures_quarantines_what_was_changed_and_runs_the_rest(
    engine_url: str, make_app: MakeApp, start_worker: StartWorker, tmp_path: Path
) -> None:
    app, stranger = signing(engine_url, make_app, "new"), signing(engine_url, make_app)
    (changed,) = enqueue(app, "changed")
    change(engine_url, "payload", '[["forged"],{}]')
    (unsigned,) = enqueue(stranger, "unsigned")
    good = enqueue(app, "one", "two")
    worker = start_worker(
        engine_url, "--processes", "1", EVENFLOW_SIGNING_KEYS=NEW, EVENFLOW_REQUIRE_SIGNED="1"
    )
    worker.ready()
    all_ended(app, changed, unsigned, *good)
    assert states(app, changed, unsigned, *good) == [State.QUARANTINED] * 2 + [State.SUCCEEDED] * 2
    for job, said in ((changed, "does not match the job"), (unsigned, "the job is not signed")):
        error = app.job(job.id).error
        assert error is not None and error.code == "SIGNATURE_INVALID" and said in error.message
    assert worker.stop() == 0
    assert {run.job for run in intervals(tmp_path / "bodies")} == {"one", "two"}


def test_keys_are_changed_while_jobs_wait_and_none_is_lost(
    engine_url: str, make_app: MakeApp, start_worker: StartWorker
) -> None:
    before = signing(engine_url, make_app, "old")
    after = signing(engine_url, make_app, "new", "old")
    # 1. The new key is made known to workers, then to those who enqueue; jobs of both wait and run side by side.
    waiting = enqueue(before, *(f"old-{number}" for number in range(20)))
    worker = start_worker(
        engine_url, "--processes", "1", EVENFLOW_SIGNING_KEYS=f"{OLD},{NEW}", EVENFLOW_REQUIRE_SIGNED="1"
    )
    worker.ready()
    waiting += enqueue(after, *(f"new-{number}" for number in range(20)))
    all_ended(after, *waiting)
    assert states(after, *waiting) == [State.SUCCEEDED] * 40
    assert worker.stop() == 0
    # 2. The old key is taken away too early: its jobs are kept apart, and run when they are asked for with the key back.
    late, fresh = enqueue(before, "late"), enqueue(after, "fresh")
    worker = start_worker(
        engine_url, "--processes", "1", EVENFLOW_SIGNING_KEYS=NEW, EVENFLOW_REQUIRE_SIGNED="1"
    )
    worker.ready()
    all_ended(after, *late, *fresh)
    assert states(after, *late, *fresh) == [State.QUARANTINED, State.SUCCEEDED]
    assert worker.stop() == 0
    assert after.retry(state="quarantined") == 1
    worker = start_worker(
        engine_url, "--processes", "1", EVENFLOW_SIGNING_KEYS=f"{NEW},{OLD}", EVENFLOW_REQUIRE_SIGNED="1"
    )
    worker.ready()
    all_ended(after, *late)
    assert states(after, *late) == [State.SUCCEEDED]
    assert worker.stop() == 0
