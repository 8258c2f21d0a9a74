-- Recurring tasks: what fires when, what has fired, and which schedulers are alive.

-- One row per key. `source` says whose word it is: 'code' belongs to whoever declares its fingerprint, 'added' was
-- written at run time and stays until it is removed. next_run is the slot that fires next, and the fence of a fire.
create table evenflow.schedule (
  key          text primary key,
  next_run     bigint not null,
  last_run     bigint,
  last_job     bigint,
  anchor       bigint not null,
  created_at   bigint not null,
  seen_at      bigint not null,
  paused_at    bigint,
  every_us     bigint check (every_us > 0),
  jitter_us    bigint not null default 0,
  priority     smallint,
  source       text not null check (source in ('code', 'added')),
  fingerprint  text not null,
  task         text not null,
  cron         text,
  timezone     text not null,
  queue        text,
  catch_up     text not null check (catch_up in ('skip', 'one', 'all')),
  overlap      text not null check (overlap in ('allow', 'skip')),
  description  text,
  paused_by    text,
  paused_why   text,
  error        text,
  payload      text not null
);
create index schedule_next on evenflow.schedule (next_run) where paused_at is null;

-- One row per (schedule, slot), written in the transaction that enqueues the job. It outlives the job and the schedule:
-- a slot that has fired never fires again.
create table evenflow.fire (
  key       text not null,
  slot      bigint not null,
  fired_at  bigint not null,
  job_id    bigint,
  outcome   text not null check (outcome in ('enqueued', 'duplicate', 'overlapped', 'failed', 'by hand')),
  primary key (key, slot)
);
create index fire_age on evenflow.fire (fired_at);

-- Who is alive and what it can fire. Declarations end with their scheduler, so a rolling deploy needs no agreement.
create table evenflow.scheduler (
  id            bigint primary key,
  seen_at       bigint not null,
  pid           integer not null,
  host          text not null,
  fingerprints  text not null,
  tasks         text not null
);
