-- name: expire
-- returns: id, queue, task
-- Jobs whose good_until has passed before they started. Bounded, so a large dead backlog is cleared in steps.
-- Ids as an array, here and in every batch: they can only be looked up, where a join may be planned as a scan of all jobs.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
late as materialized (
  select j.id from evenflow.job j
  where j.good_until <= (select now from clock) and j.state not in ('claimed', 'running')
  order by j.good_until limit cast(:top as integer) for update skip locked
),
ended as (delete from evenflow.job j where j.id = any (array(select id from late)) returning j.*),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits)
  select id, now + cast(:keep_us as bigint), created_at, run_at, started_at, now, good_until, worker, run_id, epoch,
    attempt, max_attempts, crashes, priority, fails_on_crash, 'expired', queue, task, group_key, unique_key, signature, headers, options,
    case when errors is null then '[' || cast(:error as text) || ']' else left(errors, -1) || ',' || cast(:error as text) || ']' end,
    progress, payload, limits
  from ended, clock where cast(:keep_us as bigint) > 0
),
stepped as (
  update evenflow.step s set state = 'expired', result = null, ended_at = now from clock
  where s.id = any (array(select id from ended where run_id is not null))
  returning s.run_id, s.id
),
noted as (insert into evenflow.step_end (run_id, step_id) select run_id, id from stepped on conflict do nothing)
select id, queue, task from ended;

-- name: withdraw
-- returns: id, outcome, queue, task
-- Ends open jobs by hand as `state` (cancelled, discarded, skipped). A job in flight is not torn from its worker: where
-- `flags` is set it is marked, and the worker ends it. outcome: ended, flagged. Ids in id order, like every batch.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
named as materialized (
  select j.id, j.state in ('claimed', 'running') as in_flight from evenflow.job j
  where j.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
  order by j.id for update
),
ended as (delete from evenflow.job j where j.id = any (array(select id from named where not in_flight)) returning j.*),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits)
  select id, now + cast(:keep_us as bigint), created_at, run_at, started_at, now, good_until, worker, run_id, epoch,
    attempt, max_attempts, crashes, priority, fails_on_crash, cast(:state as text), queue, task, group_key, unique_key, signature, headers,
    options,
    case when cast(:error as text) is null then errors when errors is null then '[' || cast(:error as text) || ']'
         else left(errors, -1) || ',' || cast(:error as text) || ']' end,
    progress, payload, limits
  from ended, clock where cast(:keep_us as bigint) > 0
),
stepped as (
  update evenflow.step s set state = cast(:state as text), result = null, ended_at = now from clock
  where s.id = any (array(select id from ended where run_id is not null))
  returning s.run_id, s.id
),
noted as (insert into evenflow.step_end (run_id, step_id) select run_id, id from stepped on conflict do nothing),
flagged as (
  update evenflow.job j set cancel_at = now, cancel_why = cast(:why as text)
  from clock where j.id = any (array(select id from named where in_flight)) and cast(:flags as boolean)
  returning j.id, j.queue, j.task
)
select id, 'ended' as outcome, queue, task from ended union all select id, 'flagged', queue, task from flagged;

-- name: hasten
-- returns: id
-- A scheduled job is due now (a retry by hand does not wait for its back-off).
update evenflow.job j set run_at = now
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
where j.state = 'scheduled' and j.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
returning j.id;

