"""What an engine is: it runs named units, in one transaction each, and translates its driver's errors.

Nothing here knows SQL text or a driver. Operations are written against this interface alone.
"""

import random
import time
from collections.abc import Callable, Generator, Mapping, Sequence
from typing import Any, NamedTuple, Protocol, TypeVar

import msgspec

from evenflow.errors import StoreUnavailable

Row = tuple[Any, ...]
Parameters = Mapping[str, Any]
# An operation that several drivers can run: it yields (unit name, parameters) and is sent the rows.
T = TypeVar("T")
Steps = Generator[tuple[str, dict[str, Any]], list[Row], T]


class Last(NamedTuple):
    """The last thing that steps ask for: they only read the answer and return, so the commit may go out with it."""

    name: str
    parameters: dict[str, Any]


_encode = msgspec.json.Encoder().encode


class Engine(Protocol):
    """A database that can run units. Safe to use from several threads."""

    kind: str

    def run(self, name: str, parameters: Parameters, *, deadline_s: float = 30.0) -> list[Row]:
        """Run one unit in its own transaction and return its rows; commit before returning.

        `StoreUnavailable`: nothing is known about the commit; the same call may be repeated if the unit allows it.
        `StoreRefused`: rolled back, and a repetition would end the same way.
        """

    def run_all(
        self, units: Sequence[tuple[str, Parameters]], *, deadline_s: float = 30.0
    ) -> list[list[Row]]:
        """Run several units in one transaction, each with a fresh view of what others have committed; their rows."""

    def close(self) -> None:
        """Give every connection back. The engine opens new ones when it is used again."""


def as_json(value: Any) -> str:
    """A list parameter, as units take it: one JSON text."""
    return _encode(value).decode()


def drive(engine: Engine, steps: Steps[T]) -> T:
    """Run an operation's steps on an engine. A lost connection is thrown into it: it may know how to go on."""
    try:
        name, parameters = next(steps)
        while True:
            try:
                rows = engine.run(name, parameters)
            except StoreUnavailable as lost:
                name, parameters = steps.throw(lost)
            else:
                name, parameters = steps.send(rows)
    except StopIteration as end:
        result: T = end.value
        return result


def retried(run: Callable[[], T], *, tries: int = 5, base_s: float = 0.01) -> T:
    """Run again after a conflict that the database resolved by ending us (deadlock, serialization)."""
    for attempt in range(tries):
        try:
            return run()
        except Conflict as conflict:
            if attempt == tries - 1:
                raise StoreUnavailable(str(conflict)) from conflict
            time.sleep(random.random() * base_s * 2**attempt)
    raise AssertionError("unreachable")


class Conflict(Exception):
    """The database rolled this transaction back in favour of another one; run it again. Never leaves an engine."""
