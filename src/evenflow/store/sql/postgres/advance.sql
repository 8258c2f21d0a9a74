-- name: advance
-- returns: kind, id, epoch, queue, task, group_key, priority, turn, attempt, max_attempts, crashes, created_at, run_at, started_at, good_until, payload, signature, headers, options, run_id, run_state, is_plain
-- The pump's one round trip: finish these runs, give me more. One statement, so one transaction and one flush.
-- ends: every write is fenced by (id, epoch, worker) and goes through the primary key: a partial index on running rows
--   fills with dead entries while somebody holds an old snapshot. The array says so once more: a plan that was made when
--   the table was empty would hash all of it for every end.
-- claim: walks job_ready from the bound the worker remembers (dead entries lie before it), locks, skips what others
--   lock, updates by ctid. MATERIALIZED, because IN (SELECT .. LIMIT) may claim more than LIMIT.
-- caps: a capped queue, or a capped cluster, gives nothing unless lock_caps came before in the same transaction: a count
--   in the statement that waits for a lock would see the state before the wait. What ends here makes room here.
-- back: jobs that go back are written by their address, which is theirs as long as nobody changes them: lock_returns comes before.
-- keys: what ends lets go of its keys, what is to be retried later lines up anew when it is due. A start under a rate is
--   charged by the claim, in place of its hold (one write for a job instead of two: started_at and `limits` say what was
--   charged). So a job that is given back under one lines up anew as well, unless refund_starts came before.
-- steps: the end of a workflow's step is written, with its result, by end_steps, before and in the same transaction.
-- gates: a job whose task is shut (paused, or its breaker is open) is stepped over and told, so that set_aside takes it and
--   its like out of the way. A shut queue gives nothing. The probe of a breaker passes, at the one epoch that it was
--   chosen for: rescued, it is a job like any other.
-- A claimed step is told the state of its run: one that was paused meanwhile does not start.
-- flights: what is claimed is noted by the number of its flight, and found in flight by it. Flights that have `landed`, whose jobs
--   have all ended, are forgotten.
-- kinds: lost (an end whose lease is gone), awaited (somebody waits for this result), freed (keys that have room, as a JSON list in `payload`), round (V of a band has
--   reached what was claimed: from here on everything enters behind it), shut (a job of a shut task is in the way), claimed. V is moved by whoever finds its row free.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
-- [ends
ends as materialized (
  select e.* from jsonb_to_recordset(cast(:ends as jsonb)) as e (
    id bigint, epoch integer, state text, keep_us bigint, run_at bigint, refund integer, crashed integer, result text, error text, unstarted integer)
),
-- [returns
returns as materialized (select * from ends where state in ('ready', 'scheduled', 'waiting')),
-- returns]
ended as (
  delete from evenflow.job j using ends e
  where j.id = any (array(select id from ends)) and j.id = e.id and j.epoch = e.epoch and j.worker = cast(:worker as bigint)
    and e.state not in ('ready', 'scheduled', 'waiting')
  returning j.*, e.state as end_state, e.keep_us as end_keep_us, e.crashed, e.result, e.error
),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits, result)
  select id, (select now from clock) + end_keep_us, created_at, run_at, started_at, (select now from clock), good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes + coalesce(crashed, 0), priority, fails_on_crash, end_state, queue, task, group_key, unique_key, signature, headers,
    options,
    case when error is null then errors when errors is null or length(errors) > 65536 then '[' || error || ']'
         else left(errors, -1) || ',' || error || ']' end,
    progress, payload, limits, case when run_id is null then result end
  from ended where end_keep_us > 0
),
-- [returns
returned as (
  update evenflow.job j set worker = null, lease_until = null,
    state = case when e.state = 'waiting' then 'waiting' when j.limits like '%"window_us"%'
        and (e.unstarted is null or not exists (select from evenflow.hold h where h.job_id = j.id and h.window_us is not null)) then 'scheduled'
      when e.state = 'ready' and exists (select from evenflow.queue q where q.name = j.queue and q.max_ready is not null) then 'overflow' else e.state end,
    run_at = coalesce(e.run_at, case when j.limits like '%"window_us"%' then now else j.run_at end), attempt = j.attempt - coalesce(e.refund, 0), crashes = j.crashes + coalesce(e.crashed, 0),
    errors = case when e.error is null then j.errors when j.errors is null or length(j.errors) > 65536 then '[' || e.error || ']'
                  else left(j.errors, -1) || ',' || e.error || ']' end,
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from clock, returns e cross join lateral (select h.ctid as at from evenflow.job h where h.id = e.id offset 0) f
  where j.ctid = f.at and j.epoch = e.epoch and j.worker = cast(:worker as bigint)
  returning j.id, j.epoch, j.queue, j.priority, j.state, j.limits
),
-- returns]
freed as (
  delete from evenflow.hold h using ended d where d.limits is not null and h.job_id = d.id
  returning h.limiter
),
-- [returns
parked as (
  update evenflow.hold h set phase = 0, held_at = null from returned r
  where r.limits is not null and r.state in ('scheduled', 'waiting') and h.job_id = r.id
  returning h.limiter
),
relined as (
  insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
  select r.id, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, r.priority, 0
  from returned r cross join lateral jsonb_to_recordset(cast(r.limits as jsonb)) as h (
    ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
  where r.state in ('scheduled', 'waiting') and r.limits like '%"window_us"%' and h.window_us is not null
  on conflict do nothing
),
-- returns]
-- ends]
shut as materialized (select g.kind, g.name, g.probe_job, g.probe_epoch from evenflow.gate g),
shut_kinds as materialized (select exists (select from shut s where s.kind = 'task') as any_task),
wanted as materialized (
  select w.queue, w.place, s.name is not null as is_shut, s.probe_job, s.probe_epoch, case when q.max_concurrency is null then w.top
    when not coalesce(cast(:caps_locked as boolean), false) then 0
    else least(w.top, q.max_concurrency
      - (select count(*) from evenflow.in_flight i where i.queue = w.queue
         and (i.state = 'running' or cast(:claim_state as text) = 'running'))
      -- [ends
      + (select count(*) from ended d where d.queue = w.queue)
      -- [returns
      + (select count(*) from returned r where r.queue = w.queue)
      -- returns]
      -- ends]
      ) end as top
  from jsonb_to_recordset(cast(:wants as jsonb)) as w (queue text, place integer, top integer)
  left join evenflow.queue q on q.name = w.queue
  left join shut s on s.kind = 'queue' and s.name = w.queue
  where q.paused_at is null
),
room as materialized (
  select case when c.cap is null then cast(:top as bigint) when not coalesce(cast(:caps_locked as boolean), false) then 0
    else least(cast(:top as bigint), c.cap - (select count(*) from evenflow.in_flight)
      -- [ends
      + (select count(*) from ended)
      -- [returns
      + (select count(*) from returned)
      -- returns]
      -- ends]
      ) end as top
  from (select 1) one left join evenflow.cluster c on true
),
bounds as materialized (
  select b.* from jsonb_to_recordset(cast(:bounds as jsonb)) as b (queue text, priority smallint, turn double precision, id bigint)
),
probes as materialized (
  select j.ctid as at from wanted w join evenflow.job j on j.id = w.probe_job
  where j.id = any (array(select p.probe_job from wanted p where p.is_shut and p.top > 0)) and w.is_shut and w.top > 0
    and j.queue = w.queue and coalesce(j.state, '') = 'ready' and j.epoch + 1 = w.probe_epoch
    and (j.good_until is null or j.good_until > (select now from clock))
  limit (select greatest(top, 0) from room)
  for no key update of j skip locked
),
candidates as materialized (
  select c.at from (
    select w.queue, w.top from wanted w where w.top > 0 and not w.is_shut order by w.place) w,
  lateral (
    select l.at from (
      select b.queue, b.priority, coalesce(s.turn, '-infinity') as turn, coalesce(s.id, 0) as id
      from evenflow.band b left join bounds s on s.queue = b.queue and s.priority = b.priority
      where b.queue = w.queue order by b.priority) b,
    lateral (
      select j.ctid as at from evenflow.job j
      where j.queue = b.queue and j.priority = b.priority and j.stage = 'open' and j.state = 'ready' and (j.turn, j.id) >= (b.turn, b.id)
        and (j.good_until is null or j.good_until > (select now from clock))
      order by j.turn, j.id limit w.top
      for no key update skip locked) l
    limit w.top) c
  limit (select greatest(top - (select count(*) from probes), 0) from room)
),
claimed as (
  update evenflow.job j set state = cast(:claim_state as text), epoch = epoch + 1, attempt = attempt + 1,
    worker = cast(:worker as bigint), flight = cast(:flight as bigint), started_at = (select now from clock),
    lease_until = (select now from clock) + cast(:lease_us as bigint)
  where j.ctid = any (array(select at from candidates union all select at from probes))
    and (not (select any_task from shut_kinds) or not exists (
      select from shut s where s.kind = 'task' and s.name = j.task and (s.probe_job, s.probe_epoch) is distinct from (j.id, j.epoch + 1)))
  returning j.id, j.epoch, j.queue, j.task, j.group_key, j.priority, j.turn, j.attempt, j.max_attempts, j.crashes,
    j.created_at, j.run_at, j.started_at, j.good_until, j.payload, j.signature, j.headers, j.options, j.limits, j.run_id
),
flown as (
  insert into evenflow.flight (worker, number, queue, ids)
  select cast(:worker as bigint), cast(:flight as bigint), queue, array_agg(id) from claimed group by queue
),
landed as (
  delete from evenflow.flight f where f.worker = cast(:worker as bigint) and f.number = any (cast(:landed as bigint[]))
),
-- [rounds
front as (
  select queue, priority, max(turn) as turn from claimed where cast(:moves_v as boolean) group by queue, priority
),
first_round as (
  insert into evenflow.round (queue, priority, v) select queue, priority, turn from front
  where not exists (select from evenflow.round r where r.queue = front.queue and r.priority = front.priority)
  on conflict do nothing
  returning queue, priority, v
),
free_round as materialized (
  select r.ctid as at, f.turn from evenflow.round r join front f on f.queue = r.queue and f.priority = r.priority
  where r.v < f.turn for no key update of r skip locked
),
next_round as (
  update evenflow.round r set v = f.turn from free_round f where r.ctid = f.at
  returning r.queue, r.priority, r.v
),
reached_round as (
  select r.queue, r.priority, r.v from evenflow.round r join front f on f.queue = r.queue and f.priority = r.priority
  where r.v >= f.turn
),
-- rounds]
started as (
  delete from evenflow.hold h using claimed c
  where c.limits like '%"window_us"%' and h.job_id = c.id and h.window_us is not null
  returning h.limiter, h.window_us
),
spent as (
  insert into evenflow.spent (limiter, free_at, starts)
  select limiter, now + window_us, count(*) from started, clock group by limiter, now + window_us
)
select 'claimed' as kind, c.id, c.epoch, c.queue, c.task, c.group_key, c.priority, c.turn, c.attempt, c.max_attempts, c.crashes,
  c.created_at, c.run_at, c.started_at, c.good_until, c.payload, c.signature, c.headers, c.options, c.run_id,
  case when c.run_id is not null then (select r.state from evenflow.run r where r.id = c.run_id) end as run_state,
  c.run_id is null and c.limits is null as is_plain from claimed c
