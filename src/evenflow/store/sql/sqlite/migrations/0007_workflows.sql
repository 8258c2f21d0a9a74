-- Workflows: runs, their steps, the edges between them; and what bodies remember between their attempts.
-- The twin of the PostgreSQL file.

create table evenflow_run (
  id           integer primary key,
  created_at   integer not null,
  finished_at  integer,
  expires_at   integer,
  state        text not null check (state in ('running', 'paused', 'succeeded', 'failed', 'cancelled')),
  on_error     text not null check (on_error in ('fail', 'pause')),
  name         text not null,
  run_key      text,
  policy       text,
  error        text,
  paused_why   text
) strict;
create unique index evenflow_run_key on evenflow_run (run_key) where run_key is not null;
create index evenflow_run_expiry on evenflow_run (expires_at) where expires_at is not null;

create table evenflow_step (
  id            integer primary key,
  run_id        integer not null,
  container     integer,
  ended_at      integer,
  delay_us      integer,
  not_before    integer,
  ordinal       integer not null,
  needs         integer,
  allow_failed  integer not null,
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
) strict;
create index evenflow_step_run on evenflow_step (run_id, id);
create index evenflow_step_member on evenflow_step (container, ordinal) where container is not null;

create table evenflow_edge (
  parent   integer not null,
  child    integer not null,
  outcome  integer not null default 0,
  primary key (parent, child)
) strict, without rowid;
create index evenflow_edge_child on evenflow_edge (child, outcome, parent);

create table evenflow_step_end (
  run_id   integer not null,
  step_id  integer not null,
  primary key (run_id, step_id)
) strict, without rowid;

create table evenflow_memo (
  job_id      integer not null,
  expires_at  integer not null,
  name        text not null,
  value       text not null,
  primary key (job_id, name)
) strict, without rowid;
create index evenflow_memo_expiry on evenflow_memo (expires_at);

create table evenflow_event (
  number      integer primary key autoincrement,
  at          integer not null,
  expires_at  integer not null,
  name        text not null,
  payload     text not null
) strict;
create index evenflow_event_name on evenflow_event (name, number);
create index evenflow_event_expiry on evenflow_event (expires_at);

create table evenflow_event_wait (
  job_id  integer primary key,
  after   integer not null,
  name    text not null
) strict;
create index evenflow_event_wait_name on evenflow_event_wait (name);
