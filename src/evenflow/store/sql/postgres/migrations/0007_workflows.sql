-- Workflows: runs, their steps, the edges between them; and what bodies remember between their attempts.

-- One start of a workflow. `policy` is what it takes to succeed, and whose results are the run's.
create table evenflow.run (
  id           bigint primary key,
  created_at   bigint not null,
  finished_at  bigint,
  expires_at   bigint,
  state        text not null check (state in ('running', 'paused', 'succeeded', 'failed', 'cancelled')),
  on_error     text not null check (on_error in ('fail', 'pause')),
  name         text not null,
  run_key      text,
  policy       text,
  error        text,
  paused_why   text
) with (fillfactor = 70);
create unique index run_key on evenflow.run (run_key) where run_key is not null;
create index run_expiry on evenflow.run (expires_at) where expires_at is not null;

-- A step has the id of its job. A container (a sub-workflow, a fan-out) has no job: it ends when its members have.
-- `state` is null while the step is open. Its result has its only home here, for as long as the run is kept.
-- `needs`: how many parents must count; null is all. `delay_us`, `not_before`: when it is due after its release.
create table evenflow.step (
  id            bigint primary key,
  run_id        bigint not null,
  container     bigint,
  ended_at      bigint,
  delay_us      bigint,
  not_before    bigint,
  ordinal       integer not null,
  needs         integer,
  allow_failed  boolean not null,
  kind          text not null check (kind in ('job', 'begin', 'sub', 'map')),
  state         text check (state in
                  ('succeeded', 'failed', 'expired', 'cancelled', 'skipped', 'discarded', 'quarantined')),
  name          text not null,
  task          text,
  run_when      text,
  skip_when     text,
  policy        text,
  error         text,
  result        text
) with (fillfactor = 70, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02);
create index step_run on evenflow.step (run_id, id);
create index step_member on evenflow.step (container, ordinal) where container is not null;

-- child waits for parent; the child of a run's last steps is the run itself.
-- outcome: 0 the parent is open, 1 it succeeded, 2 it ended otherwise.
create table evenflow.edge (
  parent   bigint not null,
  child    bigint not null,
  outcome  smallint not null default 0,
  primary key (parent, child)
) with (fillfactor = 70, autovacuum_vacuum_threshold = 2000, autovacuum_vacuum_scale_factor = 0.02);
-- Whether a child has an open parent is one look from the end of its part of this index, however many there are.
create index edge_child on evenflow.edge (child, outcome, parent);

-- Steps that have ended and whose children have not been told. Written with the end, taken by whoever tells them.
create table evenflow.step_end (
  run_id   bigint not null,
  step_id  bigint not null,
  primary key (run_id, step_id)
) with (autovacuum_vacuum_threshold = 500, autovacuum_vacuum_scale_factor = 0.02);

-- What a body remembers between its attempts, by name.
create table evenflow.memo (
  job_id      bigint not null,
  expires_at  bigint not null,
  name        text not null,
  value       text not null,
  primary key (job_id, name)
);
create index memo_expiry on evenflow.memo (expires_at);

create sequence evenflow.event_number as bigint;
create table evenflow.event (
  number      bigint primary key default nextval('evenflow.event_number'),
  at          bigint not null,
  expires_at  bigint not null,
  name        text not null,
  payload     text not null
);
create index event_name on evenflow.event (name, number);
create index event_expiry on evenflow.event (expires_at);

-- Jobs that have let go of their slot until an event comes.
create table evenflow.event_wait (
  job_id  bigint primary key,
  after   bigint not null,
  name    text not null
);
create index event_wait_name on evenflow.event_wait (name);
