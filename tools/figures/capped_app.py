"""The app of the run behind the picture of a cap. Its bodies note when they begin and end in the file FIGURE_NOTES."""

import os
import secrets
import time

from evenflow import Evenflow, Queue


def declared(url: str) -> Evenflow:
    """The app on this database."""
    made = Evenflow(url, queues=[Queue("calls")])
    made.task(name="call", queue="calls")(call)
    return made


def call(length_s: float) -> None:
    run = secrets.token_hex(4)
    _note("start", run)
    time.sleep(length_s)
    _note("end", run)


def _note(what: str, run: str) -> None:
    # One write of one line to a file that is opened for appending is not torn apart.
    file = os.open(os.environ["FIGURE_NOTES"], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(file, f"{what} {os.getpid()} {run} {time.monotonic()}\n".encode())
    os.close(file)


app = declared(os.environ.get("EVENFLOW_URL", "sqlite:///:memory:"))
