"""The app of the demo's second act, as its worker processes import it. They are told the address by the demo."""

import os
import time

from evenflow import Evenflow, Queue, Rate

URL, SCHEMA = "EVENFLOW_DEMO_URL", "EVENFLOW_DEMO_SCHEMA"
CAP, PER_SECOND = 3, 20
BANK, API = "bank", "api"
QUEUES = (Queue(BANK, max_concurrency=CAP), Queue(API, rate=Rate(f"{PER_SECOND}/second")))
WORK_S = 0.03


def made_app(url: str, schema: str) -> Evenflow:
    """An app with a capped queue and one under a rate, and a task for each."""
    made = Evenflow(url, queues=QUEUES, queue_mode="custom", schema=schema)
    made.task(name="demo.charge", queue=BANK)(_work)
    made.task(name="demo.call", queue=API)(_work)
    return made


def _work(number: int) -> int:
    time.sleep(WORK_S)
    return number


app = made_app(os.environ.get(URL, "sqlite:///:memory:"), os.environ.get(SCHEMA, "evenflow"))
