-- name: plain_advance
-- returns: kind, id, epoch, queue, task, group_key, priority, turn, attempt, max_attempts, crashes, created_at, run_at, started_at, good_until, payload, signature, headers, options, run_id, run_state, is_plain
-- The twin of the PostgreSQL statement, as steps of one write transaction. What `advance` would do beside is half of its work where
-- there is nothing to it: ends read five times from JSON objects, keys and charges looked for, candidates gathered for probes. Caps are
-- counted here too: whoever writes is alone.
-- `epochs` is an object of ids and epochs: its pairs are read without reading JSON a second time, which takes longer than finding the
-- row. `kept` lists [id, epoch, keep_us, result] of the ends that stay in the history, `wants` [queue, top, bounds], with [priority, turn,
-- id] for each bound: looked for in one list of all bounds, those of a thousand queues would be read a thousand times.
-- [ends
select 'ended' as kind, ended as id, 0 as epoch, null as queue, null as task, null as group_key, null as priority, null as turn,
  null as attempt, null as max_attempts, null as crashes, null as created_at, null as run_at, null as started_at, null as good_until,
  waited_for as payload, null as signature, null as headers, written as options, null as run_id, null as run_state, null as is_plain
from (
  select count(j.id) as ended, max(j.awaited) as is_awaited, json_group_array(j.id) filter (where j.awaited) as waited_for,
    case when count(j.id) < count(*) then json_group_array(j.id) filter (where j.id is not null) end as written
  from json_each(:epochs) e
  left join evenflow_job j on j.id = cast(e.key as integer) and j.epoch = e.value and j.worker = :worker)
where is_awaited or written is not null;

insert or replace into evenflow_history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id, epoch,
  attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers, options, errors,
  progress, payload, limits, result)
select j.id, :now + (e.value ->> 2), j.created_at, j.run_at, j.started_at, :now, j.good_until, j.worker, j.run_id, j.epoch, j.attempt,
  j.max_attempts, j.crashes, j.priority, j.fails_on_crash, 'succeeded', j.queue, j.task, j.group_key, j.unique_key, j.signature, j.headers,
  j.options, j.errors, j.progress, j.payload, j.limits, e.value ->> 3
from json_each(:kept) e
cross join evenflow_job j on j.id = e.value ->> 0 and j.epoch = e.value ->> 1 and j.worker = :worker;

delete from evenflow_job where id in (
  select j.id from json_each(:epochs) e
  cross join evenflow_job j on j.id = cast(e.key as integer) and j.epoch = e.value and j.worker = :worker);

