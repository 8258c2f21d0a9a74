"""A taste of the chaos runs in every run of the suite: each engine loses children and a supervisor under load."""

import random

import pytest

from tests.chaos import faults
from tests.chaos.faults import Cluster
from tests.chaos.load import Load
from tests.worker.command import Books

pytestmark = pytest.mark.process


@pytest.mark.either
def test_workers_that_are_killed_under_load_cost_no_job(chaos_url: str, load: Load) -> None:
    chance = random.Random(11)
    # A lease that no load can break: here everybody's death is proven, and who lives must not be taken for dead.
    with Cluster(chaos_url, load.folder, load, commands=1, EVENFLOW_LEASE_MS="20000") as cluster:
        load.start()
        for _ in range(3):
            load.flows(5)
            faults.kill_a_child(cluster, chance)
        load.flows(5)
        faults.kill_a_supervisor(cluster, chance)
        load.flows(5)
        books = Books(chaos_url)
        load.drained(books)
        report = load.report(books, faults=4, seed=11)
        print(report)
        assert report.violations == []
        assert cluster.stop() == [0]
