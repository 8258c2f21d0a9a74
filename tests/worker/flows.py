"""The app that worker processes serve in the tests of workflows. `LEDGER_FOLDER` is where bodies leave their marks."""

import os
import signal
import time
from pathlib import Path

from evenflow import Conditional, Context, Evenflow, Retry

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))


def declare(app: Evenflow) -> Evenflow:
    """The tasks and conditions, under the same names wherever they are enqueued or run."""

    @app.task(name="numbers")
    def numbers(count: int) -> list[int]:
        return list(range(count))

    @app.task(name="square")
    def square(number: int) -> int:
        time.sleep(0.002)
        return number * number

    @app.task(name="total")
    def total(values: list[int]) -> int:
        return sum(values)

    @app.task(name="mark", run_in="process")
    def mark(name: str) -> str:
        (FOLDER / name).touch()
        return name

    @app.task(name="pay", retry=Retry(max_attempts=2, base=0))
    def pay(ctx: Context, name: str) -> str:
        def charge() -> int:
            with (FOLDER / f"{name}-charges").open("a") as ledger:
                ledger.write("x")
            return 42

        paid: int = ctx.step("charge", charge)
        if not (FOLDER / f"{name}-died").exists():
            (FOLDER / f"{name}-died").touch()
            os.kill(os.getpid(), signal.SIGKILL)
        return f"{name} paid {paid}"

    @app.condition
    def is_big(ctx: Conditional) -> bool:
        return bool(sum(ctx.results["numbers"]) > 10)

    return app


app = declare(Evenflow())
