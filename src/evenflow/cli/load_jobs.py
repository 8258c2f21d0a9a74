"""The app of `evenflow load`, as its worker processes import it. They are told by their environment what to serve."""

import os
from typing import Any

from evenflow import Evenflow, Queue
from evenflow.cli.seed import declare_seed

QUEUE, STRATEGY = "LOAD_QUEUE", "LOAD_STRATEGY"


def made_app(url: str | None, queue: str, strategy: Any, **options: Any) -> Evenflow:
    """An app with one queue that shares its turns so, and the task of seeded jobs."""
    made = Evenflow(url, queues=[Queue(queue, fair=strategy)], queue_mode="custom", **options)
    declare_seed(made)
    return made


if QUEUE in os.environ:  # in a worker; address, schema and poll interval are in its environment as well
    app = made_app(None, os.environ[QUEUE], os.environ[STRATEGY])
