-- name: register_worker
-- returns: id
insert into evenflow_worker (id, parent, kind, host, pid, started_at, beat_at, lease_us, about)
values (:id, :parent, :kind, :host, :pid, :now, :now, :lease_us, :about)
returning id;

-- name: beat
-- returns: id, epoch, why
-- INDEXED BY here and below: SQLite would rather read the whole table than the few rows in flight.
update evenflow_job indexed by evenflow_job_in_flight set lease_until = :now + :lease_us
where :lease_us is not null and state in ('claimed', 'running') and state = 'claimed' and worker = :worker
  and exists (select 1 from evenflow_worker w where w.id = :worker);

update evenflow_worker set beat = beat + 1, beat_at = :now, about = coalesce(:about, about) where id = :worker
returning id, 0 as epoch, 'alive' as why;

select id, 0 as epoch, 'company' as why from evenflow_worker where kind = 'worker' and id <> :worker limit 1;

select id, epoch, coalesce(cancel_why, '') as why from evenflow_job
where state in ('claimed', 'running') and worker = :worker and cancel_at is not null;

-- name: list_workers
-- mode: read
-- returns: id, parent, kind, host, pid, started_at, beat, beat_at, lease_us, about
select id, parent, kind, host, pid, started_at, beat, beat_at, lease_us, about from evenflow_worker order by id;

-- name: list_in_flight
-- mode: read
-- returns: id, epoch
select id, epoch from evenflow_job where state in ('claimed', 'running') and worker = :worker;

-- name: bury_workers
-- returns: id
delete from evenflow_worker where id in (
  select w.id from json_each(:workers) d cross join evenflow_worker w on w.id = d.value ->> 'id'
  where d.value ->> 'beat' in (w.beat, -1))
returning id;

-- name: rescue
-- returns: id, state, queue, task, crashed
-- The batch is marked first (no lease ends at -1): each later step changes what a LIMIT would find. Whether a job ran is
-- not to be seen after the update; but then it ends with this very error.
update evenflow_job set lease_until = -1 where id in (
  select j.id from evenflow_job j indexed by evenflow_job_in_flight
  where j.state in ('claimed', 'running') and not exists (select 1 from evenflow_worker w where w.id = j.worker)
  order by j.id limit :top);

insert or replace into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
  epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature,
  headers, options, errors, progress, payload, limits)
select j.id, :now + j.keep_us, j.created_at, j.run_at, j.started_at, :now, j.good_until, j.worker, j.run_id,
  j.epoch, j.attempt, j.max_attempts, j.crashes + (j.state = 'running'), j.priority, j.fails_on_crash, j.fate, j.queue, j.task, j.group_key, j.unique_key, j.signature,
  j.headers, j.options, case when j.errors is null or length(j.errors) > 65536 then '[' || :error || ']' else substr(j.errors, 1, length(j.errors) - 1) || ',' || :error || ']' end, j.progress, j.payload, j.limits
from (select *, case fate when 'failed' then :keep_failed_us when 'quarantined' then :keep_quarantined_us else :keep_cancelled_us end as keep_us
  from (select *, case when cancel_at is not null then 'cancelled' when state = 'running' and fails_on_crash then 'failed'
      when state = 'running' and crashes + 1 >= :max_crashes then 'quarantined' else 'ready' end as fate
    from evenflow_job where state in ('claimed', 'running') and lease_until = -1)) j
where j.fate <> 'ready' and j.keep_us > 0;

insert into evenflow_step_end (run_id, step_id)
select run_id, id from evenflow_job
where state in ('claimed', 'running') and lease_until = -1 and run_id is not null
  and (cancel_at is not null or (state = 'running' and (fails_on_crash or crashes + 1 >= :max_crashes)))
on conflict do nothing;

update evenflow_step set result = null, ended_at = :now, state = (
  select case when j.cancel_at is not null then 'cancelled' when j.fails_on_crash then 'failed' else 'quarantined' end
  from evenflow_job j where j.id = evenflow_step.id)
where id in (
  select id from evenflow_job
  where state in ('claimed', 'running') and lease_until = -1 and run_id is not null
    and (cancel_at is not null or (state = 'running' and (fails_on_crash or crashes + 1 >= :max_crashes))));

delete from evenflow_job
where state in ('claimed', 'running') and lease_until = -1
  and (cancel_at is not null or (state = 'running' and (fails_on_crash or crashes + 1 >= :max_crashes)))
returning id, case when cancel_at is not null then 'cancelled' when fails_on_crash then 'failed' else 'quarantined' end as state, queue,
  task, state = 'running' as crashed;

