-- name: clock
-- mode: read
-- returns: now
select coalesce(cast(:now as bigint), evenflow.now_us()) as now;

-- name: jobs_by_id
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  cast(null as bigint) as finished_at, good_until, worker, unique_key, payload, null as result, errors, progress, headers, options, cancel_why
from evenflow.job where id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
union all
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, good_until, worker, unique_key, payload,
  coalesce(result, (select s.result from evenflow.step s where s.id = evenflow.history.id)) as result, errors, progress, headers, options, null
from evenflow.history where id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))));

-- name: ended_among
-- mode: read
-- returns: id
-- Which of these jobs are no longer open: asked once per wake-up for all that a process waits for.
with asked as materialized (select cast(value as bigint) as id from jsonb_array_elements_text(cast(:ids as jsonb)))
select id from asked where id <> all (array(select j.id from evenflow.job j where j.id = any (array(select id from asked))));

-- name: list_live
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
-- Newest first, one page, by a cursor on the primary key: no page costs more than the first.
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  cast(null as bigint) as finished_at, good_until, worker, unique_key, payload, null as result, errors, progress, headers, options, cancel_why
from evenflow.job
where id < cast(:before as bigint)
  and (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
order by id desc limit cast(:top as integer);

-- name: list_history
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, good_until, worker, unique_key, payload,
  coalesce(result, (select s.result from evenflow.step s where s.id = evenflow.history.id)) as result, errors, progress, headers, options, null as cancel_why
from evenflow.history
where id < cast(:before as bigint)
  and (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
order by id desc limit cast(:top as integer);

-- name: list_trouble
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
-- One outcome other than success: walks history_trouble, not the successes.
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, null as cancel_why
from evenflow.history
where state = cast(:state as text) and state <> 'succeeded' and id < cast(:before as bigint)
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text))
order by id desc limit cast(:top as integer);

-- name: list_queues
-- mode: read
-- returns: name, priority, fair, max_concurrency, max_ready, on_full, paused_at, paused_by, paused_why
-- Every queue that was declared, paused or ever used.
select n.name, coalesce(q.priority, 50) as priority, coalesce(q.fair, 'round-robin') as fair, q.max_concurrency,
  q.max_ready, coalesce(q.on_full, 'overflow') as on_full, q.paused_at, q.paused_by, q.paused_why
from (select name from evenflow.queue union select queue from evenflow.band) n
left join evenflow.queue q on q.name = n.name
order by n.name;

-- name: count_live
-- mode: read
-- returns: queue, state, jobs
select queue, state, count(*) as jobs from evenflow.job group by queue, state order by queue, state;

-- name: count_open
-- mode: read
-- returns: jobs
-- How many jobs a filter means, before somebody acts on all of them.
select count(*) as jobs from evenflow.job
where (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text));

-- name: count_history
-- mode: read
-- returns: jobs
select count(*) as jobs from evenflow.history
where (cast(:state as text) is null or state = cast(:state as text))
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text));

-- name: count_trouble
-- mode: read
-- returns: jobs
-- One outcome other than success: counts along history_trouble, as list_trouble walks it.
select count(*) as jobs from evenflow.history
where state = cast(:state as text) and state <> 'succeeded'
  and (cast(:queue as text) is null or queue = cast(:queue as text))
  and (cast(:task as text) is null or task = cast(:task as text))
  and (cast(:group_key as text) is null or group_key = cast(:group_key as text));

-- name: any_open
-- mode: read
-- returns: is_open
-- Is there anything in these queues that may run without somebody's help? For `until_empty`. One look per partial
-- index: a list of states would be a walk over all live rows.
select exists (select from evenflow.job where stage = 'arriving' and queue in (select value from jsonb_array_elements_text(cast(:queues as jsonb))))
  or exists (
    select from jsonb_array_elements_text(cast(:queues as jsonb)) n
    cross join lateral (select from evenflow.job j where j.stage = 'open' and j.state = 'ready' and j.queue = n.value limit 1) first
    where not exists (select from evenflow.gate g where g.kind = 'queue' and g.name = n.value)
      and not exists (select from evenflow.queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0)))
  or exists (
    select from jsonb_array_elements_text(cast(:queues as jsonb)) n
    cross join lateral (select from evenflow.job j where j.stage = 'overflow' and j.queue = n.value limit 1) first
    where not exists (select from evenflow.queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0)))
  or exists (
    select from evenflow.in_flight where queue in (select value from jsonb_array_elements_text(cast(:queues as jsonb)))) as is_open;

-- name: list_rounds
-- mode: read
-- returns: queue, priority, v
select queue, priority, v from evenflow.round order by queue, priority;

-- name: list_groups
-- mode: read
-- returns: queue, priority, group_key, tail
select queue, priority, group_key, tail from evenflow.group_tail order by queue, priority, group_key;

-- name: count_in_flight
-- mode: read
-- returns: queue, jobs
-- What caps count: a walk over the flights, so its cost is what runs, not what waits.
select queue, count(*) as jobs from evenflow.in_flight group by queue order by queue;

-- name: some_in_flight
-- mode: read
-- returns: id
select id from evenflow.in_flight where (cast(:queue as text) is null or queue = cast(:queue as text))
order by id limit cast(:top as integer);

-- name: count_ready
-- mode: read
-- returns: jobs
select count(*) as jobs from (select from evenflow.job where stage = 'open' and state = 'ready' limit cast(:top as integer)) ready;

-- name: count_before
-- mode: read
-- returns: jobs
-- How many ready jobs of the queue go first, counted up to `top`.
select count(*) as jobs from (
  select from evenflow.job j, evenflow.job me
  where me.id = cast(:id as bigint) and j.queue = me.queue and j.stage = 'open' and j.state = 'ready'
    and (j.priority, j.turn, j.id) < (me.priority, me.turn, me.id)
  limit cast(:top as integer)) before;

-- name: cluster_cap
-- mode: read
-- returns: cap
select cap from evenflow.cluster where cap is not null;
