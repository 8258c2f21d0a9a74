-- name: sample_live
-- mode: read
-- returns: queue, state, jobs
-- The newest `top` open jobs by queue and state: everything, where there are fewer.
select queue, state, count(*) as jobs
from (select queue, state from evenflow.job order by id desc limit cast(:top as integer)) newest
group by queue, state order by queue, state;

-- name: count_by_index
-- mode: read
-- returns: queue, state, jobs
-- What partial indexes can count, each up to `top`: however long the backlog is, this reads a bounded part of it.
with named as materialized (select name from evenflow.queue union select queue from evenflow.band)
select n.name as queue, 'ready' as state, c.jobs from named n cross join lateral (
  select count(*) as jobs from (
    select 1 from evenflow.job j where j.queue = n.name and j.stage = 'open' and j.state = 'ready' limit cast(:top as integer)) r) c
union all
select n.name, 'overflow', c.jobs from named n cross join lateral (
  select count(*) as jobs from (
    select 1 from evenflow.job j where j.queue = n.name and j.stage = 'overflow' limit cast(:top as integer)) o) c
union all
select f.queue, f.state, count(*) from (
  select i.queue, i.state from evenflow.in_flight i limit cast(:top as integer)) f
group by f.queue, f.state
union all
select d.queue, 'scheduled', count(*) from (
  select j.queue from evenflow.job j where j.stage = 'scheduled' order by j.run_at, j.id limit cast(:top as integer)) d
group by d.queue
union all
select a.queue, 'arriving', count(*) from (
  select j.queue from evenflow.job j where j.stage = 'arriving' order by j.id limit cast(:top as integer)) a
group by a.queue;

-- name: count_ends
-- mode: read
-- returns: state, jobs
-- Kept jobs that did not succeed, by how they ended, each up to `top`.
select s.state, c.jobs
from (values ('failed'), ('quarantined'), ('cancelled'), ('expired'), ('discarded'), ('skipped')) as s (state)
cross join lateral (
  select count(*) as jobs from (
    select 1 from evenflow.history h where h.state = s.state and h.state <> 'succeeded' limit cast(:top as integer)) e) c;

-- name: oldest_ready
-- mode: read
-- returns: queue, since
-- Since when the oldest ready job of each queue could run, among the `top` oldest open jobs and the heads of all bands.
select queue, min(since) as since from (
  select j.queue, j.run_at as since
  from (select queue, state, run_at from evenflow.job order by id limit cast(:top as integer)) j where j.state = 'ready'
  union all
  select b.queue, h.run_at from evenflow.band b cross join lateral (
    select j.run_at from evenflow.job j
    where j.queue = b.queue and j.priority = b.priority and j.stage = 'open' and j.state = 'ready' order by j.turn, j.id limit 1) h) found
group by queue order by queue;

-- name: live_edge
-- mode: read
-- returns: id
-- The last of the `depth` open jobs below a cursor; no row where there are fewer.
select id from evenflow.job where id < cast(:before as bigint) order by id desc offset cast(:depth as integer) - 1 limit 1;

-- name: history_edge
-- mode: read
-- returns: id
select id from evenflow.history where id < cast(:before as bigint) order by id desc offset cast(:depth as integer) - 1 limit 1;

-- name: trouble_edge
-- mode: read
-- returns: id
select id from evenflow.history where state = cast(:state as text) and state <> 'succeeded' and id < cast(:before as bigint)
order by id desc offset cast(:depth as integer) - 1 limit 1;

