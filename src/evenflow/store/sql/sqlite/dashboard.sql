-- name: sample_live
-- mode: read
-- returns: queue, state, jobs
-- The newest `top` open jobs by queue and state: everything, where there are fewer.
select queue, state, count(*) as jobs
from (select queue, state from evenflow_job order by id desc limit :top) newest
group by queue, state order by queue, state;

-- name: count_by_index
-- mode: read
-- returns: queue, state, jobs
with named as materialized (select name from evenflow_queue union select queue from evenflow_band)
select n.name as queue, 'ready' as state,
  (select count(*) from (select 1 from evenflow_job j where j.queue = n.name and j.state = 'ready' limit :top)) as jobs from named n
union all
select n.name, 'overflow',
  (select count(*) from (select 1 from evenflow_job j where j.queue = n.name and j.state = 'overflow' limit :top)) from named n
union all
select queue, state, count(*) from (
  select j.queue, j.state from evenflow_job j where j.state in ('claimed', 'running') limit :top)
group by queue, state
union all
select queue, 'scheduled', count(*) from (
  select j.queue from evenflow_job j where j.state = 'scheduled' order by j.run_at, j.id limit :top)
group by queue
union all
select queue, 'arriving', count(*) from (
  select j.queue from evenflow_job j where j.state = 'arriving' order by j.id limit :top)
group by queue;

-- name: count_ends
-- mode: read
-- returns: state, jobs
select s.value as state, (select count(*) from (
  select 1 from evenflow_history h where h.state = s.value and h.state <> 'succeeded' limit :top)) as jobs
from json_each('["failed","quarantined","cancelled","expired","discarded","skipped"]') s;

-- name: oldest_ready
-- mode: read
-- returns: queue, since
select queue, min(since) as since from (
  select j.queue, j.run_at as since
  from (select queue, state, run_at from evenflow_job order by id limit :top) j where j.state = 'ready'
  union all
  select b.queue, (select j.run_at from evenflow_job j
    where j.queue = b.queue and j.priority = b.priority and j.state = 'ready' order by j.turn, j.id limit 1)
  from evenflow_band b)
where since is not null group by queue order by queue;

-- name: live_edge
-- mode: read
-- returns: id
-- The last of the `depth` open jobs below a cursor; no row where there are fewer.
select id from evenflow_job where id < :before order by id desc limit 1 offset :depth - 1;

-- name: history_edge
-- mode: read
-- returns: id
select id from evenflow_history where id < :before order by id desc limit 1 offset :depth - 1;

-- name: trouble_edge
-- mode: read
-- returns: id
select id from evenflow_history where state = :state and state <> 'succeeded' and id < :before
order by id desc limit 1 offset :depth - 1;

-- name: browse_live
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
-- Matching jobs between two ids, newest first: a look at a bounded piece, whatever the filter leaves of it.
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  null as finished_at, errors, progress
from evenflow_job
where id < :before and id >= :after
  and (:state is null or state = :state)
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
  and (:among is null or group_key in (select value from json_each(:among)))
order by id desc limit :top;

-- name: browse_history
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, errors, progress
from evenflow_history
where id < :before and id >= :after
  and (:state is null or state = :state)
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
  and (:among is null or group_key in (select value from json_each(:among)))
order by id desc limit :top;

-- name: browse_trouble
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, errors, progress
from evenflow_history
where state = :state and state <> 'succeeded'
  and id < :before and id >= :after
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
  and (:among is null or group_key in (select value from json_each(:among)))
order by id desc limit :top;

-- name: some_in_state
-- mode: read
-- returns: id
-- Open jobs of one state by its own index, at most `top`: how a few are found among a million others.
select id from (select id from evenflow_job where state = 'ready' and :state = 'ready' limit :top) a
union all
select id from (select id from evenflow_job where state = 'overflow' and :state = 'overflow' limit :top) b
union all
select id from (select id from evenflow_job where state in ('claimed', 'running') and state = :state
  and :state in ('claimed', 'running') limit :top) c
union all
select id from (select id from evenflow_job where state = 'scheduled' and :state = 'scheduled' limit :top) d
union all
select id from (select id from evenflow_job where state = 'arriving' and :state = 'arriving' limit :top) e;

-- name: browse_some
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  null as finished_at, errors, progress
from evenflow_job
where id in (select value from json_each(:ids))
  and state = :state
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
  and (:among is null or group_key in (select value from json_each(:among)))
order by id desc limit :top;

-- name: in_flight_by_worker
-- mode: read
-- returns: worker, jobs
select worker, count(*) as jobs from evenflow_job where state in ('claimed', 'running') and worker is not null
group by worker order by worker;

