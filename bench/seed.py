"""Fills a store behind the operations' back, by one statement per kind of row: a million jobs in seconds."""

from collections.abc import Sequence
from typing import Any

from bench.stores import fetch
from evenflow.clock import wall_us
from evenflow.store.open import AnyEngine

QUEUE = "default"
GROUP = "'g' || (i % :groups)"
DAY_US = 86_400_000_000

NUMBERS = {
    "sqlite": """
with recursive n (i) as (select :first where :rows > 0 union all select i + 1 from n where i + 1 < :first + :rows)""",
    "postgres": "with n (i) as (select generate_series(:first, :first + :rows - 1))",
}
BANDS = "insert into evenflow_band (queue, priority) values (:queue, 0)"
TAILS = f"""
insert into evenflow_group_tail (queue, priority, group_key, tail, span)
select :queue, 0, {GROUP}, 1, 1 from n"""
# Fair turns: the n-th job of each group belongs to round n.
LIVE = f"""
insert into evenflow_job (id, queue, task, priority, group_key, max_attempts, created_at, run_at, payload, state, turn)
select i, :queue, 'bench.noop', 0, {GROUP}, 1, :now, :now, '["tenant",1]', :state, i / :groups + 1 from n"""
FINISHED = f"""
insert into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, epoch, attempt, max_attempts,
  crashes, priority, fails_on_crash, state, queue, task, group_key, payload, result)
select i, :expires, :now, :now, :now, :now, 1, 1, 1, 0, 0, false, 'succeeded', :queue, 'bench.noop', {GROUP},
  '["tenant",1]', 'null' from n"""

# Keys that are full, with nobody on them: their jobs wait, and no look finds anything to promote.
LIMITERS = "insert into evenflow_limiter (name, most) select 'key-' || i, 0 from n"
HOLDS = """
insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, priority, turn, phase)
select i, 1, 'key-' || (i % :groups), 0, 180000000, 0, i / :groups + 1, 1 from n"""


class Seeder:
    """Adds rows to one store. Ids grow from call to call, so later jobs have later turns."""

    def __init__(self, engine: AnyEngine, groups: int) -> None:
        self._engine = engine
        self._groups = groups
        self._first = 0
        fetch(engine, BANDS, {"queue": QUEUE})
        self._number(TAILS, groups, first=0)

    def add(self, jobs: int) -> None:
        """Ready jobs, dealt to the groups in turn."""
        self._number(LIVE, jobs, state="ready")

    def add_blocked(self, jobs: int) -> None:
        """Live jobs whose keys are full."""
        first = self._first
        self._number(LIVE, jobs, state="blocked")
        self._number(LIMITERS, self._groups, first=0)
        self._number(HOLDS, jobs, first=first)

    def add_finished(self, jobs: int) -> None:
        """Jobs that have succeeded."""
        self._number(FINISHED, jobs, expires=wall_us() + DAY_US)

    def remove(self, ids: Sequence[int]) -> None:
        """Live jobs, as if they had never been."""
        fetch(self._engine, f"delete from evenflow_job where id in ({','.join(map(str, ids))})")

    def _number(self, statement: str, rows: int, *, first: int | None = None, **values: Any) -> None:
        """Run a statement over so many numbers: the next ones, unless it is told where to begin."""
        numbered = f"{NUMBERS[self._engine.kind]} {statement}"
        values |= {
            "queue": QUEUE,
            "groups": self._groups,
            "first": self._first if first is None else first,
            "rows": rows,
            "now": wall_us(),
        }
        if first is None:
            self._first += rows
        fetch(self._engine, numbered, values)
