-- Recurring tasks. The twin of the PostgreSQL file.

create table evenflow_schedule (
  key          text primary key,
  next_run     integer not null,
  last_run     integer,
  last_job     integer,
  anchor       integer not null,
  created_at   integer not null,
  seen_at      integer not null,
  paused_at    integer,
  every_us     integer check (every_us > 0),
  jitter_us    integer not null default 0,
  priority     integer,
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
) strict, without rowid;
create index evenflow_schedule_next on evenflow_schedule (next_run) where paused_at is null;

create table evenflow_fire (
  key       text not null,
  slot      integer not null,
  fired_at  integer not null,
  job_id    integer,
  outcome   text not null check (outcome in ('enqueued', 'duplicate', 'overlapped', 'failed', 'by hand')),
  primary key (key, slot)
) strict, without rowid;
create index evenflow_fire_age on evenflow_fire (fired_at);

create table evenflow_scheduler (
  id            integer primary key,
  seen_at       integer not null,
  pid           integer not null,
  host          text not null,
  fingerprints  text not null,
  tasks         text not null
) strict;
