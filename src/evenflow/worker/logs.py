"""Logging of worker processes: one line per record on standard error, plain or JSON, with the job a line belongs to.

A record is one line whatever it says: nobody can forge another one with a line break in his data.
"""

import json
import logging
import os
import sys
from datetime import UTC, datetime
from typing import ClassVar

from evenflow.errors import ConfigError
from evenflow.ids import id_text
from evenflow.worker.calling import current_run

LEVELS = ("debug", "info", "warning", "error", "critical")
FORMATS = ("text", "json")
FORMAT_VARIABLE = "EVENFLOW_LOG_FORMAT"
_PLAIN = "%(asctime)s %(levelname)-7s %(process)d %(name)s: %(message)s%(job)s"


class JobFilter(logging.Filter):
    """Adds the running job to records that are logged below a body, and the worker to all."""

    worker: ClassVar[str | None] = None

    def filter(self, record: logging.LogRecord) -> bool:
        job = getattr(record, "job_id", None)
        if job is None and (run := current_run.get()) is not None:
            job = record.job_id = id_text(run.job.id)
            record.task = run.job.task
            record.queue = run.job.queue
            record.attempt = run.job.attempt
        record.job = f" [job {job}]" if job else ""
        if self.worker is not None and not hasattr(record, "worker"):
            record.worker = self.worker
        return True


class PlainFormatter(logging.Formatter):
    """Text for people. A message stays on its line; the lines of a traceback are marked as belonging to it."""

    def __init__(self) -> None:
        super().__init__(_PLAIN)

    def formatMessage(self, record: logging.LogRecord) -> str:
        return one_line(super().formatMessage(record))

    def formatException(self, ei: "logging._SysExcInfoType") -> str:
        return _marked(super().formatException(ei))

    def formatStack(self, stack_info: str) -> str:
        return _marked(super().formatStack(stack_info))


class JsonFormatter(logging.Formatter):
    """One JSON object per record: `at`, `level`, `logger`, `process`, `message`, then what is known of `worker`, `job_id`,
    `task`, `queue`, `attempt` and `exception`."""

    def format(self, record: logging.LogRecord) -> str:
        said: dict[str, object] = {
            "at": datetime.fromtimestamp(record.created, UTC).isoformat(timespec="milliseconds"),
            "level": record.levelname,
            "logger": record.name,
            "process": record.process,
            "message": record.getMessage(),
        }
        for name in ("worker", "job_id", "task", "queue", "attempt"):
            if (value := getattr(record, name, None)) is not None:
                said[name] = value
        if record.exc_info:
            said["exception"] = self.formatException(record.exc_info)
        if record.stack_info:
            said["stack"] = self.formatStack(record.stack_info)
        return json.dumps(said, default=str)


def configure_logging(level: str, format: str = "") -> None:
    """Log to standard error. What the user has configured already is left alone. What is empty is `EVENFLOW_LOGLEVEL` and
    `EVENFLOW_LOG_FORMAT`, else `info` and `text`."""
    root = logging.getLogger()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.addFilter(JobFilter())
    handler.setFormatter(JsonFormatter() if log_format(format) == "json" else PlainFormatter())
    root.addHandler(handler)
    root.setLevel(level.upper() if level else os.environ.get("EVENFLOW_LOGLEVEL", "INFO").upper())


def log_format(given: str = "") -> str:
    """The format that counts: the one given, else that of the environment, else `text`."""
    found = given or os.environ.get(FORMAT_VARIABLE, "") or FORMATS[0]
    if found.lower() not in FORMATS:
        raise ConfigError(f"{FORMAT_VARIABLE}: expected {' or '.join(FORMATS)}, got {found!r}")
    return found.lower()


def logged_as() -> tuple[str, str]:
    """The level and the format of this process, for those that it starts; empty where they are not of our making."""
    root = logging.getLogger()
    formatters = [handler.formatter for handler in root.handlers]
    for formatter in formatters:
        if isinstance(formatter, PlainFormatter | JsonFormatter):
            level = "" if "EVENFLOW_LOGLEVEL" in os.environ else logging.getLevelName(root.level)
            return level, "json" if isinstance(formatter, JsonFormatter) else "text"
    return "", ""


def name_worker(worker: int) -> None:
    """From now on the lines of this process say which worker it is."""
    JobFilter.worker = id_text(worker)


def one_line(text: str) -> str:
    r"""Text with line breaks and other control characters made visible.

    >>> one_line("sold\nERROR all is lost")
    'sold\\nERROR all is lost'
    """
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() else letter.encode("unicode_escape", "surrogatepass").decode()
        for letter in text
    )


def _marked(text: str) -> str:
    return "\n".join(f"  | {one_line(line)}" for line in text.splitlines())
