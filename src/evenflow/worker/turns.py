"""Turns at Python's lock: how long a thread that wants it waits before it asks for it.

The thread that speaks to the database must get it soon, however busy bodies are: by default it waits for five milliseconds, in
which the server could have been through a hundred jobs. But everybody who waits asks that often: among many threads at work
short turns would be spent on asking. So turns are the longer the more threads there are.
"""

import sys

USUAL_S = sys.getswitchinterval()
SHORTEST_S = 0.0002
_UNLIKE_S = 1e-6

_said_s: float | None = None


def take_short_turns() -> None:
    """From now on in this process, unless the app has said what it wants."""
    if _is(USUAL_S):
        _say(SHORTEST_S)


def share_turns(threads: int) -> None:
    """So many threads run bodies now. Changes nothing where turns are the usual ones, or somebody else has set them since."""
    if _said_s is not None and _is(_said_s):
        _say(min(USUAL_S, SHORTEST_S * max(1, threads)))


def _is(seconds: float) -> bool:
    return abs(sys.getswitchinterval() - seconds) < _UNLIKE_S


def _say(seconds: float) -> None:
    global _said_s
    _said_s = seconds
    sys.setswitchinterval(seconds)
