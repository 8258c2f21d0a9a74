"""Calls that are right. mypy and pyright find nothing here, and see the types that are asserted. Never run."""

from datetime import UTC, datetime, timedelta
from typing import Any, assert_type

from evenflow import Context, Evenflow, Job, Retry, Unique
from evenflow.client.task import Call

app = Evenflow("sqlite:///:memory:")


@app.task
def add(a: int, b: int = 2) -> int:
    return a + b


@app.task
async def fetch(url: str) -> bytes:
    return url.encode()


@app.task(queue="docs", group="tenant", retry=Retry(max_attempts=5), timeout=30, unique=Unique("tenant"))
def parse(ctx: Context, tenant: str, *, path: str) -> list[str]:
    ctx.progress(1, 2)
    return [tenant, path]


@app.task(priority=-5)
async def crawl(ctx: Context, url: str) -> dict[str, int]:
    return {url: ctx.attempt}


@app.task()
def nothing() -> None: ...


@app.recurring("*/5 * * * *", key="often", timezone="Europe/Berlin", catch_up="one", jitter=5, args=(1,))
@app.task(queue="docs")
def again(a: int) -> int:
    return a


@app.recurring(every=timedelta(minutes=5), overlap="skip")
async def refresh(ctx: Context) -> bytes:
    return b""


@app.task
def store(value: Any, tenant: str) -> int:
    """A first parameter that would take a Context as well is an argument like any other."""
    return 1


assert_type(add(1, 2), int)
assert_type(add.enqueue(1, 2), Job[int])
assert_type(add.enqueue(a=1, b=2), Job[int])
assert_type(add.enqueue(1).result(timeout=1), int)
assert_type(add.enqueue_many([(1, 2), {"a": 1}]), list[Job[int]])
assert_type(add.job(1, 2), Call[int])
assert_type(
    add.using(priority=-5, run_after=timedelta(minutes=1), good_until=datetime.now(UTC), group="bob").enqueue(
        1
    ),
    Job[int],
)
assert_type(app.enqueue_many([add.job(1), parse.job("bob", path="x")]), list[Job[Any]])

assert_type(fetch.enqueue("x"), Job[bytes])
assert_type(fetch.enqueue("x").result(), bytes)

assert_type(parse("bob", path="x"), list[str])
assert_type(parse.enqueue("bob", path="x"), Job[list[str]])
assert_type(parse.using(connection=object()).enqueue("bob", path="x").result(), list[str])

assert_type(crawl.enqueue("x"), Job[dict[str, int]])

assert_type(nothing.enqueue(), Job[None])
store.enqueue({"a": 1}, "bob")
store({"a": 1}, tenant="bob")


async def in_a_coroutine() -> None:
    assert_type(await add.aenqueue(1, 2), Job[int])
    assert_type(await fetch.aenqueue("x"), Job[bytes])
    assert_type(await (await crawl.aenqueue("x")).aresult(timeout=1), dict[str, int])
    assert_type(await fetch("x"), bytes)
    assert_type(await crawl("x"), dict[str, int])


def inside_a_block() -> None:
    with Evenflow("sqlite:///:memory:") as opened:
        assert_type(opened, Evenflow)
        opened.run_worker(until_empty=True)


def covariant(job: Job[int]) -> Job[object]:
    return job


@app.task(queue="docs")
def keep(value: object) -> str:
    return str(value)


assert_type(keep.enqueue(1), Job[str])
assert_type(keep.using(priority=1).enqueue(value=1).result(), str)

assert_type(again.enqueue(1), Job[int])
assert_type(refresh.enqueue(), Job[bytes])
assert_type(app.schedules.run_now("often"), Job[Any])
app.schedules.add("k", again, cron="0 6 * * *", args=[1], overlap="skip", catch_up="all")
