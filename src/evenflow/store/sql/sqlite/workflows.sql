-- name: add_run
-- returns: id
insert into evenflow_run (id, created_at, state, on_error, name, run_key, policy)
values (:id, :now, 'running', :on_error, :name, :run_key, :policy)
on conflict do nothing
returning id;

-- name: forget_run
-- returns: id
delete from evenflow_run where id = :run returning id;

-- name: find_run_key
-- mode: read
-- returns: id, name
select id, name from evenflow_run where run_key = :run_key;

-- name: add_steps
-- returns: added
insert into evenflow_step (id, run_id, container, delay_us, not_before, ordinal, needs, allow_failed, kind, name,
  task, run_when, skip_when, policy)
select value ->> 'id', value ->> 'run_id', value ->> 'container', value ->> 'delay_us', value ->> 'not_before',
  value ->> 'ordinal', value ->> 'needs', value ->> 'allow_failed', value ->> 'kind', value ->> 'name', value ->> 'task',
  value ->> 'run_when', value ->> 'skip_when', value ->> 'policy'
from json_each(:steps);

select changes() as added;

-- name: add_edges
-- returns: added
insert into evenflow_edge (parent, child, outcome)
select e.value ->> 'parent', e.value ->> 'child',
  case when s.state is null then case when e.value ->> 'lone' then -1 else 0 end when s.state = 'succeeded' then 1 else 2 end
from json_each(:edges) e left join evenflow_step s on s.id = e.value ->> 'parent' where true
on conflict do nothing;

select changes() as added;

-- name: paused_steps
-- returns: id
select s.id from json_each(:ids) n
cross join evenflow_step s on s.id = n.value
cross join evenflow_run r on r.id = s.run_id and r.state = 'paused';

-- name: share_children
-- returns: child
update evenflow_edge set outcome = 0 where child in (select value from json_each(:ids)) and outcome = -1
returning child;

-- name: lock_runs
-- returns: id, state, on_error, policy
-- The write lock is the lock of every run.
select id, state, on_error, policy from evenflow_run where id in (select value from json_each(:runs)) order by id;

-- name: end_steps
-- returns: kind, id, run_id, text
-- The twin of the PostgreSQL unit; whoever holds the write lock holds every run. The children first, while lone ones wait.
select 'child' as kind, d.child as id, r.id as run_id, r.policy as text
from json_each(:steps) e
cross join evenflow_job o on o.id = e.value ->> 'id' and o.epoch = e.value ->> 'epoch' and o.worker = :worker
cross join evenflow_run r on r.id = o.run_id and r.state = 'running' and r.on_error = 'fail'
cross join evenflow_edge d on d.parent = o.id
where d.outcome <> -1 or e.value ->> 'state' <> 'succeeded'
  or not exists (select 1 from evenflow_job j where j.id = d.child and j.state = 'waiting');

insert into evenflow_step_end (run_id, step_id)
select o.run_id, o.id from json_each(:steps) e
cross join evenflow_job o on o.id = e.value ->> 'id' and o.epoch = e.value ->> 'epoch' and o.worker = :worker
cross join evenflow_run r on r.id = o.run_id
where r.state <> 'running' or r.on_error <> 'fail'
on conflict do update set step_id = excluded.step_id
returning 'noted' as kind, run_id as id, run_id, null as text;

-- Nobody has to read from the edge of a lone child what the step says.
update evenflow_edge set outcome = e.outcome
from (select o.id, value ->> 'state' = 'succeeded' and r.id is not null as goes_on,
        case when value ->> 'state' = 'succeeded' then 1 else 2 end as outcome
      from json_each(:steps)
      cross join evenflow_job o on o.id = value ->> 'id' and o.epoch = value ->> 'epoch' and o.worker = :worker
      left join evenflow_run r on r.id = o.run_id and r.state = 'running' and r.on_error = 'fail') e
where evenflow_edge.parent = e.id and (evenflow_edge.outcome <> -1 or not e.goes_on
  or not exists (select 1 from evenflow_job j where j.id = evenflow_edge.child and j.state = 'waiting'));