-- name: revive
-- returns: id
-- Finished jobs go back to work under their own id, with all attempts anew and their past errors kept. A job whose
-- unique key is taken by a live one stays in history. They arrive like any other and are admitted by the next pump.
with named as materialized (
  select h.* from evenflow.history h
  where h.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
    and h.state in ('failed', 'quarantined', 'cancelled', 'discarded', 'expired')
),
back as (
  insert into evenflow.job (id, created_at, run_at, run_id, epoch, max_attempts, priority, fails_on_crash, state, queue, task, group_key,
    unique_key, signature, headers, options, errors, limits, payload)
  select n.id, n.created_at, now, n.run_id, n.epoch, n.max_attempts, n.priority, n.fails_on_crash, 'arriving', n.queue, n.task, n.group_key,
    n.unique_key, n.signature, n.headers, n.options, n.errors, n.limits, n.payload
  from named n, (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
  order by n.id
  on conflict do nothing
  returning id
),
held as (
  insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
  select n.id, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, n.priority, 0
  from back join named n on n.id = back.id
  cross join lateral jsonb_to_recordset(cast(n.limits as jsonb)) as h (
    ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
  where n.limits is not null
),
gone as (delete from evenflow.history h where h.id = any (array(select id from back)))
select id from back;

-- name: forget
-- returns: id
-- Finished jobs that nobody wants to retry: marked discarded in history.
update evenflow.history h set state = 'discarded'
where h.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
  and h.state in ('failed', 'quarantined', 'cancelled', 'expired')
returning h.id;

-- name: await_job
-- returns: id
-- The finish of a job that somebody waits for is announced; others are not.
update evenflow.job j set awaited = true where j.id = cast(:id as bigint) returning j.id;

-- name: declare_queue
-- returns: name
-- What the code says about a queue. A pause, and limits set at run time, belong to the operator and are left alone.
insert into evenflow.queue as q (name, priority, fair, max_concurrency, max_ready, on_full)
values (cast(:name as text), cast(:priority as smallint), cast(:fair as text), cast(:max_concurrency as integer),
  cast(:max_ready as integer), cast(:on_full as text))
on conflict (name) do update set priority = excluded.priority, fair = excluded.fair, on_full = excluded.on_full,
    max_concurrency = case when q.is_set then q.max_concurrency else excluded.max_concurrency end,
    max_ready = case when q.bound_is_set then q.max_ready else excluded.max_ready end
  where (q.priority, q.fair, q.on_full) <> (excluded.priority, excluded.fair, excluded.on_full)
    or (not q.is_set and q.max_concurrency is distinct from excluded.max_concurrency)
    or (not q.bound_is_set and q.max_ready is distinct from excluded.max_ready)
returning name;

-- name: set_cap
-- returns: name
-- A cap set at run time: it lasts, over restarts and deployments, until it is set again or given back to the code.
insert into evenflow.queue as q (name, max_concurrency, is_set)
values (cast(:name as text), cast(:max_concurrency as integer), cast(:is_set as boolean))
on conflict (name) do update set max_concurrency = excluded.max_concurrency, is_set = excluded.is_set
returning name;

-- name: set_bound
-- returns: name
-- A bound on ready jobs set at run time; lasts like a cap.
insert into evenflow.queue as q (name, max_ready, bound_is_set)
values (cast(:name as text), cast(:max_ready as integer), cast(:is_set as boolean))
on conflict (name) do update set max_ready = excluded.max_ready, bound_is_set = excluded.bound_is_set
returning name;

-- name: declare_cluster
-- returns: id
insert into evenflow.cluster as c (id, cap) values (1, cast(:cap as integer))
on conflict (id) do update set cap = excluded.cap where c.cap is distinct from excluded.cap
returning id;

-- name: set_weights
-- returns: group_key
with weights as (select * from jsonb_to_recordset(cast(:weights as jsonb)) as w (group_key text, weight double precision)),
gone as (
  delete from evenflow.group_weight g
  where g.queue = cast(:queue as text) and g.group_key not in (select group_key from weights)
)
insert into evenflow.group_weight as g (queue, group_key, weight)
select cast(:queue as text), group_key, weight from weights
on conflict (queue, group_key) do update set weight = excluded.weight
returning group_key;

-- name: pause_queue
-- returns: name
insert into evenflow.queue as q (name, paused_at, paused_by, paused_why)
select cast(:name as text), coalesce(cast(:now as bigint), evenflow.now_us()), cast(:who as text), cast(:why as text)
on conflict (name) do update
  set paused_at = excluded.paused_at, paused_by = excluded.paused_by, paused_why = excluded.paused_why
returning name;

-- name: resume_queue
-- returns: name
update evenflow.queue set paused_at = null, paused_by = null, paused_why = null
where name = cast(:name as text) and paused_at is not null
returning name;

-- name: learn_costs
-- returns: queue
-- What runs take: per group the mean of its first runs, then of about the last `memory`; per queue the mean, and the unit that
-- steps are told in. The unit follows the mean only where that has drifted far: else every report would move every group.
-- Groups that wait a step apart which is off by more than `tolerance` are asked to be respaced.
with report as materialized (
  select r.* from jsonb_to_recordset(cast(:costs as jsonb)) as r (queue text, group_key text, runs integer, spent_us double precision)
  where r.runs > 0
),
learnt as (
  insert into evenflow.group_cost as g (queue, group_key, cost_us, runs, updated_at)
  select queue, group_key, greatest(spent_us / runs, 1), least(runs, cast(:memory as integer)), coalesce(cast(:now as bigint), evenflow.now_us())
  from report order by queue, group_key
  on conflict (queue, group_key) do update set updated_at = excluded.updated_at,
    runs = least(g.runs + excluded.runs, cast(:memory as integer)),
    cost_us = g.cost_us + (excluded.cost_us - g.cost_us) * excluded.runs / least(g.runs + excluded.runs, cast(:memory as integer))
  returning g.queue, g.group_key, g.cost_us
),
mean as materialized (
  select q.name, coalesce(q.mean_cost_us + (m.mean - q.mean_cost_us) * 0.2, m.mean) as cost_us
  from (select queue, greatest(sum(spent_us) / sum(runs), 1) as mean from report group by queue) m
  join evenflow.queue q on q.name = m.queue
),
measured as (
  update evenflow.queue q set mean_cost_us = m.cost_us, unit_us = case
    when m.cost_us between q.unit_us / cast(:drift as double precision) and q.unit_us * cast(:drift as double precision) then q.unit_us
    else m.cost_us end
  from mean m where q.name = m.name
  returning q.name, q.fair, q.unit_us
),
asked as (
  insert into evenflow.respacing (queue, priority, group_key)
  select g.queue, g.priority, g.group_key
  from measured q
  join learnt l on l.queue = q.name
  join evenflow.band b on b.queue = q.name
  join evenflow.group_tail g on g.queue = b.queue and g.priority = b.priority and g.group_key = l.group_key
  left join evenflow.round r on r.queue = b.queue and r.priority = b.priority
  left join evenflow.group_weight w on w.queue = l.queue and w.group_key = l.group_key
  where q.fair = 'time' and g.tail > coalesce(r.v, 0) and l.cost_us / q.unit_us / coalesce(w.weight, 1)
    not between g.step / cast(:tolerance as double precision) and g.step * cast(:tolerance as double precision)
  order by g.queue, g.priority, g.group_key
  on conflict do nothing
)
select name as queue from measured;