-- name: in_flight_by_group
-- mode: read
-- returns: group_key, jobs
select group_key, count(*) as jobs
from evenflow_job where state in ('claimed', 'running') and queue = :queue and group_key is not null
group by group_key order by group_key;

-- name: next_turns
-- mode: read
-- returns: group_key, jobs
-- Whose turns the next ones of a queue are: its first `top` ready jobs, in the order of the claim, by group.
select group_key, count(*) as jobs from (
  select j.group_key from evenflow_job j where j.queue = :queue and j.state = 'ready'
  order by j.priority, j.turn, j.id limit :top) ahead
group by group_key order by jobs desc, group_key;

-- name: group_rows
-- mode: read
-- returns: group_key, priority, ahead, step, weight, cost_us
-- The groups that are named and the first `top` of the queue: how far ahead of the round their last turn lies.
with chosen as materialized (
  select g.group_key, g.priority, g.tail, g.step
  from evenflow_band b cross join json_each(:names) n
  cross join evenflow_group_tail g on g.queue = b.queue and g.priority = b.priority and g.group_key = n.value
  where b.queue = :queue
  union
  select * from (select g.group_key, g.priority, g.tail, g.step from evenflow_group_tail g
    where g.queue = :queue order by g.queue, g.priority, g.group_key limit :top)
)
select c.group_key, c.priority, c.tail - coalesce(r.v, 0) as ahead, c.step, coalesce(w.weight, 1) as weight, k.cost_us
from chosen c
left join evenflow_round r on r.queue = :queue and r.priority = c.priority
left join evenflow_group_weight w on w.queue = :queue and w.group_key = c.group_key
left join evenflow_group_cost k on k.queue = :queue and k.group_key = c.group_key
order by c.group_key, c.priority;

-- name: group_weights
-- mode: read
-- returns: group_key, weight
select group_key, weight from evenflow_group_weight where queue = :queue order by group_key limit :top;

-- name: browse_steps
-- mode: read
-- returns: id, kind, state, name, task, ended_at, errors, parents, parent_count
-- A piece of a run's steps, in the order of their ids; of each the first steps before it, and how many there are.
select s.id, s.kind, coalesce(j.state, s.state, 'waiting') as state, s.name, s.task, s.ended_at,
  coalesce(j.errors, s.error, (select h.errors from evenflow_history h where h.id = s.id and s.state <> 'succeeded')) as errors,
  (select json_group_array(name) from (select p.name from evenflow_edge e join evenflow_step p on p.id = e.parent
    where e.child = s.id order by e.parent limit :few)) as parents,
  (select count(*) from (select 1 from evenflow_edge e where e.child = s.id limit :most)) as parent_count
from evenflow_step s left join evenflow_job j on j.id = s.id
where s.run_id = :run and s.id > :after order by s.id limit :top;

-- name: count_steps
-- mode: read
-- returns: steps, has_failed
select count(*) as steps, coalesce(max(state = 'failed'), 0) as has_failed
from (select state from evenflow_step where run_id = :run order by id limit :top) looked;

-- name: database_facts
-- mode: read
-- returns: version, bytes, free_bytes, connections, oldest_at, oldest_what, horizon_age, notify_usage, now
select sqlite_version() as version, (select page_count from pragma_page_count) * (select page_size from pragma_page_size) as bytes,
  (select freelist_count from pragma_freelist_count) * (select page_size from pragma_page_size) as free_bytes,
  null as connections, null as oldest_at, null as oldest_what, null as horizon_age, null as notify_usage, :now as now;

-- name: database_tables
-- mode: read
-- returns: name, bytes, live_rows, dead_rows, vacuumed_at
-- The sizes of SQLite's tables cannot be had without reading all of them.
select name, null as bytes, null as live_rows, null as dead_rows, null as vacuumed_at from sqlite_master where false;

-- name: add_audit
-- returns: id
insert into evenflow_audit (at, answers, who, role, address, act, target, detail)
values (:now, :answers, :who, :role, :address, :act, :target, :detail)
returning id;

-- name: list_audit
-- mode: read
-- returns: id, at, who, role, address, act, target, detail, outcome
-- What was asked for, newest first, with what came of it.
select a.id, a.at, a.who, a.role, a.address, a.act, a.target, a.detail,
  (select o.detail from evenflow_audit o where o.answers = a.id order by o.id limit 1) as outcome
from (select * from evenflow_audit q where q.id < :before and q.answers is null
  order by q.id desc limit :top) a
order by a.id desc;