-- [rounds
union all
select 'round', 0, 0, m.queue, null, null, m.priority, m.v, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from (select * from first_round union all select * from next_round union all select * from reached_round) m
-- rounds]
union all
select 'shut', 0, 0, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from shut_kinds k where case when k.any_task
  then (select count(*) from candidates) + (select count(*) from probes) > (select count(*) from claimed) end
-- [ends
union all
select 'lost', e.id, e.epoch, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from ends e
where (select count(*) from ends) > (select count(*) from ended)
  and (e.id, e.epoch) not in (select d.id, d.epoch from ended d)
  -- [returns
  and (e.id, e.epoch) not in (select r.id, r.epoch from returned r)
  -- returns]
union all
select 'awaited', d.id, d.epoch, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null, null
from ended d where d.awaited
union all
select 'freed', 0, 0, null, null, null, null, null, null, null, null, null, null, null, null, cast(jsonb_agg(f.limiter) as text), null, null, null, null, null, null
from (
  select limiter from freed
  -- [returns
  union select limiter from parked
  -- returns]
  ) f having count(*) > 0
-- ends]
;

-- name: advance_onward
-- leaves out: returns of advance
-- Where nothing goes back, and it is time to move V.

-- name: advance_plainly
-- leaves out: returns, rounds of advance
-- As a rule: nothing goes back, and V was moved a moment ago. Parts that have nothing to do cost a tenth of the statement.

-- name: claim
-- leaves out: ends of advance
-- Where nothing has ended: half of the statement's cost for a lone job is to set up the parts that have nothing to do.

-- name: lock_returns
-- returns: id
-- Jobs that are about to go back. Whoever changes one of them (begins to wait for its result, say) has done so, or waits.
select j.id from evenflow.job j
where j.id = any (array(select cast(value as bigint) from jsonb_array_elements_text(cast(:ids as jsonb))))
order by j.id for no key update;
