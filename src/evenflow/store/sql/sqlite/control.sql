-- name: expire
-- returns: id, queue, task
insert or replace into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
  epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature,
  headers, options, errors, progress, payload, limits)
select j.id, :now + :keep_us, j.created_at, j.run_at, j.started_at, :now, j.good_until, j.worker, j.run_id,
  j.epoch, j.attempt, j.max_attempts, crashes, j.priority, j.fails_on_crash, 'expired', j.queue, j.task, j.group_key, j.unique_key, j.signature,
  j.headers, j.options, case when j.errors is null then '[' || :error || ']' else substr(j.errors, 1, length(j.errors) - 1) || ',' || :error || ']' end,
  j.progress, j.payload, j.limits
from evenflow_job j where :keep_us > 0 and j.id in (select id from evenflow_job where good_until <= :now and state not in ('claimed', 'running') order by good_until limit :top);

insert into evenflow_step_end (run_id, step_id)
select j.run_id, j.id from evenflow_job j
where j.run_id is not null and j.id in (select id from evenflow_job where good_until <= :now and state not in ('claimed', 'running') order by good_until limit :top)
on conflict do nothing;

update evenflow_step set state = 'expired', result = null, ended_at = :now where id in (
  select id from evenflow_job where good_until <= :now and state not in ('claimed', 'running') order by good_until limit :top);

delete from evenflow_job where id in (select id from evenflow_job where good_until <= :now and state not in ('claimed', 'running') order by good_until limit :top)
returning id, queue, task;

-- name: withdraw
-- returns: id, outcome, queue, task
insert or replace into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
  epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature,
  headers, options, errors, progress, payload, limits)
select j.id, :now + :keep_us, j.created_at, j.run_at, j.started_at, :now, j.good_until, j.worker, j.run_id,
  j.epoch, j.attempt, j.max_attempts, crashes, j.priority, j.fails_on_crash, :state, j.queue, j.task, j.group_key, j.unique_key, j.signature,
  j.headers, j.options, case when :error is null then j.errors when j.errors is null then '[' || :error || ']' else substr(j.errors, 1, length(j.errors) - 1) || ',' || :error || ']' end, j.progress, j.payload, j.limits
from evenflow_job j where :keep_us > 0 and j.id in (select value from json_each(:ids)) and j.state not in ('claimed', 'running');

insert into evenflow_step_end (run_id, step_id)
select j.run_id, j.id from evenflow_job j
where j.id in (select value from json_each(:ids)) and j.state not in ('claimed', 'running') and j.run_id is not null
on conflict do nothing;

update evenflow_step set state = :state, result = null, ended_at = :now where id in (
  select j.id from evenflow_job j where j.id in (select value from json_each(:ids)) and j.state not in ('claimed', 'running'));

delete from evenflow_job where id in (select value from json_each(:ids)) and state not in ('claimed', 'running')
returning id, 'ended' as outcome, queue, task;

update evenflow_job set cancel_at = :now, cancel_why = :why
where :flags and id in (select value from json_each(:ids)) and state in ('claimed', 'running')
returning id, 'flagged' as outcome, queue, task;

-- name: hasten
-- returns: id
update evenflow_job set run_at = :now where state = 'scheduled' and id in (select value from json_each(:ids))
returning id;

-- name: revive
-- returns: id
insert into evenflow_job (id, created_at, run_at, run_id, epoch, max_attempts, priority, fails_on_crash, state, queue, task,
  group_key, unique_key, signature, headers, options, errors, limits, payload)
select h.id, h.created_at, :now, h.run_id, h.epoch, h.max_attempts, h.priority, h.fails_on_crash, 'arriving', h.queue, h.task,
  h.group_key, h.unique_key, h.signature, h.headers, h.options, h.errors, h.limits, h.payload
from evenflow_history h
where h.id in (select value from json_each(:ids)) and h.state in ('failed', 'quarantined', 'cancelled', 'discarded', 'expired')
order by h.id
on conflict do nothing;

insert into evenflow_hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
select j.id, l.value ->> 'ordinal', l.value ->> 'limiter', l.value ->> 'most', l.value ->> 'keep_us', l.value ->> 'window_us', j.priority, 0
from json_each(:ids) n
cross join evenflow_history h on h.id = n.value
cross join evenflow_job j on j.id = h.id
cross join json_each(j.limits) l
where j.state = 'arriving'
on conflict do nothing;

delete from evenflow_history where id in (select value from json_each(:ids)) and id in (select id from evenflow_job)
returning id;

-- name: forget
-- returns: id
update evenflow_history set state = 'discarded'
where id in (select value from json_each(:ids)) and state in ('failed', 'quarantined', 'cancelled', 'expired')
returning id;

