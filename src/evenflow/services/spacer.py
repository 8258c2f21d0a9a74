"""The spacer: in queues that are fair by time, jobs that wait move to where the costs of their group put them."""

import logging
import time

from evenflow.store import reads, spacing
from evenflow.store.open import AnyEngine

log = logging.getLogger("evenflow.services")

LOOK_EVERY_S = 0.25
LEARN_EVERY_S = 5.0


class Spacer:
    """Moves waiting jobs in batches. Any number may run: each takes another group, or goes on where one stopped."""

    name = "spacer"

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine
        self._learn_at = 0.0
        self._has_timed_queues = False

    def step(self) -> float:
        """One batch. Seconds until the next; it rests as long as it worked, so that claims come to their turn."""
        if time.monotonic() >= self._learn_at:
            self._has_timed_queues = any(row.fair == "time" for row in reads.queues(self._engine))
            self._learn_at = time.monotonic() + LEARN_EVERY_S
        if not self._has_timed_queues:
            return LEARN_EVERY_S
        if not spacing.is_asked(self._engine):
            return LOOK_EVERY_S
        began = time.monotonic()
        moved = spacing.respace(self._engine)
        if moved is None:  # somebody else is at it
            return LOOK_EVERY_S
        log.debug("%d waiting jobs moved to where their group's costs put them", moved)
        return min(time.monotonic() - began, LOOK_EVERY_S)
