-- name: add_statistics
-- returns: now
insert into evenflow_statistic as s (minute, queue, task, at,
  started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined,
  wait_us, run_us, waits, runs)
select m.minute, c.value ->> 'queue', c.value ->> 'task', :now,
  c.value ->> 'started', c.value ->> 'succeeded', c.value ->> 'failed', c.value ->> 'retried',
  c.value ->> 'crashed', c.value ->> 'expired', c.value ->> 'cancelled', c.value ->> 'skipped',
  c.value ->> 'discarded', c.value ->> 'quarantined', c.value ->> 'wait_us', c.value ->> 'run_us',
  c.value ->> 'waits', c.value ->> 'runs'
from (select :now - :now % 60000000 as minute union all select 0) m cross join json_each(:cells) c
where true
on conflict (minute, queue, task) do update set at = max(s.at, excluded.at),
  started = s.started + excluded.started, succeeded = s.succeeded + excluded.succeeded,
  failed = s.failed + excluded.failed, retried = s.retried + excluded.retried,
  crashed = s.crashed + excluded.crashed, expired = s.expired + excluded.expired,
  cancelled = s.cancelled + excluded.cancelled, skipped = s.skipped + excluded.skipped,
  discarded = s.discarded + excluded.discarded, quarantined = s.quarantined + excluded.quarantined,
  wait_us = s.wait_us + excluded.wait_us, run_us = s.run_us + excluded.run_us,
  waits = (select json_group_array(n) from (select value + (excluded.waits ->> key) as n from json_each(s.waits) order by key)),
  runs = (select json_group_array(n) from (select value + (excluded.runs ->> key) as n from json_each(s.runs) order by key))
returning :now as now;

-- name: list_statistics
-- mode: read
-- returns: minute, queue, task, started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined, wait_us, run_us, waits, runs
select minute, queue, task,
  started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined,
  wait_us, run_us, waits, runs
from evenflow_statistic
where minute >= :since and (:queue is null or queue = :queue) and (:task is null or task = :task)
order by minute, queue, task;

-- name: list_totals
-- mode: read
-- returns: minute, queue, task, started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined, wait_us, run_us, waits, runs
select minute, queue, task,
  started, succeeded, failed, retried, crashed, expired, cancelled, skipped, discarded, quarantined,
  wait_us, run_us, waits, runs
from evenflow_statistic where minute = 0 order by queue, task;

-- name: prune_statistics
-- returns: minute
delete from evenflow_statistic where (minute, queue, task) in (
  select minute, queue, task from evenflow_statistic where minute between 1 and :now - :keep_us order by minute limit :top)
returning minute;

delete from evenflow_statistic where minute = 0 and at < :now - :idle_us returning minute;
