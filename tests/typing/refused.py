"""Calls that are wrong. Both checkers are told to complain about a mark that no error needs. Never run."""

from evenflow import Context, Evenflow, Job

app = Evenflow("sqlite:///:memory:")


@app.task
def add(a: int, b: int) -> int:
    return a + b


@app.task(queue="docs")
async def crawl(ctx: Context, url: str) -> bytes:
    return url.encode()


async def in_a_coroutine() -> None:
    await add.aenqueue("x", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
    await crawl.aenqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
    wrong: str = await add.enqueue(1, 2).aresult()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
    print(wrong)


add.enqueue("x", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add.enqueue("x")  # type: ignore[call-arg,arg-type]  # pyright: ignore[reportCallIssue]
add.enqueue(1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.enqueue(1, 2, 3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.enqueue(1, 2, c=3)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.job(1, "2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add.using(priority=1).enqueue(1, "2")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
add("x", 2)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
crawl.enqueue(1)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
crawl.enqueue()  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]

text: str = add.enqueue(1, 2).result()  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
job: Job[str] = add.enqueue(1, 2)  # type: ignore[assignment]  # pyright: ignore[reportAssignmentType]
add.using(prioritty=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
add.using(priority="high")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.task(queu="docs")  # type: ignore[call-overload]  # pyright: ignore[reportCallIssue]
app.enqueue_many([(1, 2)])  # type: ignore[list-item]  # pyright: ignore[reportArgumentType]
app.recurring("* * * * *", catch_up="some")  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.recurring("* * * * *", overlap=True)  # type: ignore[arg-type]  # pyright: ignore[reportArgumentType]
app.recurring("* * * * *", colour=1)  # type: ignore[call-arg]  # pyright: ignore[reportCallIssue]