-- name: browse_live
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
-- Matching jobs between two ids, newest first: a look at a bounded piece, whatever the filter leaves of it.
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  cast(null as bigint) as finished_at, errors, progress
from evenflow.job
where id < cast(:before as bigint) and id >= cast(:after as bigint)
  and (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
  and (cast(:among as jsonb) is null or group_key = any (array(select jsonb_array_elements_text(cast(:among as jsonb)))))
order by id desc limit cast(:top as integer);

-- name: browse_history
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, errors, progress
from evenflow.history
where id < cast(:before as bigint) and id >= cast(:after as bigint)
  and (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
  and (cast(:among as jsonb) is null or group_key = any (array(select jsonb_array_elements_text(cast(:among as jsonb)))))
order by id desc limit cast(:top as integer);

-- name: browse_trouble
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, errors, progress
from evenflow.history
where state = cast(:state as text) and state <> 'succeeded'
  and id < cast(:before as bigint) and id >= cast(:after as bigint)
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
  and (cast(:among as jsonb) is null or group_key = any (array(select jsonb_array_elements_text(cast(:among as jsonb)))))
order by id desc limit cast(:top as integer);

-- name: some_in_state
-- mode: read
-- returns: id
-- Open jobs of one state by its own index, at most `top`: how a few are found among a million others.
select id from (select id from evenflow.job where stage = 'open' and state = 'ready' and cast(:state as text) = 'ready' limit cast(:top as integer)) a
union all
select id from (select id from evenflow.job where stage = 'overflow' and cast(:state as text) = 'overflow' limit cast(:top as integer)) b
union all
select id from (select id from evenflow.in_flight where state = cast(:state as text)
  and cast(:state as text) in ('claimed', 'running') limit cast(:top as integer)) c
union all
select id from (select id from evenflow.job where stage = 'scheduled' and cast(:state as text) = 'scheduled' limit cast(:top as integer)) d
union all
select id from (select id from evenflow.job where stage = 'arriving' and cast(:state as text) = 'arriving' limit cast(:top as integer)) e;

-- name: browse_some
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, errors, progress
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  cast(null as bigint) as finished_at, errors, progress
from evenflow.job
where id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
  and state = cast(:state as text)
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
  and (cast(:among as jsonb) is null or group_key = any (array(select jsonb_array_elements_text(cast(:among as jsonb)))))
order by id desc limit cast(:top as integer);

-- name: in_flight_by_worker
-- mode: read
-- returns: worker, jobs
select worker, count(*) as jobs from evenflow.in_flight
group by worker order by worker;

-- name: in_flight_by_group
-- mode: read
-- returns: group_key, jobs
select group_key, count(*) as jobs
from evenflow.in_flight where queue = cast(:queue as text) and group_key is not null
group by group_key order by group_key;

-- name: next_turns
-- mode: read
-- returns: group_key, jobs
-- Whose turns the next ones of a queue are: its first `top` ready jobs, in the order of the claim, by group.
select group_key, count(*) as jobs from (
  select j.group_key from evenflow.job j where j.queue = cast(:queue as text) and j.stage = 'open' and j.state = 'ready'
  order by j.priority, j.turn, j.id limit cast(:top as integer)) ahead
group by group_key order by jobs desc, group_key;

-- name: group_rows
-- mode: read
-- returns: group_key, priority, ahead, step, weight, cost_us
-- The groups that are named and the first `top` of the queue: how far ahead of the round their last turn lies.
with chosen as materialized (
  select g.group_key, g.priority, g.tail, g.step
  from evenflow.band b
  join evenflow.group_tail g on g.queue = b.queue and g.priority = b.priority
    and g.group_key = any (array(select jsonb_array_elements_text(cast(:names as jsonb))))
  where b.queue = cast(:queue as text)
  union
  select * from (select g.group_key, g.priority, g.tail, g.step from evenflow.group_tail g
    where g.queue = cast(:queue as text) order by g.queue, g.priority, g.group_key limit cast(:top as integer)) first
)
select c.group_key, c.priority, c.tail - coalesce(r.v, 0) as ahead, c.step, coalesce(w.weight, 1) as weight, k.cost_us
from chosen c
left join evenflow.round r on r.queue = cast(:queue as text) and r.priority = c.priority
left join evenflow.group_weight w on w.queue = cast(:queue as text) and w.group_key = c.group_key
left join evenflow.group_cost k on k.queue = cast(:queue as text) and k.group_key = c.group_key
order by c.group_key, c.priority;

-- name: group_weights
-- mode: read
-- returns: group_key, weight
select group_key, weight from evenflow.group_weight where queue = cast(:queue as text) order by group_key limit cast(:top as integer);

-- name: browse_steps
-- mode: read
-- returns: id, kind, state, name, task, ended_at, errors, parents, parent_count
-- A piece of a run's steps, in the order of their ids; of each the first steps before it, and how many there are.
select s.id, s.kind, coalesce(j.state, s.state, 'waiting') as state, s.name, s.task, s.ended_at,
  coalesce(j.errors, s.error, (select h.errors from evenflow.history h where h.id = s.id and s.state <> 'succeeded' limit 1)) as errors,
  (select cast(coalesce(json_agg(b.name order by b.parent), '[]') as text) from (
    select p.name, e.parent from evenflow.edge e join evenflow.step p on p.id = e.parent
    where e.child = s.id order by e.parent limit cast(:few as integer)) b) as parents,
  (select count(*) from (select 1 from evenflow.edge e where e.child = s.id limit cast(:most as integer)) c) as parent_count
from evenflow.step s left join evenflow.job j on j.id = s.id
where s.run_id = cast(:run as bigint) and s.id > cast(:after as bigint) order by s.id limit cast(:top as integer);

-- name: count_steps
-- mode: read
-- returns: steps, has_failed
select count(*) as steps, coalesce(bool_or(state = 'failed'), false) as has_failed
from (select state from evenflow.step where run_id = cast(:run as bigint) order by id limit cast(:top as integer)) looked;

-- name: database_facts
-- mode: read
-- returns: version, bytes, free_bytes, connections, oldest_at, oldest_what, horizon_age, notify_usage, now
-- What makes a queue in PostgreSQL slow before anybody notices: a transaction that nobody ends keeps dead rows alive.
select current_setting('server_version') as version, pg_database_size(current_database()) as bytes, cast(null as bigint) as free_bytes,
  (select count(*) from pg_stat_activity a where a.datname = current_database()) as connections,
  (select cast(extract(epoch from min(a.xact_start)) * 1000000 as bigint) from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid()) as oldest_at,
  (select a.application_name || ' (' || coalesce(a.state, '?') || ')' from pg_stat_activity a
    where a.datname = current_database() and a.pid <> pg_backend_pid() and a.xact_start is not null
    order by a.xact_start limit 1) as oldest_what,
  (select max(age(a.backend_xmin)) from pg_stat_activity a where a.pid <> pg_backend_pid()) as horizon_age,
  pg_notification_queue_usage() as notify_usage, evenflow.now_us() as now;

-- name: database_tables
-- mode: read
-- returns: name, bytes, live_rows, dead_rows, vacuumed_at
-- Sizes and dead rows as the server's statistics know them. The days of history stand under one name.
select t.name, cast(sum(t.bytes) as bigint) as bytes, cast(sum(t.live_rows) as bigint) as live_rows,
  cast(sum(t.dead_rows) as bigint) as dead_rows, max(t.vacuumed_at) as vacuumed_at
from (
  select case when s.relname like 'history\_%' then 'history' else s.relname end as name,
    pg_total_relation_size(s.relid) as bytes, s.n_live_tup as live_rows, s.n_dead_tup as dead_rows,
    cast(extract(epoch from greatest(s.last_vacuum, s.last_autovacuum)) * 1000000 as bigint) as vacuumed_at
  from pg_stat_user_tables s
  where s.schemaname = (select n.nspname from pg_class c join pg_namespace n on n.oid = c.relnamespace
    where c.oid = cast('evenflow.job' as regclass))) t
group by t.name order by bytes desc, t.name;

-- name: add_audit
-- returns: id
insert into evenflow.audit (at, answers, who, role, address, act, target, detail)
values (coalesce(cast(:now as bigint), evenflow.now_us()), cast(:answers as bigint), cast(:who as text), cast(:role as text),
  cast(:address as text), cast(:act as text), cast(:target as text), cast(:detail as text))
returning id;

-- name: list_audit
-- mode: read
-- returns: id, at, who, role, address, act, target, detail, outcome
-- What was asked for, newest first, with what came of it.
select a.id, a.at, a.who, a.role, a.address, a.act, a.target, a.detail,
  (select o.detail from evenflow.audit o where o.answers = a.id order by o.id limit 1) as outcome
from (select * from evenflow.audit q where q.id < cast(:before as bigint) and q.answers is null
  order by q.id desc limit cast(:top as integer)) a
order by a.id desc;
