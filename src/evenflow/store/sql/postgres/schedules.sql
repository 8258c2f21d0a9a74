-- name: see_scheduler
-- returns: id
-- A scheduler is alive and can fire this. Schedules of code remember once an hour that somebody declares them.
insert into evenflow.scheduler as z (id, seen_at, pid, host, fingerprints, tasks)
values (cast(:id as bigint), coalesce(cast(:now as bigint), evenflow.now_us()), cast(:pid as integer), cast(:host as text),
  cast(:fingerprints as text), cast(:tasks as text))
on conflict (id) do update
  set seen_at = excluded.seen_at, fingerprints = excluded.fingerprints, tasks = excluded.tasks
returning id;

update evenflow.schedule s set seen_at = clock.now
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock
where s.fingerprint = any (array(select jsonb_array_elements_text(cast(:fingerprints as jsonb)))) and s.seen_at < clock.now - 3600000000;

delete from evenflow.scheduler z where z.seen_at < coalesce(cast(:now as bigint), evenflow.now_us()) - 86400000000;

-- name: declare_schedules
-- returns: key
-- What the code says. Who starts takes over; later only what no other living scheduler declares any more is changed, so
-- that two versions of a program do not write over each other. A changed pattern has a new next slot, anything else
-- keeps it. What was added at run time under the same key is left alone.
insert into evenflow.schedule as s (key, next_run, anchor, created_at, seen_at, every_us, jitter_us, priority, source, fingerprint,
  task, cron, timezone, queue, catch_up, overlap, description, payload)
select d.key, d.next_run, clock.now, clock.now, clock.now, d.every_us, d.jitter_us, d.priority, 'code', d.fingerprint,
  d.task, d.cron, d.timezone, d.queue, d.catch_up, d.overlap, d.description, d.payload
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock,
jsonb_to_recordset(cast(:schedules as jsonb)) as d (
  key text, next_run bigint, every_us bigint, jitter_us bigint, priority smallint, fingerprint text, task text, cron text,
  timezone text, queue text, catch_up text, overlap text, description text, payload text)
order by d.key
on conflict (key) do update set
  next_run = case when (s.cron, s.every_us, s.timezone) is distinct from (excluded.cron, excluded.every_us, excluded.timezone)
    then excluded.next_run else s.next_run end,
  anchor = case when s.every_us is distinct from excluded.every_us then excluded.anchor else s.anchor end,
  seen_at = excluded.seen_at, every_us = excluded.every_us, jitter_us = excluded.jitter_us, priority = excluded.priority,
  fingerprint = excluded.fingerprint, task = excluded.task, cron = excluded.cron, timezone = excluded.timezone,
  queue = excluded.queue, catch_up = excluded.catch_up, overlap = excluded.overlap, description = excluded.description,
  payload = excluded.payload, error = null
where s.source = 'code' and s.fingerprint <> excluded.fingerprint
  and (cast(:takes_over as boolean) or not exists (
    select 1 from evenflow.scheduler z
    where z.id <> cast(:scheduler as bigint) and z.seen_at > excluded.seen_at - cast(:silent_us as bigint)
      and cast(z.fingerprints as jsonb) @> to_jsonb(s.fingerprint)))
returning key;

-- name: add_schedule
-- returns: key
-- At run time. A key that is taken, by code or by hand, stays as it is.
insert into evenflow.schedule (key, next_run, anchor, created_at, seen_at, every_us, jitter_us, priority, source, fingerprint,
  task, cron, timezone, queue, catch_up, overlap, description, payload)
select d.key, d.next_run, clock.now, clock.now, clock.now, d.every_us, d.jitter_us, d.priority, 'added', d.fingerprint,
  d.task, d.cron, d.timezone, d.queue, d.catch_up, d.overlap, d.description, d.payload
from (select coalesce(cast(:now as bigint), evenflow.now_us()) as now) clock,
jsonb_to_recordset(cast(:schedules as jsonb)) as d (
  key text, next_run bigint, every_us bigint, jitter_us bigint, priority smallint, fingerprint text, task text, cron text,
  timezone text, queue text, catch_up text, overlap text, description text, payload text)
on conflict (key) do nothing
returning key;

-- name: change_schedule
-- returns: key
-- Only what was added at run time, and only as long as it is what the caller has read.
update evenflow.schedule s set
  next_run = case when (s.cron, s.every_us, s.timezone) is distinct from (d.cron, d.every_us, d.timezone) then d.next_run else s.next_run end,
  anchor = case when s.every_us is distinct from d.every_us then coalesce(cast(:now as bigint), evenflow.now_us()) else s.anchor end,
  every_us = d.every_us, jitter_us = d.jitter_us, priority = d.priority, fingerprint = d.fingerprint, task = d.task, cron = d.cron,
  timezone = d.timezone, queue = d.queue, catch_up = d.catch_up, overlap = d.overlap, description = d.description,
  payload = d.payload, error = null
from jsonb_to_recordset(cast(:schedules as jsonb)) as d (
  key text, next_run bigint, every_us bigint, jitter_us bigint, priority smallint, fingerprint text, task text, cron text,
  timezone text, queue text, catch_up text, overlap text, description text, payload text)
where s.key = d.key and s.source = 'added' and s.fingerprint = cast(:before as text)
returning s.key;

-- name: pause_schedule
-- returns: key
update evenflow.schedule set paused_at = coalesce(cast(:now as bigint), evenflow.now_us()), paused_by = cast(:who as text),
  paused_why = cast(:why as text)
where key = cast(:key as text)
returning key;

