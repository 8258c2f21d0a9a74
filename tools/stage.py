"""A lively app for screenshots of the dashboard: queues, tenants, failures, limits, schedules, a workflow."""

import contextlib
import linecache
import random
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FunctionType
from typing import ParamSpec, TypeVar

from evenflow import Breaker, Concurrency, Context, Evenflow, Queue, Rate, Retry, State
from evenflow.rules.histogram import BOUNDS_S, count_sorted
from evenflow.store import statistics
from evenflow.store.open import open_engine
from evenflow.store.statistics import MINUTE_US, Statistic
from evenflow.web import Principal, Role, acts

WITHIN_S = 30.0
P = ParamSpec("P")
T = TypeVar("T")


def make_app(url: str, is_over: threading.Event) -> Evenflow:
    """The app, with its tasks; those of the queue `video` run until it is over."""
    app = Evenflow(
        url,
        queues=[
            Queue("documents", priority=20, weights={"globex": 2.0}),
            Queue("mail", max_concurrency=8, rate=Rate("600/minute")),
            Queue("billing", priority=10, max_concurrency=3, breaker=Breaker(5, 60, name="bank")),
            Queue("reports", max_ready=500),
            Queue("video"),
        ],
    )

    @app.task(name="documents.parse", queue="documents", group="tenant", retry=Retry(max_attempts=3))
    def parse(ctx: Context, tenant: str, path: str) -> dict[str, int]:
        ctx.log.info("opened %s", path)
        ctx.progress(1, 1, "parsed")
        return {"pages": len(path), "words": 1234}

    @app.task(name="mail.send", queue="mail", retry=Retry(max_attempts=4, base=30))
    def send(to: str, template: str, api_token: str = "") -> str:
        return "250 OK"

    @app.task(name="billing.charge", queue="billing", concurrency=Concurrency(to=1, key="customer"))
    @_told_as("/srv/shop/billing.py")
    def charge(ctx: Context, customer: str, cents: int, card: str) -> str:
        ctx.log.info("charging %d cents", cents)
        if cents % 7 == 0:
            ctx.log.warning("the bank took its time")
            raise ConnectionError(f"bank.example: 503 Service Unavailable (customer {customer})")
        return f"ch_{customer}_{cents}"

    @app.task(name="reports.build", queue="reports")
    def build(month: str, rows: int = 0) -> int:
        return rows

    @app.task(name="reports.publish", queue="reports")
    def publish(month: str) -> str:
        if month == "2026-02":
            raise ValueError("the template 'summary' has no page for February")
        return f"reports/{month}.pdf"

    @app.task(name="video.encode", queue="video", group="tenant")
    def encode(ctx: Context, tenant: str, clip: str, done: int) -> None:
        ctx.progress(done, 100, f"{done} of 100 scenes")
        is_over.wait()

    app.recurring(
        "0 6 * * *",
        key="daily-report",
        timezone="Europe/Berlin",
        args=("2026-11",),
        description="Everything of yesterday",
    )(build)
    app.recurring("*/5 * * * *", key="digest", args=("all@example.com", "digest"))(send)
    return app


def fill(app: Evenflow) -> dict[str, str]:
    """Jobs in every state, an hour of statistics; ids of what pages show."""
    tasks = app.tasks
    chance = random.Random(7)
    parse, send = tasks["documents.parse"], tasks["mail.send"]
    charge, build = tasks["billing.charge"], tasks["reports.build"]
    for cents in (4900, 1299, 700, 2100, 2500):
        charge.enqueue(f"cus_{cents}", cents, card="4242 4242 4242 4242")
    done = parse.enqueue("acme", "invoices/2026-11-16.pdf")
    runs = [_workflow(app, month) for month in ("2026-01", "2026-02")]
    worker = threading.Thread(
        target=lambda: app.run_worker(until_empty=True)
    )  # a loop may run on this thread
    worker.start()
    worker.join()
    for tenant, count in (("acme", 600), ("globex", 240), ("initech", 90), ("umbrella", 12)):
        parse.enqueue_many([(tenant, f"{tenant}/{number:04}.pdf") for number in range(count)])
    send.enqueue_many([(f"user{number}@example.com", "welcome", "tok_secret") for number in range(40)])
    send.using(run_after=900).enqueue_many(
        [(f"user{number}@example.com", "reminder", "") for number in range(25)]
    )
    waiting = [charge.enqueue("cus_77", 990 + number, card="4000 0000 0000 0002") for number in range(4)]
    build.enqueue_many([(f"2026-{month:02}", 100) for month in range(1, 11)])
    failed = next(iter(app.jobs(state="failed", queue="billing", limit=1)))
    with contextlib.closing(open_engine(app.settings.database, app.settings.schema)) as engine:
        _operate(acts.Scene(app, engine, Principal("ann", Role.OPERATOR), "10.0.4.17"))
        now = time.time_ns() // 1000
        for place in range(60):
            statistics.add(engine, _minute(place, chance), now=now - (59 - place) * MINUTE_US)
    return {
        "failed": failed.id, "done": done.id, "blocked": waiting[-1].id, "run": runs[0], "broken": runs[1],
    }  # fmt: skip


