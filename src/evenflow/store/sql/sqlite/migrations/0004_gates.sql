-- Gates: tasks that are paused, breakers of tasks and queues. The twin of the PostgreSQL file.

create table evenflow_breaker (
  name               text primary key,
  cooldown_us        integer not null,
  probe_lease_us     integer not null,
  opened_at          integer,
  opens_at           integer,
  probe_job          integer,
  probe_until        integer,
  probe_epoch        integer,
  failure_threshold  integer not null check (failure_threshold > 0),
  failures           integer not null default 0,
  on_open            text not null check (on_open in ('wait', 'fail')),
  opened_by          text,
  opened_why         text
) strict, without rowid;

create table evenflow_guard (
  kind     text not null check (kind in ('task', 'queue')),
  name     text not null,
  breaker  text not null,
  primary key (kind, name)
) strict, without rowid;
create index evenflow_guard_breaker on evenflow_guard (breaker);

create table evenflow_gate (
  shut_at      integer not null,
  probe_job    integer,
  probe_epoch  integer,
  kind         text not null check (kind in ('task', 'queue')),
  cause        text not null check (cause = 'breaker' or (cause = 'pause' and kind = 'task')),
  name         text not null,
  shut_by      text,
  shut_why     text,
  primary key (kind, name, cause)
) strict, without rowid;

alter table evenflow_job add column gated integer not null default 0;
create index evenflow_job_gated on evenflow_job (gated, task, queue, priority, turn, id) where gated > 0;
