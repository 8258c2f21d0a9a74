-- name: register_worker
-- returns: id
-- The first heartbeat is this insert: no moment exists in which a worker can hold a job without being seen alive.
insert into evenflow.worker (id, parent, kind, host, pid, started_at, beat_at, lease_us, about)
select cast(:id as bigint), cast(:parent as bigint), cast(:kind as text), cast(:host as text), cast(:pid as integer),
  now, now, cast(:lease_us as bigint), cast(:about as text)
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
returning id;

-- name: beat
-- returns: id, epoch, why
-- Renews the lease of one process and of what it has prefetched. No row 'alive' means: declared dead, stop at once. A row 'company'
-- names another worker, if there are any. The other rows are jobs of this worker that somebody wants cancelled.
-- The disk is not waited for: whoever watches looks for a change, so a heartbeat that a crash takes back is made up for by the next
-- one. Meanwhile a worker would hear of no job.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
alive as (
  update evenflow.worker w set beat = w.beat + 1, beat_at = now, about = coalesce(cast(:about as text), w.about)
  from clock where w.id = cast(:worker as bigint)
  returning w.id
),
renewed as (
  update evenflow.job j set lease_until = now + cast(:lease_us as bigint)
  from alive, clock where cast(:lease_us as bigint) is not null and j.worker = alive.id and j.state = 'claimed'
    and j.id = any (array(select i.id from evenflow.in_flight i where i.worker = cast(:worker as bigint) and i.state = 'claimed'))
)
select alive.id, 0 as epoch, 'alive' as why from alive where set_config('synchronous_commit', 'off', true) = 'off'
union all
(select w.id, 0, 'company' from evenflow.worker w where w.kind = 'worker' and w.id <> cast(:worker as bigint) limit 1)
union all
select i.id, i.epoch, coalesce(i.cancel_why, '') from evenflow.in_flight i
where i.worker = cast(:worker as bigint) and i.cancel_at is not null;

-- name: list_workers
-- mode: read
-- returns: id, parent, kind, host, pid, started_at, beat, beat_at, lease_us, about
select id, parent, kind, host, pid, started_at, beat, beat_at, lease_us, about from evenflow.worker order by id;

-- name: list_in_flight
-- mode: read
-- returns: id, epoch
-- What is in flight at a worker. A claim whose answer was lost with its connection is here and nowhere else.
select i.id, i.epoch from evenflow.in_flight i where i.worker = cast(:worker as bigint);

-- name: bury_workers
-- returns: id
-- Takes dead workers from the books. `beat` is the value at which the observer saw it stand still, so a worker that
-- has beaten since is left alone; -1 is proof of death (the parent has reaped the process).
delete from evenflow.worker w
using jsonb_to_recordset(cast(:workers as jsonb)) as d (id bigint, beat bigint)
where w.id = d.id and (d.beat = w.beat or d.beat = -1)
returning w.id;

