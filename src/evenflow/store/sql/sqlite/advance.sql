-- name: advance
-- returns: kind, id, epoch, queue, task, group_key, priority, turn, attempt, max_attempts, crashes, created_at, run_at, started_at, good_until, payload, signature, headers, options, run_id, run_state, is_plain
-- The twin of the PostgreSQL statement, as steps of one write transaction: whoever holds the write lock sees and changes
-- one state, so the steps need no row locks. A worker's ends are matched by (id, epoch, worker) in each of them. Of keys
-- that ends let go of let_go has told before, in the same transaction: they are passed on before the claim.
-- [ends
select 'lost' as kind, e.id, e.epoch, null as queue, null as task, null as group_key, null as priority, null as turn, null as attempt, null as max_attempts,
  null as crashes, null as created_at, null as run_at, null as started_at, null as good_until, null as payload, null as signature,
  null as headers, null as options, null as run_id, null as run_state, null as is_plain
from (select value ->> 'id' as id, value ->> 'epoch' as epoch, value ->> 'state' as state, value ->> 'keep_us' as keep_us, value ->> 'run_at' as run_at,
        value ->> 'refund' as refund, value ->> 'crashed' as crashed, value ->> 'result' as result, value ->> 'error' as error from json_each(:ends)) e
where not exists (select 1 from evenflow_job j where j.id = e.id and j.epoch = e.epoch and j.worker = :worker);

select 'awaited' as kind, e.id, e.epoch, null as queue, null as task, null as group_key, null as priority, null as turn, null as attempt, null as max_attempts,
  null as crashes, null as created_at, null as run_at, null as started_at, null as good_until, null as payload, null as signature,
  null as headers, null as options, null as run_id, null as run_state, null as is_plain
from (select value ->> 'id' as id, value ->> 'epoch' as epoch, value ->> 'state' as state, value ->> 'keep_us' as keep_us, value ->> 'run_at' as run_at,
        value ->> 'refund' as refund, value ->> 'crashed' as crashed, value ->> 'result' as result, value ->> 'error' as error from json_each(:ends)) e
cross join evenflow_job j on j.id = e.id and j.epoch = e.epoch and j.worker = :worker and j.awaited
where e.state not in ('ready', 'scheduled', 'waiting');

insert or replace into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
  epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature,
  headers, options, errors, progress, payload, limits, result)
select j.id, :now + e.keep_us, j.created_at, j.run_at, j.started_at, :now, j.good_until, j.worker, j.run_id,
  j.epoch, j.attempt, j.max_attempts, j.crashes + coalesce(e.crashed, 0), j.priority, j.fails_on_crash, e.state, j.queue, j.task, j.group_key, j.unique_key, j.signature,
  j.headers, j.options, case when e.error is null then j.errors when j.errors is null or length(j.errors) > 65536 then '[' || e.error || ']' else substr(j.errors, 1, length(j.errors) - 1) || ',' || e.error || ']' end, j.progress, j.payload, j.limits, case when j.run_id is null then e.result end
from (select value ->> 'id' as id, value ->> 'epoch' as epoch, value ->> 'state' as state, value ->> 'keep_us' as keep_us, value ->> 'run_at' as run_at,
        value ->> 'refund' as refund, value ->> 'crashed' as crashed, value ->> 'result' as result, value ->> 'error' as error from json_each(:ends)) e
cross join evenflow_job j on j.id = e.id and j.epoch = e.epoch and j.worker = :worker
where e.state not in ('ready', 'scheduled', 'waiting') and e.keep_us > 0;

-- [returns
update evenflow_hold set phase = 0, held_at = null where job_id in (
  select j.id from json_each(:ends) e
  cross join evenflow_job j on j.id = e.value ->> 'id' and j.epoch = e.value ->> 'epoch' and j.worker = :worker
  where e.value ->> 'state' in ('ready', 'scheduled', 'waiting') and j.limits is not null
    and (e.value ->> 'state' <> 'ready' or (j.limits like '%"window_us"%'
      and (e.value ->> 'unstarted' is null or not exists (select 1 from evenflow_hold h where h.job_id = j.id and h.window_us is not null)))))
returning 'freed' as kind, 0 as id, 0 as epoch, null as queue, null as task, null as group_key, null as priority, null as turn, null as attempt, null as max_attempts,
  null as crashes, null as created_at, null as run_at, null as started_at, null as good_until, json_array(limiter) as payload, null as signature,
  null as headers, null as options, null as run_id, null as run_state, null as is_plain;

insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, l.value ->> 'ordinal', l.value ->> 'limiter', l.value ->> 'most', l.value ->> 'keep_us', l.value ->> 'window_us', j.priority, 0
from json_each(:ends) e
cross join evenflow_job j on j.id = e.value ->> 'id' and j.epoch = e.value ->> 'epoch' and j.worker = :worker
cross join json_each(j.limits) l
where e.value ->> 'state' in ('ready', 'scheduled', 'waiting') and j.limits like '%"window_us"%' and l.value ->> 'window_us' is not null
on conflict do nothing;

-- returns]
delete from evenflow_job where id in (
  select j.id from (select value ->> 'id' as id, value ->> 'epoch' as epoch, value ->> 'state' as state, value ->> 'keep_us' as keep_us, value ->> 'run_at' as run_at,
        value ->> 'refund' as refund, value ->> 'crashed' as crashed, value ->> 'result' as result, value ->> 'error' as error from json_each(:ends)) e
  cross join evenflow_job j on j.id = e.id and j.epoch = e.epoch and j.worker = :worker
  where e.state not in ('ready', 'scheduled', 'waiting'));

