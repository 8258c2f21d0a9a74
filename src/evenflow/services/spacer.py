"""The spacer: in queues that are fair by time, jobs that wait move to where the costs of their group put them."""

import logging
import time

from evenflow.store import spacing
from evenflow.store.open import AnyEngine

log = logging.getLogger("evenflow.services")

LOOK_EVERY_S = 0.25


class Spacer:
    """Moves waiting jobs in batches. Any number may run: each takes another group, or goes on where one stopped."""

    name = "spacer"

    def __init__(self, engine: AnyEngine) -> None:
        self._engine = engine

    def step(self) -> float:
        """One batch. Seconds until the next; it rests as long as it worked, so that claims come to their turn."""
        if not spacing.is_asked(self._engine):
            return LOOK_EVERY_S
        began = time.monotonic()
        moved = spacing.respace(self._engine)
        if moved is None:  # somebody else is at it
            return LOOK_EVERY_S
        log.debug("%d waiting jobs moved to where their group's costs put them", moved)
        return time.monotonic() - began
