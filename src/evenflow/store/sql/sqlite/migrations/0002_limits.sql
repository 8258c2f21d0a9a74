-- Concurrency keys. The twin of the PostgreSQL file.

create table evenflow_limiter (
  name  text primary key,
  most  integer not null check (most >= 0)
) strict, without rowid;

create table evenflow_hold (
  job_id    integer not null,
  turn      real not null,
  held_at   integer,
  keep_us   integer not null,
  most      integer not null,
  ordinal   integer not null,
  phase     integer not null default 0,
  priority  integer not null,
  limiter   text not null,
  primary key (job_id, ordinal)
) strict, without rowid;

create index evenflow_hold_line on evenflow_hold (limiter, phase, priority, turn, job_id);

alter table evenflow_job add column limits text;
alter table evenflow_history add column limits text;
