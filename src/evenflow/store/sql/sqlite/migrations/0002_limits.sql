-- Concurrency keys and rates. The twin of the PostgreSQL file.

create table evenflow_limiter (
  name  text primary key,
  most  integer not null check (most >= 0)
) strict, without rowid;

create table evenflow_hold (
  job_id    integer not null,
  turn      real not null,
  held_at   integer,
  keep_us   integer not null,
  window_us integer,
  most      integer not null,
  ordinal   integer not null,
  phase     integer not null default 0,
  priority  integer not null,
  limiter   text not null,
  primary key (job_id, ordinal)
) strict, without rowid;

create index evenflow_hold_line on evenflow_hold (limiter, phase, priority, turn, job_id);

create table evenflow_spent (
  free_at  integer not null,
  starts   integer not null,
  limiter  text not null
) strict;
create index evenflow_spent_line on evenflow_spent (limiter, free_at);
create index evenflow_spent_free on evenflow_spent (free_at);

alter table evenflow_job add column limits text;
alter table evenflow_history add column limits text;
