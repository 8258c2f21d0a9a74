-- name: see_scheduler
-- returns: id
insert into evenflow_scheduler (id, seen_at, pid, host, fingerprints, tasks) values (:id, :now, :pid, :host, :fingerprints, :tasks)
on conflict (id) do update
  set seen_at = excluded.seen_at, fingerprints = excluded.fingerprints, tasks = excluded.tasks
returning id;

update evenflow_schedule set seen_at = :now
where fingerprint in (select value from json_each(:fingerprints)) and seen_at < :now - 3600000000;

delete from evenflow_scheduler where seen_at < :now - 86400000000;

-- name: declare_schedules
-- returns: key
insert into evenflow_schedule as s (key, next_run, anchor, created_at, seen_at, every_us, jitter_us, priority, source, fingerprint,
  task, cron, timezone, queue, catch_up, overlap, description, payload)
select d.value ->> 'key', d.value ->> 'next_run', :now, :now, :now, d.value ->> 'every_us', d.value ->> 'jitter_us', d.value ->> 'priority', 'code',
  d.value ->> 'fingerprint', d.value ->> 'task', d.value ->> 'cron', d.value ->> 'timezone', d.value ->> 'queue', d.value ->> 'catch_up',
  d.value ->> 'overlap', d.value ->> 'description', d.value ->> 'payload'
from json_each(:schedules) d where true
on conflict (key) do update set
  next_run = case when (s.cron, s.every_us, s.timezone) is not (excluded.cron, excluded.every_us, excluded.timezone)
    then excluded.next_run else s.next_run end,
  anchor = case when s.every_us is not excluded.every_us then excluded.anchor else s.anchor end,
  seen_at = excluded.seen_at, every_us = excluded.every_us, jitter_us = excluded.jitter_us, priority = excluded.priority,
  fingerprint = excluded.fingerprint, task = excluded.task, cron = excluded.cron, timezone = excluded.timezone,
  queue = excluded.queue, catch_up = excluded.catch_up, overlap = excluded.overlap, description = excluded.description,
  payload = excluded.payload, error = null
where s.source = 'code' and s.fingerprint <> excluded.fingerprint
  and (:takes_over or not exists (
    select 1 from evenflow_scheduler z, json_each(z.fingerprints) f
    where z.id <> :scheduler and z.seen_at > :now - :silent_us and f.value = s.fingerprint))
returning key;

-- name: add_schedule
-- returns: key
insert into evenflow_schedule (key, next_run, anchor, created_at, seen_at, every_us, jitter_us, priority, source, fingerprint,
  task, cron, timezone, queue, catch_up, overlap, description, payload)
select d.value ->> 'key', d.value ->> 'next_run', :now, :now, :now, d.value ->> 'every_us', d.value ->> 'jitter_us', d.value ->> 'priority', 'added',
  d.value ->> 'fingerprint', d.value ->> 'task', d.value ->> 'cron', d.value ->> 'timezone', d.value ->> 'queue', d.value ->> 'catch_up',
  d.value ->> 'overlap', d.value ->> 'description', d.value ->> 'payload'
from json_each(:schedules) d where true
on conflict (key) do nothing
returning key;

-- name: change_schedule
-- returns: key
update evenflow_schedule set
  next_run = case when (evenflow_schedule.cron, evenflow_schedule.every_us, evenflow_schedule.timezone) is not (d.cron, d.every_us, d.timezone)
    then d.next_run else evenflow_schedule.next_run end,
  anchor = case when evenflow_schedule.every_us is not d.every_us then :now else evenflow_schedule.anchor end,
  every_us = d.every_us, jitter_us = d.jitter_us, priority = d.priority, fingerprint = d.fingerprint, task = d.task, cron = d.cron,
  timezone = d.timezone, queue = d.queue, catch_up = d.catch_up, overlap = d.overlap, description = d.description,
  payload = d.payload, error = null
from (select value ->> 'key' as key, value ->> 'next_run' as next_run,
  value ->> 'every_us' as every_us, value ->> 'jitter_us' as jitter_us, value ->> 'priority' as priority,
  value ->> 'fingerprint' as fingerprint, value ->> 'task' as task, value ->> 'cron' as cron,
  value ->> 'timezone' as timezone, value ->> 'queue' as queue, value ->> 'catch_up' as catch_up,
  value ->> 'overlap' as overlap, value ->> 'description' as description, value ->> 'payload' as payload
  from json_each(:schedules)) d
