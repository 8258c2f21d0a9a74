-- Gates: tasks that are paused, breakers of tasks and queues. What counts (breaker) and what claims read (gate) are apart:
-- a count changes with every failure, and its dead versions must not lie on the way of a claim.

-- One row per breaker name. opened_at is null while it is closed; opens_at is when a probe may run, null where it was
-- opened by hand and stays so. The probe is the run (probe_job, probe_epoch) and nobody else.
create table evenflow.breaker (
  name               text primary key,
  cooldown_us        bigint not null,
  probe_lease_us     bigint not null,
  opened_at          bigint,
  opens_at           bigint,
  probe_job          bigint,
  probe_until        bigint,
  probe_epoch        integer,
  failure_threshold  integer not null check (failure_threshold > 0),
  failures           integer not null default 0,
  on_open            text not null check (on_open in ('wait', 'fail')),
  opened_by          text,
  opened_why         text
) with (fillfactor = 50, autovacuum_vacuum_threshold = 50, autovacuum_vacuum_scale_factor = 0);
create index breaker_open on evenflow.breaker (name) where opened_at is not null;

-- Which breaker a task or a queue declares.
create table evenflow.guard (
  kind     text not null check (kind in ('task', 'queue')),
  name     text not null,
  breaker  text not null,
  primary key (kind, name)
);
create index guard_breaker on evenflow.guard (breaker);

-- What is shut now: no job passes but the probe. Empty while nothing is paused and no breaker is open.
create table evenflow.gate (
  shut_at      bigint not null,
  probe_job    bigint,
  probe_epoch  integer,
  kind         text not null check (kind in ('task', 'queue')),
  cause        text not null check (cause = 'breaker' or (cause = 'pause' and kind = 'task')),
  name         text not null,
  shut_by      text,
  shut_why     text,
  primary key (kind, name, cause)
);

-- 1: a claim met this job while its task was shut and set it aside, `blocked`, so that no other claim meets it. (2: the
-- same while the statement that does so is under way, in SQLite.)
alter table evenflow.job add column gated smallint not null default 0;
create index job_gated on evenflow.job (gated, task, queue, priority, turn, id) where gated > 0;
