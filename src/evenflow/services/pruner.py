"""The pruner: finished jobs whose retention has passed, partitions whose day has passed, groups that are idle, fires
and schedules that are long past."""

import logging

from evenflow.durations import DAY_US
from evenflow.settings import Retention
from evenflow.store import durable, limits, logs, reads, runs, schedules, statistics, upkeep
from evenflow.store.open import AnyEngine
from evenflow.store.postgres import PostgresEngine

log = logging.getLogger("evenflow.services")

BATCH = 1000
EVERY_S = 30.0
COSTS_KEPT_US = 7 * DAY_US
FIRES_KEPT_US = 7 * DAY_US
UNDECLARED_KEPT_US = 30 * DAY_US


class Pruner:
    """Deletes in small steps; on PostgreSQL most of the history goes by dropping partitions."""

    name = "pruner"

    def __init__(self, engine: AnyEngine, retention: Retention | None = None) -> None:
        self._engine = engine
        self._retention = retention or Retention()

    def step(self) -> float:
        """One pass. Seconds until the next; 0 while there is more to do."""
        if isinstance(self._engine, PostgresEngine):
            created, dropped = upkeep.turn_partitions(self._engine)
            if created or dropped:
                log.info("history: %d partitions made, %d dropped", len(created), len(dropped))
        pruned = max(upkeep.prune(self._engine, top=BATCH), logs.prune(self._engine, top=BATCH))
        pruned = max(pruned, runs.prune(self._engine, top=BATCH), durable.prune(self._engine, top=BATCH))
        pruned = max(pruned, statistics.prune(self._engine, self._retention, top=BATCH))
        idle = upkeep.forget_idle_groups(self._engine, top=BATCH)
        limits.forget_idle(self._engine, top=BATCH)
        upkeep.forget_marks(self._engine, top=BATCH)
        upkeep.forget_old_costs(self._engine, reads.now_us(self._engine) - COSTS_KEPT_US)
        schedules.forget_undeclared(self._engine, UNDECLARED_KEPT_US)
        fires = schedules.prune(self._engine, FIRES_KEPT_US, top=BATCH)
        return 0.0 if max(pruned, idle, fires) >= BATCH else EVERY_S
