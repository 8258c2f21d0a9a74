"""An app whose task recurs, as worker processes run it: every run is noted in the ledger with its job."""

import os
from datetime import timedelta
from pathlib import Path

from evenflow import Context, Evenflow
from tests.ledger import Ledger

app = Evenflow(os.environ.get("EVENFLOW_URL", "sqlite:///:memory:"))
FOLDER = Path(os.environ.get("LEDGER_FOLDER", "."))


@app.recurring(every=timedelta(seconds=1), key="tick", catch_up="all")
@app.task(name="tick")
def tick(ctx: Context) -> None:
    Ledger(FOLDER / "ticks").note(ctx.job_id)
