"""The limits of one `evenflow worker` command, and how its processes share them."""

import signal
from collections import Counter
from pathlib import Path

import pytest

from evenflow import Evenflow
from evenflow.cli.worker import Ceilings
from tests.ledger import intervals, most_at_once
from tests.processes import wait_until
from tests.worker.command import Books, seldom
from tests.worker.conftest import StartWorker
from tests.worker.jobs import open_gate


def ceilings(
    processes: int = 4, concurrency: int = 2, prefetch: int = 0, per_worker: int = 0, batch: int = 0
) -> Ceilings:
    return Ceilings(processes, concurrency, prefetch, per_worker, batch)


def test_nothing_given_takes_effect_as_what_the_slots_and_the_buffer_need() -> None:
    assert ceilings().effective() == (8, 8)
    assert ceilings(prefetch=5).effective() == (13, 13)
    assert ceilings(prefetch=1000, per_worker=10, batch=3).effective() == (10, 3)


@pytest.mark.parametrize(("total", "processes"), [(10, 4), (3, 4), (0, 3), (12, 4), (7, 1)])
def test_shares_differ_by_one_at_most_and_add_up(total: int, processes: int) -> None:
    shares = [ceilings(processes).share(total, place) for place in range(processes)]
    assert sum(shares) == total
    assert max(shares) - min(shares) <= 1


def test_a_process_without_a_share_holds_nothing_ahead_but_may_start_what_it_claims() -> None:
    small = ceilings(processes=4, prefetch=1000, per_worker=2)
    assert [small.bounds(place) for place in range(4)] == [(1, 250), (1, 250), (1, 0), (1, 0)]
    holding = [place for place in range(4) if small.bounds(place)[1]]
    assert len(holding) <= 2, "only so many processes can hold a job that does not run"


def test_the_buffer_is_shared_like_the_ceiling() -> None:
    shared = ceilings(processes=4, concurrency=1, prefetch=6)
    assert [shared.bounds(place) for place in range(4)] == [(3, 2), (3, 2), (2, 1), (2, 1)]


@pytest.mark.either
@pytest.mark.process
@pytest.mark.parametrize(("per_worker", "most"), [(3, 3), (0, 6)])
def test_a_command_never_holds_more_than_its_ceiling(
    start_worker: StartWorker,
    engine_url: str,
    jobs_app: Evenflow,
    books: Books,
    tmp_path: Path,
    per_worker: int,
    most: int,
) -> None:
    settings = {"EVENFLOW_PREFETCH_BUFFER": 6, "EVENFLOW_CLAIM_LEASE_MS": 60_000}
    options = ["--processes", "2", "--concurrency", "1", "--max-claim-per-worker", str(per_worker)]
    start_worker(engine_url, *options, **settings).ready(2)
    jobs = jobs_app.tasks["ahold"].enqueue_many([(f"job{number}",) for number in range(20)])
    wait_until(
        seldom(lambda: books.states() == {"running": 2, "claimed": most, "ready": 18 - most}),
        "the ceiling to be reached",
        60,
    )
    seen = {books.states()["claimed"] for _ in range(20)}
    assert max(seen) <= most
    open_gate(tmp_path)
    for job in jobs:
        job.result(timeout=60)
    assert set(books.column("attempt")) == {1}


@pytest.mark.either
@pytest.mark.process
def test_two_commands_keep_the_concurrency_that_each_was_given(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    workers = {
        most: start_worker(engine_url, "--processes", "1", "--concurrency", str(most)).ready()
        for most in (1, 4)
    }
    jobs = jobs_app.tasks["hold"].enqueue_many([(f"job{number}",) for number in range(12)])
    wait_until(lambda: len(intervals(tmp_path / "bodies")) == 5, "all slots to be full", 60)
    open_gate(tmp_path)
    for job in jobs:
        job.result(timeout=60)
    runs = intervals(tmp_path / "bodies")
    for most, worker in workers.items():
        (pid,) = worker.children()
        assert most_at_once(run for run in runs if run.pid == pid) == most


def passes(books: Books) -> dict[int, list[int]]:
    """How many jobs each worker process took in each of its passes: what one pass claims has one time."""
    found: dict[int, Counter[int]] = {}
    for worker, started_at in books.rows("select worker, started_at from {job} where state = 'running'"):
        found.setdefault(worker, Counter())[started_at] += 1
    return {worker: list(taken.values()) for worker, taken in found.items()}


@pytest.mark.either
@pytest.mark.process
def test_small_batches_leave_jobs_for_others_and_a_restart_with_a_lower_ceiling_lowers_what_is_claimed(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, books: Books, tmp_path: Path
) -> None:
    """S0-36, S0-37, S0-43, S2-26: two commands under a cap of six, each with room for four."""
    jobs_app.set_limit("default", max_concurrency=6)
    jobs = jobs_app.tasks["ahold"].enqueue_many([(f"job{number}",) for number in range(20)])
    options = ["--processes", "1", "--concurrency", "4", "--queues", "default"]
    settings = {"EVENFLOW_CLUSTER_WIDE_CAP": 7}
    first = start_worker(engine_url, *options, "--max-claim-batch", "2", **settings)
    options += ["--loglevel", "warning"]
    lowered = start_worker(engine_url, *options, "--max-claim-per-worker", "2", **settings)
    wait_until(seldom(lambda: sum(map(sum, passes(books).values())) == 6), "the cap to be reached", 90)
    found = passes(books)
    assert len(found) == 2, "both got some"
    assert [max(taken) for taken in found.values()] == [2, 2], "and none took more in one pass"
    caps = cap_rows(books)

    before = set(found)
    lowered.stop(signal.SIGQUIT)
    assert "Concurrency config" in first.log
    assert "Concurrency config" not in lowered.log, "it was told to say warnings only"
    start_worker(engine_url, *options, "--max-claim-per-worker", "1", **settings).ready()
    wait_until(
        seldom(lambda: sum(map(sum, passes(books).values())) == 6 and set(passes(books)) - before != set()),
        "the cap to be reached again",
        90,
    )
    ((_, taken),) = [each for each in passes(books).items() if each[0] not in before]
    assert set(taken) == {1}
    assert cap_rows(books) == caps == [("cluster", 7), ("default", 6)]
    open_gate(tmp_path)
    for job in jobs:
        job.result(timeout=60)


def cap_rows(books: Books) -> list[tuple[str, int]]:
    """The caps as the store has them."""
    found = books.rows("select name, max_concurrency from {queue} where max_concurrency is not null")
    return sorted([*found, *books.rows("select 'cluster', cap from {cluster}")])


@pytest.mark.either
@pytest.mark.process
def test_a_busy_command_holds_no_job_that_a_free_one_could_run(
    start_worker: StartWorker, engine_url: str, jobs_app: Evenflow, tmp_path: Path
) -> None:
    options = ["--processes", "1", "--concurrency", "1"]
    start_worker(engine_url, *options).ready()
    first = jobs_app.tasks["hold"].enqueue("long")
    books = Books(engine_url)
    wait_until(seldom(lambda: books.states() == {"running": 1}), "the long job to run", 60)
    quick = jobs_app.tasks["note"].enqueue_many([(f"quick{number}",) for number in range(5)])
    start_worker(engine_url, *options).ready()
    for job in quick:
        job.result(timeout=60)
    assert books.states()["running"] == 1
    open_gate(tmp_path)
    first.result(timeout=30)
