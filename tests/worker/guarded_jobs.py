"""The app that worker processes run in the tests of breakers. Its bodies fail while a file `down` exists, hang while a
file `hang` does, and write into the ledger."""

import os
import time
from pathlib import Path

from evenflow import Breaker, Context, Evenflow, Retry
from tests.ledger import BodyLedger

FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))
COOLDOWN_S, LEASE_S = 0.5, 6.0  # a probe that stands still for a moment must not be followed by another
LOOK_S = 0.01


def call(ctx: Context, job: str) -> str:
    """Asks a downstream that is up, or down, or does not answer."""
    with BodyLedger(FOLDER / "bodies").body(job, epoch=ctx.fence, queue=ctx.queue):
        while (FOLDER / "hang").exists():
            time.sleep(LOOK_S)
        if (FOLDER / "down").exists():
            raise ConnectionError("the bank does not answer")
        time.sleep(LOOK_S)
        return job


def declared(app: Evenflow) -> Evenflow:
    """The same app, with the guarded task `call`."""
    bank = Breaker(failure_threshold=3, cooldown_s=COOLDOWN_S, name="bank", probe_lease_s=LEASE_S)
    patient = Retry(max_attempts=1000, backoff="fixed", base=0.01, jitter=False)
    app.task(name="call", breaker=bank, retry=patient)(call)
    return app


if "LEDGER_FOLDER" in os.environ:
    app = declared(Evenflow())
