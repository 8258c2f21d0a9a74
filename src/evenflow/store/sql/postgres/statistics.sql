-- name: add_statistics
-- returns: now
-- What one process has counted since its last report: added to this minute and to the totals. In key order, as everybody
-- else does: the totals are shared by all workers.
insert into evenflow.statistic as s (minute, queue, task, at,
  started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined,
  wait_us, run_us, waits, runs)
select m.minute, c.queue, c.task, now,
  c.started, c.succeeded, c.failed, c.retried, c.crashed, c.expired, c.cancelled, c.skipped, c.discarded,
  c.quarantined, c.wait_us, c.run_us, c.waits, c.runs
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
cross join lateral (select now - now % 60000000 as minute union all select 0) m
cross join jsonb_to_recordset(cast(:cells as jsonb)) as c (queue text, task text,
  started bigint, succeeded bigint, failed bigint, retried bigint, crashed bigint, expired bigint,
  cancelled bigint, skipped bigint, discarded bigint, quarantined bigint, wait_us bigint, run_us bigint,
  waits bigint[], runs bigint[])
order by m.minute, c.queue, c.task
on conflict (minute, queue, task) do update set at = greatest(s.at, excluded.at),
  started = s.started + excluded.started, succeeded = s.succeeded + excluded.succeeded,
  failed = s.failed + excluded.failed, retried = s.retried + excluded.retried,
  crashed = s.crashed + excluded.crashed, expired = s.expired + excluded.expired,
  cancelled = s.cancelled + excluded.cancelled, skipped = s.skipped + excluded.skipped,
  discarded = s.discarded + excluded.discarded, quarantined = s.quarantined + excluded.quarantined,
  wait_us = s.wait_us + excluded.wait_us, run_us = s.run_us + excluded.run_us,
  waits = array(select a + b from unnest(s.waits, excluded.waits) with ordinality as u (a, b, place) order by place),
  runs = array(select a + b from unnest(s.runs, excluded.runs) with ordinality as u (a, b, place) order by place)
returning s.at as now;

-- name: list_statistics
-- mode: read
-- returns: minute, queue, task, started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined, wait_us, run_us, waits, runs
select minute, queue, task,
  started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined,
  wait_us, run_us,
  cast(to_json(waits) as text) as waits, cast(to_json(runs) as text) as runs
from evenflow.statistic
where minute >= cast(:since as bigint) and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
order by minute, queue, task;

-- name: list_totals
-- mode: read
-- returns: minute, queue, task, started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined, wait_us, run_us, waits, runs
select minute, queue, task,
  started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined,
  wait_us, run_us,
  cast(to_json(waits) as text) as waits, cast(to_json(runs) as text) as runs
from evenflow.statistic where minute = 0 order by queue, task;

-- name: prune_statistics
-- returns: minute
with old as materialized (
  select ctid as row_at from evenflow.statistic
  where minute between 1 and coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:keep_us as bigint)
  order by minute limit cast(:top as integer) for update skip locked
)
delete from evenflow.statistic s using old
where s.ctid = old.row_at
returning s.minute;

delete from evenflow.statistic
where minute = 0 and at < coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:idle_us as bigint)
returning minute;
