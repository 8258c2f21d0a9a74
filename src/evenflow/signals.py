"""What a task's body may return or raise to say how its run ends, other than with a result or an error.

They are exceptions so that both forms work, from any depth of calls. They decide nothing themselves.
"""

from typing import Any

from evenflow.durations import Duration, duration_us
from evenflow.errors import Code


class Signal(Exception):
    """The common parent; catch it where a body must let all of them through.

    >>> isinstance(Cancel("order withdrawn"), Signal)
    True
    """


class Fail(Signal):
    """This attempt failed, with a code of the task's own. The retry policy decides what follows.

    >>> Fail("CARD_DECLINED", "the bank said no", data={"bank": "acme"}).code
    'CARD_DECLINED'
    """

    def __init__(self, code: str = Code.UNHANDLED_ERROR, message: str = "", data: Any = None) -> None:
        super().__init__(code, message, data)
        self.code = str(code)
        self.message = message
        self.data = data

    def __str__(self) -> str:
        return f"{self.code}: {self.message}" if self.message else self.code


class Snooze(Signal):
    """Not now: run the job again after a while, without using an attempt.

    >>> Snooze("5 minutes").delay_us
    300000000
    """

    def __init__(self, seconds: Duration) -> None:
        super().__init__(seconds)
        self.delay_us = duration_us(seconds)


class Cancel(Signal):
    """The work is no longer wanted: the job ends `cancelled` and is not run again.

    >>> str(Cancel("the account was closed"))
    'the account was closed'
    """

    def __init__(self, reason: str = "") -> None:
        super().__init__(reason)
        self.reason = reason


class RetryLater(Signal):
    """This attempt failed; the next one comes after the given delay instead of the policy's.

    Bodies write `Retry.later(seconds)`.

    >>> RetryLater(2.5).delay_us
    2500000
    """

    def __init__(self, seconds: Duration) -> None:
        super().__init__(seconds)
        self.delay_us = duration_us(seconds)


class Suspend(BaseException):
    """A body lets go of its slot until a moment; it is entered again then. Raised by `ctx.sleep` and `ctx.wait_event`.

    No Exception, so that a body's `except Exception` cannot take it for an error. Let it through.
    """

    def __init__(self, until_us: int, *, waits_for_event: bool = False) -> None:
        super().__init__(until_us)
        self.until_us = until_us
        self.waits_for_event = waits_for_event