-- name: resume_schedule
-- returns: key
-- From now on: what a pause has kept from firing is not caught up.
update evenflow.schedule set paused_at = null, paused_by = null, paused_why = null, next_run = cast(:next_run as bigint)
where key = cast(:key as text) and paused_at is not null
returning key;

-- name: remove_schedule
-- returns: key
-- Not what a living program declares: it would be back at the next start. What has fired stays noted.
delete from evenflow.schedule s
where s.key = cast(:key as text) and (s.source = 'added' or not exists (
  select 1 from evenflow.scheduler z
  where z.seen_at > coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:silent_us as bigint)
    and cast(z.fingerprints as jsonb) @> to_jsonb(s.fingerprint)))
returning s.key;

-- name: list_schedules
-- mode: read
-- returns: key, source, fingerprint, task, payload, cron, every_us, timezone, queue, priority, catch_up, overlap, jitter_us, description, anchor, created_at, next_run, last_run, last_job, paused_at, paused_by, paused_why, error, is_served
select s.key, s.source, s.fingerprint, s.task, s.payload, s.cron, s.every_us, s.timezone, s.queue, s.priority, s.catch_up, s.overlap,
  s.jitter_us, s.description, s.anchor, s.created_at, s.next_run, s.last_run, s.last_job, s.paused_at, s.paused_by, s.paused_why, s.error,
  exists (
    select 1 from evenflow.scheduler z
    where z.seen_at > coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:silent_us as bigint)
      and case when s.source = 'code' then cast(z.fingerprints as jsonb) @> to_jsonb(s.fingerprint)
               else cast(z.tasks as jsonb) @> to_jsonb(s.task) end) as is_served
from evenflow.schedule s
where cast(:key as text) is null or s.key = cast(:key as text)
order by s.key;

-- name: due_schedules
-- mode: read
-- returns: key, source, fingerprint, task, payload, cron, every_us, timezone, queue, priority, catch_up, overlap, jitter_us, description, anchor, created_at, next_run, last_run, last_job, paused_at, paused_by, paused_why, error, is_served, now
-- What this scheduler can fire, the earliest first, due or not: the first that is not due says how long it may wait.
select s.key, s.source, s.fingerprint, s.task, s.payload, s.cron, s.every_us, s.timezone, s.queue, s.priority, s.catch_up, s.overlap,
  s.jitter_us, s.description, s.anchor, s.created_at, s.next_run, s.last_run, s.last_job, s.paused_at, s.paused_by, s.paused_why, s.error,
  true as is_served, coalesce(cast(:now as bigint), evenflow.now_us()) as now
from evenflow.schedule s
where s.paused_at is null
  and case when s.source = 'code' then s.fingerprint = any (array(select jsonb_array_elements_text(cast(:fingerprints as jsonb))))
           else s.task = any (array(select jsonb_array_elements_text(cast(:tasks as jsonb)))) end
order by s.next_run limit cast(:top as integer);

-- name: take_slots
-- returns: is_open
-- The fence of a fire: of all schedulers that saw this slot, the one whose update comes first goes on; for the others no
-- row is left. is_open says whether the job of the last fire has not ended.
update evenflow.schedule s set next_run = cast(:next_run as bigint)
where s.key = cast(:key as text) and s.next_run = cast(:expected as bigint) and s.fingerprint = cast(:fingerprint as text)
  and s.paused_at is null
returning exists (select 1 from evenflow.job j where j.id = s.last_job) as is_open;

-- name: add_fires
-- returns: slot
-- Slots that have fired before are left out of the answer, whatever the schedule's row says.
insert into evenflow.fire (key, slot, fired_at, outcome)
select cast(:key as text), f.slot, coalesce(cast(:now as bigint), evenflow.now_us()), f.outcome
from jsonb_to_recordset(cast(:fires as jsonb)) as f (slot bigint, outcome text)
on conflict do nothing
returning slot;

-- name: note_fires
-- returns: key
update evenflow.fire f set job_id = n.job_id, outcome = n.outcome
from jsonb_to_recordset(cast(:fires as jsonb)) as n (slot bigint, job_id bigint, outcome text)
where f.key = cast(:key as text) and f.slot = n.slot;

update evenflow.schedule set last_run = cast(:last_run as bigint), last_job = cast(:last_job as bigint), error = null
where key = cast(:key as text)
returning key;

-- name: note_schedule_error
-- returns: key
update evenflow.schedule set error = cast(:error as text) where key = cast(:key as text) returning key;

-- name: list_fires
-- mode: read
-- returns: slot, fired_at, job_id, outcome
select slot, fired_at, job_id, outcome from evenflow.fire where key = cast(:key as text)
order by slot desc limit cast(:top as integer);

-- name: list_schedulers
-- mode: read
-- returns: id, host, pid, seen_at
select id, host, pid, seen_at from evenflow.scheduler
where seen_at > coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:silent_us as bigint) order by id;

-- name: prune_fires
-- returns: key
with old as materialized (
  select key, slot from evenflow.fire where fired_at <= coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:keep_us as bigint)
  order by fired_at limit cast(:top as integer) for update skip locked
)
delete from evenflow.fire f using old
where f.key = old.key and f.slot = old.slot
returning f.key;

-- name: forget_schedules
-- returns: key
-- Schedules of code that nobody has declared for a long time.
delete from evenflow.schedule s
where s.source = 'code' and s.seen_at <= coalesce(cast(:now as bigint), evenflow.now_us()) - cast(:keep_us as bigint)
returning s.key;
