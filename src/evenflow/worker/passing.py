"""Passing on: keys that the jobs of a worker have let go of go to the next in line.

On PostgreSQL a thread does it beside the pump: bodies run and ends are written meanwhile. SQLite has one writer at a time,
so there the round that writes the ends passes their keys on, before its claim, and carries along whatever else has come; on a
connection that somebody has lent, the pump passes them on between two rounds. Promotion is safe from any process at any time,
so nothing depends on when it happens; what is left when a worker dies is found by the sweep.
"""

import logging
import threading
import time
from collections.abc import Callable, Collection, Iterable, Sequence
from typing import Literal

import msgspec

from evenflow.errors import StoreError, StoreUnavailable
from evenflow.store import limits
from evenflow.store.engine import Engine
from evenflow.store.postgres import PostgresEngine

log = logging.getLogger("evenflow.worker")

AGAIN_S = 0.5
# A promotion of many keys at once costs little more than one of few. So while this worker has enough to do, keys gather
# for a few times as long as the last promotion took; the first ones after a pause go at once.
REST_SHARE = 4
LONGEST_REST_S = 0.02


Way = Literal["beside", "within", "between"]
"""Whether keys are passed on beside the pump's rounds, within their transactions, or between them."""


def way_of(engine: Engine) -> Way:
    if engine.kind == "sqlite":
        return "within"
    return "beside" if isinstance(engine, PostgresEngine) else "between"


class Passing:
    """Promotes the keys it is given. `tell` hears of the queues that have got ready jobs, on whatever thread does it."""

    def __init__(self, engine: Engine, tell: Callable[[set[str]], None], *, way: Way) -> None:
        self._engine = engine
        self._tell = tell
        self._way = way
        self._keys: set[str] = set()
        self._carried: Sequence[str] = []
        self._is_urgent = self._is_at_it = False
        self._rests_until = 0.0
        self._change = threading.Condition()
        self._is_open = True
        self._thread: threading.Thread | None = None

    @property
    def is_busy(self) -> bool:
        """Whether keys are on their way: jobs may become ready any moment."""
        return bool(self._keys) or self._is_at_it

    @property
    def due_at(self) -> float | None:
        """When the pump has to `pass_on`, or to make a round that does; None where there is nothing for it to do."""
        if self._way == "beside" or not self._keys:
            return None
        return 0.0 if self._is_urgent else self._rests_until

    @property
    def is_within(self) -> bool:
        """Whether the pump's own rounds pass keys on."""
        return self._way == "within"

    def to_carry(self) -> Sequence[str] | None:
        """Keys for the pump to pass on in the transaction of its round; ours until it says that they were `carried`. None
        where its rounds pass nothing on."""
        if not self.is_within:
            return None
        self._carried = sorted(self._keys)[: limits.BATCH]
        return self._carried

    def carried(self, done: limits.Promoted, claimed_from: Collection[str]) -> None:
        """A round has passed them on. What that has left is done now. Queues with ready jobs are told, unless the round
        itself has claimed from them."""
        self._keys.difference_update(self._carried)
        self._is_urgent = self._is_urgent and bool(self._keys)
        unclaimed = done.queues.difference(claimed_from)
        try:
            if queues := limits.follow_up(self._engine, msgspec.structs.replace(done, queues=unclaimed)):
                self._tell(queues)
        except StoreUnavailable:
            self._keys |= done.more | done.missing
            raise

    def give(self, keys: Iterable[str], *, is_urgent: bool = True) -> None:
        """These keys have room; urgent where a slot waits for work. Returns at once."""
        with self._change:
            if self.is_within and not self._keys:
                # The next round takes them; one that has nothing else to do is put off.
                self._rests_until = time.monotonic() + LONGEST_REST_S
            self._keys.update(keys)
            self._is_urgent = self._is_urgent or is_urgent
            if self._way == "beside" and self._thread is None:
                self._thread = threading.Thread(target=self._run, name="evenflow-passing", daemon=True)
                self._thread.start()
            self._change.notify_all()

    def pass_on(self) -> None:
        """Promote all keys that have gathered; kept where the store is away."""
        with self._change:
            self._is_at_it = bool(self._keys)  # first: who looks meanwhile must see us busy
            keys, self._keys, self._is_urgent = self._keys, set(), False
        began_at = time.monotonic()
        try:
            queues = limits.promote(self._engine, keys)
        except StoreUnavailable:
            with self._change:
                self._keys |= keys
            raise
        except StoreError:
            log.exception("%d keys are left to the sweep", len(keys))
        else:
            ended_at = time.monotonic()
            self._rests_until = ended_at + min(LONGEST_REST_S, (ended_at - began_at) * REST_SHARE)
            if queues:
                self._tell(queues)
        finally:
            self._is_at_it = False  # not before it is told: whoever sees us idle has heard

    def close(self) -> None:
        """Pass on what is left, once."""
        with self._change:
            self._is_open = False
            self._change.notify_all()
        if self._thread is not None:
            self._thread.join()
        if self._keys:
            try:
                self.pass_on()
            except StoreUnavailable as error:
                log.info("%d keys are left to the sweep: %s", len(self._keys), error)

    def _run(self) -> None:
        while self._wait():
            try:
                self.pass_on()
            except StoreUnavailable:
                with self._change:
                    if self._is_open:
                        self._change.wait(AGAIN_S)

    def _wait(self) -> bool:
        """Until there are keys to be passed on; False at the end."""
        with self._change:
            while not self._keys and self._is_open:
                self._change.wait()
            while (
                self._is_open and not self._is_urgent and (left_s := self._rests_until - time.monotonic()) > 0
            ):
                self._change.wait(left_s)
            return self._is_open
