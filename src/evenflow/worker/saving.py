"""What a worker stores beside its rounds: progress and lines of its bodies, costs of groups, statistics.

What could not be stored is kept for the next time; only costs, of which an average is learnt, are not.
"""

import random
import time

from evenflow.errors import StoreUnavailable
from evenflow.settings import Retention
from evenflow.store import control, leases, logs, statistics
from evenflow.store.engine import Engine
from evenflow.worker.slots import Slots

PROGRESS_EVERY_S = 1.0
COSTS_EVERY_S = 0.25
STATISTICS_EVERY_S = 10.0
# Before a minute is over what belongs to it is reported, by each process at a moment of its own.
MINUTE_ENDS_S = (0.1, 1.0)


class Saving:
    """Empties what the slots have gathered, each kind at its own pace."""

    def __init__(self, store: Engine, worker: int, slots: Slots, retention: Retention) -> None:
        self._store = store
        self._worker = worker
        self._slots = slots
        self._retention = retention
        self._progress_at = self._costs_at = 0.0
        self._statistics_at = time.monotonic() + STATISTICS_EVERY_S

    @property
    def due_at(self) -> float:
        """When the next thing is to be stored. Costs wait for a round that has another reason."""
        return min(self._progress_at, self._statistics_at) if self._slots.has_news else self._statistics_at

    def save_due(self, now: float) -> None:
        """Store what has waited for long enough, and what a run that has ended would lose."""
        if self._slots.has_news and (now >= self._progress_at or self._slots.has_last_news):
            self._save_progress(now)
        if self._slots.costs and now >= self._costs_at:
            self._costs_at = now + COSTS_EVERY_S
            control.learn_costs(self._store, self._slots.taken_costs())
        if now >= self._statistics_at:
            self.report_statistics(now)

    def report_statistics(self, now: float) -> None:
        """What has run since the last time. Where this fails it is kept, and told the next time."""
        self._statistics_at = now + STATISTICS_EVERY_S
        reported_at = statistics.add(self._store, self._slots.tally.counted())
        if reported_at is None:
            return
        self._slots.tally.forget_reported()
        minute_left_s = (statistics.MINUTE_US - reported_at % statistics.MINUTE_US) / 1_000_000
        ends_in_s = minute_left_s - random.uniform(*MINUTE_ENDS_S)
        if ends_in_s > 0:
            self._statistics_at = min(self._statistics_at, now + ends_in_s)

    def _save_progress(self, now: float) -> None:
        self._progress_at = now + PROGRESS_EVERY_S
        if self._slots.lines:
            self._save_lines()
        reports = self._slots.taken_reports()
        try:
            leases.save_progress(
                self._store, self._worker, [(*attempt, text) for attempt, text in reports.items()]
            )
        except StoreUnavailable:
            self._slots.keep_unsaved(reports)
            raise

    def _save_lines(self) -> None:
        lines = [self._slots.lines.popleft() for _ in range(len(self._slots.lines))]
        try:
            logs.add(self._store, lines, self._retention)
        except StoreUnavailable:
            self._slots.lines.extendleft(reversed(lines))
            raise