-- ends]
-- The ids of each band come as one JSON list: SQLite has no LATERAL, and a join with ORDER BY would sort the backlog.
with
-- [ends
-- [returns
returning_ones as materialized (
  select j.queue from json_each(:ends) e
  cross join evenflow_job j on j.id = e.value ->> 'id' and j.epoch = e.value ->> 'epoch' and j.worker = :worker
  where e.value ->> 'state' in ('ready', 'scheduled', 'waiting')
),
-- returns]
-- ends]
wanted as materialized (
  select w.queue, w.place, s.name is not null as is_shut, s.probe_job, s.probe_epoch, case when q.max_concurrency is null then w.top when not coalesce(:caps_locked, 0) then 0
    else min(w.top, q.max_concurrency
      - (select count(*) from evenflow_job j where j.queue = w.queue and j.state in ('claimed', 'running')
         and (j.state = 'running' or :claim_state = 'running'))
      -- [ends
      -- [returns
      + (select count(*) from returning_ones r where r.queue = w.queue)
      -- returns]
      -- ends]
      ) end as top
  from (select value ->> 'queue' as queue, value ->> 'place' as place, value ->> 'top' as top from json_each(:wants)) w
  left join evenflow_queue q on q.name = w.queue
  left join evenflow_gate s on s.kind = 'queue' and s.name = w.queue
  where q.paused_at is null
),
picked as materialized (
  select id from (
    select l.value as id, w.place, w.top, row_number() over (partition by w.place order by b.priority, l.key) as number
    from wanted w
    cross join evenflow_band b on b.queue = w.queue
    left join (select value ->> 'queue' as queue, value ->> 'priority' as priority, value ->> 'turn' as turn, value ->> 'id' as id
               from json_each(:bounds)) s on s.queue = b.queue and s.priority = b.priority
    cross join json_each(case when w.is_shut then (
      select json_group_array(j.id) from evenflow_job j
      where j.id = w.probe_job and j.epoch + 1 = w.probe_epoch and j.queue = b.queue and j.priority = b.priority
        and j.state = 'ready' and (j.good_until is null or j.good_until > :now))
    else (
      select json_group_array(id) from (
        select j.id from evenflow_job j
        where j.queue = b.queue and j.priority = b.priority and j.state = 'ready'
          and (j.turn, j.id) >= (coalesce(s.turn, -9e999), coalesce(s.id, 0))
          and (j.good_until is null or j.good_until > :now)
        order by j.turn, j.id limit :top)) end) l
    where w.top > 0)
  where number <= top order by place, number
  limit (
    select case when c.cap is null then :top when not coalesce(:caps_locked, 0) then 0
      else max(0, min(:top, c.cap - (select count(*) from evenflow_job where state in ('claimed', 'running'))
        -- [ends
        -- [returns
        + (select count(*) from returning_ones)
        -- returns]
        -- ends]
        )) end
    from (select 1) left join evenflow_cluster c on true)
)
update evenflow_job set state = :claim_state, epoch = epoch + 1, attempt = attempt + 1, worker = :worker,
  started_at = :now, lease_until = :now + :lease_us
where id in (select id from picked) and not exists (
  select 1 from evenflow_gate g where g.kind = 'task' and g.name = evenflow_job.task
    and (g.probe_job is not evenflow_job.id or g.probe_epoch is not evenflow_job.epoch + 1))
returning 'claimed' as kind, id, epoch, queue, task, group_key, priority, turn, attempt, max_attempts, crashes, created_at, run_at,
  started_at, good_until, payload, signature, headers, options, run_id,
  case when run_id is not null then (select r.state from evenflow_run r where r.id = run_id) end as run_state,
  run_id is null and limits is null as is_plain;

-- Jobs of shut tasks that are still in the way. Nothing is read where no task is shut.
select 'shut' as kind, j.id, 0 as epoch, null as queue, j.task, null as group_key, null as priority, null as turn, null as attempt, null as max_attempts,
  null as crashes, null as created_at, null as run_at, null as started_at, null as good_until, null as payload, null as signature,
  null as headers, null as options, null as run_id, null as run_state, null as is_plain
