"""Logging of worker processes: one line per event on standard error, plain or JSON, with the job a line belongs to."""

import logging
import os
import sys

from evenflow.ids import id_text
from evenflow.worker.calling import current_run

LEVELS = ("debug", "info", "warning", "error", "critical")
_PLAIN = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s%(job)s"


class JobFilter(logging.Filter):
    """Adds the running job to records that are logged below a body."""

    def filter(self, record: logging.LogRecord) -> bool:
        job = getattr(record, "job_id", None)
        if job is None and (run := current_run.get()) is not None:
            job = record.job_id = id_text(run.job.id)
            record.task = run.job.task
        record.job = f" [job {job}]" if job else ""
        return True


def configure_logging(level: str) -> None:
    """Log to standard error. What the user has configured already is left alone."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobFilter())
    handler.setFormatter(logging.Formatter(_PLAIN))
    root.addHandler(handler)
    root.setLevel(level.upper() if level else os.environ.get("EVENFLOW_LOGLEVEL", "INFO").upper())
