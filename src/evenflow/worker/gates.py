"""What a worker does about gates: takes shut jobs out of the way, chooses probes, ends what is not to wait, tells of it.

Any number of workers may do so at once: every step is one transaction of the store, under the row of its breaker.
"""

import logging
import math
import time
from collections.abc import Callable, Sequence

from evenflow.errors import Code
from evenflow.hooks import Hooks
from evenflow.ids import id_text
from evenflow.job import JobError
from evenflow.rules.breaker import Declared
from evenflow.settings import Retention
from evenflow.store import control, gates, limits
from evenflow.store.engine import Engine
from evenflow.store.gates import OpenBreaker, Turned
from evenflow.store.signals import Waker

log = logging.getLogger("evenflow.worker")

LOOK_EVERY_S = 1.0


class Gates:
    """The breakers of one worker. `due_at` is when it wants to be tended next, by the monotonic clock."""

    def __init__(
        self,
        store: Engine,
        declared: Callable[[], Declared],
        retention: Retention,
        hooks: Hooks,
        waker: Waker,
    ) -> None:
        self._store = store
        self._read_declared = declared
        self._declared: Declared | None = None
        self._retention = retention
        self._hooks = hooks
        self._waker = waker
        self.due_at = 0.0

    def tend(self, queues: Sequence[str]) -> None:
        """Look after the breakers that are open. Without any breaker in the app this happens once."""
        if self._declared is None:
            said = self._read_declared()
            gates.declare(self._store, said)
            self._declared = said
        if not self._declared.breakers:
            self.due_at = math.inf
            return
        wait_s = LOOK_EVERY_S
        for breaker in gates.open_breakers(self._store):
            if breaker.name in self._declared.breakers:
                wait_s = min(wait_s, self._tend_one(breaker, queues))
        self.due_at = time.monotonic() + wait_s

    def clear_way(self, queues: Sequence[str]) -> set[str]:
        """Jobs of shut tasks stood before a claim: they are set aside. The keys that they have let go of."""
        _, freed = gates.set_aside(self._store, queues)
        if self.due_at < math.inf:
            self.due_at = 0.0  # one of them may be the probe that is waited for
        return freed

    def hear(self, turned: Sequence[Turned]) -> None:
        """Our ends have opened or closed breakers."""
        self.due_at = 0.0
        for breaker in turned:
            if breaker.opened_at is not None:
                log.error(
                    "circuit-open: breaker %r after %d failures in a row", breaker.name, breaker.failures
                )
                self._hooks.emit("breaker.opened", breaker=breaker.name, failures=breaker.failures)
            else:
                log.warning("circuit-closed: breaker %r, its probe succeeded", breaker.name)
                self._hooks.emit("breaker.closed", breaker=breaker.name)
        if any(breaker.opened_at is None for breaker in turned):
            self._let_go_on({breaker.name for breaker in turned if breaker.opened_at is None})

    def _let_go_on(self, closed: set[str]) -> None:
        """Whoever waited behind a breaker goes on. Should we die before that, a dispatcher sees to it."""
        assert self._declared is not None
        if gates.release(self._store):
            self._waker.wake_dispatchers()
        guards = self._declared.guards.items()
        self._waker.wake(*(name for (kind, name), to in guards if kind == "queue" and to in closed))

    def _tend_one(self, breaker: OpenBreaker, queues: Sequence[str]) -> float:
        """Seconds until this breaker wants to be looked at again."""
        at = breaker.election_at
        if at is not None and at <= breaker.now:
            self._elect(breaker.name, queues)
        if breaker.on_open == "fail":
            self._fail_waiting(breaker.name)
        return LOOK_EVERY_S if at is None or at <= breaker.now else (at - breaker.now) / 1_000_000

    def _elect(self, name: str, queues: Sequence[str]) -> None:
        probe = gates.elect_probe(self._store, name, queues)
        if probe is None and self._clear_shut(queues):
            probe = gates.elect_probe(self._store, name, queues)
        if probe is None:
            return
        job, queue = probe
        log.warning("circuit-half-open: breaker %r lets job %s of queue %r probe", name, id_text(job), queue)
        self._hooks.emit("breaker.half_open", breaker=name, probe=id_text(job))
        self._waker.wake(queue)
        self._waker.wake_dispatchers()  # one with keys has to be admitted first

    def _clear_shut(self, queues: Sequence[str]) -> bool:
        """Set aside what stands in queues that are shut, where no claim meets it: jobs of tasks whose own breaker is open
        wait there for their probe, and the queue for one of them. Whether there were any."""
        shut = [
            gate.name for gate in gates.gates(self._store) if gate.kind == "queue" and gate.name in queues
        ]
        if not shut:
            return False
        jobs, freed = gates.set_aside(self._store, shut)
        self._waker.wake(*limits.promote(self._store, freed))
        return jobs > 0

    def _fail_waiting(self, name: str) -> None:
        error = JobError(Code.BREAKER_OPEN, f"breaker {name!r} is open, and its jobs do not wait")
        while waiting := gates.waiting_at(self._store, name):
            ended = control.withdraw(
                self._store, waiting, "failed", self._retention, error=error, flags=False
            )
            if ended:
                self._waker.announce_ends()
            if len(ended) < gates.BATCH:
                return
