-- Bounds of queues, uniqueness that outlives its job, and narrow ways for the sweep of keys.

-- At most max_ready jobs of a queue are ready; the others wait as `overflow`. bound_is_set: set at run time, the code is
-- not asked. Whoever fills a queue up locks this row and counts.
alter table evenflow.queue add column max_ready integer check (max_ready > 0);
alter table evenflow.queue add column on_full text not null default 'overflow' check (on_full in ('overflow', 'reject'));
alter table evenflow.queue add column bound_is_set boolean not null default false;

-- The line before a bounded queue, in the order in which it is let in: that of the claim.
create index job_overflow on evenflow.job (queue, priority, turn, id) where state = 'overflow';

-- Who holds keys, oldest first: what the sweep has to look at. Those that wait are not in it.
create index hold_held on evenflow.hold (held_at, job_id) where phase = 2;

-- A unique key that stays taken until a moment, whether or not its job is still open.
create table evenflow.unique_mark (
  until       bigint not null,
  job_id      bigint not null,
  unique_key  text primary key
) with (autovacuum_vacuum_threshold = 1000, autovacuum_vacuum_scale_factor = 0.02);
create index unique_mark_until on evenflow.unique_mark (until);