-- name: rescue
-- returns: id, state, queue, task, crashed
-- Jobs in flight without a living owner (anti-join: no identity can hide them), at most `top`. A running one counts a
-- crash and gets its attempt back; it is quarantined at `max_crashes`, fails where its task says so, else is ready again.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
orphans as materialized (
  select j.id, j.state = 'running' as was_running,
    case when j.cancel_at is not null then 'cancelled'
         when j.state = 'running' and j.fails_on_crash then 'failed'
         when j.state = 'running' and j.crashes + 1 >= cast(:max_crashes as integer) then 'quarantined'
         else 'ready' end as fate
  from evenflow.job j
  where j.id = any (array(
      select i.id from evenflow.in_flight i where not exists (select from evenflow.worker w where w.id = i.worker)
      order by i.id limit cast(:top as integer)))
    and j.state in ('claimed', 'running') and not exists (select from evenflow.worker w where w.id = j.worker)
  for no key update skip locked
),
landed as (
  delete from evenflow.flight f
  where not exists (select from evenflow.worker w where w.id = f.worker) and not exists (
    select from unnest(f.ids) as member (id) cross join lateral (
      select from evenflow.job o where o.id = member.id and o.flight = f.number and o.worker = f.worker offset 0) j)
),
ended as (
  delete from evenflow.job j using orphans o where j.id = any (array(select id from orphans)) and j.id = o.id and o.fate <> 'ready'
  returning j.*, o.fate, o.was_running,
    case o.fate when 'failed' then cast(:keep_failed_us as bigint) when 'quarantined' then cast(:keep_quarantined_us as bigint)
                else cast(:keep_cancelled_us as bigint) end as keep_us
),
archived as (
  insert into evenflow.history (id, expires_at, created_at, run_at, started_at, finished_at, good_until, worker, run_id,
    epoch, attempt, max_attempts, crashes, priority, fails_on_crash, state, queue, task, group_key, unique_key, signature, headers,
    options, errors, progress, payload, limits)
  select id, now + keep_us, created_at, run_at, started_at, now, good_until, worker, run_id, epoch, attempt, max_attempts,
    crashes + cast(was_running as integer), priority, fails_on_crash, fate, queue, task, group_key, unique_key, signature, headers, options,
    case when errors is null or length(errors) > 65536 then '[' || cast(:error as text) || ']'
         else left(errors, -1) || ',' || cast(:error as text) || ']' end,
    progress, payload, limits
  from ended, clock where keep_us > 0
),
stepped as (
  update evenflow.step s set state = d.fate, result = null, ended_at = now from ended d, clock
  where s.id = any (array(select id from ended where run_id is not null)) and s.id = d.id
  returning s.run_id, s.id
),
noted as (insert into evenflow.step_end (run_id, step_id) select run_id, id from stepped on conflict do nothing),
returned as (
  update evenflow.job j set worker = null, lease_until = null,
    state = case when j.limits like '%"window_us"%' then 'scheduled'
      when exists (select from evenflow.queue q where q.name = j.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
    run_at = case when j.limits like '%"window_us"%' then now else j.run_at end, attempt = j.attempt - 1,
    crashes = j.crashes + cast(o.was_running as integer),
    errors = case when not o.was_running then j.errors
                  when j.errors is null or length(j.errors) > 65536 then '[' || cast(:error as text) || ']'
                  else left(j.errors, -1) || ',' || cast(:error as text) || ']' end,
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from orphans o, clock where j.id = any (array(select id from orphans)) and j.id = o.id and o.fate = 'ready'
  returning j.id, j.queue, j.priority, j.state, j.limits, j.task, o.was_running
),
parked as (
  update evenflow.hold h set phase = 0, held_at = null from returned r where r.state = 'scheduled' and h.job_id = r.id
),
relined as (
  insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
  select r.id, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, r.priority, 0
  from returned r cross join lateral jsonb_to_recordset(cast(r.limits as jsonb)) as h (
    ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
  where r.state = 'scheduled' and h.window_us is not null
  on conflict do nothing
)
select id, fate as state, queue, task, was_running as crashed from ended
union all select id, 'ready', queue, task, was_running from returned;

-- name: note_strays
-- only here: SQLite finds what is in flight by an index
-- returns: last, strays
-- The net below the flights: jobs in flight that no flight names, as a worker of an older version leaves them, among the `top` next
-- ones by id. They get a flight, so that rescue and caps find them. `last` is where the next look begins; null at the end.
with piece as materialized (
  select j.id, j.state, j.worker, j.flight from evenflow.job j where j.id > cast(:after as bigint) order by j.id limit cast(:top as integer)
),
strays as (
  update evenflow.job j set flight = 0
  where j.id = any (array(
      select p.id from piece p where p.state in ('claimed', 'running') and p.worker is not null and not exists (
        select from evenflow.flight f where f.worker = p.worker and f.number = p.flight and p.id = any (f.ids))))
    and j.state in ('claimed', 'running') and j.worker is not null and not exists (
      select from evenflow.flight f where f.worker = j.worker and f.number = j.flight and j.id = any (f.ids))
  returning j.id, j.worker, j.queue
),
noted as (
  insert into evenflow.flight as f (worker, number, queue, ids)
  select worker, 0, queue, array_agg(id) from strays group by worker, queue
  on conflict (worker, number, queue) do update set ids = f.ids || excluded.ids
)
select case when count(*) = cast(:top as integer) then max(p.id) end as last, (select count(*) from strays) as strays from piece p;

-- name: free_expired_claims
-- returns: id, queue
-- Prefetched jobs whose claim was not renewed in time go back; the attempt was not used. The holder's start is refused.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
stale as materialized (
  select j.id from evenflow.job j
  where j.id = any (array(
      select i.id from evenflow.in_flight i where i.state = 'claimed' and i.lease_until <= (select now from clock)
      order by i.id limit cast(:top as integer)))
    and j.state = 'claimed' and j.lease_until <= (select now from clock)
  for no key update skip locked
),
returned as (
  update evenflow.job j set worker = null, lease_until = null, attempt = j.attempt - 1,
    state = case when j.limits like '%"window_us"%' then 'scheduled'
      when exists (select from evenflow.queue q where q.name = j.queue and q.max_ready is not null) then 'overflow' else 'ready' end,
    run_at = case when j.limits like '%"window_us"%' then now else j.run_at end,
    turn = case when exists (select from evenflow.queue q where q.name = j.queue and q.fair = 'fifo') then now
                else 1 + coalesce((select r.v from evenflow.round r where r.queue = j.queue and r.priority = j.priority), 0) end
  from clock where j.id = any (array(select id from stale))
  returning j.id, j.queue, j.priority, j.state, j.limits
),
parked as (
  update evenflow.hold h set phase = 0, held_at = null from returned r where r.state = 'scheduled' and h.job_id = r.id
),
relined as (
  insert into evenflow.hold (job_id, ordinal, limiter, most, keep_us, window_us, priority, turn)
  select r.id, h.ordinal, h.limiter, h.most, h.keep_us, h.window_us, r.priority, 0
  from returned r cross join lateral jsonb_to_recordset(cast(r.limits as jsonb)) as h (
    ordinal smallint, limiter text, most integer, keep_us bigint, window_us bigint)
  where r.state = 'scheduled' and h.window_us is not null
  on conflict do nothing
)
select id, queue from returned;

-- name: lock_caps
-- returns: name
-- Before a claim or a start under a cap: whoever else would count these queues waits until we have committed. Locked in
-- name order; nobody waits who serves no capped queue. A client that stalls with such a lock would stop those who serve
-- the queue, and their other queues: so the server ends its transaction after five seconds of doing nothing.
with queues as materialized (
  select q.name from evenflow.queue q
  where q.name in (select value from jsonb_array_elements_text(cast(:queues as jsonb))) and q.max_concurrency is not null
  order by q.name for no key update
),
clusters as materialized (select 'cluster' as name from evenflow.cluster where cap is not null for no key update)
select l.name from (select name from queues union all select name from clusters) l
where (select set_config('idle_in_transaction_session_timeout', '5s', true)) is not null;

-- name: start_claimed
-- returns: id
-- claimed -> running, before user code: only the holder of a live lease on a job that is neither expired nor cancelled
-- nor shut (its queue is paused, its task is, or a breaker is open) may start it, and only as many as the queue's cap has room for (after lock_caps).
-- COALESCE keeps the planner from walking all that is in flight: a job is found by its id.
with clock as materialized (select coalesce(cast(:now as bigint), evenflow.now_us()) as now),
starts as materialized (select s.* from jsonb_to_recordset(cast(:starts as jsonb)) as s (id bigint, epoch integer)),
able as materialized (
  select j.id, q.max_concurrency, row_number() over (partition by j.queue order by j.priority, j.turn, j.id) as number,
    case when q.max_concurrency is null then 0
         else (select count(*) from evenflow.in_flight r where r.queue = j.queue and r.state = 'running')
    end as running
  from starts s join evenflow.job j on j.id = s.id and j.epoch = s.epoch
  cross join clock
  left join evenflow.queue q on q.name = j.queue
  where j.id = any (array(select id from starts)) and j.worker = cast(:worker as bigint) and coalesce(j.state, '') = 'claimed' and j.lease_until > now and j.cancel_at is null
    and (j.good_until is null or j.good_until > now) and q.paused_at is null
    and not exists (
      select from evenflow.gate g where (g.kind, g.name) in (('task', j.task), ('queue', j.queue))
        and (g.probe_job, g.probe_epoch) is distinct from (j.id, j.epoch))
)
update evenflow.job j set state = 'running', lease_until = null,
  started_at = case when j.limits like '%"window_us"%' then j.started_at else now end -- a rate finds its charge by it
from able a, clock
where j.id = any (array(select id from able)) and j.id = a.id and coalesce(j.state, '') = 'claimed' and j.worker = cast(:worker as bigint)
  and (a.max_concurrency is null or (cast(:caps_locked as boolean) and a.running + a.number <= a.max_concurrency))
returning j.id;

-- name: save_progress
-- returns: id
with reports as materialized (
  select p.* from jsonb_to_recordset(cast(:progress as jsonb)) as p (id bigint, epoch integer, progress text)
)
update evenflow.job j set progress = p.progress from reports p
where j.id = any (array(select id from reports)) and j.id = p.id and j.epoch = p.epoch and j.worker = cast(:worker as bigint)
returning j.id;
