"""`evenflow workers`: who is in the books, and who has fallen silent."""

import json
import re

from evenflow.ids import id_text
from evenflow.store import leases, reads
from tests.cli.running import evenflow
from tests.cli.stage import Stage
from tests.client.serving import serving

KEYS = [
    "id", "parent", "kind", "host", "pid", "started_at", "heartbeat_at", "heartbeats", "lease_s", "alive", "running",
    "concurrency", "services",
]  # fmt: skip


def test_nobody_works_here(stage: Stage) -> None:
    assert evenflow("workers", "--url", stage.url).stdout == "no worker is running\n"
    assert json.loads(evenflow("workers", "--json", "--url", stage.url).stdout) == {"workers": []}


def test_a_silent_worker_is_told_from_a_living_one(stage: Stage) -> None:
    now = reads.now_us(stage.engine)
    leases.register(stage.engine, 1, kind="supervisor", host="one", pid=4321, lease_us=600_000_000)
    leases.register(
        stage.engine, 2, kind="worker", host="two", pid=5, lease_us=10_000_000, parent=1,
        about='{"running":3,"concurrency":10}', now=now - 90_000_000,
    )  # fmt: skip
    first, second = json.loads(evenflow("workers", "--json", "--url", stage.url).stdout)["workers"]
    assert list(first) == list(second) == KEYS
    assert (first["alive"], first["kind"], first["running"]) == (True, "supervisor", None)
    assert (second["alive"], second["parent"], second["running"], second["concurrency"]) == (
        False,
        id_text(1),
        3,
        10,
    )
    _, one, two = evenflow("workers", "--url", stage.url).stdout.splitlines()
    assert one.split()[:4] == [id_text(1), "supervisor", "one", "4321"]
    assert one.endswith(" alive")
    assert "3 of 10" in two
    assert re.search(r" (1 min [3-5]\d s|2 min) ago", two), two  # or more, where somebody stood still
    assert two.endswith(" silent")


def test_a_worker_of_this_process_is_seen(stage: Stage) -> None:
    job = stage.add.enqueue(1)
    with serving(stage.app, concurrency=3):
        job.result(timeout=20)
        (worker,) = json.loads(evenflow("workers", "--json", "--url", stage.url).stdout)["workers"]
    assert (worker["alive"], worker["concurrency"]) == (True, 3)
