"""The app of the worker tests beside services that wake up late: by then a supervisor that stops has told them to end."""

import time

from evenflow.services import keeper
from tests.worker.jobs import app as app

LATE_S = 0.5
_wait = keeper._Deaf.wait


def _wait_too_long(deaf: keeper._Deaf, timeout_s: float) -> set[str]:
    heard = _wait(deaf, timeout_s)
    time.sleep(LATE_S)
    return heard


keeper._Deaf.wait = _wait_too_long  # type: ignore[method-assign, assignment]