where evenflow_schedule.key = d.key and source = 'added' and evenflow_schedule.fingerprint = :before
returning evenflow_schedule.key;

-- name: pause_schedule
-- returns: key
update evenflow_schedule set paused_at = :now, paused_by = :who, paused_why = :why where key = :key returning key;

-- name: resume_schedule
-- returns: key
update evenflow_schedule set paused_at = null, paused_by = null, paused_why = null, next_run = :next_run
where key = :key and paused_at is not null
returning key;

-- name: remove_schedule
-- returns: key
delete from evenflow_schedule
where key = :key and (source = 'added' or not exists (
  select 1 from evenflow_scheduler z, json_each(z.fingerprints) f
  where z.seen_at > :now - :silent_us and f.value = evenflow_schedule.fingerprint))
returning key;

-- name: list_schedules
-- mode: read
-- returns: key, source, fingerprint, task, payload, cron, every_us, timezone, queue, priority, catch_up, overlap, jitter_us, description, anchor, created_at, next_run, last_run, last_job, paused_at, paused_by, paused_why, error, is_served
select s.key, s.source, s.fingerprint, s.task, s.payload, s.cron, s.every_us, s.timezone, s.queue, s.priority, s.catch_up, s.overlap,
  s.jitter_us, s.description, s.anchor, s.created_at, s.next_run, s.last_run, s.last_job, s.paused_at, s.paused_by, s.paused_why, s.error,
  case when s.source = 'code' then exists (
    select 1 from evenflow_scheduler z, json_each(z.fingerprints) f
    where z.seen_at > :now - :silent_us and f.value = s.fingerprint)
  else exists (
    select 1 from evenflow_scheduler z, json_each(z.tasks) t where z.seen_at > :now - :silent_us and t.value = s.task) end as is_served
from evenflow_schedule s
where :key is null or s.key = :key
order by s.key;

-- name: due_schedules
-- mode: read
-- returns: key, source, fingerprint, task, payload, cron, every_us, timezone, queue, priority, catch_up, overlap, jitter_us, description, anchor, created_at, next_run, last_run, last_job, paused_at, paused_by, paused_why, error, is_served, now
select s.key, s.source, s.fingerprint, s.task, s.payload, s.cron, s.every_us, s.timezone, s.queue, s.priority, s.catch_up, s.overlap,
  s.jitter_us, s.description, s.anchor, s.created_at, s.next_run, s.last_run, s.last_job, s.paused_at, s.paused_by, s.paused_why, s.error, 1 as is_served, :now as now
from evenflow_schedule s
where s.paused_at is null
  and case when s.source = 'code' then s.fingerprint in (select value from json_each(:fingerprints))
           else s.task in (select value from json_each(:tasks)) end
order by s.next_run limit :top;

-- name: take_slots
-- returns: is_open
update evenflow_schedule set next_run = :next_run
where key = :key and next_run = :expected and fingerprint = :fingerprint and paused_at is null
returning exists (select 1 from evenflow_job j where j.id = last_job) as is_open;

-- name: add_fires
-- returns: slot
insert into evenflow_fire (key, slot, fired_at, outcome)
select :key, value ->> 'slot', :now, value ->> 'outcome' from json_each(:fires) where true
on conflict do nothing
returning slot;

-- name: note_fires
-- returns: key
update evenflow_fire set job_id = n.job_id, outcome = n.outcome
from (select value ->> 'slot' as slot, value ->> 'job_id' as job_id, value ->> 'outcome' as outcome from json_each(:fires)) n
where evenflow_fire.key = :key and evenflow_fire.slot = n.slot;

update evenflow_schedule set last_run = :last_run, last_job = :last_job, error = null where key = :key returning key;

-- name: note_schedule_error
-- returns: key
update evenflow_schedule set error = :error where key = :key returning key;

-- name: list_fires
-- mode: read
-- returns: slot, fired_at, job_id, outcome
select slot, fired_at, job_id, outcome from evenflow_fire where key = :key order by slot desc limit :top;

-- name: list_schedulers
-- mode: read
-- returns: id, host, pid, seen_at
select id, host, pid, seen_at from evenflow_scheduler where seen_at > :now - :silent_us order by id;

-- name: prune_fires
-- returns: key
delete from evenflow_fire where (key, slot) in (
  select key, slot from evenflow_fire where fired_at <= :now - :keep_us order by fired_at limit :top)
returning key;

-- name: forget_schedules
-- returns: key
delete from evenflow_schedule where source = 'code' and seen_at <= :now - :keep_us returning key;