@contextlib.contextmanager
def at_work(app: Evenflow, is_over: threading.Event) -> Iterator[None]:
    """A worker that is busy meanwhile."""
    jobs = [
        app.tasks["video.encode"].enqueue(tenant, f"clip-{number}.mov", 12 + number * 17)
        for number, tenant in enumerate(("acme", "globex", "acme", "initech", "acme"))
    ]
    worker = threading.Thread(
        target=lambda: app.run_worker(queues=["video"], concurrency=12, until_empty=True)
    )
    worker.start()
    ends_at = time.monotonic() + WITHIN_S
    while any(job.refresh().progress is None for job in jobs):
        if time.monotonic() > ends_at:
            raise TimeoutError("the worker did not begin")
        time.sleep(0.1)
    try:
        yield
    finally:
        is_over.set()
        worker.join()


def _told_as(path: str) -> Callable[[Callable[P, T]], Callable[P, T]]:
    """Show a body in tracebacks as one of a file of the shop: pictures must not tell on which machine they were taken."""

    def told(body: Callable[P, T]) -> Callable[P, T]:
        assert isinstance(body, FunctionType)
        text = Path(__file__).read_text()
        # No time of change: `linecache` then never looks for the file.
        linecache.cache[path] = (len(text), None, text.splitlines(keepends=True), path)
        body.__code__ = body.__code__.replace(co_filename=path)
        return body

    return told


def _operate(scene: acts.Scene) -> None:
    """What an operator does on a day on which the bank moves."""
    for name, body in (
        ("set-limit", acts.QueueLimits(queue="billing", max_concurrency=3)),
        ("pause-queue", acts.OneQueue(queue="reports", why="the warehouse is rebuilt until noon")),
        ("pause-schedule", acts.OneSchedule(key="digest", why="nobody reads it")),
        ("cancel-jobs", acts.Jobs(state=State.SCHEDULED, queue="mail", expect=24)),
        ("open-breaker", acts.OneBreaker(breaker="bank", why="the bank moves its data centre")),
    ):
        with contextlib.suppress(acts.Refused):  # one of them expects another number
            acts.perform(scene, name, body)


def _workflow(app: Evenflow, month: str) -> str:
    build, publish, send = app.tasks["reports.build"], app.tasks["reports.publish"], app.tasks["mail.send"]
    flow = app.workflow("monthly-report")
    parts = [
        flow.step(build, month, rows, name=name) for name, rows in (("sales", 3), ("costs", 4), ("staff", 5))
    ]
    book = flow.step(publish, month, after=parts, name="publish")
    flow.step(send, "board@example.com", "report", after=[book], name="tell-the-board")
    flow.step(send, "all@example.com", "report", after=[book], name="tell-everybody")
    return flow.start().id


def _minute(place: int, chance: random.Random) -> list[Statistic]:
    busy = 0.6 + 0.4 * abs((place % 30) - 15) / 15
    found = []
    for queue, task, per_minute, wait_s, run_s in (
        ("documents", "documents.parse", 320, 0.4, 0.9), ("mail", "mail.send", 540, 0.05, 0.12),
        ("billing", "billing.charge", 45, 0.2, 0.6), ("reports", "reports.build", 4, 2.0, 12.0),
    ):  # fmt: skip
        count = int(per_minute * busy * chance.uniform(0.85, 1.15))
        failed = count // 2 if 38 <= place <= 44 and queue == "billing" else 0
        waits = sorted(chance.lognormvariate(0, 0.8) * wait_s for _ in range(count))
        runs = sorted(chance.lognormvariate(0, 0.6) * run_s for _ in range(count))
        found.append(
            Statistic(
                queue, task, started=count, succeeded=count - failed, failed=failed, retried=failed,
                wait_us=int(sum(waits) * 1e6), run_us=int(sum(runs) * 1e6), waits=count_sorted(waits, BOUNDS_S),
                runs=count_sorted(runs, BOUNDS_S),
            )
        )  # fmt: skip
    return found