-- ends]
-- [claim
with rules as materialized (
  select exists (select 1 from evenflow_gate) or not :caps_locked and (
    exists (select 1 from evenflow_cluster where cap is not null) or exists (
      select 1 from json_each(:wants) w cross join evenflow_queue q on q.name = w.value ->> 0
      where q.max_concurrency is not null and q.paused_at is null)) as are_many
),
wanted as materialized (
  select w.queue, w.place, w.bounds, case when q.max_concurrency is null then w.top else min(w.top, q.max_concurrency
    - (select count(*) from evenflow_job j where j.queue = w.queue and j.state in ('claimed', 'running'))) end as top
  from (select value ->> 0 as queue, value ->> 1 as top, value ->> 2 as bounds, key as place from json_each(:wants)) w
  left join evenflow_queue q on q.name = w.queue
  where q.paused_at is null and not (select are_many from rules)
),
picked as materialized (
  select id from (
    select l.value as id, w.place, w.top, row_number() over (partition by w.place order by b.priority, l.key) as number
    from wanted w
    cross join evenflow_band b on b.queue = w.queue
    left join json_each(w.bounds) s on s.value ->> 0 = b.priority
    cross join json_each((
      select json_group_array(id) from (
        select j.id from evenflow_job j
        where j.queue = b.queue and j.priority = b.priority and j.state = 'ready'
          and (j.turn, j.id) >= (coalesce(s.value ->> 1, -9e999), coalesce(s.value ->> 2, 0))
          and (j.good_until is null or j.good_until > :now)
        order by j.turn, j.id limit :top))) l
    where w.top > 0)
  where number <= top order by place, number
  limit (
    select case when c.cap is null then :top
      else max(0, min(:top, c.cap - (select count(*) from evenflow_job where state in ('claimed', 'running')))) end
    from (select 1) left join evenflow_cluster c on true)
)
update evenflow_job set state = 'running', epoch = epoch + 1, attempt = attempt + 1, worker = :worker, started_at = :now
where id in (select id from picked)
  and not exists (select 1 from picked p cross join evenflow_job j on j.id = p.id where j.limits is not null)
returning 'claimed' as kind, id, epoch, queue, task, group_key, priority, turn, attempt, max_attempts, crashes, created_at, run_at,
  started_at, good_until, payload, signature, headers, options, run_id,
  case when run_id is not null then (select r.state from evenflow_run r where r.id = run_id) end as run_state,
  run_id is null as is_plain;

-- Nothing was claimed, though there is something, and room for it.
select 'rich' as kind, 0 as id, 0 as epoch, null as queue, null as task, null as group_key, null as priority, null as turn,
  null as attempt, null as max_attempts, null as crashes, null as created_at, null as run_at, null as started_at, null as good_until,
  null as payload, null as signature, null as headers, null as options, null as run_id, null as run_state, null as is_plain
where changes() = 0 and exists (
  select 1 from json_each(:wants) w
  left join evenflow_queue q on q.name = w.value ->> 0
  cross join evenflow_band b on b.queue = w.value ->> 0
  left join json_each(w.value ->> 2) s on s.value ->> 0 = b.priority
  cross join evenflow_job j on j.queue = b.queue and j.priority = b.priority and j.state = 'ready'
    and (j.turn, j.id) >= (coalesce(s.value ->> 1, -9e999), coalesce(s.value ->> 2, 0))
    and (j.good_until is null or j.good_until > :now)
  where q.paused_at is null and (not :caps_locked or q.max_concurrency is null or q.max_concurrency
      > (select count(*) from evenflow_job f where f.queue = w.value ->> 0 and f.state in ('claimed', 'running'))))
  and (not :caps_locked or not exists (select 1 from evenflow_cluster c where c.cap
      <= (select count(*) from evenflow_job f where f.state in ('claimed', 'running'))));

-- claim]
-- [rounds
insert into evenflow_round as r (queue, priority, v)
select queue, priority, max(turn) from (
  select j.queue, j.priority, j.turn from json_each(:wants) w
  cross join evenflow_job j on j.queue = w.value ->> 0 and j.worker = :worker and j.state in ('claimed', 'running')
  where j.started_at = :now
  union all
  select value ->> 0, value ->> 1, value ->> 2 from json_each(:reached))
where true
group by queue, priority
on conflict (queue, priority) do update set v = excluded.v where excluded.v > r.v;

select 'round' as kind, 0 as id, 0 as epoch, r.queue, null as task, null as group_key, r.priority, r.v as turn, null as attempt,
  null as max_attempts, null as crashes, null as created_at, null as run_at, null as started_at, null as good_until, null as payload,
  null as signature, null as headers, null as options, null as run_id, null as run_state, null as is_plain
from (
  select j.queue, j.priority from json_each(:wants) w
  cross join evenflow_job j on j.queue = w.value ->> 0 and j.worker = :worker and j.state in ('claimed', 'running')
  where j.started_at = :now
  union
  select value ->> 0, value ->> 1 from json_each(:reached)) c
cross join evenflow_round r on r.queue = c.queue and r.priority = c.priority;
-- rounds]

-- name: plain_advance_still
-- leaves out: rounds of plain_advance
-- As a rule: V was moved a moment ago.

-- name: plain_claim
-- leaves out: ends of plain_advance
-- Where nothing has ended.

-- name: plain_claim_still
-- leaves out: ends, rounds of plain_advance
-- Where nothing has ended, and V was moved a moment ago.

-- name: end_successes
-- only here: on PostgreSQL all is one statement
-- leaves out: claim, rounds of plain_advance
-- The ends of a round that is not plain, as far as they are runs that succeeded.
