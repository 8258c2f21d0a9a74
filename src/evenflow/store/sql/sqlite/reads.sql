-- name: clock
-- mode: read
-- returns: now
select :now as now;

-- name: jobs_by_id
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  null as finished_at, good_until, worker, unique_key, payload, null as result, errors, progress, headers, options, cancel_why
from evenflow_job where id in (select value from json_each(:ids))
union all
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, good_until, worker, unique_key, payload,
  coalesce(result, (select s.result from evenflow_step s where s.id = evenflow_history.id)) as result, errors, progress, headers, options, null as cancel_why
from evenflow_history where id in (select value from json_each(:ids));

-- name: ended_among
-- mode: read
-- returns: id
select value as id from json_each(:ids) where not exists (select 1 from evenflow_job j where j.id = value);

-- name: list_live
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  null as finished_at, good_until, worker, unique_key, payload, null as result, errors, progress, headers, options, cancel_why
from evenflow_job
where id < :before
  and (:state is null or state = :state)
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
order by id desc limit :top;

-- name: list_history
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, good_until, worker, unique_key, payload,
  coalesce(result, (select s.result from evenflow_step s where s.id = evenflow_history.id)) as result, errors, progress, headers, options, null as cancel_why
from evenflow_history
where id < :before
  and (:state is null or state = :state)
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
order by id desc limit :top;

-- name: list_trouble
-- mode: read
-- returns: id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at, finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, cancel_why
select id, state, queue, task, group_key, priority, attempt, max_attempts, crashes, created_at, run_at, started_at,
  finished_at, good_until, worker, unique_key, payload, result, errors, progress, headers, options, null as cancel_why
from evenflow_history
where state = :state and state <> 'succeeded' and id < :before
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key)
order by id desc limit :top;

-- name: list_queues
-- mode: read
-- returns: name, priority, fair, max_concurrency, max_ready, on_full, paused_at, paused_by, paused_why
select n.name, coalesce(q.priority, 50) as priority, coalesce(q.fair, 'round-robin') as fair, q.max_concurrency,
  q.max_ready, coalesce(q.on_full, 'overflow') as on_full, q.paused_at, q.paused_by, q.paused_why
from (select name from evenflow_queue union select queue from evenflow_band) n
left join evenflow_queue q on q.name = n.name
order by n.name;

-- name: count_live
-- mode: read
-- returns: queue, state, jobs
select queue, state, count(*) as jobs from evenflow_job group by queue, state order by queue, state;

-- name: count_open
-- mode: read
-- returns: jobs
select count(*) as jobs from evenflow_job
where (:state is null or state = :state)
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key);

-- name: count_history
-- mode: read
-- returns: jobs
select count(*) as jobs from evenflow_history
where (:state is null or state = :state)
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key);

-- name: count_trouble
-- mode: read
-- returns: jobs
select count(*) as jobs from evenflow_history
where state = :state and state <> 'succeeded'
  and (:queue is null or queue = :queue)
  and (:task is null or task = :task)
  and (:group_key is null or group_key = :group_key);

-- name: any_open
-- mode: read
-- returns: is_open
select exists (select 1 from evenflow_job where state = 'arriving' and queue in (select value from json_each(:queues)))
  or exists (select 1 from json_each(:queues) n cross join evenflow_job j on j.queue = n.value and j.state = 'ready'
    where not exists (select 1 from evenflow_gate g where g.kind = 'queue' and g.name = n.value)
      and not exists (select 1 from evenflow_queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0)))
  or exists (select 1 from json_each(:queues) n cross join evenflow_job j on j.queue = n.value and j.state = 'overflow'
    where not exists (select 1 from evenflow_queue q where q.name = n.value and (q.paused_at is not null or q.max_concurrency = 0)))
  or exists (
    select 1 from json_each(:queues) n cross join evenflow_job j on j.queue = n.value and j.state in ('claimed', 'running')) as is_open;

-- name: list_rounds
-- mode: read
-- returns: queue, priority, v
select queue, priority, v from evenflow_round order by queue, priority;

-- name: list_groups
-- mode: read
-- returns: queue, priority, group_key, tail
select queue, priority, group_key, tail from evenflow_group_tail order by queue, priority, group_key;

-- name: count_in_flight
-- mode: read
-- returns: queue, jobs
select queue, count(*) as jobs from evenflow_job where state in ('claimed', 'running') group by queue order by queue;

-- name: some_in_flight
-- mode: read
-- returns: id
select id from evenflow_job where state in ('claimed', 'running') and (:queue is null or queue = :queue) order by id limit :top;

-- name: count_ready
-- mode: read
-- returns: jobs
select count(*) as jobs from (select 1 from evenflow_job where state = 'ready' limit :top);

-- name: count_before
-- mode: read
-- returns: jobs
select count(*) as jobs from (
  select 1 from evenflow_job me cross join evenflow_job j on j.queue = me.queue and j.state = 'ready'
    and (j.priority, j.turn, j.id) < (me.priority, me.turn, me.id)
  where me.id = :id limit :top);

-- name: cluster_cap
-- mode: read
-- returns: cap
select cap from evenflow_cluster where cap is not null;