-- What arrives gets its turn with its admission, and the first of a band the band.
update evenflow_job set run_at = :now,
  state = case when group_key is null and limits is null
    and exists (select 1 from evenflow_band b where b.queue = evenflow_job.queue and b.priority = evenflow_job.priority)
    and not exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.max_ready is not null) then 'ready' else 'arriving' end,
  turn = case when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
    else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
where id in (
  select j.id from json_each(:steps) e
  cross join evenflow_job o on o.id = e.value ->> 'id' and o.epoch = e.value ->> 'epoch' and o.worker = :worker
  cross join evenflow_run r on r.id = o.run_id and r.state = 'running' and r.on_error = 'fail'
  cross join evenflow_edge d on d.parent = o.id and d.outcome = -1
  cross join evenflow_job j on j.id = d.child and j.state = 'waiting'
  where e.value ->> 'state' = 'succeeded')
returning 'lone' as kind, id, null as run_id, case when state = 'ready' then queue end as text;

update evenflow_step set state = e.state, result = e.result, ended_at = :now
from (select o.id, value ->> 'state' as state, value ->> 'result' as result from json_each(:steps)
      cross join evenflow_job o on o.id = value ->> 'id' and o.epoch = value ->> 'epoch' and o.worker = :worker) e
where evenflow_step.id = e.id;

-- name: note_open_steps
-- returns: step_id
insert into evenflow_step_end (run_id, step_id)
select s.run_id, s.id from evenflow_step s where s.id in (select value from json_each(:ids)) and s.state is null
on conflict do nothing
returning step_id;

-- name: take_step_ends
-- returns: id, run_id, name, state
select s.id, s.run_id, s.name, s.state from json_each(:runs) n
cross join evenflow_step_end e on e.run_id = n.value
cross join evenflow_step s on s.id = e.step_id
where s.state is not null;

delete from evenflow_step_end where run_id in (select value from json_each(:runs))
  and (select s.state from evenflow_step s where s.id = evenflow_step_end.step_id) is not null;

-- name: bad_step_ends
-- mode: read
-- returns: run_id, name, state
select e.run_id, s.name, s.state from json_each(:runs) n
cross join evenflow_step_end e on e.run_id = n.value
cross join evenflow_step s on s.id = e.step_id
where s.state not in ('succeeded', 'skipped');

-- name: pass_on
-- returns: child
update evenflow_edge set outcome = (select case when s.state = 'succeeded' then 1 else 2 end from evenflow_step s where s.id = evenflow_edge.parent)
where parent in (select s.id from json_each(:ended) n cross join evenflow_step s on s.id = n.value where s.state is not null);

select distinct e.child from json_each(:ended) n cross join evenflow_edge e on e.parent = n.value;

-- name: weigh_steps
-- mode: read
-- returns: id, run_id, kind, needs, allow_failed, policy, open, ok, bad, culprit
select s.id, s.run_id, s.kind, s.needs, s.allow_failed, s.policy,
  case when s.needs is not null then (select count(*) from evenflow_edge e where e.child = s.id and e.outcome <= 0)
       else exists (select 1 from evenflow_edge e where e.child = s.id and e.outcome <= 0) end as open,
  case when s.needs is null then 0 else (select count(*) from evenflow_edge e where e.child = s.id and e.outcome = 1) end as ok,
  case when s.needs is not null then (select count(*) from evenflow_edge e where e.child = s.id and e.outcome = 2)
       else exists (select 1 from evenflow_edge e where e.child = s.id and e.outcome = 2) end as bad,
  (select p.name || ' ended ' || p.state from evenflow_step p where p.id = (
    select e.parent from evenflow_edge e where e.child = s.id and e.outcome = 2 order by e.parent limit 1)) as culprit
from evenflow_step s where s.id in (select value from json_each(:ids)) and s.state is null
order by s.id;

