-- Concurrency keys and rates. Capacity is a set of rows, never a counter that goes up and down.

-- What a key allows, and the row that whoever counts its holds must lock first.
create table evenflow.limiter (
  name  text primary key,
  most  integer not null check (most >= 0)
) with (fillfactor = 50, autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.01);

-- One job at one key. A job with several keys takes them in the order of `ordinal`, which is that of their names.
-- phase: 0 later (not due, or an earlier key is not held yet), 1 waiting, 2 held.
-- A rate is a key whose place stays taken for window_us after the start, instead of until the end: the claim replaces the
-- hold by an entry in `spent`.
create table evenflow.hold (
  job_id    bigint not null,
  turn      double precision not null,
  held_at   bigint,
  keep_us   bigint not null,
  window_us bigint,
  most      integer not null,
  ordinal   smallint not null,
  phase     smallint not null default 0,
  priority  smallint not null,
  limiter   text not null,
  primary key (job_id, ordinal)
) with (autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02);

-- Counts the holders of a key (phase 2) and finds its next job (phase 1) in the order of release.
create index hold_line on evenflow.hold (limiter, phase, priority, turn, job_id);

-- Starts under a rate, each until its window has passed: in no window can more than the limit start.
create table evenflow.spent (
  free_at  bigint not null,
  starts   integer not null,
  limiter  text not null
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
create index spent_line on evenflow.spent (limiter, free_at);
create index spent_free on evenflow.spent (free_at);

-- The keys of a job as JSON, so that a job that is revived from history waits for them again.
alter table evenflow.job add column limits text;
alter table evenflow.history add column limits text;