-- name: await_job
-- returns: id
update evenflow_job set awaited = 1 where id = :id returning id;

-- name: declare_queue
-- returns: name
insert into evenflow_queue as q (name, priority, fair, max_concurrency, max_ready, on_full)
values (:name, :priority, :fair, :max_concurrency, :max_ready, :on_full)
on conflict (name) do update set priority = excluded.priority, fair = excluded.fair, on_full = excluded.on_full,
    max_concurrency = case when q.is_set then q.max_concurrency else excluded.max_concurrency end,
    max_ready = case when q.bound_is_set then q.max_ready else excluded.max_ready end
  where (q.priority, q.fair, q.on_full) <> (excluded.priority, excluded.fair, excluded.on_full)
    or (not q.is_set and q.max_concurrency is not excluded.max_concurrency)
    or (not q.bound_is_set and q.max_ready is not excluded.max_ready)
returning name;

-- name: set_cap
-- returns: name
insert into evenflow_queue (name, max_concurrency, is_set) values (:name, :max_concurrency, :is_set)
on conflict (name) do update set max_concurrency = excluded.max_concurrency, is_set = excluded.is_set
returning name;

-- name: set_bound
-- returns: name
insert into evenflow_queue (name, max_ready, bound_is_set) values (:name, :max_ready, :is_set)
on conflict (name) do update set max_ready = excluded.max_ready, bound_is_set = excluded.bound_is_set
returning name;

-- name: declare_cluster
-- returns: id
insert into evenflow_cluster as c (id, cap) values (1, :cap)
on conflict (id) do update set cap = excluded.cap where c.cap is not excluded.cap
returning id;

-- name: set_weights
-- returns: group_key
delete from evenflow_group_weight
where queue = :queue and group_key not in (select value ->> 'group_key' from json_each(:weights));

insert into evenflow_group_weight as g (queue, group_key, weight)
select :queue, value ->> 'group_key', value ->> 'weight' from json_each(:weights) where true
on conflict (queue, group_key) do update set weight = excluded.weight
returning group_key;

-- name: pause_queue
-- returns: name
insert into evenflow_queue (name, paused_at, paused_by, paused_why) values (:name, :now, :who, :why)
on conflict (name) do update
  set paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_why = excluded.paused_why
returning name;

-- name: resume_queue
-- returns: name
update evenflow_queue set paused_at = null, paused_by = null, paused_why = null
where name = :name and paused_at is not null
returning name;

-- name: learn_costs
-- returns: queue
insert into evenflow_group_cost as g (queue, group_key, cost_us, runs, updated_at)
select value ->> 'queue', value ->> 'group_key', max((value ->> 'spent_us') / (value ->> 'runs'), 1.0), min(value ->> 'runs', :memory), :now
from json_each(:costs) where value ->> 'runs' > 0
on conflict (queue, group_key) do update set updated_at = excluded.updated_at,
  runs = min(g.runs + excluded.runs, :memory),
  cost_us = g.cost_us + (excluded.cost_us - g.cost_us) * excluded.runs / min(g.runs + excluded.runs, :memory);

update evenflow_queue set mean_cost_us = m.cost_us, unit_us = case
  when m.cost_us between unit_us / :drift and unit_us * :drift then unit_us else m.cost_us end
from (
  select q.name, coalesce(q.mean_cost_us + (r.mean - q.mean_cost_us) * 0.2, r.mean) as cost_us
  from (
    select value ->> 'queue' as queue, max(sum(value ->> 'spent_us') / sum(value ->> 'runs'), 1.0) as mean
    from json_each(:costs) where value ->> 'runs' > 0 group by value ->> 'queue') r
  join evenflow_queue q on q.name = r.queue) m
where evenflow_queue.name = m.name
returning name as queue;

insert into evenflow_respacing (queue, priority, group_key)
select g.queue, g.priority, g.group_key
from (select value ->> 'queue' as queue, value ->> 'group_key' as group_key from json_each(:costs) where value ->> 'runs' > 0) l
cross join evenflow_queue q on q.name = l.queue
cross join evenflow_group_cost c on c.queue = l.queue and c.group_key = l.group_key
cross join evenflow_band b on b.queue = l.queue
cross join evenflow_group_tail g on g.queue = b.queue and g.priority = b.priority and g.group_key = l.group_key
left join evenflow_round r on r.queue = b.queue and r.priority = b.priority
left join evenflow_group_weight w on w.queue = l.queue and w.group_key = l.group_key
where q.fair = 'time' and g.tail > coalesce(r.v, 0) and c.cost_us / q.unit_us / coalesce(w.weight, 1.0)
  not between g.step / :tolerance and g.step * :tolerance
on conflict do nothing;
