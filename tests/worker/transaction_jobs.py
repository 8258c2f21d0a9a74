"""An app whose bodies write into a table of the queue's own database, in the transaction of their run."""

import os
import signal
import time
from pathlib import Path
from typing import Any

from evenflow import Context, Evenflow, Retry

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))


def insert(ctx: Context, connection: Any, name: str) -> None:
    mark = "?" if type(connection).__module__.startswith("sqlite3") else "%s"
    connection.execute(f"insert into effect (name, attempt) values ({mark}, {mark})", (name, ctx.attempt))


def book(ctx: Context, name: str, way: str = "fine") -> str:
    """Writes once. `die` kills its process between the effect and the commit, the first time; `raise` raises then."""
    with ctx.transaction() as connection:
        insert(ctx, connection, name)
    if way == "die" and not (FOLDER / f"{name}-died").exists():
        (FOLDER / f"{name}-died").touch()
        os.kill(os.getpid(), signal.SIGKILL)
        time.sleep(60)
    if way == "raise" and ctx.attempt == 1:
        raise ValueError("no")
    return name


async def abook(ctx: Context, name: str, way: str = "fine") -> str:
    async with ctx.transaction() as connection:
        if type(connection).__module__.startswith("sqlite3"):
            insert(ctx, connection, name)
        else:
            await connection.execute(
                "insert into effect (name, attempt) values (%s, %s)", (name, ctx.attempt)
            )
    if way == "raise" and ctx.attempt == 1:
        raise ValueError("no")
    return name


def declared(app: Evenflow) -> Evenflow:
    """The same app, with the tasks of this module."""
    options: dict[str, Any] = {"retry": Retry(max_attempts=2, base=0.05, jitter=False), "concurrency": ()}
    app.task(name="book", **options)(book)
    app.task(name="abook", **options)(abook)
    app.task(name="isolated", run_in="process", **options)(book)
    return app


app = declared(Evenflow())