update evenflow_hold set phase = 0, held_at = null where job_id in (
  select id from evenflow_job where state in ('claimed', 'running') and lease_until = -1 and limits like '%"window_us"%');

insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, l.value ->> 'ordinal', l.value ->> 'limiter', l.value ->> 'most', l.value ->> 'keep_us', l.value ->> 'window_us', j.priority, 0
from evenflow_job j cross join json_each(j.limits) l
where j.state in ('claimed', 'running') and j.lease_until = -1 and l.value ->> 'window_us' is not null
on conflict do nothing;

update evenflow_job set worker = null, lease_until = null, attempt = attempt - 1,
  state = case when limits like '%"window_us"%' then 'scheduled'
    when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
  run_at = case when limits like '%"window_us"%' then :now else run_at end,
  crashes = crashes + (state = 'running'),
  errors = case when state <> 'running' then errors when errors is null or length(errors) > 65536 then '[' || :error || ']'
                else substr(errors, 1, length(errors) - 1) || ',' || :error || ']' end,
  turn = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
              else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
where state in ('claimed', 'running') and lease_until = -1
returning id, 'ready' as state, queue, task, errors is not null and substr(errors, -length(:error) - 1) = :error || ']' as crashed;

-- name: free_expired_claims
-- returns: id, queue
update evenflow_hold set phase = 0, held_at = null where job_id in (
  select j.id from evenflow_job j where j.limits like '%"window_us"%' and j.id in (
  select id from evenflow_job indexed by evenflow_job_in_flight
  where state in ('claimed', 'running') and state = 'claimed' and lease_until <= :now order by +id limit :top));

insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, l.value ->> 'ordinal', l.value ->> 'limiter', l.value ->> 'most', l.value ->> 'keep_us', l.value ->> 'window_us', j.priority, 0
from evenflow_job j cross join json_each(j.limits) l
where j.limits like '%"window_us"%' and j.id in (
  select id from evenflow_job indexed by evenflow_job_in_flight
  where state in ('claimed', 'running') and state = 'claimed' and lease_until <= :now order by +id limit :top) and l.value ->> 'window_us' is not null
on conflict do nothing;

update evenflow_job set worker = null, lease_until = null, attempt = attempt - 1,
  state = case when limits like '%"window_us"%' then 'scheduled'
    when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
  run_at = case when limits like '%"window_us"%' then :now else run_at end,
  turn = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
              else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
where id in (
  select id from evenflow_job indexed by evenflow_job_in_flight
  where state in ('claimed', 'running') and state = 'claimed' and lease_until <= :now order by +id limit :top)
returning id, queue;

-- name: lock_caps
-- returns: name
-- The write lock is the lock: nobody else counts or claims meanwhile.
select name from evenflow_queue where name in (select value from json_each(:queues)) and max_concurrency is not null order by name;

select 'cluster' as name from evenflow_cluster where cap is not null;

-- name: start_claimed
-- returns: id
with able as materialized (
  select j.id, q.max_concurrency, row_number() over (partition by j.queue order by j.priority, j.turn, j.id) as number,
    case when q.max_concurrency is null then 0
         else (select count(*) from evenflow_job r where r.queue = j.queue and r.state in ('claimed', 'running') and r.state = 'running')
    end as running
  from json_each(:starts) s
  cross join evenflow_job j on j.id = s.value ->> 'id' and j.epoch = s.value ->> 'epoch'
  left join evenflow_queue q on q.name = j.queue
  where j.worker = :worker and j.state = 'claimed' and j.lease_until > :now and j.cancel_at is null
    and (j.good_until is null or j.good_until > :now) and q.paused_at is null
    and not exists (
      select 1 from evenflow_gate g where ((g.kind = 'task' and g.name = j.task) or (g.kind = 'queue' and g.name = j.queue))
        and (g.probe_job is not j.id or g.probe_epoch is not j.epoch))
)
update evenflow_job set state = 'running', lease_until = null,
  started_at = case when limits like '%"window_us"%' then started_at else :now end -- a rate finds its charge by it
where id in (select id from able where max_concurrency is null or (:caps_locked and running + number <= max_concurrency))
returning id;

-- name: save_progress
-- returns: id
update evenflow_job set progress = p.progress
from (select value ->> 'id' as id, value ->> 'epoch' as epoch, value ->> 'progress' as progress from json_each(:progress)) p
where evenflow_job.id = p.id and evenflow_job.epoch = p.epoch and evenflow_job.worker = :worker
returning evenflow_job.id;