-- name: release_steps
-- returns: id, queue
insert into evenflow_band (queue, priority)
select distinct j.queue, j.priority from json_each(:ids) n
cross join evenflow_job j on j.id = n.value
where j.state = 'waiting' and not exists (select 1 from evenflow_band b where b.queue = j.queue and b.priority = j.priority)
on conflict do nothing;

update evenflow_job set run_at = d.run_at, state = case when d.is_ready then 'ready' else 'arriving' end,
  turn = case when not d.is_ready then turn
    when exists (select 1 from evenflow_queue q where q.name = evenflow_job.queue and q.fair = 'fifo') then :now
    else 1 + coalesce((select r.v from evenflow_round r where r.queue = evenflow_job.queue and r.priority = evenflow_job.priority), 0) end
from (
  select j.id, max(:now + coalesce(s.delay_us, 0), coalesce(s.not_before, 0)) as run_at,
    j.group_key is null and j.limits is null and s.delay_us is null and s.not_before is null
      and not exists (select 1 from evenflow_queue q where q.name = j.queue and q.max_ready is not null) as is_ready
  from json_each(:ids) n
  cross join evenflow_step s on s.id = n.value
  cross join evenflow_job j on j.id = s.id and j.state = 'waiting') d
where evenflow_job.id = d.id
returning id, case when state = 'ready' then queue end as queue;

-- name: skip_steps
-- returns: id
insert or replace into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
  epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature,
  headers, options, errors, progress, payload, limits)
select j.id, :now + :keep_us, j.created_at, :now, j.started_at, :now, j.good_until, j.worker, j.run_id,
  j.epoch, j.attempt, j.max_attempts, crashes, j.priority, j.fails_on_crash, 'skipped', j.queue, j.task, j.group_key, j.unique_key, j.signature,
  j.headers, j.options, case when j.errors is null then '[' || (k.value ->> 'error') || ']'
    else substr(j.errors, 1, length(j.errors) - 1) || ',' || (k.value ->> 'error') || ']' end, j.progress, j.payload, j.limits
from json_each(:skips) k cross join evenflow_job j on j.id = k.value ->> 'id'
where j.state = 'waiting' and :keep_us > 0;

update evenflow_step set state = 'skipped', ended_at = :now where id in (
  select j.id from json_each(:skips) k cross join evenflow_job j on j.id = k.value ->> 'id' where j.state = 'waiting');

delete from evenflow_job where state = 'waiting' and id in (select value ->> 'id' from json_each(:skips))
returning id;

-- name: members_of
-- mode: read
-- returns: container, ordinal, id, kind, name, state, result, policy
select s.container, s.ordinal, s.id, s.kind, s.name, s.state, s.result, s.policy from evenflow_step s
where s.container in (select value from json_each(:containers)) order by s.container, s.ordinal;

-- name: end_containers
-- returns: id
update evenflow_step set state = c.state, error = c.error, ended_at = :now
from (select value ->> 'id' as id, value ->> 'state' as state, value ->> 'error' as error from json_each(:ends)) c
where evenflow_step.id = c.id and evenflow_step.state is null
returning evenflow_step.id;

-- name: runs_without_open
-- mode: read
-- returns: id
select r.id from evenflow_run r where r.id in (select value from json_each(:runs))
  and not exists (select 1 from evenflow_edge e where e.child = r.id and e.outcome = 0)
  and not exists (select 1 from evenflow_step s where s.run_id = r.id and s.state is null);

-- name: outer_steps
-- mode: read
-- returns: run_id, name, state
select s.run_id, s.name, s.state from json_each(:runs) n cross join evenflow_step s on s.run_id = n.value
where s.container is null
  and (s.state not in ('succeeded', 'skipped') or s.run_id in (select value from json_each(:particular)))
order by s.run_id, s.id;

-- name: end_runs
-- returns: id
update evenflow_run set state = e.state, error = e.error, finished_at = :now, expires_at = :now + e.keep_us
from (select value ->> 'id' as id, value ->> 'state' as state, value ->> 'error' as error, value ->> 'keep_us' as keep_us
      from json_each(:ends)) e