from (select 1 from evenflow_gate where kind = 'task' limit 1) g
cross join json_each(:wants) w
cross join evenflow_band b on b.queue = w.value ->> 'queue'
cross join json_each((
  select json_group_array(id) from (
    select id from evenflow_job where queue = b.queue and priority = b.priority and state = 'ready' order by turn, id limit :top))) l
cross join evenflow_job j on j.id = l.value
where exists (
    select 1 from evenflow_gate s where s.kind = 'task' and s.name = j.task
      and (s.probe_job is not j.id or s.probe_epoch is not j.epoch + 1))
  and not exists (select 1 from evenflow_queue q where q.name = j.queue and q.paused_at is not null)
  and not exists (select 1 from evenflow_gate s where s.kind = 'queue' and s.name = j.queue)
limit :top;

-- [ends
-- [returns
-- After the claim, which on PostgreSQL does not see the jobs that this very statement returns.
update evenflow_job set worker = null, lease_until = null,
  state = case when e.state = 'waiting' then 'waiting' when evenflow_job.limits like '%"window_us"%'
      and (e.unstarted is null or exists (select 1 from evenflow_hold h where h.job_id = evenflow_job.id and h.ordinal > 0 and h.phase = 0)) then 'scheduled'
    when e.state = 'ready' and exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.max_ready is not null) then 'overflow' else e.state end,
  run_at = coalesce(e.run_at, case when evenflow_job.limits like '%"window_us"%' then :now else evenflow_job.run_at end), attempt = evenflow_job.attempt - coalesce(e.refund, 0), crashes = evenflow_job.crashes + coalesce(e.crashed, 0),
  errors = case when e.error is null then evenflow_job.errors when evenflow_job.errors is null or length(evenflow_job.errors) > 65536 then '[' || e.error || ']' else substr(evenflow_job.errors, 1, length(evenflow_job.errors) - 1) || ',' || e.error || ']' end,
  turn = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
              else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
from (select value ->> 'id' as id, value ->> 'epoch' as epoch, value ->> 'state' as state, value ->> 'keep_us' as keep_us, value ->> 'run_at' as run_at,
        value ->> 'refund' as refund, value ->> 'crashed' as crashed, value ->> 'result' as result, value ->> 'error' as error, value ->> 'unstarted' as unstarted from json_each(:ends)) e
where evenflow_job.id = e.id and evenflow_job.epoch = e.epoch and evenflow_job.worker = :worker and e.state in ('ready', 'scheduled', 'waiting');

-- returns]
-- ends]
insert into evenflow_spent (limiter, free_at, starts)
select h.limiter, :now + h.window_us, count(*) from evenflow_job j
cross join evenflow_hold h on h.job_id = j.id and h.window_us is not null
where j.state in ('claimed', 'running') and j.queue in (select value ->> 'queue' from json_each(:wants))
  and j.worker = :worker and j.started_at = :now and j.limits like '%"window_us"%' and h.phase = 2
group by h.limiter, h.window_us;

-- In place of its hold: what was charged is told by started_at and `limits`.
delete from evenflow_hold where window_us is not null and phase = 2 and job_id in (
  select j.id from evenflow_job j
  where j.state in ('claimed', 'running') and j.queue in (select value ->> 'queue' from json_each(:wants))
    and j.worker = :worker and j.started_at = :now and j.limits like '%"window_us"%');

-- [rounds
insert into evenflow_round as r (queue, priority, v)
select queue, priority, max(turn) from evenflow_job
where :moves_v and state in ('claimed', 'running') and queue in (select value ->> 'queue' from json_each(:wants))
  and worker = :worker and started_at = :now
group by queue, priority
on conflict (queue, priority) do update set v = excluded.v where excluded.v > r.v;

select 'round' as kind, 0 as id, 0 as epoch, r.queue, null as task, null as group_key, r.priority, r.v as turn, null as attempt, null as max_attempts,
  null as crashes, null as created_at, null as run_at, null as started_at, null as good_until, null as payload, null as signature,
  null as headers, null as options, null as run_id, null as run_state, null as is_plain
from (
  select distinct queue, priority from evenflow_job
  where :moves_v and state in ('claimed', 'running') and queue in (select value ->> 'queue' from json_each(:wants))
    and worker = :worker and started_at = :now) c
cross join evenflow_round r on r.queue = c.queue and r.priority = c.priority;
-- rounds]

-- name: let_go
-- only here: on PostgreSQL `advance` does it by the way, since keys are passed on in transactions of their own
-- returns: limiter
-- Runs that end let go of their keys, before and in the transaction of the units that write their ends.
delete from evenflow_hold where job_id in (
  select j.id from json_each(:epochs) e
  cross join evenflow_job j on j.id = cast(e.key as integer) and j.epoch = e.value and j.worker = :worker
  where j.limits is not null)
returning limiter;

-- name: advance_onward
-- leaves out: returns of advance

-- name: advance_plainly
-- leaves out: returns, rounds of advance

-- name: claim
-- leaves out: ends of advance

-- name: lock_returns
-- returns: id
-- The write lock is the lock.
select value as id from json_each(:ids) where false;
