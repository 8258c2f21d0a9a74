"""Benchmark of the dashboard: what each page takes on the server, with a large backlog, a long past and many groups."""

import contextlib
from collections.abc import Iterator
from functools import partial

from starlette.testclient import TestClient

from bench.report import Cell, Report
from bench.seed import QUEUE, Seeder
from bench.sizes import Sizes
from bench.stores import ENGINES, Stores, engine_of, fetch, settle
from bench.timing import Samples
from evenflow import Evenflow

ROUNDS = 5
FAILED_OF = 100
"""One finished job of so many has failed."""
PAGES = {
    "overview": "/", "jobs": "/jobs", "jobs, running": "/jobs?state=running", "jobs, blocked": "/jobs?state=blocked",
    "jobs, of a group": f"/jobs?queue={QUEUE}&group=g7", "jobs, of no task": "/jobs?task=nobody.knows", "failed": "/failed",
    "one job": "/jobs/{id}", "queues": "/queues", "groups": f"/groups?queue={QUEUE}", "limits": "/limits", "workers": "/workers",
    "schedules": "/schedules", "workflows": "/workflows", "database": "/database", "audit": "/audit", "metrics": "/metrics",
    "bulk": f"/bulk?act=cancel&state=ready&queue={QUEUE}", "bulk, of no task": "/bulk?act=cancel&task=nobody.knows",
}  # fmt: skip


def web(stores: Stores, sizes: Sizes) -> Report:
    """Every page a few times, the store warm; the whole request without the network."""
    rows: list[tuple[Cell, ...]] = []
    for kind, engine in ENGINES.items():
        with filled(stores, kind, sizes) as (client, job):
            for name, path in PAGES.items():
                samples = Samples()
                load = partial(_loaded, client, path.replace("{id}", job))
                for _ in range(ROUNDS + 1):
                    samples.add(load)
                warm = sorted(samples.seconds[1:])
                rows.append(
                    (engine, name, warm[len(warm) // 2] * 1000, warm[-1] * 1000, samples.seconds[0] * 1000)
                )
    full = f"{sizes.many_ready:,} ready jobs in {sizes.groups:,} groups, {sizes.blocked:,} blocked, {sizes.finished:,} finished"
    notes = [
        f"{full}, one of {FAILED_OF} failed",
        f"the whole request without the network; median and slowest of {ROUNDS} after a first one",
    ]
    columns = {"engine": "", "page": "", "ms, median": ".1f", "ms, slowest": ".1f", "ms, first": ".1f"}
    return Report("web", "Pages of the dashboard", columns, rows, notes)


@contextlib.contextmanager
def filled(stores: Stores, kind: str, sizes: Sizes) -> Iterator[tuple[TestClient, str]]:
    """A site over a full store, and the id of a job in it."""
    with stores.database(kind, flushes=False) as url, Evenflow(url) as app:
        with contextlib.closing(engine_of(url)) as engine:
            seeder = Seeder(engine, sizes.groups)
            seeder.add_finished(sizes.finished)
            fetch(
                engine,
                "update evenflow_history set state = 'failed' where id % :part = 0",
                {"part": FAILED_OF},
            )
            seeder.add_blocked(sizes.blocked)
            seeder.add(sizes.many_ready)
            settle(engine)
        client = TestClient(app.web(), base_url="http://localhost", client=("127.0.0.1", 1))
        yield client, client.get("/api/jobs?limit=1").json()["jobs"][0]["id"]


def _loaded(client: TestClient, path: str) -> None:
    answer = client.get(path)
    if answer.status_code != 200:
        raise AssertionError(f"{path} answered {answer.status_code}: {answer.text[:200]}")