where evenflow_run.id = e.id and evenflow_run.state in ('running', 'paused')
returning evenflow_run.id;

-- name: set_run_state
-- returns: id
update evenflow_run set state = :state, paused_why = :why, finished_at = null, expires_at = null, error = null where id = :run
returning id;

-- name: park_steps
-- returns: limiter
update evenflow_hold set phase = 0, held_at = null where job_id in (
  select j.id from evenflow_step s cross join evenflow_job j on j.id = s.id
  where s.run_id = :run and s.state is null and j.limits is not null
    and j.state in ('arriving', 'scheduled', 'blocked', 'overflow', 'ready', 'claimed'))
returning limiter;

update evenflow_job set state = 'waiting', run_at = min(run_at, :never - 1), worker = null, lease_until = null, gated = 0,
  attempt = case when state = 'claimed' then attempt - 1 else attempt end
where id in (select s.id from evenflow_step s where s.run_id = :run and s.state is null)
  and +state in ('arriving', 'scheduled', 'blocked', 'overflow', 'ready', 'claimed');

-- name: unpark_steps
-- returns: id
update evenflow_job set state = 'arriving',
  run_at = case when exists (select 1 from evenflow_event_wait w where w.job_id = evenflow_job.id) then :now else run_at end
where id in (select s.id from evenflow_step s where s.run_id = :run and s.state is null)
  and state = 'waiting' and run_at < :never
returning id;

-- name: open_jobs_of
-- mode: read
-- returns: id
select j.id from evenflow_step s cross join evenflow_job j on j.id = s.id where s.run_id = :run order by j.id;

-- name: close_steps
-- returns: id
update evenflow_step set state = 'cancelled', ended_at = :now
where run_id = :run and state is null and kind in ('sub', 'map')
returning id;

-- name: drop_step_ends
-- returns: step_id
delete from evenflow_step_end where run_id in (select value from json_each(:runs))
returning step_id;

-- name: forget_step_ends
-- returns: step_id
delete from evenflow_step_end where (run_id, step_id) in (
  select s.run_id, s.id from json_each(:ids) n cross join evenflow_step s on s.id = n.value)
returning step_id;

-- name: reopen_steps
-- returns: id
update evenflow_edge set outcome = 0 where parent in (select value from json_each(:ids));

-- What their parents say is written anew, since an end that released a lone child did not write it.
update evenflow_edge set outcome = case when p.state = 'succeeded' then 1 else 2 end from evenflow_step p
where evenflow_edge.child in (select value from json_each(:ids)) and evenflow_edge.parent not in (select value from json_each(:ids))
  and p.id = evenflow_edge.parent and p.state is not null;

insert into evenflow_job (id, created_at, run_at, run_id, epoch, max_attempts, priority, fails_on_crash, state, queue, task,
  group_key, unique_key, signature, headers, options, errors, limits, payload)
select h.id, h.created_at, :never, h.run_id, h.epoch, h.max_attempts, h.priority, h.fails_on_crash, 'waiting', h.queue, h.task,
  h.group_key, h.unique_key, h.signature, h.headers, h.options, h.errors, h.limits, h.payload
from evenflow_history h where h.id in (select value from json_each(:ids))
order by h.id
on conflict do nothing;

insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, l.value ->> 'ordinal', l.value ->> 'limiter', l.value ->> 'most', l.value ->> 'keep_us', l.value ->> 'window_us', j.priority, 0
from json_each(:ids) n
cross join evenflow_history h on h.id = n.value
cross join evenflow_job j on j.id = h.id
cross join json_each(j.limits) l
where j.state = 'waiting'
on conflict do nothing;

delete from evenflow_history where id in (select value from json_each(:ids)) and id in (select id from evenflow_job);

update evenflow_step set state = null, ended_at = null, result = null, error = null
where id in (select value from json_each(:ids)) and (kind in ('sub', 'map') or id in (select j.id from evenflow_job j where j.id in (select value from json_each(:ids))))
returning id;

