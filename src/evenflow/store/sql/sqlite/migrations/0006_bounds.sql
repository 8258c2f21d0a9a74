-- Bounds of queues, uniqueness that outlives its job, and narrow ways for the sweep. The twin of the PostgreSQL file.

alter table evenflow_queue add column max_ready integer check (max_ready > 0);
alter table evenflow_queue add column on_full text not null default 'overflow' check (on_full in ('overflow', 'reject'));
alter table evenflow_queue add column bound_is_set integer not null default 0;

create index evenflow_job_overflow on evenflow_job (queue, priority, turn, id) where state = 'overflow';
create index evenflow_hold_held on evenflow_hold (held_at, job_id) where phase = 2;

create table evenflow_unique_mark (
  until       integer not null,
  job_id      integer not null,
  unique_key  text primary key
) strict, without rowid;
create index evenflow_unique_mark_until on evenflow_unique_mark (until);