-- name: step_inputs
-- mode: read
-- returns: id, workflow, step, run_when, skip_when, parent, parent_name, kind, state, result, policy
select s.id, r.name as workflow, s.name as step, s.run_when, s.skip_when,
  p.id as parent, p.name as parent_name, p.kind, p.state, p.result, p.policy
from evenflow_step s
join evenflow_run r on r.id = s.run_id
left join evenflow_edge e on e.child = s.id
left join evenflow_step p on p.id = e.parent
where s.id in (select value from json_each(:ids))
order by s.id, p.id;

-- name: steps_by_id
-- mode: read
-- returns: id, kind, name, state, result, policy
select s.id, s.kind, s.name, s.state, s.result, s.policy from evenflow_step s where s.id in (select value from json_each(:ids));

-- name: unsettled
-- mode: read
-- returns: run_id
select distinct e.run_id from evenflow_step_end e cross join evenflow_run r on r.id = e.run_id
cross join evenflow_step s on s.id = e.step_id
where r.state <> 'paused' and s.state is not null limit :top;

-- name: runs_by_id
-- mode: read
-- returns: id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why
select id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why from evenflow_run
where id in (select value from json_each(:ids));

-- name: list_runs
-- mode: read
-- returns: id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why
select id, created_at, finished_at, state, on_error, name, run_key, policy, error, paused_why from evenflow_run
where id < :before and (:state is null or state = :state) and (:name is null or name = :name)
order by id desc limit :top;

-- name: list_steps
-- mode: read
-- returns: id, container, ordinal, needs, allow_failed, kind, state, name, task, ended_at, errors, result, policy
select s.id, s.container, s.ordinal, s.needs, s.allow_failed, s.kind, coalesce(j.state, s.state, 'waiting') as state, s.name, s.task,
  s.ended_at, coalesce(j.errors, s.error, (select h.errors from evenflow_history h where h.id = s.id and s.state <> 'succeeded')) as errors,
  s.result, s.policy
from evenflow_step s left join evenflow_job j on j.id = s.id
where s.run_id = :run order by s.id;

-- name: list_edges
-- mode: read
-- returns: parent, child
select e.parent, e.child from evenflow_step s join evenflow_edge e on e.parent = s.id
where s.run_id = :run order by e.parent, e.child;

-- name: open_children
-- mode: read
-- returns: child
select e.child from evenflow_edge e where e.parent = :id order by e.child;

-- name: run_of_step
-- mode: read
-- returns: run_id, name, container
select s.run_id, s.name, s.container from evenflow_step s where s.id = :id;

-- name: steps_named
-- mode: read
-- returns: name, id
select s.name, s.id from evenflow_step s where s.run_id = :run and s.name in (select value from json_each(:names));

-- name: prune_runs
-- returns: id
-- The steps first, in bounded batches; a run goes when none is left.
delete from evenflow_edge where parent in (
  select s.id from evenflow_step s where s.run_id in (
    select r.id from evenflow_run r where r.expires_at <= :now order by r.expires_at limit :top) limit :top);

delete from evenflow_step where id in (
  select s.id from evenflow_step s where s.run_id in (
    select r.id from evenflow_run r where r.expires_at <= :now order by r.expires_at limit :top) limit :top)
returning id;

delete from evenflow_step_end where run_id in (
  select r.id from evenflow_run r where r.expires_at <= :now order by r.expires_at limit :top);

delete from evenflow_run where id in (
  select r.id from evenflow_run r where r.expires_at <= :now order by r.expires_at limit :top)
  and not exists (select 1 from evenflow_step s where s.run_id = evenflow_run.id)
returning id;

-- name: adopt_steps
-- returns: id
update evenflow_step set container = :container where id in (select value from json_each(:ids))
returning id;

-- name: open_parents
-- mode: read
-- returns: id, name
select p.id, p.name from evenflow_edge e join evenflow_step p on p.id = e.parent
where e.child = :id and e.outcome <= 0 and p.state is null order by e.parent limit :top;
